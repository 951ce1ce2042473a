"""The bodies that the LLM may receive, for the oracle: the conversation within what the agent itself puts around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.delivery.frames import ASKED
from tests.wire_formats import PLAIN, Format, Mapped

NEUTRAL = ("(attached:)", "(end)")
"""Texts that the gateway adds where the LLM needs one: before the attachments, and after them."""


def expected_bodies(
    wire: Format, own: dict[str, Any], mapped: Mapped, codes: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Every body that counts as the conversation having arrived."""
    codes |= {code for code, _ in mapped.notices}
    for turns, body in _with_system(wire, own, mapped):
        for run in _texts_joined(wire, turns) if "TEXT_JOINED" in codes and wire is not PLAIN else [turns]:
            if "HISTORY_FLATTENED" in codes:
                yield body
            else:
                yield from _framed(wire, body, run, codes)


def _with_system(wire: Format, own: dict[str, Any], mapped: Mapped) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the remaining turns, and the body with the system text after the agent's own."""
    leading, turns = split_system(mapped.messages)
    if not mapped.system:
        yield mapped.messages, own
    texts = [*mapped.system, *(part["text"] for turn in leading for part in parts_of(wire, turn))]
    if not texts:
        return
    after = "\n\n".join(["", *texts])
    copy = json.loads(json.dumps(own))
    own_turns = [
        *(block for block in copy.get("system") or [] if isinstance(block, dict)),
        *((copy.get("systemInstruction") or {}).get("parts") or []),
        *(part for turn in copy[wire.messages] if _is_system(turn) for part in parts_of(wire, turn)),
    ]
    if own_turns:
        own_turns[-1]["text"] += after
        yield turns, copy


def split_system(turns: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the system turns at the beginning, and the rest."""
    count = next((index for index, turn in enumerate(turns) if not _is_system(turn)), len(turns))
    return turns[:count], turns[count:]


def _is_system(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") in ("system", "developer")


def _framed(wire: Format, body: dict[str, Any], turns: list[Any], codes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The body with `turns` for the agent's turn that holds the question, the agent's text around the question."""
    field, content = wire.messages, wire.content
    places = [
        (index, position)
        for index, turn in enumerate(body[field])
        for position, part in enumerate(parts_of(wire, turn))
        if ASKED in json.dumps(part)
    ]
    if len(places) != 1:
        return
    (index, position), turn = places[0], body[field][places[0][0]]
    parts = parts_of(wire, turn)
    before, _, after = parts[position]["text"].partition(ASKED)
    rest = {name: value for name, value in turn.items() if name not in ("role", content)}

    def placed(run: list[Any], here: int | None) -> dict[str, Any]:
        run = list(run)
        if here is not None:
            inner = [*parts[:position], *parts_of(wire, run[here]), *parts[position + 1 :]]
            run[here] = {**rest, **run[here], content: inner}
        return {**body, field: [*body[field][:index], *run, *body[field][index + 1 :]]}

    asked = _asked(wire, turns, codes)
    for at, part in asked:
        yield placed(_wrapped(wire, turns, (at, part, before), (at, part, after)), at)
    if asked:
        pass
    elif not before and not after:
        if len(parts) == 1:
            yield placed(turns, None)
        elif turns[-1].get("role") == "user":
            yield placed(turns, len(turns) - 1)
        for at, _ in _last_text(wire, turns) if len(parts) > 1 else []:
            yield placed(turns, at)
    elif turns[-1].get("role") == "user":
        is_blank = not (before + after).strip()
        phrase = before + (NEUTRAL[1] if is_blank and "NEUTRAL_TEXT_ADDED" in codes else "") + after
        last = {**turns[-1], content: [*parts_of(wire, turns[-1]), wire.text(phrase)]}
        yield placed([*turns[:-1], last], len(turns) - 1)
    else:
        # The conversation ends with the assistant or a tool, and the agent's text is around what the user asked last.
        for at, part in _last_text(wire, turns):
            yield placed(_wrapped(wire, turns, (at, part, before), (at, part, after)), at)
    if turns[-1].get("role") == "user" and len(parts) == 1:
        yield placed(_enclosed(wire, turns, before, after), None)


def _asked(wire: Format, turns: list[Any], codes: frozenset[str]) -> list[tuple[int, int]]:
    """Turn and part of the last text of the user's turns after the last assistant turn.

    Where a document is sent as text, it may be any text of that turn.
    """
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].get("role") in ("assistant", "model"):
            return []
        if turns[index].get("role") != "user":
            continue
        texts = [at for at, part in enumerate(parts_of(wire, turns[index])) if is_text(wire, part)]
        if texts:
            return [(index, at) for at in (texts if "DOCUMENT_AS_TEXT" in codes else texts[-1:])]
    return []


def _last_text(wire: Format, turns: list[Any]) -> list[tuple[int, int]]:
    """Turn and part of the user's last text, wherever it is."""
    found = [
        (index, at)
        for index, turn in enumerate(turns)
        for at, part in enumerate(parts_of(wire, turn))
        if turn.get("role") == "user" and is_text(wire, part)
    ]
    return found[-1:]


def _wrapped(wire: Format, turns: list[Any], start: tuple[int, int, str], end: tuple[int, int, str]) -> list[Any]:
    copy = json.loads(json.dumps(turns))
    turn, part, phrase = start
    own_parts = parts_of(wire, copy[turn])
    own_parts[part]["text"] = phrase + own_parts[part]["text"]
    turn, part, phrase = end
    parts_of(wire, copy[turn])[part]["text"] += phrase
    return copy  # type: ignore[no-any-return]


def _enclosed(wire: Format, turns: list[Any], before: str, after: str) -> list[Any]:
    """The cluster's prompt around the whole last turn: its start before the first text, its end after the last."""
    parts = list(parts_of(wire, turns[-1]))
    if not is_text(wire, parts[0]):
        parts.insert(0, wire.text(""))
    if len(parts) == 1 or not is_text(wire, parts[-1]):
        parts.append(wire.text(""))
    last = {**turns[-1], wire.content: parts}
    at = len(turns) - 1
    return _wrapped(wire, [*turns[:-1], last], (at, 0, before), (at, len(parts) - 1, after))


def _texts_joined(wire: Format, turns: list[Any]) -> Iterator[list[Any]]:
    """The last turn's texts as one, each trimmed."""
    parts = parts_of(wire, turns[-1])
    if len(parts) > 1 and all(is_text(wire, part) for part in parts):
        phrase = "\n".join(part["text"].strip() for part in parts)
        yield [*turns[:-1], {**turns[-1], wire.content: [wire.text(phrase)]}]


def parts_of(wire: Format, turn: Any) -> list[Any]:
    content = turn.get(wire.content)
    if isinstance(content, str):
        return [wire.text(content)]
    return content if isinstance(content, list) else []


def is_text(wire: Format, part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part == wire.text(part["text"])
