"""The search for a plan: the forms a conversation can take, the candidates for each, and their proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.call_model import CallModel, CallModelCache
from gateway.delivery.candidate import Addition, Candidate
from gateway.delivery.escaping import is_inert, unescape
from gateway.delivery.plain_chat import FORMAT_GUESSED, PLAIN_CHAT, own_turns, shows_plain_chat
from gateway.delivery.proof import Proved, is_readable_later, prove
from gateway.delivery.question_placements import SKIP, merge
from gateway.delivery.slots import Slot
from gateway.delivery.strategies import STRATEGIES, TURN_STRATEGIES
from gateway.delivery.strategies.text import join_texts, texts_of
from gateway.delivery.system_text import fold_system, placements
from gateway.delivery.target import Question, TargetTurns
from gateway.delivery.tool_slot import declarations, tools_as_text
from gateway.errors import UndeliverableContent
from gateway.mlcommons.agents import behaviour_of, unread_tools
from gateway.mlcommons.agents.flow import own_values
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.memory_form import show_original, show_readable
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_llm
from gateway.mlcommons.sent_body import has_processors, is_written_again
from gateway.mlcommons.template import PREFIX
from gateway.providers.base import Inexpressible, MappingOptions, Provider, ProviderRequest
from gateway.recent import computed_once
from gateway.unified.model import AgentInput, ContentBlock, Json, Message, Text, ToolResult
from gateway.unified.roles import meaning_of, question_text, readable_text

MEMORY_HOLDS_CODE = Notice(
    "MEMORY_HOLDS_CODE", "the agent's memory stores the text in a placeholder, which later turns read as text"
)


class Plan(msgspec.Struct, frozen=True):
    """How the input is delivered.

    provider: the provider's name, "" where none is known. parameters: all `parameters` of the request as strings, the
    client's own among them (inline media as tokens); none where the input is sent as it came. question: the text that
    memory stores. request: the provider's mapping, None where the input is sent as it came. proved: False only for an
    assumed plan; the parameters of any other come from a proof.
    """

    strategy: str
    provider: str
    parameters: Mapping[str, str]
    question: str
    request: ProviderRequest | None
    notices: tuple[Notice, ...] = ()
    proved: bool = True

    def __post_init__(self) -> None:
        assert not self.proved or not self.parameters or isinstance(self.parameters, Proved)


class _Found(msgspec.Struct, frozen=True):
    """A candidate that was proved."""

    strategy: str
    parameters: Proved
    notices: tuple[Notice, ...]


def map_input(provider: Provider, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
    """Return the provider's mapping.

    Raises:
        UndeliverableContent: the provider can't express the input.
    """
    try:
        return provider.map(agent_input, options)
    except Inexpressible as error:
        raise UndeliverableContent.of(error.problems) from None


class Variant:
    """A form of the conversation to try, mapped once.

    parameters: what must be sent with it. as_text: its tool blocks are sent as text.
    """

    def __init__(
        self,
        search: Search,
        agent_input: AgentInput,
        parameters: Mapping[str, str] | None = None,
        notices: tuple[Notice, ...] = (),
        as_text: bool = False,
    ) -> None:
        self._search = search
        self.agent_input = agent_input
        self.parameters = parameters or {}
        self.notices = notices
        self.as_text = as_text

    @computed_once
    def request(self) -> ProviderRequest:
        """The provider's mapping.

        Raises:
            UndeliverableContent: the provider can't express it.
        """
        written = tools_as_text(self.agent_input, self._search.options.roles) if self.as_text else None
        agent_input = self.agent_input if written is None else written[0]
        return map_input(self._search.provider, agent_input, self._search.options_for(agent_input))

    def forms(self) -> Iterator[Variant]:
        """Yield this variant, then, if it has tool blocks and all of them can be text, the variant where they are."""
        yield self
        if written := tools_as_text(self.agent_input, self._search.options.roles):
            yield Variant(self._search, self.agent_input, self.parameters, (*self.notices, *written[1]), as_text=True)

    def fold(self) -> Variant | None:
        """Return this variant with its system text in the first user turn; None if there is none, or no such turn.

        A tool's turn is none, though it is sent as the user's where it is text.
        """
        folded = fold_system(self.agent_input, self._search.options.roles)
        if folded is None:
            return None
        return Variant(self._search, folded[0], self.parameters, (*self.notices, folded[1]), self.as_text)


class Search(msgspec.Struct, frozen=True):
    """Finds the first plan that can be proved, for any input to one agent.

    params: the caller's own, without `question`. turn_id: see `Question`. remembered: what the agent's memory holds
    for the caller. keeps_turns: only by strategies that keep turns apart.
    """

    call_models: CallModelCache
    provider: Provider
    params: Mapping[str, str]
    options: MappingOptions
    turn_id: str
    remembered: Remembered = ()
    keeps_turns: bool = False

    @property
    def profile(self) -> AgentProfile:
        """The agent."""
        return self.call_models.profile

    def delivers(self, agent_input: AgentInput) -> bool:
        """Return True if there is a plan for `agent_input`."""
        try:
            return self.first_proved(agent_input) is not None
        except UndeliverableContent:
            return False

    def options_for(self, agent_input: AgentInput) -> MappingOptions:
        """Return the options for mapping `agent_input`: with prefill if it needs that and the model is known for it."""
        is_asked = self.provider.capabilities.assistant_last == "prefill" and not self.options.allow_prefill
        if not is_asked or not _ends_with_assistants_text(agent_input, self.options.roles):
            return self.options
        return replace(self.options, allow_prefill=self._continues_assistant())

    def _continues_assistant(self) -> bool:
        """Return True if the agent's LLM is known to continue an assistant turn.

        False for an agent that calls functions: after a tool's call, the LLM would get two assistant turns in a row.
        False for a flow with several LLMs, of which only the first is known here.
        """
        try:
            call = self.call_model()
            body = call.render(call.with_question({}))
            url = call.url
        except RenderFailure:
            return False
        if call.calls_functions or call.later_llms or not isinstance(body, dict):
            return False
        return self.provider.continues_assistant(url, body)

    def takes_question(self) -> bool:
        """Return True if a plain question renders into a message; other agents may still take one."""
        try:
            call = self.call_model()
        except RenderFailure:
            return False
        return call.position(call.legacy_body) is not None

    def after_upgrade(self, profile: AgentProfile, slots: tuple[Slot, ...]) -> Search:
        """Return the same search for the agent with its connectors changed, so that `slots` take messages.

        slots: () if the change adds only a slot that is empty by default.
        """
        return replace(self, call_models=self.call_models.after_upgrade(profile, slots))

    def first_proved(self, agent_input: AgentInput, asked: AgentInput | None = None) -> Plan | None:
        """Return the first plan that can be proved; None if there is none.

        asked: the input as the client sent it, for the question and for what memory stores; None for `agent_input`.

        Raises:
            UndeliverableContent: the provider can't express the input.
        """
        found = self._first_of_all(agent_input, asked)
        found = None if found is None else self._with_unread(found, asked or agent_input)
        if found is None or not has_processors(self.profile, self.params):
            return found
        about = "input_processors change the request after it is filled in, in a way that the gateway does not read"
        return replace(found, notices=(*found.notices, Notice("LLM_NOT_READ", about)), proved=False)

    def _with_unread(self, found: Plan, agent_input: AgentInput) -> Plan | None:
        """Return the plan with a notice of the tools that call what is not read; None if they could change a text."""
        tools = unread_tools(self.profile, self.params) if found.proved else []
        if not tools:
            return found
        if not behaviour_of(self.profile).runs_tools:  # a flow's tools are proved to send the question
            texts = [block.text for message in agent_input.messages for block in text_blocks(message.content)]
            if not all(is_inert(text, own_values(tool)) for text in texts for tool in tools):
                return None
        about = f"the tool {tools[0].key} calls a model or connector that the gateway does not read"
        return replace(found, notices=(*found.notices, Notice("LLM_NOT_READ", about)), proved=False)

    def _first_of_all(self, agent_input: AgentInput, asked: AgentInput | None) -> Plan | None:
        whole = Variant(self, agent_input, self._unchecked())
        request = whole.request
        if first_llm(self.profile, self.params)[0] is None:
            return _question_alone(self, request)
        chat = None if self.provider.name else self._plain_chat(request)
        refusal = None
        try:
            found = chat.first_proved(agent_input, asked) if chat is not None else None
        except UndeliverableContent as error:
            found, refusal = None, error
        if found is not None:
            return replace(found, provider=self.provider.name, notices=(*found.notices, FORMAT_GUESSED))
        found = self._first_proved(whole, asked or agent_input)
        if found is None and refusal is not None:
            raise refusal
        return found

    def _plain_chat(self, request: ProviderRequest) -> Search | None:
        """Return the search for plain chat, for an LLM of unknown format; None if the agent's template shows another.

        None, too, if the input needs no guess: the template's own turn takes it as one text.
        """
        chat = replace(self, provider=PLAIN_CHAT, keeps_turns=True)
        try:
            call = chat.call_model()
            if not shows_plain_chat(call):
                return None
        except RenderFailure:
            return None
        has_answer = any(turn["role"] == "assistant" for turn in request.messages)
        return chat if has_answer or not own_turns(call) else None

    def _first_proved(self, whole: Variant, asked: AgentInput) -> Plan | None:
        roles = self.options.roles
        question = Question(question_text(asked, roles), readable_text(asked, roles), self.turn_id)
        try:
            call = self.call_model()
            for form in whole.forms() if call.can_be_called else ():
                for variant in self._variants(form, call):
                    for found in self._proved(call, variant, question):
                        notices = (*form.request.notices, *notices_of_remembered(variant.request), *variant.notices)
                        return self._plan(found, question, form.request, notices)
        except RenderFailure:
            pass  # the agent itself can't be called; the refusal says so
        return None

    def _plan(self, found: _Found, question: Question, request: ProviderRequest, notices: tuple[Notice, ...]) -> Plan:
        stored = _stored(self.profile, found.parameters["question"], question)
        unique = {(notice.code, notice.place): notice for notice in (*notices, *found.notices, *stored)}
        reported = tuple(unique.values())
        return Plan(found.strategy, self.provider.name, found.parameters, question.text, request, reported)

    def _unchecked(self) -> dict[str, str]:
        r"""Return what lets the user's placeholders pass where the cluster reads the rendered body and writes it again.

        It turns ``\u0024{parameters.x}`` of a text into a placeholder, and would then refuse it. A placeholder of the
        agent's own that is not filled is found all the same: nothing can be proved of an agent that has one.
        """
        return {SKIP: "true"} if is_written_again(self.profile, self.params) else {}

    def call_model(self) -> CallModel:
        """Return the agent's call model, with what the agent can't do without and nobody sends.

        Raises:
            RenderFailure: the agent can't be called.
        """
        call = self.call_models.get(self.provider, self.params)
        while missing := call.missing_parameters():
            call = self.call_models.get(self.provider, {**call.params, **missing.parameters}, missing.slots)
        return call

    def _variants(self, whole: Variant, call: CallModel) -> Iterator[Variant]:
        """Yield the conversation, then with remembered turns sent by the gateway, then each with the system folded."""
        variants = self._with_memory(whole, call)
        tried = []
        for variant in variants:
            yield variant
            tried.append(variant)
        yield from filter(None, (variant.fold() for variant in tried))

    def _with_memory(self, whole: Variant, call: CallModel) -> Iterator[Variant]:
        if not self.remembered:
            yield whole
            return
        texts = [text for turn in self.remembered for text in turn]
        # No limit turns the replay off of an agent that writes the user's turn itself (docs/evidence/facts.md, V1).
        can_be_off = call.replays and not call.writes_turn
        is_known = is_settled(self.remembered) or not can_be_off
        replayed, retold = [], []
        if not call.replays or (is_known and all(is_readable_later(call, text) for text in texts)):
            replayed = [whole]
        if can_be_off:
            # What memory replays could be expanded as a template, or replace the client's own history.
            conversation = _after_remembered(whole.agent_input, self.remembered, self.options.roles)
            notice = Notice("MEMORY_RETOLD", "remembered turns are sent by the gateway, the agent's own replay is off")
            parameters = {**whole.parameters, "message_history_limit": "0"}
            retold = [Variant(self, conversation, parameters, (*whole.notices, notice), whole.as_text)]
        is_exact = all(map(is_replayed_exactly, texts))
        yield from (*replayed, *retold) if is_exact else (*retold, *replayed)

    def _proved(self, call: CallModel, variant: Variant, question: Question) -> Iterator[_Found]:
        for candidate, additions, text in _candidates(call, variant.request, question, self.keeps_turns):
            beside = [dict(addition.parameters) for addition in additions]
            planned = merge(dict(variant.parameters), dict(candidate.parameters), *beside)
            complete = replace(candidate, parameters=planned)
            if self._overrides(call, planned):
                continue
            parameters = prove(call, complete, additions, {question.text, text})
            if parameters is not None:
                notices = [notice for addition in additions for notice in addition.notices]
                yield _Found(candidate.strategy, parameters, (*notices, *candidate.notices))

    def _overrides(self, call: CallModel, planned: Mapping[str, str]) -> bool:
        """Return True if a candidate would drop the value of one of the caller's parameters."""
        return any(
            planned.get(name, value) != value
            and name not in _EXTENDED
            and not _includes(call, name, value, planned[name])
            for name, value in self.params.items()
        )


def _candidates(
    call: CallModel, request: ProviderRequest, question: Question, keeps_turns: bool
) -> Iterator[tuple[Candidate, tuple[Addition, ...], str]]:
    """Yield candidates, each with what is delivered beside it and with the text that represents the question."""
    for tools in declarations(call, request):
        for placement in placements(call, request):
            if not placement.turns:
                continue
            target = TargetTurns.of(call.provider, placement.turns, question)
            for strategy in TURN_STRATEGIES if keeps_turns else STRATEGIES:
                for candidate in strategy(call, target):
                    yield candidate, (placement.system, tools), target.text


_EXTENDED = frozenset({"no_escape_params", "message_history_limit", "skip_validating_missing_parameters"})
"""Parameters whose planned value includes the caller's, or may replace it."""


def _includes(call: CallModel, name: str, value: str, planned: str) -> bool:
    """Return True if `planned` includes the caller's `value`: as prompt, system text or template of the messages."""
    slots = {slot.name for slot in call.slots}
    system = call.system_slot
    prompt_parameter = call.prompt_parameter
    return (
        name in slots
        or (prompt_parameter is not None and name == prompt_parameter.name)
        or (system is not None and name == system.name and planned.startswith(value))
    )


def _ends_with_assistants_text(agent_input: AgentInput, roles: Mapping[str, str]) -> bool:
    """Return True if a text of the assistant is last, after other turns, and ends as services require it.

    That is without white space (docs/evidence/providers.md).
    """
    turns = [turn for turn in agent_input.messages if not turn.is_blank and not meaning_of(turn, roles).is_system]
    is_asked = len(turns) > 1 and meaning_of(turns[-1], roles).standard == "assistant"
    last = turns[-1].content[-1] if is_asked else None
    return isinstance(last, Text) and not last.text[-1:].isspace()


def _question_alone(search: Search, request: ProviderRequest) -> Plan | None:
    """Plan for a flow none of whose LLMs is read: it takes a question, so the input must be one user turn of texts.

    An LLM that is not read gets a text only if no template changes it.
    """
    provider, params = search.provider, search.params
    is_turn = not request.system and [provider.role_of(turn) for turn in request.messages] == ["user"]
    texts = texts_of(provider, request.messages[0]) if is_turn else None
    text, joined = join_texts(texts or [])
    callers = unread_tools(search.profile, params)
    if not texts or PREFIX in text or not all(is_inert(text, own_values(tool)) for tool in callers):
        return None
    notice = Notice("NO_LLM", "no tool of this flow calls an LLM")
    if callers:
        about = (
            f"the tool {callers[0].key} calls a model or connector that the gateway does not read, so the text is sent "
            "as the question"
        )
        notice = Notice("LLM_NOT_READ", about)
    notices = (*request.notices, *joined, notice)
    return Plan("text", "", Proved.without_llm(params, text), text, request, notices, proved=not callers)


def text_blocks(blocks: Iterable[ContentBlock | Json]) -> Iterator[Text]:
    """Yield the texts, those in tool results too."""
    for block in blocks:
        if isinstance(block, Text):
            yield block
        elif isinstance(block, ToolResult):
            yield from text_blocks(block.content)


def _stored(profile: AgentProfile, stored: str, question: Question) -> Iterator[Notice]:
    """Report what memory will hold, if that is not the plain question."""
    if profile.memory_type and stored != question.text:
        if question.helper in stored:
            yield MEMORY_HOLDS_CODE
        else:
            yield Notice("MEMORY_HOLDS_NOTE", "the turn has no text, so the agent's memory stores a note")


Remembered = Sequence[tuple[str, str]]
"""(question, answer) pairs, oldest first. The answer is "" if the run failed or is unfinished."""
_PLACE = "memory["


def remembered_turns(remembered: Remembered) -> tuple[Message, ...]:
    """Return the turns that have an answer, as an agent recalls them, as messages of a conversation."""
    return tuple(
        Message(role, (Text(unescape(text), at),), at)
        for index, pair in enumerate(remembered)
        if pair[1]
        for role, text in zip(("user", "assistant"), pair, strict=True)
        for at in (f"{_PLACE}{index}].{role}",)
    )


def _after_remembered(agent_input: AgentInput, remembered: Remembered, roles: Mapping[str, str]) -> AgentInput:
    """Return the input with the remembered turns before its own; the system turns at its start stay first."""
    messages = agent_input.messages
    count = sum(1 for _ in takewhile(lambda message: meaning_of(message, roles).is_system, messages))
    return replace(agent_input, messages=(*messages[:count], *remembered_turns(remembered), *messages[count:]))


def is_settled(remembered: Remembered) -> bool:
    """Return True if every turn has its answer.

    The cluster answers a run that failed before it stores the error's text as the turn's answer, which may hold
    placeholders. Until then nothing is known of what an agent would replay (docs/evidence/facts.md).
    """
    return all(answer for _, answer in remembered)


def is_replayed_exactly(stored: str) -> bool:
    """Return True if what the agent replays of `stored` is what was written: the form for memory alters braces."""
    return show_readable(stored) == show_original(stored)


def notices_of_remembered(request: ProviderRequest) -> Iterator[Notice]:
    """Yield what the mapping of a conversation with such turns changed in them.

    The other notices are those of the conversation without them.
    """
    return (notice for notice in request.notices if notice.place.startswith(_PLACE))
