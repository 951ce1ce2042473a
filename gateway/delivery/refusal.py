"""Why an input can't be delivered: the parts at fault, or the cluster, and what would make it work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gateway.delivery.advice import (
    CORRECT_RULE,
    NAME_PROVIDER,
    Advice,
    advise,
    name_connector,
    rule_fault,
    use_another_agent,
)
from gateway.delivery.call_model import required_names
from gateway.delivery.escaping import is_inert
from gateway.delivery.search import Search, text_blocks
from gateway.delivery.template_change import with_upgrades
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents import behaviour_of, unread_tools
from gateway.mlcommons.agents.flow import own_values
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import FLOW_TYPES, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_llm
from gateway.mlcommons.sent_body import STREAM, has_streams, own_stream
from gateway.providers import registry
from gateway.providers.conversation import ALLOW_PREFILL
from gateway.unified.model import (
    AgentInput,
    ContentBlock,
    ConverseBlock,
    InputType,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
)
from gateway.unified.roles import meaning_of

_ASK = Text("x", "input")
_EXPECTED = {"HISTORY_NEEDS_UPGRADE": "one user turn", "SYSTEM_NEEDS_SLOT": "user and assistant turns"}
_NOTES = "or allow notes in their place (`agents.rules[].delivery: describe`)"
_INSTEAD = {
    "MEDIA_NEEDS_UPGRADE": f"leave the media out, {_NOTES}",
    "TOOLS_NEED_UPGRADE": f"leave the media out of the tools' results, {_NOTES}",
    "NATIVE_BLOCK_NEEDS_UPGRADE": "leave the block out",
    "HISTORY_NEEDS_UPGRADE": "send the earlier turns as text in the user turn",
    "SYSTEM_NEEDS_SLOT": "put the system text into the user turn",
}
"""What to send where no upgrade lets a part through, by code."""
_NOT_REPLAYED = ', or send "message_history_limit": "0" to leave the remembered turns out'


def memory_not_safe(profile: AgentProfile) -> Problem:
    """Return why an input that could be delivered without the agent's memory can't be delivered with it."""
    reason = "the content of this memory can't be sent to the agent with this input without being changed"
    more = "" if profile.generation is Generation.UNIFIED_V1 else _NOT_REPLAYED  # there, 0 means no limit
    return Problem("parameters.memory_id", reason, code="MEMORY_NOT_SAFE", help=f"start a new memory{more}")


def problems(search: Search, agent_input: AgentInput) -> list[Problem]:
    """Report every part that can't reach the LLM of this agent, after `search` found no plan for `agent_input`.

    If the agent can't be called at all, that is the only problem. Otherwise each kind of part in the input is tried by
    itself. The search has cached the bodies that all of them start from, so a kind costs only the proof of its own
    candidates, if it has any.
    """
    parts = [part for part in _parts(agent_input, search.options.roles) if part.places]
    refused = [part for part in parts if not search.delivers(part.sample)]
    if len(refused) == len(parts) and (fault := agent_fault(search)):
        return fault
    upgrade = Upgrade(search)
    if not refused:
        return [_problem_of_the_whole(search, agent_input, upgrade)]
    missing = _question_missing(search, agent_input)
    # If the whole input gets through after an upgrade, each part does, and need not be tried by itself.
    all_after_upgrade = (missing is not None or len(refused) > 1) and upgrade.delivers(agent_input)
    found = []
    for part in refused:
        help = upgrade.advice(part.sample, _INSTEAD[part.code], delivers=all_after_upgrade)
        expected = _EXPECTED.get(part.code, "text")
        found += [Problem(place, part.reason, expected, received, part.code, help) for place, received in part.places]
    return [*found, missing] if missing and not all_after_upgrade else found


def without_useless_prefill(search: Search, agent_input: AgentInput, problems: Sequence[Problem]) -> list[Problem]:
    """Return `problems` without the advice to let the model continue assistant turns, if that would not help.

    It does not help an agent whose own prompt needs a question.
    """
    advised = [problem for problem in problems if ALLOW_PREFILL in problem.help]
    if not advised:
        return list(problems)
    if len(problems) > 1:  # the other parts are at fault, too: try the turns without them
        agent_input = _conversation(agent_input, [replace(m, content=(_ASK,)) for m in agent_input.messages])
    allowing = replace(search, options=replace(search.options, allow_prefill=True))
    if allowing.delivers(agent_input):
        return list(problems)
    return [replace(problem, help=problem.help.replace(f", or {ALLOW_PREFILL}", "")) for problem in problems]


def agent_fault(search: Search) -> list[Problem]:
    """Return why no question can be delivered to the agent, whatever else an input holds; empty if one can."""
    question = AgentInput(InputType.TEXT, (Message("user", (_ASK,), "input"),))
    try:
        if search.takes_question() or search.first_proved(question) is not None:
            return []
    except UndeliverableContent as error:
        return list(error.problems)
    if names := _providers_that_deliver(search, question):
        reason = "no provider is known for this agent, and its connector's template takes no question as text"
        help = f"{NAME_PROVIDER}; it is the one of {', '.join(names)} whose format its LLM takes"
        return [Problem("input", reason, code="PROVIDER_UNKNOWN", help=help)]
    reason = (
        f"this agent can't be called{' with these parameters' if search.params else ''}, not even with plain text: "
        "its prompt and its connector's template don't render to a valid request that holds the question"
    )
    help = Upgrade(search).advice(question, _make_callable(search, question))
    if missing := " and ".join(_unsent(search, question)):
        sends = f"send {missing} in `parameters`"
        help = f"{sends}; or {help}" if help.startswith("upgrade") else sends
        return [Problem("input", reason, f"{missing} in `parameters`", "nothing", "AGENT_NOT_CALLABLE", help)]
    return [Problem("input", reason, code="AGENT_NOT_CALLABLE", help=help)]


def _make_callable(search: Search, question: AgentInput) -> str:
    """Return what may help an agent that can't be called, if no upgrade does."""
    own = [f"`{name}`" for name in search.params if name != STREAM]
    if own and replace(search, params={}).delivers(question):
        return f"leave out the parameter{'s' if len(own) > 1 else ''} {', '.join(own)}"
    return "first make the agent answer a plain `question` without the gateway"


def _providers_that_deliver(search: Search, question: AgentInput) -> list[str]:
    """Return the providers with which `question` reaches an agent that has none; empty if it has one."""
    if search.provider.name:
        return []
    return [found.name for found in registry.providers() if replace(search, provider=found).delivers(question)]


def _unsent(search: Search, question: AgentInput) -> list[str]:
    """Return the parameters that the agent needs and nobody sends, if it can be called with them.

    Its template names them, or what the template is filled with: the agent's own prompt.
    """
    try:
        call = search.call_models.get(search.provider, search.params)
        values = {**call.model.connector.parameters, **call.values}
        names = dict.fromkeys(required_names(call.model.connector.request_body))
        for name in call.names:
            names.update(dict.fromkeys(required_names(values.get(name, ""))))
    except RenderFailure:
        return []
    missing = [name for name in names if name not in values and name != "question"]
    sent = replace(search, params={**search.params, **dict.fromkeys(missing, "x")})
    return missing if missing and sent.delivers(question) else []


def _problem_of_the_whole(search: Search, agent_input: AgentInput, upgrade: Upgrade) -> Problem:
    """Return why the input can't be delivered although each kind of part in it can."""
    missing = _question_missing(search, agent_input)
    if missing:
        return missing
    if taken_apart := _taken_apart(search, agent_input):
        return taken_apart
    kinds = sorted({type(block).__name__.lower() for m in agent_input.messages for block in m.content})
    advice = upgrade.advice(agent_input)
    if kinds == ["text"] and len(agent_input.messages) == 1:
        reason = "this text can't be put into the agent's template without being changed"
        if search.delivers(_begun_with_a_word(agent_input)):
            advice = f"begin the text with a word; {advice}"
        return Problem("input", reason, received="text", code="TEXT_NOT_SAFE", help=advice)
    reason, received = "each part could be delivered by itself, but not all of them together", ", ".join(kinds)
    return Problem("input", reason, "", received, "COMBINATION_NOT_DELIVERABLE", advice)


def _begun_with_a_word(agent_input: AgentInput) -> AgentInput:
    (message,) = agent_input.messages
    first, *rest = message.content
    assert isinstance(first, Text)
    begun = replace(first, text=f"Text: {first.text}")
    return replace(agent_input, messages=(replace(message, content=(begun, *rest)),))


def _taken_apart(search: Search, agent_input: AgentInput) -> Problem | None:
    """Return the problem of a text that a tool which is not read could take apart; None if there is none."""
    for tool in unread_tools(search.profile, search.params):
        templates = own_values(tool)
        for block in (block for message in agent_input.messages for block in text_blocks(message.content)):
            if is_inert(block.text, templates):
                continue
            reason = f"the tool {tool.key} calls a model or connector that the gateway does not read, and it could "
            reason += "take this text apart"
            expected = "text that does not begin with { or [, does not end with $, and has no ${"
            help = "begin the text with a word, write $ { in place of ${, and end with another character than $"
            if is_inert(block.text):  # so its JSON has to be known
                expected = "text without quotes, backslashes, slashes and control characters"
                help = "leave them out"
            help = f"{use_another_agent(tool)}; or {help}"
            return Problem(block.at, reason, expected, "text", "TEXT_NOT_SAFE", help)
    return None


def _question_missing(search: Search, agent_input: AgentInput) -> Problem | None:
    """Return the problem of a conversation that ends without a question; None for any other."""
    roles = search.options.roles
    turns = [m for m in agent_input.messages if not m.is_blank and not meaning_of(m, roles).is_system]
    last = turns[-1] if turns else agent_input.messages[-1]
    is_result = all(isinstance(block, ToolResult) for block in last.content)
    if turns and meaning_of(last, roles).standard not in ("assistant", "tool") and not is_result:
        return None
    reason = "the agent's own prompt needs a question, and this conversation ends without one"
    help = "end the conversation with a user turn"
    return Problem(last.at, reason, "a user turn", last.role, "QUESTION_MISSING", help)


class _Part(NamedTuple):
    """A kind of part that an agent may not take. places: with what was received there. sample: has only that kind."""

    code: str
    reason: str
    places: list[tuple[str, str]]
    sample: AgentInput


def _parts(agent_input: AgentInput, roles: Mapping[str, str]) -> Iterator[_Part]:
    """Yield the kinds of part an agent may not take, those without a place in the input too."""
    messages = agent_input.messages
    media = [block for m in messages for block in m.content if isinstance(block, Media)]
    tools = [block for m in messages for block in m.content if isinstance(block, ToolUse | ToolResult)]
    native = [block for m in messages for block in m.content if isinstance(block, ConverseBlock)]
    system = [m for m in messages if meaning_of(m, roles).is_system]
    turns = [m for m in messages if not meaning_of(m, roles).is_system]

    def places(blocks: list[Media] | list[ConverseBlock] | list[ToolUse | ToolResult]) -> list[tuple[str, str]]:
        return [(block.at, _named(block)) for block in blocks]

    asking = Message("user", (_ASK,), "input")
    yield _Part(
        "MEDIA_NEEDS_UPGRADE",
        "this agent's connector has no place for media",
        places(media),
        _conversation(agent_input, [Message("user", (_ASK, *media), "input")]),
    )
    yield _Part(
        "TOOLS_NEED_UPGRADE",
        "this agent's connector can't carry tool calls and results",
        places(tools),
        _conversation(agent_input, [*_without_media(turns), asking]),
    )
    yield _Part(
        "NATIVE_BLOCK_NEEDS_UPGRADE",
        "this agent's connector has no place for this block",
        places(native),
        _conversation(agent_input, [Message("user", (_ASK, *native), "input")]),
    )
    earlier = [(message.at, message.role) for message in turns[:-1]]
    history = [Message(role, (_ASK,), "input") for role in ("user", "assistant", "user")]
    yield _Part(
        "HISTORY_NEEDS_UPGRADE",
        "this agent's connector and prompt have no place for earlier turns",
        earlier,
        _conversation(agent_input, history),
    )
    yield _Part(
        "SYSTEM_NEEDS_SLOT",
        "this agent's connector has no place for system text",
        [(message.at, message.role) for message in system],
        _conversation(agent_input, [*system, asking]),
    )


def _named(block: ContentBlock) -> str:
    match block:
        case Media():
            return f"{block.kind} ({block.format})" if block.format else block.kind
        case ToolUse():
            return "tool use"
        case ToolResult():
            return "tool result"
        case ConverseBlock():
            return block.kind
    return "text"


def _without_media(turns: list[Message]) -> list[Message]:
    return [replace(m, content=tuple(b for b in m.content if not isinstance(b, Media)) or (_ASK,)) for m in turns]


def _conversation(agent_input: AgentInput, messages: list[Message]) -> AgentInput:
    return replace(agent_input, messages=tuple(messages))


class Upgrade:
    """The change of an agent's connector that an operator can make, and what it would let through.

    for_tools: it adds a place for the client's tools as well (`upgrade --for-tools`).
    """

    def __init__(self, search: Search, for_tools: bool = False) -> None:
        self._search = search
        self._for_tools = for_tools
        self._advice = advise(search.profile, search.params, for_tools)
        self._after: Search | None = None

    @property
    def text(self) -> str:
        """The advice in a line."""
        return self._advice.text

    def delivers(self, agent_input: AgentInput) -> bool:
        """Return True if the change lets `agent_input` through."""
        change = self._advice.change
        if change is None or not self._search.provider.name:
            return False
        if self._after is None:
            upgraded = with_upgrades(self._search.profile, self._search.provider, self._for_tools)
            self._after = self._search.after_upgrade(upgraded, change.message_slots)
        return self._after.delivers(agent_input)

    def advice(self, agent_input: AgentInput, instead: str = "", *, delivers: bool = False) -> str:
        """Return what lets `agent_input` through, first the command if there is one; or why no command does.

        instead: what helps without an upgrade. delivers: it is known that the change lets `agent_input` through.
        """
        advice, search = self._advice, self._search
        if advice.kind == "upgrade" and (delivers or self.delivers(agent_input)):
            return advice.text
        if advice.kind == "upgrade":
            model, _ = first_llm(search.profile, search.params)
            assert model is not None
            advice = Advice("none", "", f"no upgrade of {name_connector(model)} would let this input through")
        unread = next(iter(unread_tools(search.profile, search.params)), None)
        if unread is not None:
            instead = use_another_agent(unread)
        return "; ".join(filter(None, (advice.action or instead, advice.why)))


def with_rule_fault(profile: AgentProfile, problems: Sequence[Problem]) -> list[Problem]:
    """Return `problems` with what is wrong about the operator's rule on the agent's provider, if anything is."""
    fault = rule_fault(profile)
    if not fault:
        return list(problems)
    correct = f"{CORRECT_RULE}: {fault}"
    return [
        one if fault in one.help else replace(one, help=f"{one.help}; {correct}" if one.help else correct)
        for one in problems
    ]


_SWITCH = 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.unified_agent_api_enabled":true}}'
_TOOL = '{"type":"VisualizationTool","name":"none","description":"Not available."}'


def refuse_cluster_limits(profile: AgentProfile, params: Mapping[str, str], streaming: bool = False) -> None:
    """Refuse a request that the cluster can't serve.

    params: the caller's own parameters. streaming: the request goes to the stream endpoint.

    Raises:
        UndeliverableContent: a stream is asked for where there is none (STREAM_UNSUPPORTED);
            the agent has no tool or no memory and can't run without (TOOL_MISSING, MEMORY_MISSING);
            the API that a V2 agent needs is off (UNIFIED_API_OFF); the cluster can't read Gemini's responses to V2
            agents (ANSWER_NOT_READ: recorded on 3.6.0 and 3.8.0, 500 "parseToUnifiedMessage is not yet supported").
            What else it does not bring to the LLM is found in `gateway.delivery.native`.
    """
    problems = _v2_problems if profile.generation is Generation.UNIFIED_V2 else _agent_problems
    unstreamed = _stream_problem(profile, params, streaming)
    if found := [unstreamed] if unstreamed else list(problems(profile, params)):
        raise UndeliverableContent.of(found)


def _stream_problem(profile: AgentProfile, params: Mapping[str, str], streaming: bool) -> Problem | None:
    """Return why a run without a stream would not be answered (run on 3.6.0)."""
    if streaming or not has_streams(profile):
        return None
    code = "STREAM_UNSUPPORTED"
    if STREAM in params:
        reason = "with this parameter the cluster streams the LLM's answer to nobody, and never answers the request"
        help = "leave it out; `_execute/stream` adds it where the cluster streams"
        return Problem(f"parameters.{STREAM}", reason, "no such parameter", params[STREAM], code, help)
    if own_stream(profile):
        reason = "a connector or the agent has a parameter `stream`, with which the cluster never answers a request"
        help = "remove that parameter from the connector or the agent"
        return Problem(f"agents/{profile.id}", reason, "no parameter `stream`", STREAM, code, help)
    return None


def _v2_problems(profile: AgentProfile, _: Mapping[str, str]) -> Iterator[Problem]:
    if profile.unified_api is False:
        reason = f"{profile.type} agents need the cluster's unified agent API, which is off"
        yield Problem("input", reason, code="UNIFIED_API_OFF", help=f"an administrator runs: {_SWITCH}")
    elif not _reads_answers(profile.provider):
        of = profile.provider or "an unknown provider"
        reason = f"the cluster can't read the answers of {of} to {profile.type} agents"
        yield Problem("input", reason, code="ANSWER_NOT_READ", help="use an agent of type conversational")


def _reads_answers(provider: str) -> bool:
    """Return True if the cluster reads this provider's answers to V2 agents."""
    try:
        support = registry.provider(provider).cluster
    except (registry.UnknownProvider, registry.BrokenProvider):
        return False
    return support is not None and support.v2 is not None


def _agent_problems(profile: AgentProfile, params: Mapping[str, str]) -> Iterator[Problem]:
    try:
        lacking = behaviour_of(profile).lacks(profile, params)
    except RenderFailure:
        return  # reported when the request is planned
    for requirement in lacking:
        yield _tool_missing(profile, params) if requirement == "tool" else _memory_missing(profile)


def _memory_missing(profile: AgentProfile) -> Problem:
    reason = f"on OpenSearch 2, an agent of type {profile.type} fails without memory"
    help = 'register the agent again with "memory": {"type": "conversation_index"}'
    return Problem(f"agents/{profile.id}.memory", reason, "a memory", "none", "MEMORY_MISSING", help)


def _tool_missing(profile: AgentProfile, params: Mapping[str, str]) -> Problem:
    if profile.tools:
        place, received = "parameters.selected_tools", params["selected_tools"]
        help = "name at least one of " + ", ".join(tool.key for tool in profile.tools)
    else:
        place, received = f"agents/{profile.id}.tools", "none"
        is_flow = profile.agent_type in FLOW_TYPES
        tool = "an MLModelTool that names the model" if is_flow else f"a tool that it won't need: {_TOOL}"
        help = f"register the agent again with {tool}"
    reason = f"an agent of type {profile.type} can't run without a tool"
    return Problem(place, reason, "at least one tool", received, "TOOL_MISSING", help)
