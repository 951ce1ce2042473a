"""From a conversation and an agent's profile to the parameters that make it arrive, proved before they are used."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.delivery import refusal
from gateway.delivery.call_model import CallModel, CallModelCache
from gateway.delivery.candidate import Candidate, System
from gateway.delivery.escaping import dump, unescape
from gateway.delivery.proof import proves
from gateway.delivery.question_placements import merged
from gateway.delivery.strategies import STRATEGIES
from gateway.delivery.system_text import fold_system, placements
from gateway.delivery.target import TargetTurns
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents.flow import selected_tools
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_llm
from gateway.mlcommons.template import PREFIX
from gateway.notices import Notice
from gateway.providers.base import Inexpressible, MappingOptions, Provider, ProviderRequest
from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.question import question_text

Remembered = Sequence[tuple[str, str]]  # (question, answer) pairs, oldest first


@dataclass(frozen=True, slots=True)
class Plan:
    """How the input is delivered.

    provider: the provider's name, "" where none is known. parameters: what to add to the client's own
    `parameters` (inline media as tokens). question: the text that memory stores. request: the provider's
    mapping, None where the input is sent as it came. proved: False only for an assumed plan.
    """

    strategy: str
    provider: str
    parameters: Mapping[str, str]
    question: str
    request: ProviderRequest | None
    notices: tuple[Notice, ...] = ()
    proved: bool = True


def plan(
    profile: AgentProfile,
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    options: MappingOptions,
    remembered: Remembered = (),
    call_models: CallModelCache | None = None,
) -> Plan:
    """The best proved plan.

    provider: `TextOnly` where none is known. params: the caller's own parameters as strings. remembered: what
    the agent's memory holds for the caller's `memory_id`. anatomies: those of `profile` from earlier plans.

    Raises:
        UndeliverableContent: nothing can be proved; the problems name the blocks, the reason and the remedy.
    """
    params = {name: value for name, value in params.items() if name != "question"}
    if unsafe := _unsafe(profile, params):
        raise UndeliverableContent.of(unsafe)
    call_models = CallModelCache(profile) if call_models is None else call_models
    found = _first_proved(call_models, provider, agent_input, params, options, remembered)
    if found is not None:
        return found

    if remembered and _first_proved(call_models, provider, agent_input, params, options, ()) is not None:
        raise UndeliverableContent.of([refusal.MEMORY_NOT_SAFE])

    def deliverable(agent: AgentProfile, part: AgentInput) -> bool:
        of_agent = call_models if agent is profile else CallModelCache(agent)
        try:
            return _first_proved(of_agent, provider, part, params, options, remembered) is not None
        except UndeliverableContent:
            return False

    raise UndeliverableContent.of(refusal.problems(profile, provider, agent_input, params, options.roles, deliverable))


def _unsafe(profile: AgentProfile, params: Mapping[str, str]) -> list[Problem]:
    """Parameters of the caller's under which no plan can hold."""
    found = []
    try:
        selected_tools(profile, params)
    except RenderFailure as failure:
        help = 'send selected_tools as a JSON list of tool names, such as ["tool"], or leave it out'
        received = params.get("selected_tools", "")
        found.append(
            Problem("parameters.selected_tools", str(failure), "a JSON list", received, "AGENT_NOT_CALLABLE", help)
        )
    models = {model.id for model in profile.models}
    for name, value in params.items():
        if name.startswith("gw_"):
            reason = "names that start with gw_ are the gateway's own"
            found.append(Problem(f"parameters.{name}", reason, "another name", name, "RESERVED_NAME"))
        if name.rpartition(".")[2] == "model_id" and value not in models:
            # `model_id` and `<tool>.model_id` choose the LLM of a flow's tool at run time.
            reason = "this parameter changes the LLM behind the agent, so what it takes is not known"
            found.append(Problem(f"parameters.{name}", reason, " or ".join(sorted(models)), value, "MODEL_OVERRIDDEN"))
    return found


def assumed(provider: Provider, agent_input: AgentInput, options: MappingOptions, strategy: str = "assumed") -> Plan:
    """The unproved plan for an agent that can't be read: `question` and the provider's messages as parameters.

    Raises:
        UndeliverableContent: the provider can't express the input.
    """
    request = _mapped(provider, agent_input, options)
    question = question_text(agent_input, options.roles)
    parameters = {"question": question, provider.messages_field: dump(request.messages)}
    notice = Notice("NOT_PROVED", "the agent could not be read; its provider was assumed by the operator's rule")
    return Plan(strategy, provider.name, parameters, question, request, (*request.notices, notice), proved=False)


def _mapped(provider: Provider, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
    try:
        return provider.map(agent_input, options)
    except Inexpressible as error:
        raise UndeliverableContent.of(error.problems) from None


def _first_proved(
    call_models: CallModelCache,
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    options: MappingOptions,
    remembered: Remembered,
) -> Plan | None:
    profile = call_models.profile
    request = _mapped(provider, agent_input, options)
    if first_llm(profile, params)[0] is None:
        return _without_llm(agent_input, request)
    question = question_text(agent_input, options.roles)
    if remembered and not call_models.get(provider, params).replays:
        remembered = ()
    variants = list(_variants(agent_input, remembered, options.roles))
    for prompt, (said, told, notices) in itertools.product(_prompts(call_models, provider, params), variants):
        extra = {**prompt, **told}
        found = _proved(call_models, provider, said, {**params, **extra}, options, question)
        if found is not None:
            candidate, more = found
            parameters = {**extra, **_required(profile, params, question), **candidate.parameters}
            stored = _stored(profile, parameters["question"], question)
            kept = (*request.notices, *notices, *more, *candidate.notices, *stored)
            return Plan(candidate.strategy, provider.name, parameters, question, request, _unique(kept))
    return None


def _stored(profile: AgentProfile, stored: str, question: str) -> Iterator[Notice]:
    """What memory will hold in place of the plain question, where the agent's prompt leaves no other way."""
    if profile.memory_type and stored != question:
        if f"{PREFIX}gw_" in stored:
            yield Notice("MEMORY_HOLDS_CODE", "the agent's memory stores the text with references in it")
        elif question.strip() in stored:
            reason = "the agent's memory stores the text with the role's name or the system text that stands before it"
            yield Notice("MEMORY_HOLDS_MORE", reason)
        else:
            yield Notice("MEMORY_PARTIAL", "the agent's memory stores the last text block of the turn only")


def _prompts(call_models: CallModelCache, provider: Provider, params: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The agent as it is; and, where it has no prompt and can't be called without one, with the bare question."""
    yield {}
    try:
        call = call_models.get(provider, params)
        if call.lacks_prompt:
            yield {call.key("prompt"): f"{PREFIX}question}}"}
    except RenderFailure:
        return


def _without_llm(agent_input: AgentInput, request: ProviderRequest) -> Plan | None:
    """A flow without an LLM tool takes a question and nothing else; a single text is all of it."""
    content = agent_input.messages[-1].content
    if len(agent_input.messages) != 1 or len(content) != 1 or not isinstance(content[0], Text):
        return None
    text = content[0].text
    if PREFIX in text:
        return None
    return Plan("text", "", {"question": text}, text, request, (Notice("NO_LLM", "no tool of this flow calls an LLM"),))


Variant = tuple[AgentInput, dict[str, str], tuple[Notice, ...]]


def _variants(agent_input: AgentInput, remembered: Remembered, roles: Mapping[str, str]) -> Iterator[Variant]:
    """The conversation as it is, with remembered turns told by the gateway, and each with the system folded."""
    poisoned = any(PREFIX in text for turn in remembered for text in turn)
    variants: list[Variant] = [] if poisoned else [(agent_input, {}, ())]
    if remembered:
        # What memory replays would be expanded as a template, or would replace the client's own history.
        turns = tuple(turn for pair in enumerate(remembered) for turn in _remembered(*pair))
        told = replace(agent_input, messages=(*turns, *agent_input.messages))
        notice = Notice("MEMORY_RETOLD", "remembered turns are sent by the gateway, the agent's own replay is off")
        variants.append((told, {"message_history_limit": "0"}, (notice,)))
    yield from variants
    for said, extra, notices in variants:
        if (fold := fold_system(said, roles)) is not None:
            yield fold[0], extra, (*notices, fold[1])


def _remembered(index: int, turn: tuple[str, str]) -> Iterator[Message]:
    for role, text in zip(("user", "assistant"), turn, strict=True):
        at = f"memory[{index}].{role}"
        yield Message(role, (Text(unescape(text), at),), at)


def _proved(
    call_models: CallModelCache,
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    options: MappingOptions,
    question: str,
) -> tuple[Candidate, tuple[Notice, ...]] | None:
    try:
        call = call_models.get(provider, params)
        for candidate, system, text in _candidates(call, agent_input, options, question):
            whole = replace(candidate, parameters=merged(dict(candidate.parameters), dict(system.parameters)))
            if not _takes_over(call, whole) and proves(call, whole, system, {question, text}):
                return whole, system.notices
    except RenderFailure:
        pass  # the agent itself can't be called; the refusal says so
    return None


def _candidates(
    call: CallModel, agent_input: AgentInput, options: MappingOptions, question: str
) -> Iterator[tuple[Candidate, System, str]]:
    """Candidates with how the system text is said, and the one text in them that stands for the question."""
    provider = call.provider
    request = _mapped(provider, agent_input, options)
    needed = provider.required_members(request.messages)
    if needed and not needed <= (call.render(call.with_question({})) or {}).keys():
        return
    for told in placements(call, request):
        if not told.turns:
            continue
        target = TargetTurns.of(provider, told.turns, question)
        for strategy in STRATEGIES:
            for candidate in strategy(call, target):
                yield candidate, told.system, target.text


def _takes_over(call: CallModel, candidate: Candidate) -> bool:
    """Whether a candidate would drop a parameter of the caller's: all but those it keeps inside its own value."""
    kept = {"no_escape_params", "message_history_limit", "skip_validating_missing_parameters"}
    for name, value in call.params.items():
        ours = candidate.parameters.get(name, value)
        if ours != value and name not in kept and not _keeps(call, name, value, ours):
            return True
    return False


def _keeps(call: CallModel, name: str, value: str, ours: str) -> bool:
    """Whether `ours` carries the caller's `value` on: as the agent's prompt, system text or messages template."""
    slots = {slot.name for slot in call.slots}
    system = call.system_slot
    prompt_parameter = call.prompt_parameter
    return (
        name in slots
        or (prompt_parameter is not None and name == prompt_parameter.name)
        or (system is not None and name == system.name and ours.startswith(value))
    )


def _required(profile: AgentProfile, params: Mapping[str, str], question: str) -> dict[str, str]:
    """Strings that the model's interface requires and nobody sends (FACTS.md: `inputs` of some Bedrock models)."""
    model, _ = first_llm(profile, params)
    names = model.required_inputs if model is not None else ()
    return {name: question or "." for name in names if name not in params and name not in profile.llm_parameters}


def _unique(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    return tuple({(notice.code, notice.place): notice for notice in notices}.values())
