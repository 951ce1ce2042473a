"""Turns of a provider as the messages of an `input` that a V2 agent's cluster makes these turns of.

The inverse of `gateway.mlcommons.v2_messages`. What the cluster can't make comes out as something else, which the
proof finds (`gateway.delivery.native`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.mlcommons.v2_messages import BEDROCK, OPENAI

Turn = Mapping[str, Any]
Written = dict[str, Any]
"""A message of an `input` in the cluster's own spelling."""


def as_cluster_messages(provider: str, turns: Iterable[Turn], formats: Mapping[str, str]) -> list[Written]:
    """Return the messages of an `input` for a provider's turns.

    provider: ``BEDROCK`` or ``OPENAI``. formats: the format of each image by URL, which OpenAI's turns don't have.
    """
    if provider == BEDROCK:
        return [message for turn in turns for message in _of_bedrock(turn)]
    assert provider == OPENAI
    return [_of_openai(turn, formats) for turn in turns]


def _of_bedrock(turn: Turn) -> Iterator[Written]:
    """Yield a message for each tool's result, and one for the rest."""
    content: list[Written] = []
    calls: list[Written] = []
    for part in turn["content"]:
        match part:
            case {"toolResult": {"toolUseId": id, "content": parts}}:
                yield {"role": "tool", "toolCallId": id, "content": [_of_bedrock_part(one) for one in parts]}
            case {"toolUse": {"toolUseId": id, "name": name, "input": value}}:
                calls.append(_call(id, name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
            case _:
                content.append(_of_bedrock_part(part))
    if content or calls:
        yield _message(turn["role"], content, calls)


def _of_bedrock_part(part: Turn) -> Written:
    ((kind, value),) = part.items()
    if kind == "text":
        return _text(value)
    return {"type": kind, "source": {"type": "base64", "format": value["format"], "data": value["source"]["bytes"]}}


def _of_openai(turn: Turn, formats: Mapping[str, str]) -> Written:
    content = [_of_openai_part(part, formats) for part in turn["content"] or ()]
    if turn["role"] == "tool":
        return {"role": "tool", "toolCallId": turn["tool_call_id"], "content": content}
    calls = [
        _call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in turn.get("tool_calls", ())
    ]
    return _message(turn["role"], content, calls)


def _of_openai_part(part: Turn, formats: Mapping[str, str]) -> Written:
    if part["type"] == "text":
        return _text(part["text"])
    url: str = part["image_url"]["url"]
    start, is_inline, data = url.partition(";base64,")
    if is_inline and start.startswith("data:image/"):
        return {
            "type": "image",
            "source": {"type": "base64", "format": start.removeprefix("data:image/"), "data": data},
        }
    return {"type": "image", "source": {"type": "url", "format": formats[url], "data": url}}


def _message(role: str, content: list[Written], calls: list[Written]) -> Written:
    return {"role": role, "content": content, **({"toolCalls": calls} if calls else {})}


def _call(id: str, name: str, arguments: str) -> Written:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(text: str) -> Written:
    return {"type": "text", "text": text}
