"""Did what the client said reach the LLM? Plain values in, plain values out."""

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
# What the gateway adds where a template must have text (docs/limitations.md, NEUTRAL_TEXT_ADDED).
_NEUTRAL = ("(attached:)", "(end)")
Turn = dict[str, Any]


def spoken(body: Mapping[str, Any]) -> AgentInput:
    """Return the conversation in an execute body."""
    said = read_execute(json.dumps(body).encode()).input
    assert said is not None, "the demo's bodies all have an input"
    return said


def mapped(provider: Provider, body: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of an execute body in the provider's own words, media and all.

    Raises:
        Inexpressible: the provider has no words for it.
    """
    said = spoken(body)
    turns = provider.map(said, MappingOptions()).messages
    whole: list[Turn] = json.loads(b"".join(insert(json.dumps(turns).encode(), payloads_of(said))))
    return whole


def difference(provider: Provider, wanted: list[Turn], received: Any, prompt: str | None, notices: str = "") -> str:
    """Return why `received`, a body that the LLM got, does not carry the `wanted` turns; "" when it does.

    prompt: the agent's own prompt with ``${parameters.question}`` in it; None where its words are not known:
    then they must stand around the question. notices: the codes the gateway told the client; a split user turn
    and an added neutral text are forgiven only when they were told.
    """
    if not isinstance(received, dict) or provider.messages_field not in received:
        return "the LLM got no messages"
    want = provider.canonical(wanted)
    got = [t for t in provider.canonical(received[provider.messages_field]) if t["role"] not in _SYSTEM]
    if "USER_TURN_SPLIT" in notices:
        want, got = _joined(provider, want), _joined(provider, got)
    if "NEUTRAL_TEXT_ADDED" in notices:
        got = [{**turn, provider.content_field: _without_neutral(provider, turn)} for turn in got]
    if len(got) != len(want):
        return f"{len(want)} turns were said, {len(got)} arrived"
    for number, (said, came) in enumerate(zip(want, got, strict=True), 1):
        same = said == came if number < len(want) else _prompted(provider, said, came, prompt)
        if not same:
            return f"turn {number} arrived changed"
    return ""


def _without_neutral(provider: Provider, turn: Turn) -> list[Any]:
    return [part for part in _parts(provider, turn) if _only_text(part) not in _NEUTRAL]


def _prompted(provider: Provider, said: Turn, came: Turn, prompt: str | None) -> bool:
    """Return True if `came` is `said` with the agent's prompt around its last text."""
    field = provider.content_field
    before, after = _parts(provider, said), _parts(provider, came)
    if {**said, field: None} != {**came, field: None} or len(before) != len(after):
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


def _joined(provider: Provider, turns: list[Turn]) -> list[Turn]:
    joined: list[Turn] = []
    field = provider.content_field
    for turn in turns:
        if joined and turn["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {**joined[-1], field: [*_parts(provider, joined[-1]), *_parts(provider, turn)]}
        else:
            joined.append(turn)
    return joined


def told(conversation: Any, field: str = "content") -> str:
    """Text, content blocks or turns as lines to read, payloads by length and hash. field: where a turn's parts are."""
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
        text = json.dumps(shortened(part), ensure_ascii=False)
    return [line for line in text.splitlines() if line.strip()]


def shortened(value: Any) -> Any:
    """JSON data with every base64 payload as its length in bytes and the start of its SHA-256."""
    match value:
        case dict():
            return {name: shortened(member) for name, member in value.items()}
        case list():
            return [shortened(item) for item in value]
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
