"""Decides what became of a request to a V2 agent, as `tests.oracle` does for all others.

It compares what the LLM received with its own mapping of the client's input after what the session held, and with what
the agent itself sends: found by asking it a harmless word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.simulator.v2_messages import mapped as rendered
from gateway.simulator.values import as_text
from gateway.unified.model import AgentInput, ContentBlock, Json, Media, Message, Text, ToolResult, ToolUse
from tests.delivery.frames import ASKED, Mismatch, parsed, replaced
from tests.delivery.simulated_cluster import Sent, SimulatedCluster
from tests.oracle import Outcome, Verdict
from tests.oracle_rules import with_folded_system, with_notes, with_tools_as_text
from tests.properties.v2 import readable_messages
from tests.wire_formats import BEDROCK, FORMATS, Found, Mapped, NotMappable, canonical, map_conversation

_SYSTEM = "oraclesystemword"


def judge_native(
    cluster: SimulatedCluster,
    name: str,
    sent: Sent,
    parameters: Mapping[str, Any] | None = None,
    held: Sequence[Any] = (),
    roles: Mapping[str, str] | None = None,
) -> Verdict:
    """The verdict on `sent`, a request with the caller's `parameters`. held: the messages of the session before it."""
    if sent.error is not None:
        problems = sent.error.problems
        if sent.error.status != 400 or not problems:
            return Verdict(Outcome.BROKEN, f"refused with {sent.error.status} and {len(problems)} problems")
        return Verdict(Outcome.REFUSED, problems[0].code or sent.error.type)
    assert sent.rewritten is not None
    plan = sent.rewritten.plan
    codes = tuple(notice.code for notice in plan.notices)
    try:
        found = {(notice.code, notice.place) for notice in plan.notices}
        if len(found) != len(codes):
            raise Mismatch(f"a notice is repeated: {codes}")
        _compare(cluster, name, sent, found, dict(parameters or {}), held, roles or {})
    except Mismatch as mismatch:
        outcome = Outcome.BROKEN if mismatch.broken else Outcome.LOST
        return Verdict(outcome, str(mismatch), plan.strategy, codes)
    return Verdict(Outcome.ARRIVED, "", plan.strategy, codes)


def _compare(
    cluster: SimulatedCluster,
    name: str,
    sent: Sent,
    found: Found,
    parameters: dict[str, Any],
    held: Sequence[Any],
    roles: Mapping[str, str],
) -> None:
    assert sent.executed is not None
    assert sent.input is not None
    if sent.executed.status != 200:
        raise Mismatch(f"{sent.executed.status} {json.dumps(sent.executed.body)[:600]}", broken=True)
    got = parsed(sent.executed.llm_bodies[0])
    provider = cluster.profile(name).provider
    try:
        wanted = carried(provider, sent.input, found, roles)
    except NotMappable as why:
        raise Mismatch(f"sent, though the provider has no way to say it: {why}") from None
    wire = FORMATS[provider]
    frame = _frame(cluster, name, parameters, "\n\n".join(wanted.system))
    earlier = [json.loads(as_text(turn, True)) for turn in rendered(provider, readable_messages(list(held)))]
    expected = {**frame, "messages": [*canonical(wire, earlier), *wanted.messages]}
    if {**got, "messages": canonical(wire, got["messages"])} != expected:
        raise Mismatch(f"{json.dumps(got)[:2000]} is not {json.dumps(expected)[:2000]}")
    if wire is BEDROCK and _has_tools(wanted) and "toolConfig" not in got:
        raise Mismatch("tool calls without a toolConfig", broken=True)
    reported = wanted.notices | {("MEMORY_HOLDS_CODE", "") for _ in range(_holds_code(sent.input, wanted))}
    if found != reported:
        raise Mismatch(f"reported {sorted(found)}, not {sorted(reported)}")


def _has_tools(wanted: Mapped) -> bool:
    return '"toolUse"' in json.dumps([list(part) for turn in wanted.messages for part in turn["content"]])


def _holds_code(conversation: AgentInput, wanted: Mapped) -> bool:
    """Whether a text that memory gets has a placeholder. Arguments of calls need no code."""
    turns = [{name: member for name, member in turn.items() if name != "tool_calls"} for turn in wanted.messages]
    texts = [text for turn in turns for text in _texts(turn)]
    return any(sign in text for text in texts for sign in ("${parameters.", "${_chat_history."))


def _texts(value: Any) -> list[str]:
    match value:
        case {"text": str(text)}:
            return [text]
        case dict():
            return [text for name, member in value.items() if name != "toolUse" for text in _texts(member)]
        case list():
            return [text for item in value for text in _texts(item)]
    return []


def carried(provider: str, conversation: AgentInput, found: Found, roles: Mapping[str, str]) -> Mapped:
    """The conversation in the provider's form, as far as the cluster's own messages can hold it.

    found: the notices, which say what was described, written as text or folded.
    """
    places = {code: {place for one, place in found if one == code} for code, _ in found}
    told: Found = {notice for notice in found if notice[0] in ("MEDIA_DESCRIBED", "TOOLS_AS_TEXT", "SYSTEM_FOLDED")}
    conversation = with_notes(conversation, places.get("MEDIA_DESCRIBED", set()))
    change = _for_bedrock if provider.startswith("bedrock/") else _for_openai
    conversation = replace(conversation, messages=tuple(change(one, told) for one in conversation.messages))
    if "SYSTEM_FOLDED" in places:
        conversation = with_folded_system(conversation, roles, places["SYSTEM_FOLDED"])
    if "TOOLS_AS_TEXT" in places:
        conversation = with_tools_as_text(conversation, roles, places["TOOLS_AS_TEXT"])
    mapped = map_conversation(FORMATS[provider], conversation, roles)
    return replace(mapped, notices=mapped.notices | told)


def _for_bedrock(message: Message, told: Found) -> Message:
    def named(part: Any) -> Any:
        if not isinstance(part, Media) or part.kind != "document":
            return part
        if part.name not in (None, "document"):
            told.add(("DOCUMENT_NAME_DROPPED", part.at))
        return replace(part, name="document")

    def block(one: ContentBlock) -> ContentBlock:
        if not isinstance(one, ToolResult):
            return named(one)  # type: ignore[no-any-return]
        phrases = ["(the tool failed)"] if one.is_error else []
        if one.is_error:
            told.add(("TOOL_ERROR_MARKED", one.at))
        others: list[Any] = []
        for part in one.content:
            if isinstance(part, Json):
                told.add(("TOOL_RESULT_STRINGIFIED", part.at))
                phrases.append(json.dumps(part.value, ensure_ascii=False))
            elif isinstance(part, Text) and part.text.strip():
                phrases.append(part.text)
            else:
                others.append(named(part))
        if len(phrases) > 1:
            told.add(("TEXT_JOINED", one.at))
        joined = [Text("\n".join(phrases), one.at)] if phrases else []
        return replace(one, content=(*joined, *others), is_error=False)

    return replace(message, content=tuple(map(block, message.content)))


def _for_openai(message: Message, told: Found) -> Message:
    message = replace(message, content=tuple(_with_clean_id(one, told) for one in message.content))
    others = [one for one in message.content if not isinstance(one, ToolUse)]
    is_alone = all(isinstance(one, Text) and not one.text.strip() for one in others)
    if len(others) == len(message.content) or not is_alone:
        return message
    told.add(("NEUTRAL_TEXT_ADDED", message.at))
    return replace(message, content=(Text("(tool call)", message.at), *message.content))


def _with_clean_id(block: ContentBlock, told: Found) -> ContentBlock:
    """The block with an id that the cluster can't expand."""
    if not isinstance(block, ToolUse | ToolResult) or "$" not in block.id:
        return block
    if isinstance(block, ToolUse):
        told.add(("TOOL_ID_CLEANED", block.at))
    return replace(block, id=block.id.replace("$", "_"))


def _frame(cluster: SimulatedCluster, name: str, parameters: dict[str, Any], system: str) -> dict[str, Any]:
    """What the agent sends beside the messages, with `system` after its own system text."""
    own = {key: value for key, value in parameters.items() if key not in ("question", "memory_id")}
    profile = cluster.profile(name)
    before = own.get("system_prompt", profile.parameters.get("system_prompt", ""))
    if system:
        own["system_prompt"] = f"{before}\n\n{_SYSTEM}" if before else _SYSTEM
    asked = cluster.core.execute(cluster.agents[name], {"input": ASKED, **({"parameters": own} if own else {})})
    if asked.status != 200:
        raise Mismatch("the agent can't be asked at all", broken=True)
    frame = parsed(asked.llm_bodies[0])
    if not isinstance(frame, dict) or ASKED not in json.dumps(frame["messages"]):
        raise Mismatch("the agent does not send what it is asked", broken=True)
    return {**replaced(frame, {_SYSTEM: system}), "messages": []}  # type: ignore[dict-item]
