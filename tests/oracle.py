"""Decides what became of a request, without the delivery's help.

The oracle knows three things: what the client said (the provider's mapping of it), what the agent itself puts
around a question (found by asking the agent, or a twin of it behind a connector that takes plain text, a harmless
word), and what the LLM received. From these it tells ARRIVED, REFUSED, LOST or BROKEN. Nothing here imports
`gateway.delivery`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gateway.execute.body import payloads_of
from gateway.providers import registry
from gateway.providers.base import Inexpressible, MappingOptions, Provider, ProviderRequest
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.question import question_text
from gateway.unified.request import parameters_as_strings
from tests.delivery.frames import ASKED, TOLD, Frames, Mismatch, parsed, replaced
from tests.delivery.world import Pairs, Sent, World

NEUTRAL = ("(attached:)", "(end)")
STORED_OTHERWISE = {"MEMORY_HOLDS_CODE", "MEMORY_HOLDS_REFERENCE", "MEMORY_PARTIAL"}


class Outcome(Enum):
    ARRIVED = "arrived"
    REFUSED = "refused"
    LOST = "lost"
    BROKEN = "broken"


@dataclass(frozen=True)
class Verdict:
    """detail: the refusal's code, or what is wrong. strategy, notices: of the plan that was sent."""

    outcome: Outcome
    detail: str = ""
    strategy: str = ""
    notices: tuple[str, ...] = ()


class Oracle:
    """Judges requests to the agents of one world."""

    def __init__(self, world: World, options: MappingOptions | None = None) -> None:
        self.world = world
        self.options = options or MappingOptions()
        self.frames = Frames(world)

    def judge(self, name: str, parameters: Mapping[str, Any], pairs: Pairs, sent: Sent) -> Verdict:
        """The verdict on `sent`, a request with the caller's `parameters` to the agent `name`.

        pairs: what the memory in the caller's `memory_id` held.
        """
        if sent.error is not None:
            problems = sent.error.problems
            if sent.error.status != 400 or not problems:
                return Verdict(Outcome.BROKEN, f"refused with {sent.error.status} and {len(problems)} problems")
            return Verdict(Outcome.REFUSED, problems[0].code or sent.error.type)
        assert sent.rewritten is not None
        plan = sent.rewritten.plan
        codes = tuple(notice.code for notice in plan.notices)
        try:
            self._compare(name, parameters_as_strings(parameters), pairs, sent, frozenset(codes))
        except Mismatch as mismatch:
            outcome = Outcome.BROKEN if mismatch.broken else Outcome.LOST
            return Verdict(outcome, str(mismatch), plan.strategy, codes)
        return Verdict(Outcome.ARRIVED, "", plan.strategy, codes)

    def _compare(self, name: str, parameters: dict[str, str], pairs: Pairs, sent: Sent, codes: frozenset[str]) -> None:
        assert sent.executed is not None
        assert sent.input is not None
        if sent.executed.status != 200:
            raise Mismatch(f"{sent.executed.status} {json.dumps(sent.executed.body)[:600]}", broken=True)
        got = [parsed(body) for body in sent.executed.llm_bodies]
        if not got:
            raise Mismatch("no LLM was called", broken="NO_LLM" not in codes)
        said = sent.input
        stored = question_text(said, self.options.roles)
        if sent.stored not in (None, stored) and not codes & STORED_OTHERWISE:
            raise Mismatch(f"memory holds {sent.stored!r}, not {stored!r}")
        if "MEMORY_RETOLD" in codes:
            said = _retold(said, pairs)
            parameters, pairs = {**parameters, "message_history_limit": "0"}, ()
        if "SYSTEM_FOLDED" in codes:
            said = _folded(said)
        flat = "HISTORY_FLATTENED" in codes
        frame = self.frames.of(name, parameters, pairs, flat)
        if frame is None:
            raise Mismatch("the agent can't be asked at all", broken=True)
        profile = self.world.profile(name)
        if profile.provider:
            provider = registry.provider(profile.provider)
            try:
                mapped = _with_media(provider.map(said, self.options), sent.input)
            except Inexpressible as inexpressible:
                raise Mismatch(f"sent, though the provider can't express it: {inexpressible}") from None
            mapped = replace(mapped, messages=provider.canonical(mapped.messages))
            beside = {name: value for name, value in frame[0].items() if name != provider.messages_field}
            # Where the agent has the question beside the messages too (in its system text), it stands there as text.
            _known(provider, {**frame[0], **replaced(beside, {ASKED: stored})}, got[0], mapped, codes)
        else:
            _unknown(frame[0], got[0], said, codes)
        _later(frame[1:], got[1:], said)


def _known(provider: Provider, frame: Any, got: Any, mapped: ProviderRequest, codes: frozenset[str]) -> None:
    if not isinstance(got, dict) or not isinstance(frame, dict):
        raise Mismatch("the LLM request is no object", broken=True)
    own = {**frame, provider.messages_field: provider.canonical(frame[provider.messages_field])}
    seen = {**got, provider.messages_field: provider.canonical(got.get(provider.messages_field))}
    candidates = list(_expected(provider, own, mapped, codes))
    for wanted in candidates:
        if "HISTORY_FLATTENED" in codes:
            if _flattened(provider, wanted, seen, mapped, codes):
                return
        elif any(_same(provider, wanted, one, codes) for one in _without_neutral(provider, seen, codes)):
            return
    raise _difference(provider, own, seen, candidates)


def _expected(
    provider: Provider, own: dict[str, Any], mapped: ProviderRequest, codes: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Every body that counts as the conversation having arrived."""
    for turns, body in _with_system(provider, own, mapped):
        for said in _texts_joined(provider, turns) if "TEXT_JOINED" in codes else [turns]:
            if "HISTORY_FLATTENED" in codes:
                yield body
            else:
                yield from _framed(provider, body, said, codes)


def _with_system(
    provider: Provider, own: dict[str, Any], mapped: ProviderRequest
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The turns left to say, and the body with the system text behind the agent's own."""
    turns = mapped.messages
    leading = turns[: _leading(turns)]
    if not mapped.system:
        yield turns, own
    texts = [*mapped.system, *(part["text"] for turn in leading for part in _parts(provider, turn))]
    if not texts:
        return
    behind = "\n\n".join(["", *texts])
    copy = json.loads(json.dumps(own))
    holders = [
        *(block for block in copy.get("system") or [] if isinstance(block, dict)),
        *((copy.get("systemInstruction") or {}).get("parts") or []),
        *(part for turn in copy[provider.messages_field] if _is_system(turn) for part in _parts(provider, turn)),
    ]
    if holders:
        holders[-1]["text"] += behind
        yield turns[len(leading) :], copy


def _leading(turns: list[Any]) -> int:
    return next((index for index, turn in enumerate(turns) if not _is_system(turn)), len(turns))


def _is_system(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") in ("system", "developer")


def _framed(
    provider: Provider, body: dict[str, Any], turns: list[Any], codes: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """The body with `turns` for the agent's turn that holds the question, the agent's words around the question."""
    field, content = provider.messages_field, provider.content_field
    places = [
        (index, position)
        for index, turn in enumerate(body[field])
        for position, part in enumerate(_parts(provider, turn))
        if ASKED in json.dumps(part)
    ]
    if len(places) != 1:
        return
    (index, position), turn = places[0], body[field][places[0][0]]
    parts = _parts(provider, turn)
    before, _, behind = parts[position]["text"].partition(ASKED)
    rest = {name: value for name, value in turn.items() if name not in ("role", content)}

    def placed(said: list[Any], here: int | None) -> dict[str, Any]:
        said = list(said)
        if here is not None:
            inner = [*parts[:position], *_parts(provider, said[here]), *parts[position + 1 :]]
            said[here] = {**rest, **said[here], content: inner}
        return {**body, field: [*body[field][:index], *said, *body[field][index + 1 :]]}

    asked = _asked(provider, turns)
    if asked is not None:
        at, part = asked
        yield placed(_wrapped(provider, turns, (at, part, before), (at, part, behind)), at)
    elif not before and not behind:
        yield placed(turns, None)
    elif turns[-1].get("role") == "user":
        last = {**turns[-1], content: [*_parts(provider, turns[-1]), provider.text_part(before + behind)]}
        yield placed([*turns[:-1], last], len(turns) - 1)
    if "MEMORY_HOLDS_REFERENCE" in codes and turns[-1].get("role") == "user":
        yield placed(_enclosed(provider, turns, before, behind), None)


def _asked(provider: Provider, turns: list[Any]) -> tuple[int, int] | None:
    """Turn and part of the last text of the user's turns behind the last assistant's."""
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].get("role") in ("assistant", "model"):
            return None
        if turns[index].get("role") != "user":
            continue
        texts = [at for at, part in enumerate(_parts(provider, turns[index])) if _is_text(provider, part)]
        if texts:
            return index, texts[-1]
    return None


def _wrapped(provider: Provider, turns: list[Any], start: tuple[int, int, str], end: tuple[int, int, str]) -> list[Any]:
    copy = json.loads(json.dumps(turns))
    turn, part, words = start
    holder = _parts(provider, copy[turn])
    holder[part]["text"] = words + holder[part]["text"]
    turn, part, words = end
    _parts(provider, copy[turn])[part]["text"] += words
    return copy  # type: ignore[no-any-return]


def _enclosed(provider: Provider, turns: list[Any], before: str, behind: str) -> list[Any]:
    """The cluster's prompt around the whole last turn: its start before the first text, its end behind the last."""
    parts = list(_parts(provider, turns[-1]))
    if not _is_text(provider, parts[0]):
        parts.insert(0, provider.text_part(""))
    if len(parts) == 1 or not _is_text(provider, parts[-1]):
        parts.append(provider.text_part(""))
    last = {**turns[-1], provider.content_field: parts}
    at = len(turns) - 1
    return _wrapped(provider, [*turns[:-1], last], (at, 0, before), (at, len(parts) - 1, behind))


def _without_neutral(provider: Provider, seen: dict[str, Any], codes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The body as it is and, with the notice, without neutral texts at the ends of user turns."""
    yield seen
    if "NEUTRAL_TEXT_ADDED" not in codes:
        return
    lead, tail = (provider.text_part(words) for words in NEUTRAL)
    field, content = provider.messages_field, provider.content_field
    for starts, ends in ((True, False), (False, True), (True, True)):
        turns = []
        for turn in seen[field]:
            if turn.get("role") != "user":
                turns.append(turn)
                continue
            parts = _parts(provider, turn)
            if starts and parts[:1] == [lead]:
                parts = parts[1:]
            if ends and parts[-1:] == [tail]:
                parts = parts[:-1]
            turns.append({**turn, content: parts})
        yield {**seen, field: turns}


def _texts_joined(provider: Provider, turns: list[Any]) -> Iterator[list[Any]]:
    """The last turn's texts as one, each trimmed."""
    parts = _parts(provider, turns[-1])
    if all(_is_text(provider, part) for part in parts):
        words = "\n".join(part["text"].strip() for part in parts)
        yield [*turns[:-1], {**turns[-1], provider.content_field: [provider.text_part(words)]}]


def _flattened(provider: Provider, wanted: Any, seen: Any, mapped: ProviderRequest, codes: frozenset[str]) -> bool:
    """Whether the body is the agent's own, its question the last turn's text, its history the earlier turns."""
    turns = mapped.messages[_leading(mapped.messages) :] if not mapped.system else mapped.messages
    if not all(_is_text(provider, part) for turn in turns for part in _parts(provider, turn)):
        return False
    texts = [[part["text"] for part in _parts(provider, turn)] for turn in turns]
    question = "\n".join(text.strip() for text in texts[-1]) if len(texts[-1]) > 1 else texts[-1][0]
    names = ["Human:" if turn["role"] == "user" else "Assistant:" for turn in turns]
    told = [name + "\n".join(said) for name, said in zip(names, texts, strict=True)][:-1]
    return _matches(wanted, seen, question, r"\s*".join(["", *map(re.escape, told), ""]))


def _matches(wanted: Any, seen: Any, question: str, told: str) -> bool:
    match wanted:
        case str():
            pattern = re.escape(wanted).replace(TOLD, told).replace(ASKED, re.escape(question))
            return isinstance(seen, str) and re.fullmatch(pattern, seen, re.DOTALL) is not None
        case dict():
            return (
                isinstance(seen, dict)
                and wanted.keys() == seen.keys()
                and all(_matches(value, seen[name], question, told) for name, value in wanted.items())
            )
        case list():
            return (
                isinstance(seen, list)
                and len(wanted) == len(seen)
                and all(_matches(one, other, question, told) for one, other in zip(wanted, seen, strict=True))
            )
    return bool(wanted == seen)


def _same(provider: Provider, wanted: Any, seen: Any, codes: frozenset[str]) -> bool:
    if "USER_TURN_SPLIT" in codes:
        wanted, seen = (_runs_joined(provider, body) for body in (wanted, seen))
    return _exact(wanted) == _exact(seen)


def _runs_joined(provider: Provider, body: Any) -> Any:
    joined: list[Any] = []
    for turn in body[provider.messages_field]:
        if joined and turn.get("role") == "user" == joined[-1].get("role"):
            parts = [*_parts(provider, joined[-1]), *_parts(provider, turn)]
            joined[-1] = {**joined[-1], provider.content_field: parts}
        else:
            joined.append(turn)
    return {**body, provider.messages_field: joined}


def _difference(provider: Provider, own: Any, seen: Any, candidates: Sequence[Any]) -> Mismatch:
    """What is wrong: the agent's own part when any of its words or members are gone, else the client's."""
    wanted = _exact(candidates[0]) if candidates else "nothing: the agent's question stands in no message"
    why = f"\n  wanted {wanted}\n  got    {_exact(seen)}"
    heard = list(_strings(seen))
    words = [word for text in _strings(own) for word in re.split(f"{ASKED}|{TOLD}", text)]
    kept = all(any(word in text for text in heard) for word in words)
    rest = [name for name in own if name not in (provider.messages_field, "system", "systemInstruction")]
    same = own.keys() == seen.keys() and all(_exact(own[name]) == _exact(seen[name]) for name in rest)
    return Mismatch(why, broken=not kept or not same)


def _unknown(frame: Any, got: Any, said: AgentInput, codes: frozenset[str]) -> None:
    """A provider nobody knows takes one text, and earlier ones told in the agent's prompt."""
    texts = [
        [block.text for block in message.content if isinstance(block, Text) and block.text.strip()]
        for message in said.messages
    ]
    if any(not isinstance(block, Text) for message in said.messages for block in message.content):
        raise Mismatch("something that is no text was sent to an unknown provider")
    for message, words in zip(said.messages, texts, strict=True):
        if message.role.lower() not in ("user", "assistant", "system", "developer", "tool"):
            words[0] = f"[{message.role}]: {words[0]}"
    question = texts[-1][0] if len(texts[-1]) == 1 else "\n".join(text.strip() for text in texts[-1])
    names = ["Assistant:" if message.role.lower() == "assistant" else "Human:" for message in said.messages]
    told = [name + "\n".join(words) for name, words in zip(names, texts, strict=True)][:-1]
    if (len(texts) > 1) != ("HISTORY_FLATTENED" in codes) or (len(texts[-1]) > 1 and "TEXT_JOINED" not in codes):
        raise Mismatch("something was left out without a notice")
    if not _matches(frame, got, question, r"\s*".join(["", *map(re.escape, told), ""])):
        raise Mismatch(f"\n  wanted {_exact(frame)}\n  got    {_exact(got)}", broken=True)


def _later(frame: Sequence[Any], got: Sequence[Any], said: AgentInput) -> None:
    """Later calls of a flow keep their tools' own prompts."""
    if len(frame) != len(got):
        raise Mismatch(f"{len(got)} later LLM calls, not {len(frame)}", broken=True)
    for own, seen in zip(frame, got, strict=True):
        heard = list(_strings(seen))
        for text in _strings(own):
            for words in text.split(ASKED):
                if not any(words in one for one in heard):
                    raise Mismatch(f"a later call lost {words!r}: {_exact(seen)}", broken=True)


def _retold(said: AgentInput, pairs: Pairs) -> AgentInput:
    turns = [
        Message(role, (Text(text, ""),), "")
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return replace(said, messages=(*turns, *said.messages))


def _folded(said: AgentInput) -> AgentInput:
    """System texts at the start of the first user turn."""
    system = [message for message in said.messages if message.role.lower() in ("system", "developer")]
    others = [message for message in said.messages if message not in system]
    first = next(index for index, message in enumerate(others) if message.role.lower() == "user")
    blocks = [block for message in system for block in message.content]
    others[first] = replace(others[first], content=(*blocks, *others[first].content))
    return replace(said, messages=tuple(others))


def _with_media(mapped: ProviderRequest, said: AgentInput) -> ProviderRequest:
    """The mapping with payloads in the place of their tokens."""
    text = json.dumps(mapped.messages)
    for token, data in payloads_of(said).items():
        text = text.replace(token, bytes(data).decode())
    return replace(mapped, messages=json.loads(text))


def _parts(provider: Provider, turn: Any) -> list[Any]:
    content = turn.get(provider.content_field)
    if isinstance(content, str):
        return [provider.text_part(content)]
    return content if isinstance(content, list) else []


def _is_text(provider: Provider, part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part == provider.text_part(part["text"])


def _exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for member in value.values():
                yield from _strings(member)
        case list():
            for item in value:
                yield from _strings(item)
