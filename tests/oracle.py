"""Decides what became of a request, without the gateway's help.

The oracle knows three things: the client's input (mapped by its own `wire_formats`), what the agent itself
puts around a question (found by sending a harmless word to the agent, or to a copy of it whose connector takes plain
text), and what the LLM received. From these it decides ARRIVED, REFUSED, LOST or BROKEN, and whether the
notices report what happened and nothing else. The rules are plain code: nothing is imported from the
gateway but the model of the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec.structs import replace

from gateway.unified.model import AgentInput, InputType, Media, Message, Text
from tests.delivery.frames import ASKED, HISTORY, Frames, Mismatch, parsed, replaced
from tests.delivery.simulated_cluster import Pairs, Sent, SimulatedCluster
from tests.oracle_bodies import NEUTRAL, expected_bodies, is_text, parts_of, split_system
from tests.oracle_rules import (
    as_written,
    check_memory,
    media_of,
    question_of,
    readable,
    slot_parameters,
    with_folded_system,
    with_notes,
    with_remembered,
    with_tools_as_text,
    without_slot_medium,
)
from tests.wire_formats import (
    FORMATS,
    PLAIN,
    Format,
    Found,
    Mapped,
    NotMappable,
    canonical,
    is_claude,
    is_converse,
    map_conversation,
    standard_role,
)

# Notices of how a conversation was delivered; all others are about its mapping (`Mapped.notices`).
DELIVERY = {
    "FORMAT_GUESSED", "HISTORY_FLATTENED", "HISTORY_IN_QUESTION", "LLM_NOT_READ", "MEDIA_DESCRIBED", "MEDIA_IN_SLOT",
    "MEMORY_HOLDS_CODE", "MEMORY_HOLDS_NOTE", "MEMORY_RETOLD", "SYSTEM_FOLDED", "TEXT_JOINED", "TOOLS_AS_TEXT",
    "TOOLS_DECLARED", "USER_TURN_SPLIT",
}  # fmt: skip
ADDED_TEXT = ("NEUTRAL_TEXT_ADDED", "")


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
    """Judges requests to the agents of one simulated cluster."""

    def __init__(self, cluster: SimulatedCluster, roles: Mapping[str, str] | None = None) -> None:
        """roles: the operator's role table."""
        self.cluster = cluster
        self.roles = roles or {}
        self.frames = Frames(cluster)

    def judge(
        self, name: str, parameters: Mapping[str, Any], pairs: Pairs, sent: Sent, has_unanswered: bool = False
    ) -> Verdict:
        """The verdict on `sent`, a request with the caller's `parameters` to the agent `name`.

        pairs: what the memory in the caller's `memory_id` held, as it is stored. has_unanswered: it held a turn without
        an answer, too.
        """
        if sent.error is not None:
            problems = sent.error.problems
            if sent.error.status != 400 or not problems:
                return Verdict(Outcome.BROKEN, f"refused with {sent.error.status} and {len(problems)} problems")
            return Verdict(Outcome.REFUSED, problems[0].code or sent.error.type)
        assert sent.rewritten is not None
        plan = sent.rewritten.plan
        notices = {(notice.code, notice.place) for notice in plan.notices}
        codes = tuple(notice.code for notice in plan.notices)
        try:
            if len(notices) != len(codes):
                raise Mismatch(f"a notice is repeated: {codes}")
            self._compare(name, _as_strings(parameters), pairs, sent, notices, has_unanswered)
        except Mismatch as mismatch:
            outcome = Outcome.BROKEN if mismatch.broken else Outcome.LOST
            return Verdict(outcome, str(mismatch), plan.strategy, codes)
        return Verdict(Outcome.ARRIVED, "", plan.strategy, codes)

    def _compare(
        self,
        name: str,
        parameters: dict[str, str],
        pairs: Pairs,
        sent: Sent,
        notices: Found,
        has_unanswered: bool,
    ) -> None:
        assert sent.executed is not None
        assert sent.input is not None
        assert sent.rewritten is not None
        codes = frozenset(code for code, place in notices if code in DELIVERY or (code, place) == ADDED_TEXT)
        if sent.executed.status != 200:
            raise Mismatch(f"{sent.executed.status} {json.dumps(sent.executed.body)[:600]}", broken=True)
        got = [parsed(body) for body in sent.executed.llm_bodies]
        if not got:
            raise Mismatch("no LLM was called", broken=True)
        described = {place for code, place in notices if code == "MEDIA_DESCRIBED"}
        conversation = with_notes(sent.input, described)
        question = question_of(conversation, self.roles)
        if sent.rewritten.plan.question != question:
            raise Mismatch(f"the question is {sent.rewritten.plan.question!r}, not {question!r}")
        replay_off = sent.rewritten.plan.parameters.get("message_history_limit") == "0"
        if ("MEMORY_RETOLD" in codes) != replay_off or (replay_off and not (pairs or has_unanswered)):
            raise Mismatch(
                f"the agent's replay is {'off' if replay_off else 'on'}, and the notices are {sorted(codes)}"
            )
        written = {place for code, place in notices if code == "TOOLS_AS_TEXT"}
        in_slot = [medium for medium in media_of(conversation) if ("MEDIA_IN_SLOT", medium.at) in notices]
        if "MEDIA_IN_SLOT" in codes:
            alone = [turn.content for turn in conversation.messages if turn.content == tuple(in_slot)]
            if alone and ADDED_TEXT not in notices:
                raise Mismatch("a text was added to a turn that was a medium alone, and it was not reported")
            if alone:
                codes -= {"NEUTRAL_TEXT_ADDED"}  # it is in the conversation from here on
            conversation = without_slot_medium(conversation, in_slot)
            parameters = {**parameters, **slot_parameters(sent.rewritten.plan.parameters, in_slot[0])}
        if "MEMORY_RETOLD" in codes:
            written_pairs = [(as_written(question), answer) for question, answer in pairs]
            conversation = with_remembered(conversation, written_pairs, self.roles)
            parameters, pairs = {**parameters, "message_history_limit": "0"}, ()
        altered = any(readable(stored) != as_written(stored) for stored, _ in pairs)
        pairs = [(readable(stored), answer) for stored, answer in pairs]
        folded = {place for code, place in notices if code == "SYSTEM_FOLDED"}
        if folded:
            conversation = with_folded_system(conversation, self.roles, folded)
        if written:
            conversation = with_tools_as_text(conversation, self.roles, written)
        check_memory(sent.stored, question, with_notes(sent.input, described), codes, self.roles)
        flat = "HISTORY_FLATTENED" in codes
        is_text = all(isinstance(block, Text) for block in conversation.messages[-1].content)
        runs_other = self._runs_another_llm(name, parameters)
        if runs_other != (("LLM_NOT_READ", "") in notices) or ("LLM_NOT_READ" in codes and not runs_other):
            raise Mismatch("an LLM that is not read is reported where there is none, or not where there is one")
        provider = "" if runs_other else self.cluster.profile(name).provider
        is_guessed = "FORMAT_GUESSED" in codes
        if is_guessed and (provider or runs_other):
            raise Mismatch("a format is reported as guessed, and it is known")
        if not (is_guessed or provider or runs_other) and self.frames.array(name)[0]:
            raise Mismatch("the format of the messages was guessed without a notice")
        codes -= {"TEXT_JOINED"} if is_guessed else set()  # there it is part of the mapping
        one_text = (flat and is_text) or not provider
        if one_text and codes & {"NEUTRAL_TEXT_ADDED", "USER_TURN_SPLIT"}:
            raise Mismatch("no message was changed, for there is one text only")
        frame = self.frames.of(name, parameters, pairs, flat)
        can_retell = self.cluster.profile(name).generation.name != "UNIFIED_V1"
        if altered and can_retell and frame != self.frames.of(name, parameters, (), flat):
            raise Mismatch("the agent replays a text with altered braces, and the gateway can send what was written")
        if frame is None:
            raise Mismatch("the agent can't be asked at all", broken=True)
        if is_guessed:
            self._check_guess(name, frame[0], got[0])
        for medium in in_slot:
            self._check_slot(name, medium, frame[0])
        try:
            if provider or is_guessed:
                wire = FORMATS[provider] if provider else PLAIN
                client = with_notes(sent.input, described)
                client = with_tools_as_text(client, self.roles, written) if written else client
                reported = map_conversation(wire, client, self.roles).notices
                mapped = map_conversation(wire, conversation, self.roles)
                reported |= {(code, place) for code, place in mapped.notices if place.startswith("memory[")}
                beside = {member: value for member, value in frame[0].items() if member != wire.messages}
                # Where the agent has the question beside the messages too (in its system text), it is text there.
                _known(wire, {**frame[0], **replaced(beside, {ASKED: question})}, got[0], mapped, codes)
            else:
                reported = _unknown(frame[0], got[0], conversation, codes, self.roles)
        except NotMappable as why:
            raise Mismatch(f"sent, though the provider has no way to say it: {why}") from None
        rest = {(code, place) for code, place in notices if code not in codes or code == "NEUTRAL_TEXT_ADDED"}
        if rest - {ADDED_TEXT} != reported:
            raise Mismatch(f"reported {sorted(rest)}, not {sorted(reported)}")
        _later(frame[1:], got[1:], conversation)

    def _runs_another_llm(self, name: str, parameters: Mapping[str, str]) -> bool:
        """Whether a tool of a flow calls an LLM that no request can be rendered for: a RAGTool's, or another agent's.

        What a flow without memory calls is known, but not what follows it from 3.0 on.
        """
        shown = self.cluster.core.resources.agent
        agent = shown(self.cluster.agents[name])
        chosen = json.loads(parameters.get("selected_tools", "null"))
        tools = [t for t in agent.get("tools") or () if chosen is None or (t.get("name") or t["type"]) in chosen]
        for at, tool in enumerate(tools if agent["type"].endswith("flow") else ()):
            if tool["type"] == "RAGTool":
                return True
            if tool["type"] == "AgentTool":
                run = shown(tool["parameters"]["agent_id"])
                follows = any(t["type"] in ("MLModelTool", "AgentTool") for t in tools[at + 1 :])
                others = any(t["type"] in ("AgentTool", "RAGTool") for t in run.get("tools") or ())
                if run["type"] != "flow" or others or (follows and self.cluster.core.modern):
                    return True
        return False

    def _check_guess(self, name: str, frame: Any, got: Any) -> None:
        """The LLM got turns in a guessed form: all of them, or more than the agent's own."""
        own, seen = (body.get(PLAIN.messages) if isinstance(body, dict) else None for body in (frame, got))
        if not isinstance(own, list) or not isinstance(seen, list):
            raise Mismatch("a format is reported as guessed, and the LLM takes no turns")
        if len(own) == len(seen) and not self.frames.array(name)[0]:
            raise Mismatch("a format is reported as guessed, and the turns are the agent's own")

    def _check_slot(self, name: str, medium: Media, frame: Any) -> None:
        """The medium is in the agent's own part, as the provider takes it."""
        wire = FORMATS[self.cluster.profile(name).provider]
        asked = AgentInput(InputType.MESSAGES, (Message("user", (Text("x", ""), medium), ""),))
        (turn,) = map_conversation(wire, asked, self.roles).messages
        own = [part for turn in frame[wire.messages] for part in parts_of(wire, turn)]
        if parts_of(wire, turn)[-1] not in own:
            raise Mismatch(f"the template's own part is not {medium.at}: {_exact(own)}")


def _as_strings(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as the cluster has them: a string as it is, any other value as its JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in parameters.items()
    }


def _known(wire: Format, frame: Any, got: Any, mapped: Mapped, codes: frozenset[str]) -> None:
    if not isinstance(got, dict) or not isinstance(frame, dict):
        raise Mismatch("the LLM request is no object", broken=True)
    if "HISTORY_FLATTENED" in codes and not all(is_text(wire, part) for part in parts_of(wire, mapped.messages[-1])):
        frame, mapped = _with_flat_history(wire, frame, mapped)
        codes -= {"HISTORY_FLATTENED"}
    if "HISTORY_IN_QUESTION" in codes:
        mapped = _as_one_text(wire, mapped)
    if "TOOLS_DECLARED" in codes:
        got = _without_declarations(wire, frame, got, mapped)
    own = _in_one_form(wire, frame)
    seen = _in_one_form(wire, got)
    candidates = list(expected_bodies(wire, own, mapped, codes))
    for wanted in candidates:
        if "HISTORY_FLATTENED" in codes:
            if _flattened(wire, wanted, seen, mapped, codes):
                return
        elif any(_same(wire, wanted, one, codes) for one in _without_neutral(wire, seen, codes)):
            return
    raise _difference(wire, own, seen, candidates)


def _as_one_text(wire: Format, mapped: Mapped) -> Mapped:
    """The conversation with all turns but leading system ones as one turn: a text, with the media inside it."""
    leading, turns = split_system(mapped.messages)
    if len(turns) < 2:
        raise Mismatch("reported as one text, and there is one turn only")
    phrases, media = [""], []
    for turn in turns:
        phrases[-1] += f"\n{_name(turn['role'])}" if phrases[-1] else _name(turn["role"])
        follows = False
        for part in parts_of(wire, turn):
            if is_text(wire, part):
                phrases[-1] += f"\n{part['text']}" if follows else part["text"]
                follows = True
            elif turn["role"] != "user":
                raise Mismatch("reported as one text, and the assistant's turn is more")
            else:
                media.append(part)
                phrases.append("")
                follows = False
    texts: list[Any] = [wire.text(phrase) if phrase else None for phrase in phrases]
    parts = [part for pair in zip(texts, [*media, None], strict=True) for part in pair if part is not None]
    return replace(mapped, messages=[*leading, {"role": "user", wire.content: parts}])


def _with_flat_history(wire: Format, frame: dict[str, Any], mapped: Mapped) -> tuple[dict[str, Any], Mapped]:
    """The frame with the earlier turns as its history, and the conversation without them."""
    leading, turns = split_system(mapped.messages)
    earlier = [(turn["role"], parts_of(wire, turn)) for turn in turns[:-1]]
    if not earlier or not all(is_text(wire, part) for _, parts in earlier for part in parts):
        raise Mismatch("reported as text, and the earlier turns are not all texts")
    history = _transcript([(role, [part["text"] for part in parts]) for role, parts in earlier])
    return replaced(frame, {HISTORY: f"{history}\n"}), replace(mapped, messages=[*leading, turns[-1]])


def _transcript(turns: Sequence[tuple[str, list[str]]]) -> str:
    return "\n".join(_name(role) + "\n".join(texts) for role, texts in turns)


def _name(role: str) -> str:
    return "Assistant:" if role in ("assistant", "model") else "Human:"


def _without_declarations(wire: Format, frame: dict[str, Any], got: dict[str, Any], mapped: Mapped) -> dict[str, Any]:
    """The body without the tools that are declared: those that the conversation's calls name, each once."""
    member = "tools" if is_claude(wire) else "toolConfig"
    calls = [part.get("toolUse", part) for turn in mapped.messages for part in parts_of(wire, turn)]
    names = list(dict.fromkeys(call["name"] for call in calls if "input" in call))
    note = {"description": "Used earlier in this conversation. Not available now."}
    schema: dict[str, Any] = {"type": "object"}
    tools: Any = [{"name": name, **note, "input_schema": schema} for name in names]
    if is_converse(wire):
        specs = [{"name": name, **note, "inputSchema": {"json": schema}} for name in names]
        tools = {"tools": [{"toolSpec": spec} for spec in specs]}
    if member in frame or got.get(member) != tools or not names:
        raise Mismatch(f"declared {got.get(member)}, not {tools}", broken=member in frame)
    return {name: value for name, value in got.items() if name != member}


def _in_one_form(wire: Format, body: dict[str, Any]) -> dict[str, Any]:
    """The body with its messages, and Anthropic's system text, in one spelling."""
    body = {**body, wire.messages: canonical(wire, body.get(wire.messages))}
    if is_claude(wire) and isinstance(body.get("system"), str):
        body["system"] = [wire.text(body["system"])]
    return body


def _without_neutral(wire: Format, seen: dict[str, Any], codes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The body as it is or, with the notice, without neutral texts at the ends of user turns."""
    if "NEUTRAL_TEXT_ADDED" not in codes:
        yield seen
        return
    lead, tail = (wire.text(phrase) for phrase in NEUTRAL)
    field, content = wire.messages, wire.content
    last = parts_of(wire, seen[field][-1])[-1:]
    if last != [tail] and [part["text"].strip() for part in last if is_text(wire, part)] == [tail["text"]]:
        yield seen  # inside the agent's own blank text
    for starts, ends in ((True, False), (False, True), (True, True)):
        turns = []
        for turn in seen[field]:
            if turn.get("role") != "user":
                turns.append(turn)
                continue
            parts = parts_of(wire, turn)
            if starts and lead in parts:  # parts of the agent's own may be around those of the client
                parts = [*parts[: parts.index(lead)], *parts[parts.index(lead) + 1 :]]
            if ends and tail in parts:
                at = len(parts) - 1 - parts[::-1].index(tail)
                parts = [*parts[:at], *parts[at + 1 :]]
            turns.append({**turn, content: parts})
        if turns != seen[field]:
            yield {**seen, field: turns}


def _flattened(wire: Format, wanted: Any, seen: Any, mapped: Mapped, codes: frozenset[str]) -> bool:
    """Whether the body is the agent's own, its question the last turn's text, its history the earlier turns."""
    turns = mapped.messages if mapped.system else split_system(mapped.messages)[1]
    if not all(is_text(wire, part) for turn in turns for part in parts_of(wire, turn)):
        return False
    texts = [[part["text"] for part in parts_of(wire, turn)] for turn in turns]
    if len(texts) < 2 or (len(texts[-1]) > 1) != ("TEXT_JOINED" in codes):
        return False
    question = "\n".join(text.strip() for text in texts[-1]) if len(texts[-1]) > 1 else texts[-1][0]
    names = ["Human:" if turn["role"] == "user" else "Assistant:" for turn in turns]
    history = [name + "\n".join(conversation) for name, conversation in zip(names, texts, strict=True)][:-1]
    return _matches(wanted, seen, question, r"\s*".join(["", *map(re.escape, history), ""]))


def _matches(wanted: Any, seen: Any, question: str, history: str) -> bool:
    match wanted:
        case str():
            pattern = re.escape(wanted).replace(HISTORY, history).replace(ASKED, re.escape(question))
            return isinstance(seen, str) and re.fullmatch(pattern, seen, re.DOTALL) is not None
        case dict():
            return (
                isinstance(seen, dict)
                and wanted.keys() == seen.keys()
                and all(_matches(value, seen[name], question, history) for name, value in wanted.items())
            )
        case list():
            return (
                isinstance(seen, list)
                and len(wanted) == len(seen)
                and all(_matches(one, other, question, history) for one, other in zip(wanted, seen, strict=True))
            )
    return bool(wanted == seen)


def _same(wire: Format, wanted: Any, seen: Any, codes: frozenset[str]) -> bool:
    if "USER_TURN_SPLIT" in codes:
        if _exact(wanted) == _exact(seen):
            return False  # nothing was split
        wanted, seen = (_runs_joined(wire, body) for body in (wanted, seen))
    return _exact(wanted) == _exact(seen)


def _runs_joined(wire: Format, body: Any) -> Any:
    joined: list[Any] = []
    for turn in body[wire.messages]:
        if joined and turn.get("role") == "user" == joined[-1].get("role"):
            parts = [*parts_of(wire, joined[-1]), *parts_of(wire, turn)]
            joined[-1] = {**joined[-1], wire.content: parts}
        else:
            joined.append(turn)
    return {**body, wire.messages: joined}


def _difference(wire: Format, own: Any, seen: Any, candidates: Sequence[Any]) -> Mismatch:
    """What is wrong: the agent's own part if any of its text or members are gone, else the client's."""
    wanted = _exact(candidates[0]) if candidates else "nothing: no message contains the agent's question"
    why = f"\n  wanted {wanted}\n  got    {_exact(seen)}"
    heard = list(_strings(seen))
    pieces = [word for text in _strings(own) for word in re.split(f"{ASKED}|{HISTORY}", text)]
    is_whole = all(any(word in text for text in heard) for word in pieces)
    rest = [name for name in own if name not in (wire.messages, "system", "systemInstruction")]
    same = own.keys() == seen.keys() and all(_exact(own[name]) == _exact(seen[name]) for name in rest)
    return Mismatch(why, broken=not is_whole or not same)


def _unknown(frame: Any, got: Any, conversation: AgentInput, codes: frozenset[str], roles: Mapping[str, str]) -> Found:
    """Return what must be reported for an unknown provider, which takes one text and earlier ones in its prompt."""
    if any(not isinstance(block, Text) for message in conversation.messages for block in message.content):
        raise Mismatch("something that is no text was sent to an unknown provider")
    reported: Found = set()
    turns: list[tuple[str, list[str]]] = []
    for message in conversation.messages:
        blocks = [block for block in message.content if isinstance(block, Text)]
        texts = [block.text for block in blocks if block.text.strip()]
        reported |= {("BLANK_TEXT_DROPPED", block.at) for block in blocks if not block.text.strip()}
        role = standard_role(message.role, roles)
        if role != message.role.lower():
            reported.add(("ROLE_MAPPED", message.at))
        if not role and texts:
            texts[0] = f"[{message.role}]: {texts[0]}"
        if texts:
            turns.append((role, texts))
    last = turns[-1][1]
    question = last[0] if len(last) == 1 else "\n".join(text.strip() for text in last)
    history = [("Assistant:" if role == "assistant" else "Human:") + "\n".join(texts) for role, texts in turns[:-1]]
    if "TOOLS_DECLARED" in codes or ("HISTORY_IN_QUESTION" in codes and len(turns) < 2):
        raise Mismatch("a notice reports what did not happen")
    if "HISTORY_IN_QUESTION" in codes:
        question, turns, last, history = _transcript(turns), [], [], []
    if (len(turns) > 1) != ("HISTORY_FLATTENED" in codes) or (len(last) > 1) != ("TEXT_JOINED" in codes):
        raise Mismatch("something was left out without a notice, or a notice reports what did not happen")
    if not _matches(frame, got, question, r"\s*".join(["", *map(re.escape, history), ""])):
        raise Mismatch(f"\n  wanted {_exact(frame)}\n  got    {_exact(got)}", broken=True)
    return reported


def _later(frame: Sequence[Any], got: Sequence[Any], conversation: AgentInput) -> None:
    """Later calls of a flow keep their tools' own prompts."""
    if len(frame) != len(got):
        raise Mismatch(f"{len(got)} later LLM calls, not {len(frame)}", broken=True)
    for own, seen in zip(frame, got, strict=True):
        heard = list(_strings(seen))
        for text in _strings(own):
            for phrase in text.split(ASKED):
                if not any(phrase in one for one in heard):
                    raise Mismatch(f"a later call lost {phrase!r}: {_exact(seen)}", broken=True)


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
