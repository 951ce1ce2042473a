"""Compares what the client sent with what the LLM received. Plain values in, plain values out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gateway.execute.body import payloads_of
from gateway.providers.base import MappingOptions, Provider
from gateway.unified.model import AgentInput
from gateway.unified.payloads import insert
from gateway.unified.request import read_execute

_SHORTEST_PAYLOAD = 256
_SYSTEM = ("system", "developer")  # the agent's own turns
# What the gateway adds where a template must have text (docs/reference/limitations.md, NEUTRAL_TEXT_ADDED).
_NEUTRAL = ("(attached:)", "(end)")
Turn = dict[str, Any]


def read_conversation(body: Mapping[str, Any]) -> AgentInput:
    """Return the conversation in an execute body."""
    agent_input = read_execute(json.dumps(body).encode()).input
    assert agent_input is not None, "every body of the demo has an input"
    return agent_input


def map_turns(provider: Provider, body: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of an execute body as the provider's messages, with media.

    Raises:
        Inexpressible: the provider can't express the input.
    """
    agent_input = read_conversation(body)
    turns = provider.map(agent_input, MappingOptions()).messages
    with_media: list[Turn] = json.loads(b"".join(insert(json.dumps(turns).encode(), payloads_of(agent_input))))
    return with_media


def find_difference(
    provider: Provider, wanted: list[Turn], received: Any, prompt: str | None, notices: str = ""
) -> str:
    """Return why `received`, a body that the LLM received, does not have the `wanted` turns; "" if it has them.

    prompt: the agent's own prompt with ``${parameters.question}``. None if it is not known; any text may then be around
    the question. notices: the codes that the gateway reported; a split user turn and an added neutral text are accepted
    only if they were reported.
    """
    if not isinstance(received, dict) or provider.messages_field not in received:
        return "the LLM got no messages"
    want = provider.canonical(wanted)
    got = [t for t in provider.canonical(received[provider.messages_field]) if t["role"] not in _SYSTEM]
    if "USER_TURN_SPLIT" in notices:
        want, got = _join_user_turns(provider, want), _join_user_turns(provider, got)
    if "NEUTRAL_TEXT_ADDED" in notices:
        got = [{**turn, provider.content_field: _without_neutral(provider, turn)} for turn in got]
    if len(got) != len(want):
        return f"{len(want)} turns were sent, {len(got)} arrived"
    for number, (sent, arrived) in enumerate(zip(want, got, strict=True), 1):
        same = sent == arrived if number < len(want) else _matches_prompt(provider, sent, arrived, prompt)
        if not same:
            return f"turn {number} arrived changed"
    return ""


def _without_neutral(provider: Provider, turn: Turn) -> list[Any]:
    return [part for part in _parts(provider, turn) if _only_text(part) not in _NEUTRAL]


def _matches_prompt(provider: Provider, sent: Turn, arrived: Turn, prompt: str | None) -> bool:
    """Return True if `arrived` is `sent` with the agent's prompt around its last text."""
    field = provider.content_field
    before, after = _parts(provider, sent), _parts(provider, arrived)
    if {**sent, field: None} != {**arrived, field: None} or len(before) != len(after):
        return False
    asked = max(number for number, part in enumerate(before) if _only_text(part))
    others = [number for number in range(len(before)) if number != asked]
    if any(before[number] != after[number] for number in others):
        return False
    question, text = _only_text(before[asked]), _only_text(after[asked])
    if prompt is None:
        return text.count(question) == 1 and text != question
    return text == prompt.replace("${parameters.question}", question)


def _parts(provider: Provider, turn: Turn) -> list[Any]:
    content = turn.get(provider.content_field)
    return [provider.text_part(content)] if isinstance(content, str) else list(content or [])


def _only_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def _join_user_turns(provider: Provider, turns: list[Turn]) -> list[Turn]:
    joined: list[Turn] = []
    field = provider.content_field
    for turn in turns:
        if joined and turn["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {**joined[-1], field: [*_parts(provider, joined[-1]), *_parts(provider, turn)]}
        else:
            joined.append(turn)
    return joined


def format_conversation(conversation: Any, field: str = "content") -> str:
    """Format text, content blocks or turns as lines, payloads as length and hash. field: member with a turn's parts."""
    lines = []
    for item in conversation if isinstance(conversation, list) else [conversation]:
        if isinstance(item, dict) and "role" in item:
            parts = item.get(field)
            lines.append(f"{item['role']}:")
            lines += [f"  {line}" for part in (parts if isinstance(parts, list) else [parts]) for line in _lines(part)]
        else:
            lines += _lines(item)
    return "\n".join(lines)


def _lines(part: Any) -> list[str]:
    text = part if isinstance(part, str) else _only_text(part)
    if not text:
        text = json.dumps(shorten(part), ensure_ascii=False)
    return [line for line in text.splitlines() if line.strip()]


def shorten(value: Any) -> Any:
    """Replace every base64 payload in JSON data by its length in bytes and the start of its SHA-256."""
    match value:
        case dict():
            return {name: shorten(member) for name, member in value.items()}
        case list():
            return [shorten(item) for item in value]
        case str() if len(value) >= _SHORTEST_PAYLOAD:
            return _payload(value)
    return value


def _payload(text: str) -> str:
    head, comma, data = text.rpartition(",")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return text
    return f"{head}{comma}‹{len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()[:12]}›"
