"""From a conversation and an agent's profile to the parameters that make it arrive, proved before they are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery import refusal
from gateway.delivery.call_model import CallModel, CallModelCache
from gateway.delivery.candidate import TAIL, neutral_text
from gateway.delivery.client_tools import leave_out, with_client_tools
from gateway.delivery.search import Plan, Remembered, Search, map_input
from gateway.delivery.slots import MARK, QUESTION
from gateway.delivery.system_text import fold_system
from gateway.delivery.target import Question, written
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents import unread_tools
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.expansion import RenderFailure, allow_for, limited_work
from gateway.mlcommons.profile import AgentProfile
from gateway.providers.base import MappingOptions, Provider
from gateway.unified.model import AgentInput, Base64, ContentBlock, InputType, Media, Message, Text, ToolResult
from gateway.unified.roles import meaning_of, question_text, readable_text

__all__ = ["Plan", "Remembered", "assume", "plan"]


def plan(
    profile: AgentProfile,
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    options: MappingOptions,
    turn_id: str,
    remembered: Remembered = (),
    call_models: CallModelCache | None = None,
) -> Plan:
    """Return the best plan that can be proved.

    provider: `TextOnly` where none is known. params: the caller's own parameters as strings. turn_id: letters and
    digits that no other request has, for what memory stores. remembered: what the agent's memory holds for the
    caller's `memory_id`. call_models: those of `profile` from earlier plans.

    Raises:
        UndeliverableContent: nothing can be proved; the problems name the blocks, the reason and the remedy.
    """
    params = {name: value for name, value in params.items() if name != "question"}
    call_models = CallModelCache(profile) if call_models is None else call_models
    search = Search(call_models, provider, params, options, turn_id, remembered)
    with limited_work() as work:
        allow_for(params)
        try:
            if unsafe := _unsafe(profile, params):
                raise UndeliverableContent.of(unsafe)
            if agent_input.tools is not None:
                return with_client_tools(search, agent_input, lambda given: _find(search, given))
            return _find(search, agent_input)
        except UndeliverableContent as error:
            work.check()  # a part that was not rendered may count as one that can't be delivered
            if profile.rule_provider:
                raise UndeliverableContent.of(refusal.with_rule_fault(profile, error.problems)) from None
            raise


def _find(search: Search, agent_input: AgentInput) -> Plan:
    """Return the first plan of `search` that can be proved. Raises as `plan`."""
    profile, provider, remembered = search.profile, search.provider, search.remembered
    without_memory = replace(search, remembered=())
    try:
        found = search.first_proved(agent_input) or _with_medium_in_slot(search, agent_input)
    except UndeliverableContent as error:
        if fault := refusal.agent_fault(without_memory):
            others = error.problems if provider.name else ()  # that no provider is known follows from the fault
            raise UndeliverableContent.of(list(dict.fromkeys([*fault, *others]))) from None
        if remembered and without_memory.delivers(agent_input):
            raise UndeliverableContent.of([refusal.memory_not_safe(profile)]) from None
        problems = refusal.without_useless_prefill(without_memory, agent_input, error.problems)
        raise UndeliverableContent.of(problems) from None
    if found is not None:
        return found
    if remembered and without_memory.first_proved(agent_input) is not None:
        raise UndeliverableContent.of([refusal.memory_not_safe(profile)])
    raise UndeliverableContent.of(refusal.problems(without_memory, agent_input))


def _with_medium_in_slot(search: Search, agent_input: AgentInput) -> Plan | None:
    """Return the plan with a medium in the template's own part for one; None if that does not help."""
    try:
        filled = fill_media(search.call_model(), agent_input, search.options)
    except RenderFailure:
        return None
    if filled is None:
        return None
    filled_search = replace(search, params={**search.params, **filled.parameters})
    found = filled_search.first_proved(filled.agent_input, agent_input)
    if found is None:
        return None
    request = map_input(search.provider, agent_input, search.options)
    unique = {(notice.code, notice.place): notice for notice in (*request.notices, *filled.notices, *found.notices)}
    return replace(found, request=request, notices=tuple(unique.values()))


def assume(
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    options: MappingOptions,
    turn_id: str,
    strategy: str = "assumed",
) -> Plan:
    """Return the unproved plan for an agent that can't be read: `question` and the provider's messages as parameters.

    System text that the provider has apart from the messages is at the start of the first user turn, as no parameter
    is known for it. params: the caller's own. turn_id: as for `plan`.

    Raises:
        UndeliverableContent: the provider can't express the input, or the system text has no user turn to be in.
    """
    request = map_input(provider, agent_input, options)
    messages, notices = request.messages, [*request.notices]
    if agent_input.tools is not None:
        notices.append(leave_out(agent_input.tools, "the agent could not be read"))
    if request.system:
        conversation, folded = _without_system(agent_input, options)
        notices.append(folded)
        messages = map_input(provider, conversation, options).messages
    text = question_text(agent_input, options.roles)
    question = Question(text, readable_text(agent_input, options.roles), turn_id)
    parameters = {
        **params,
        "question": question.stored,
        provider.messages_field: f"[{','.join(written(provider, messages))}]",
    }
    notices.append(Notice("NOT_PROVED", "the agent could not be read; its provider was assumed by the operator's rule"))
    return Plan(strategy, provider.name, parameters, text, request, tuple(notices), proved=False)


def _without_system(agent_input: AgentInput, options: MappingOptions) -> tuple[AgentInput, Notice]:
    """Return the conversation with its system text in the first user turn.

    Raises:
        UndeliverableContent: there is no such turn.
    """
    if folded := fold_system(agent_input, options.roles):
        return folded
    system = next(message for message in agent_input.messages if meaning_of(message, options.roles).is_system)
    reason = "the agent could not be read, so no place for system text is known"
    help = "put the system text into a user turn"
    raise UndeliverableContent.of(
        [Problem(system.at, reason, "user and assistant turns", system.role, "SYSTEM_NEEDS_SLOT", help)]
    )


def _unsafe(profile: AgentProfile, params: Mapping[str, str]) -> list[Problem]:
    """Report parameters of the caller's that rule out any plan."""
    found = []
    try:
        selected_tools(profile, params)
    except RenderFailure as failure:
        help = 'send selected_tools as a JSON list of tool names, such as ["tool"], or leave it out'
        received = params.get("selected_tools", "")
        found.append(
            Problem("parameters.selected_tools", str(failure), "a JSON list", received, "AGENT_NOT_CALLABLE", help)
        )
    try:
        if not found:
            unread_tools(profile, params)
    except RenderFailure as failure:
        help = "send only one of these parameters, or give both the same value"
        found.append(Problem("parameters", str(failure), "one of them", code="AGENT_NOT_CALLABLE", help=help))
    called = {tool.connector.id for tool in profile.tools if tool.connector is not None}
    chosen = {"model_id": {model.id for model in profile.models}}
    if called:
        chosen["connector_id"] = called
    for name, value in params.items():
        if name.startswith("gw_"):
            reason = "names that start with gw_ are the gateway's own"
            found.append(
                Problem(f"parameters.{name}", reason, "another name", name, "RESERVED_NAME", "use another name")
            )
        for id_name, ids in chosen.items():
            if name.rpartition(".")[2] == id_name and value not in ids:
                # `model_id` and `<tool>.model_id` choose the LLM of a flow's tool at run time.
                reason = "this parameter changes the agent's LLM, so the format it takes is not known"
                expected = " or ".join(sorted(ids))
                help = f"leave the parameter {name} out, or register an agent for that model"
                found.append(Problem(f"parameters.{name}", reason, expected, value, "MODEL_OVERRIDDEN", help))
    return found


Part = TypeVar("Part")


def describe(agent_input: AgentInput, places: Collection[str]) -> tuple[AgentInput, tuple[Notice, ...]]:
    """Replace media in turns and tool results by text notes; return the conversation and a notice for each.

    places: those of a refusal's problems. Only the media there are replaced, or all media if none is there.
    """
    named = [media.at for media in agent_input.media if media.at in places]
    chosen = frozenset(named or (media.at for media in agent_input.media))
    notices: list[Notice] = []

    def note(part: Part) -> Part | Text:
        if not isinstance(part, Media) or part.at not in chosen:
            return part
        notices.append(Notice("MEDIA_DESCRIBED", f"the {part.kind} was replaced by a text note", part.at))
        return Text(_note(part), part.at)

    def describe_block(block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolResult):
            return replace(block, content=tuple(note(part) for part in block.content))
        return note(block)

    messages = tuple(
        replace(m, content=tuple(describe_block(block) for block in m.content)) for m in agent_input.messages
    )
    return replace(agent_input, messages=messages), tuple(notices)


def _note(media: Media) -> str:
    name = f" {media.name!r}" if media.name else ""
    if isinstance(media.source, Base64):
        data = media.source.data
        padding = bytes(data[-2:]).count(b"=")
        size = f", {len(data) * 3 // 4 - padding} bytes"
    else:
        size = f" at {media.source.url}"
    details = f"{media.format}{size}".strip()
    return f"[{media.kind}{name} ({details}) was not delivered]"


class Filled(msgspec.Struct, frozen=True):
    """Parameters that put a medium into the template's part, and the conversation without that medium."""

    parameters: Mapping[str, str]
    agent_input: AgentInput
    notices: tuple[Notice, ...]


def fill_media(call: CallModel, agent_input: AgentInput, options: MappingOptions) -> Filled | None:
    """Find a medium that the part takes, in the first turn that has any; None if there is none.

    The part is before all texts, so a medium of a later turn would come before those of earlier ones. Only for an agent
    that can't be called without that part's parameters.
    """
    if call.legacy_body is not None:
        return None
    for index, message in enumerate(agent_input.messages):
        media = [block for block in message.content if isinstance(block, Media)]
        if not media:
            continue
        if meaning_of(message, options.roles).standard != "user":
            return None
        parts, words = _own_parts(call)
        for medium in media:
            for part in parts:
                if values := _values(part, _mapped(call, medium, options), words):
                    return _filled(agent_input, index, medium, values)
        return None
    return None


def _filled(agent_input: AgentInput, index: int, medium: Media, values: Mapping[str, str]) -> Filled:
    """Return the conversation without `medium`, and with a neutral text where its turn has nothing else."""
    messages = list(agent_input.messages)
    rest = tuple(block for block in messages[index].content if block is not medium)
    messages[index] = replace(messages[index], content=rest or (Text(TAIL, medium.at),))
    notice = Notice("MEDIA_IN_SLOT", f"the {medium.kind} is in the template's own place for it", medium.at)
    notices = (notice,) if rest else (notice, neutral_text("last"))
    return Filled(values, replace(agent_input, messages=tuple(messages)), notices)


def _own_parts(call: CallModel) -> tuple[list[Any], dict[str, str]]:
    """Return the parts beside the question's, with a word for each parameter that nobody sends, and words → names."""
    names = [name for name in call.names if name != "question" and name not in call.base_parameters]
    words = {name: f"{MARK}{index}x" for index, name in enumerate(names)}
    position = call.position(call.probe({"question": QUESTION, **words}))
    if position is None:
        return [], {}
    parts = position.messages[position.turn][call.provider.content_field]
    own = [part for index, part in enumerate(parts) if index != position.part]
    return own, {word: name for name, word in words.items()}


def _mapped(call: CallModel, medium: Media, options: MappingOptions) -> Any:
    """Return the provider's part for `medium`, in its normal form."""
    message = Message("user", (Text("x", medium.at), medium), medium.at)
    request = call.provider.map(AgentInput(InputType.MESSAGES, (message,)), options)
    return call.provider.canonical(request.messages)[-1][call.provider.content_field][-1]


def _values(part: Any, wanted: Any, words: Mapping[str, str]) -> dict[str, str] | None:
    """Return the parameters with which `part` is `wanted`; None if nothing makes it so. words: word → parameter."""
    match part, wanted:
        case str(), str():
            word = next((word for word in words if word in part), None)
            if word is None:
                return {} if part == wanted else None
            before, _, after = part.partition(word)
            fits = wanted.startswith(before) and wanted.endswith(after) and len(wanted) > len(before) + len(after)
            return {words[word]: wanted[len(before) : len(wanted) - len(after)]} if fits else None
        case dict(), dict() if part.keys() == wanted.keys():
            found = [_values(part[name], wanted[name], words) for name in part]
            values = {name: value for one in found for name, value in (one or {}).items()}
            return values if None not in found else None
    return {} if part == wanted else None
