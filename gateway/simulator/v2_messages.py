"""The messages of V2 agents in the format of each provider, with the cluster's own defects.

Recorded on 3.8.0: Bedrock gets only the first block of a tool's result; Gemini has two roles, no tool calls, and gets
the format of a document as its media type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gateway.simulator.errors import Json, illegal_argument
from gateway.simulator.render import fill
from gateway.simulator.values import RawJson

Message = Mapping[str, Any]
"""A message as in the request's `input`: role, content, toolCalls, toolCallId."""


class Reading(NamedTuple):
    """A model's answer: its texts, its tool calls as in a `Message`, and the numbers of tokens in, out and in total."""

    texts: list[str]
    calls: list[Json]
    usage: tuple[int, int, int]

    @property
    def message(self) -> Json:
        """The assistant's message."""
        content = [{"type": "text", "text": text} for text in self.texts]
        return {"role": "assistant", "content": content, **({"toolCalls": self.calls} if self.calls else {})}


def messages_of(given: str | list[Any]) -> list[Message]:
    """Return the messages of an `input`: a text and a list of blocks are one user message."""
    if isinstance(given, str):
        given = [{"type": "text", "text": given}]
    if given and "role" in given[0]:
        return list(given)
    return [{"role": "user", "content": given}]


def mapped(provider: str, messages: Iterable[Message]) -> list[Json]:
    """Return messages as a provider's request has them.

    Raises:
        ExecuteFailure: 400 for media that the cluster does not map.
    """
    return [_MESSAGES[provider](message) for message in messages]


def read(provider: str, answer: Mapping[str, Any]) -> Reading:
    """Read a model's answer, of any provider but Gemini."""
    return {BEDROCK: _read_bedrock, OPENAI: _read_openai}[provider](answer)


BEDROCK, OPENAI, GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"


def _blocks(message: Message, block: Callable[[str, Mapping[str, Any]], Json]) -> list[Json]:
    items = message.get("content") or ()
    for kind in (str(item["type"]).upper() for item in items):
        if kind not in _KINDS:
            raise illegal_argument(f"No enum constant org.opensearch.ml.common.input.execute.agent.ContentType.{kind}")
    return [block(str(item["type"]).lower(), item) for item in items]


_KINDS = ("TEXT", "IMAGE", "DOCUMENT", "VIDEO")


def _text(item: Mapping[str, Any]) -> str:
    """Return a block's text. It is filled in twice, without any parameters, before the connector's template is.

    docs/evidence/facts.md, "What memory keeps from turn to turn", 9.
    """
    text = item.get("text")
    return _filled(text) if isinstance(text, str) else json.dumps(text)


def _filled(text: str) -> str:
    return fill(fill(text, {}), {})


# Bedrock


def _bedrock_message(message: Message) -> Json:
    content = _blocks(message, _bedrock_block)
    if message["role"] == "tool":
        result = {"toolUseId": message.get("toolCallId"), "content": content[:1]}
        return {"role": "user", "content": [{"toolResult": result}]}
    calls = [
        {"toolUse": {"toolUseId": call["id"], "name": call["function"]["name"], "input": RawJson(_arguments(call))}}
        for call in message.get("toolCalls") or ()
    ]
    return {"role": message["role"], "content": [*content, *calls]}


def _arguments(call: Mapping[str, Any]) -> str:
    """Return the arguments of a call, JSON text that is filled in as `_text` is (docs/evidence/facts.md, 9)."""
    return _filled(call["function"]["arguments"])


def _bedrock_block(kind: str, item: Mapping[str, Any]) -> Json:
    if kind == "text":
        return {"text": _text(item)}
    source = item["source"]
    name = {"name": "document"} if kind == "document" else {}
    if source["type"] == "base64":
        return {kind: {"format": source["format"], **name, "source": {"bytes": source["data"]}}}
    if not source["data"].startswith("s3://"):
        raise illegal_argument(
            "URL-based content must use S3 URIs (s3://...). Other URL schemes are not supported by Bedrock Converse API"
        )
    return {kind: {"format": source["format"], **name, "source": {"s3Location": source["data"]}}}


def _read_bedrock(answer: Mapping[str, Any]) -> Reading:
    content = answer["output"]["message"]["content"]
    usage = answer.get("usage") or {}
    calls = [
        {
            "id": block["toolUse"]["toolUseId"],
            "type": "function",
            "function": {"name": block["toolUse"]["name"], "arguments": json.dumps(block["toolUse"]["input"])},
        }
        for block in content
        if "toolUse" in block
    ]
    tokens = [int(usage.get(name, 0)) for name in ("inputTokens", "outputTokens", "totalTokens")]
    return Reading([block["text"] for block in content if "text" in block], calls, (tokens[0], tokens[1], tokens[2]))


# OpenAI


def _openai_message(message: Message) -> Json:
    mapped: Json = {"role": message["role"], "content": _blocks(message, _openai_block)}
    if message.get("toolCalls"):
        calls = message["toolCalls"]
        mapped["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call)}} for call in calls
        ]
    if message["role"] == "tool":
        mapped["tool_call_id"] = message.get("toolCallId")
    return mapped


def _openai_block(kind: str, item: Mapping[str, Any]) -> Json:
    if kind == "text":
        return {"type": "text", "text": _text(item)}
    if kind != "image":
        raise illegal_argument(f"{kind.capitalize()} content is not supported in OpenAI Chat Completions API. ")
    source = item["source"]
    inline = source["type"] == "base64"
    url = f"data:image/{source['format']};base64,{source['data']}" if inline else source["data"]
    return {"type": "image_url", "image_url": {"url": url}}


def _read_openai(answer: Mapping[str, Any]) -> Reading:
    message = answer["choices"][0]["message"]
    usage = answer.get("usage") or {}
    tokens = [int(usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    texts = [message["content"]] if message.get("content") else []
    return Reading(texts, list(message.get("tool_calls") or ()), (tokens[0], tokens[1], tokens[2]))


# Gemini


def _gemini_message(message: Message) -> Json:
    role = "user" if message["role"] == "user" else "model"
    return {"role": role, "parts": _blocks(message, _gemini_part)}


def _gemini_part(kind: str, item: Mapping[str, Any]) -> Json:
    if kind == "text":
        return {"text": _text(item)}
    source = item["source"]
    media_type = source["format"] if kind == "document" else f"{kind}/{source['format']}"
    if kind == "image" and source["type"] == "base64":
        return {"inlineData": {"mimeType": media_type, "data": source["data"]}}
    return {"fileData": {"mimeType": media_type, "fileUri": source["data"]}}


_MESSAGES: Mapping[str, Callable[[Message], Json]] = {
    BEDROCK: _bedrock_message,
    OPENAI: _openai_message,
    GEMINI: _gemini_message,
}
