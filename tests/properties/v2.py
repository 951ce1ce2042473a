"""What a `conversational_v2` agent must send to its LLM: a request of harmless words in a readable memory shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator.core import Executed
from tests.delivery.frames import parsed, replaced

Json = dict[str, Any]
SYSTEM = ("system", "developer")
CALLS_ALONE = "(tool call)"
_FORM = re.compile(r"\$\$\$\{parameters\.gw_[0-9a-f]{32}x\d+:-([^{}]*)\}")


def in_cluster_spelling(value: Any) -> Any:
    """Return an `input` of the tests' cases as the cluster itself reads it: every block typed, every content a list."""
    if isinstance(value, str):
        return value
    if "role" in value[0]:
        return [item for message in value for item in cluster_messages(message)]
    return value


def cluster_messages(message: Json) -> list[Json]:
    """Return a message in the cluster's spelling: each tool result is a message of its own, before the rest."""
    if isinstance(message["content"], str):
        return [{**message, "content": typed(message["content"])}]
    uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    results = [block["toolResult"] for block in message["content"] if "toolResult" in block]
    others = [block for block in message["content"] if not block.keys() & {"toolUse", "toolResult"}]
    content = [{"type": "text", **block} if "text" in block else block for block in others]
    functions = [{"name": use["name"], "arguments": json.dumps(use["input"])} for use in uses]
    calls = [
        {"id": use["toolUseId"], "type": "function", "function": function}
        for use, function in zip(uses, functions, strict=True)
    ]
    answers: list[Json] = [
        {"role": "tool", "toolCallId": one["toolUseId"], "content": one["content"]} for one in results
    ]
    rest = {**message, "content": content, **({"toolCalls": calls} if calls else {})}
    return [*answers, *([rest] if content or calls else [])]


def typed(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


def readable_messages(messages: Any) -> Any:
    """The messages of a session with the text that a later turn reads in place of each form."""
    match messages:
        case str():
            return _FORM.sub(lambda form: form[1], messages)
        case dict():
            return {name: readable_messages(member) for name, member in messages.items()}
        case list():
            return [readable_messages(item) for item in messages]
    return messages


def clean_request(provider: str, value: Any) -> tuple[Json, dict[str, str]]:
    """A request with a word in place of each text, and the texts by word.

    Bedrock gets system turns as a parameter. OpenAI gets a text in a turn of calls alone. value: in the cluster's
    spelling.
    """
    texts: dict[str, str] = {}

    def word(text: str) -> str:
        return next((w for w, t in texts.items() if t == text), None) or _add(texts, text)

    if isinstance(value, str):
        return {"input": word(value)}, texts
    for turn in value:
        for call in turn.get("toolCalls", ()):
            call["function"]["arguments"] = json.dumps(_worded(json.loads(call["function"]["arguments"]), word))
            if provider.startswith("openai/"):
                turn["content"] = turn["content"] or typed(CALLS_ALONE)
    for item in [block for one in value for block in (one["content"] if "role" in one else [one])]:
        if "text" in item:
            item["text"] = word(item["text"])
    if not provider.startswith("bedrock/") or "role" not in value[0]:
        return {"input": value}, texts
    system = [block["text"] for turn in value if turn["role"] in SYSTEM for block in turn["content"]]
    rest = [turn for turn in value if turn["role"] not in SYSTEM]
    return {"input": rest, **({"parameters": {"system_prompt": "\n\n".join(system)}} if system else {})}, texts


def _worded(value: Any, word: Any) -> Any:
    """The arguments of a call with a word in place of each text in them."""
    match value:
        case str():
            return word(value)
        case dict():
            return {name: _worded(member, word) for name, member in value.items()}
        case list():
            return [_worded(item, word) for item in value]
    return value


def _add(texts: dict[str, str], text: str) -> str:
    word = f"oracletext{len(texts)}end"
    texts[word] = text
    return word


def seen(executed: Executed, texts: Mapping[str, str] | None = None) -> tuple[int, list[Any]]:
    """Status, and what the LLM received. texts: what stands for each word of the request."""
    return executed.status, [replaced(_read(parsed(body)), texts or {}) for body in executed.llm_bodies]


def _read(value: Any) -> Any:
    """The body with the arguments of OpenAI's calls, JSON in a string, as data."""
    match value:
        case {"function": {"arguments": str(arguments)} as function}:
            return {**value, "function": {**function, "arguments": json.loads(arguments)}}
        case dict():
            return {name: _read(member) for name, member in value.items()}
        case list():
            return [_read(item) for item in value]
    return value
