"""What a new agent's LLM would have been sent for the recorded requests of an old one. Pure: nothing is sent.

Each request is planned for both agents by the code of the gateway itself, and the first LLM call of both is rendered as
the cluster renders it. What the record does not hold is represented by symbols, the same ones for both agents: media,
which are recorded as hashes, what memory replays, and the cluster's own texts. A request whose LLM call depends on more
than that is not judged, and the verdict says why.

A verdict does not depend on the words of plain texts (`gateway.execute.template_cache`), so that requests of one shape
are judged once.

`check_copy` judges one request of each kind for an agent and its copy on another cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import Document, keeps_sessions, rule_for
from gateway.codes import Notice
from gateway.delivery.call_model import CallModelCache
from gateway.errors import GatewayError, UnresolvedAgent
from gateway.execute.rewrite import Rewrite, RewriteOptions, is_native, rewrite_for_agent, rewrite_input
from gateway.execute.session_request import Earlier, compose, read_new_input
from gateway.memory.model import Metadata
from gateway.migrate.assess import TYPES
from gateway.migrate.llm_call import LlmCall, differences
from gateway.migrate.proof import KINDS, sample
from gateway.migrate.recorded import MEMORY_IDS, Options, Reason, RecordedRun, ShapedRun, Unknown, read_run
from gateway.migrate.upgrade import Documents
from gateway.mlcommons.agents import conversational_v2
from gateway.mlcommons.expansion import RenderFailure, UnknownRendering, limited_work
from gateway.mlcommons.generations import FLOW_TYPES, AgentType, Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call, first_llm
from gateway.mlcommons.sent_body import STREAM
from gateway.mlcommons.template import HOSTILE, RuntimeValues
from gateway.recent import Recent
from gateway.unified.model import AgentInput, Url
from gateway.unified.request import ExecuteRequest, parameters_as_strings


class Kind(StrEnum):
    """What becomes of a request with the new agent."""

    SAME = "same"
    DIFFERENT = "different"
    ARRIVES_NOW = "arrives now"
    REFUSED = "refused"
    REFUSED_BY_BOTH = "refused by both"
    NOT_JUDGED = "not judged"


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a request. differences: their names (`llm_call`). codes: of a refusal, or the `Reason`.

    reason, help: of the first problem, "" for none.
    """

    kind: Kind
    differences: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    reason: str = ""
    help: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return JSON data."""
        lists = {"differences": list(self.differences), "codes": list(self.codes)}
        return {"result": self.kind.value, **lists, "reason": self.reason, "help": self.help}


class Refusal(msgspec.Struct, frozen=True):
    """The gateway or the cluster would not run the agent. codes: `FAILS_ON_CLUSTER` for the cluster."""

    codes: tuple[str, ...]
    reason: str
    help: str = ""


Outcome = LlmCall | Refusal | Unknown


class RehearsedAgent:
    """An agent whose first LLM calls are rendered. document: as `GET` shows it; its tools tell what the LLM sees of
    them. Without a profile, `unreadable` says why.
    """

    MAX_ENTRIES = 256

    def __init__(
        self, profile: AgentProfile | None, document: Document, options: Options, unreadable: str = ""
    ) -> None:
        self.profile = profile
        self.unreadable = unreadable
        self._options = options
        self._tools = _fingerprint(_visible_tools(document))
        self._outcomes: Recent[Outcome] = Recent(self.MAX_ENTRIES)
        if profile is None:
            return
        rule = rule_for(profile.id, profile.name, options.rules)
        self._policy = RewriteOptions(options.mapping, rule is not None and rule.delivery == "describe")
        self._calls = CallModelCache(profile)
        self._symbols = _symbols(profile, self._tools)
        others = [tool for tool in profile.tools if not tool.calls_llm]
        self._tool_output = f"{HOSTILE} {_fingerprint([(t.type, t.name, t.parameters, t.config) for t in others])}"

    def outcome(self, run: RecordedRun, history: str | None = None, shape: Hashable = None) -> Outcome:
        """Return what becomes of a request. history: what memory replays; None for nothing.

        shape: of the request, if its texts are specimens; what becomes of one shape is remembered.
        """
        if shape is None:
            return self._outcome(run, history)
        return self._outcomes.get((shape, history), lambda: self._outcome(run, history))

    def _outcome(self, run: RecordedRun, history: str | None) -> Outcome:
        profile, request = self.profile, run.request
        if profile is None:
            return Unknown(Reason.AGENT_UNREADABLE, self.unreadable)
        try:
            with limited_work():
                notices: tuple[Notice, ...] = ()
                if self.remembers_in_gateway and (request.input is not None or request.has_question):
                    turn = compose(profile, request, Earlier(), Metadata(), self._options.mapping.roles, _TURN)
                    run, notices = replace(run, request=turn.request), turn.notices
                if run.request.input is not None:
                    return self._of_input(profile, run, run.request.input, notices)
                return self._of_question(profile, run, history)
        except UnknownRendering as failure:
            return Unknown(Reason.LENIENT_JSON, str(failure))
        except RenderFailure as failure:
            return Refusal((Reason.FAILS_ON_CLUSTER.name,), str(failure), self._advice(profile, run.request))
        except GatewayError as error:
            return self._refused(run, error)

    @property
    def remembers_in_gateway(self) -> bool:
        """True if the agent's conversations are the gateway's sessions."""
        return self.profile is not None and keeps_sessions(self.profile, self._options.memory_rules)

    def _refused(self, run: RecordedRun, error: GatewayError) -> Outcome:
        if run.request.input is None:  # it is forwarded, however much work it is to render
            return Unknown(Reason.TOO_LARGE, error.reason)
        by_url = {medium.at for medium in run.request.input.media if isinstance(medium.source, Url)}
        if self._options.fetches_media and any(problem.place in by_url for problem in error.problems):
            return Unknown(Reason.MEDIA_FETCHED, error.reason)
        if run.document_texts:  # bytes that are no text may be the reason, and it is not known whether these are
            return Unknown(Reason.TEXT_NOT_RECORDED, error.reason)
        codes = dict.fromkeys(problem.code or error.type for problem in error.problems)
        help = next((problem.help for problem in error.problems if problem.help), "")
        return Refusal(tuple(codes) or (error.type,), error.reason, help)

    def _advice(self, profile: AgentProfile, request: ExecuteRequest) -> str:
        """Return what helps against a question that fails; "" if nothing is known to."""
        if request.input is not None or not request.has_question:
            return ""
        agent_input = read_new_input(request)
        if is_native(profile, agent_input):
            return ""
        try:
            rewrite_input(profile, request, agent_input, self._policy, _TURN, calls=self._calls)
        except GatewayError:
            return ""
        return "Let clients send `input` in place of the question: the gateway brings it to this agent"

    def _of_input(
        self, profile: AgentProfile, run: RecordedRun, agent_input: AgentInput, notices: Sequence[Notice]
    ) -> Outcome:
        request, calls = run.request, self._calls
        sent = rewrite_for_agent(profile, request, agent_input, self._policy, _TURN, calls, streaming=run.streaming)
        parameters = _sent_parameters(profile, request, sent)
        if first_llm(profile, parameters)[0] is None:
            return Unknown(Reason.LLM_NOT_READ)
        codes = frozenset(notice.code for notice in (*notices, *sent.plan.notices))
        call = self._render(profile, parameters, None, codes)
        # The text of a document that was recorded as a hash may hold placeholders.
        texts = "\n".join(call.texts()) if run.document_texts else ""
        if any(word in texts for word in run.document_texts):
            return Unknown(Reason.TEXT_NOT_RECORDED)
        return call

    def _of_question(self, profile: AgentProfile, run: RecordedRun, history: str | None) -> Outcome:
        """Return what becomes of a request without `input`, which is forwarded unchanged."""
        parameters = parameters_as_strings(run.request.parameters)
        question = parameters.get("question")
        if profile.generation is Generation.UNIFIED_V2:
            if question is None or run.streaming or profile.unified_api is False:
                raise RenderFailure("the agent takes nothing but `input`, and has no streams")
            # The gateway sends the question once more as `input` (`gateway.execute.handler.retry_as_input`).
            parameters = {name: value for name, value in parameters.items() if name != "question"}
            parameters["body"] = conversational_v2.render(profile.provider, _messages(question))
        if profile.generation is Generation.UNIFIED_V1 and not (question or "").strip():
            raise RenderFailure("the agent takes no empty question")
        if run.streaming:
            parameters[STREAM] = "true"
        if first_llm(profile, parameters)[0] is None:
            return Unknown(Reason.LLM_NOT_READ)
        return self._render(profile, parameters, history)

    def _render(
        self,
        profile: AgentProfile,
        parameters: Mapping[str, str],
        history: str | None,
        notices: frozenset[str] = frozenset(),
    ) -> LlmCall:
        body = first_call(profile, parameters, RuntimeValues(history, self._tool_output))
        return LlmCall.read(profile.provider, self._named(body), notices)

    def _named(self, value: Any) -> Any:
        """Return a body in which the symbols of the cluster's texts name what they stand for with this agent."""
        match value:
            case {"gwtool": _}:
                return {"gwtool": self._tools}
            case dict():
                return {name: self._named(member) for name, member in value.items()}
            case list():
                return [self._named(item) for item in value]
            case str() if _SYMBOL in value:
                for symbol, name in self._symbols.items():
                    value = value.replace(symbol, name)
        return value


_TURN = "rehearsed"
_SYMBOL = "<built-in"


def _symbols(profile: AgentProfile, tools: str) -> Mapping[str, str]:
    """Return what the symbols of `gateway.mlcommons` stand for: texts that depend on the version, and on the tools."""
    version = ".".join(map(str, profile.version[:2]))
    type_ = "flow" if profile.agent_type in FLOW_TYPES else profile.type
    of_tools = tools if profile.agent_type is AgentType.PLANNER else ""
    return {
        "<built-in>": f"<text of {version} {type_} {of_tools}>",
        "<built-in tools>": f"<tools of {version} {tools}>",
        "<built-in names>": f"<names of {tools}>",
    }


def _visible_tools(document: Document) -> Any:
    """Return what an LLM sees of an agent's tools: the cluster describes one without a description by its type."""
    tools = document.get("tools")
    names = ("type", "description", "attributes")
    seen = [
        [tool.get("name") or tool.get("type"), *(tool.get(name) for name in names)]
        for tool in (tools if isinstance(tools, list) else [])
    ]
    parameters = document.get("parameters")
    return [seen, parameters.get("mcp_connectors") if isinstance(parameters, Mapping) else None]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()[:12]


def _sent_parameters(profile: AgentProfile, request: ExecuteRequest, sent: Rewrite) -> dict[str, str]:
    """Return the parameters with which the agent runs a request that is sent as `sent`."""
    if sent.plan.parameters:
        return dict(sent.plan.parameters)
    own = {name: value for name, value in request.parameters.items() if name != "question"}
    parameters = parameters_as_strings(own)
    if sent.native is None:
        return {**parameters, "question": sent.plan.question}
    body = conversational_v2.render(profile.provider, _messages(sent.native.value))
    return {**parameters, **sent.native.parameters, "body": body}


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages of an `input`: of a text, of content blocks, or of messages."""
    if isinstance(value, str):
        value = [{"type": "text", "text": value}]
    return value if value and "role" in value[0] else [{"role": "user", "content": value}]


class Rehearsal:
    """Judges the requests of an old agent for a new one. ignored: names of differences that don't count."""

    MAX_ENTRIES = 4096

    def __init__(self, old: RehearsedAgent, new: RehearsedAgent, ignored: Sequence[str] = ()) -> None:
        self._old, self._new = old, new
        self._ignored = frozenset(ignored)
        self._replay_alike = _replay_alike(old, new)
        self._has_shapes = not (old.remembers_in_gateway or new.remembers_in_gateway)  # what is composed has no shape
        self._verdicts: Recent[Verdict | bool] = Recent(self.MAX_ENTRIES)
        """By shape; False: requests of this shape are judged one by one."""

    def judge(self, run: RecordedRun) -> Verdict:
        """Return what becomes of a request with the new agent."""
        if run.reason is not None:
            return _not_judged(run.reason)
        if not self._replays(run):
            return self._judge(run, None)
        if run.request.input is not None or not self._replay_alike:
            return _not_judged(Unknown(Reason.MEMORY_REPLAYED))
        without, replayed = self._judge(run, None), self._judge(run, HOSTILE)
        return without if without == replayed else _not_judged(Unknown(Reason.MEMORY_REPLAYED))

    def _replays(self, run: RecordedRun) -> bool:
        named = any(run.request.parameters.get(name) for name in MEMORY_IDS)
        return named and any(agent.profile is not None and _remembers(agent) for agent in (self._old, self._new))

    def _judge(self, run: RecordedRun, history: str | None) -> Verdict:
        shaped = run.shaped if self._has_shapes else None
        if shaped is None:
            return self._compare(self._old.outcome(run, history), self._new.outcome(run, history))
        verdict = self._verdicts.get((shaped.shape, history), lambda: self._judge_shape(shaped, history) or False)
        if isinstance(verdict, Verdict):
            return verdict
        return self._compare(self._old.outcome(run, history), self._new.outcome(run, history))

    def _judge_shape(self, shaped: ShapedRun, history: str | None) -> Verdict | None:
        """Return the verdict on all requests of a shape; None if it may depend on their texts."""
        old, new = (_outcome_of_shape(agent, shaped, history) for agent in (self._old, self._new))
        return self._compare(old, new) if old is not None and new is not None else None

    def _compare(self, old: Outcome, new: Outcome) -> Verdict:
        return compare(old, new, self._ignored)


def compare(old: Outcome, new: Outcome, ignored: frozenset[str] = frozenset()) -> Verdict:
    """Return the verdict on a request of which both agents make these."""
    for outcome in (old, new):
        if isinstance(outcome, Unknown):
            return _not_judged(outcome)
    if isinstance(new, Refusal):
        kind = Kind.REFUSED_BY_BOTH if isinstance(old, Refusal) else Kind.REFUSED
        return Verdict(kind, (), new.codes, new.reason, new.help)
    if isinstance(old, Refusal):
        return Verdict(Kind.ARRIVES_NOW, (), old.codes, old.reason)
    assert isinstance(old, LlmCall)
    assert isinstance(new, LlmCall)
    names = tuple(name for name in differences(old, new) if name not in ignored)
    return Verdict(Kind.DIFFERENT, names) if names else Verdict(Kind.SAME)


def _not_judged(unknown: Unknown) -> Verdict:
    reason = f"{unknown.reason.value}: {unknown.details}" if unknown.details else unknown.reason.value
    return Verdict(Kind.NOT_JUDGED, (), (unknown.reason.name,), reason)


def _remembers(agent: RehearsedAgent) -> bool:
    profile = agent.profile
    assert profile is not None
    return bool(profile.memory_type) or profile.generation is Generation.UNIFIED_V2 or agent.remembers_in_gateway


def _replay_alike(old: RehearsedAgent, new: RehearsedAgent) -> bool:
    """Return True if both agents replay the same part of a conversation, in the same form."""
    if old.profile is None or new.profile is None or old.remembers_in_gateway or new.remembers_in_gateway:
        return False

    def replay(profile: AgentProfile) -> Any:
        limits = [own.get("message_history_limit") for own in (profile.parameters, profile.llm_parameters)]
        return profile.generation, profile.agent_type, profile.memory_type, limits

    return replay(old.profile) == replay(new.profile) and old.profile.generation is not Generation.UNIFIED_V2


def _outcome_of_shape(agent: RehearsedAgent, shaped: ShapedRun, history: str | None) -> Outcome | None:
    """Return what becomes of every request of a shape; None if it may depend on the texts.

    An LLM call is that of any texts if the specimens are whole in it. A refusal is that of any texts if those with
    every sign and those with none are refused alike.
    """
    hard = agent.outcome(shaped.hard, history, (shaped.shape, "hard"))
    if isinstance(hard, LlmCall):
        texts = "\n".join(hard.texts())
        return hard if all(text in texts for text in shaped.texts) else None
    easy = agent.outcome(shaped.easy, history, (shaped.shape, "easy"))
    return hard if _code(hard) == _code(easy) else None


def _code(outcome: Outcome) -> Any:
    match outcome:
        case Refusal(codes=codes):
            return codes
        case Unknown(reason=reason):
            return reason
    return None


# What becomes of all of them


class Row(msgspec.Struct):
    """The requests with one verdict. examples: ids of exchanges."""

    verdict: Verdict
    count: int
    examples: list[str]


class Tally:
    """Counts verdicts. Its size does not depend on how many there are."""

    MOST_ROWS, MOST_EXAMPLES = 100, 3
    _MANY = ("others",)

    def __init__(self) -> None:
        self._rows: dict[Hashable, Row] = {}

    def add(self, id: str, verdict: Verdict) -> None:
        """Count the verdict on an exchange."""
        key = (verdict.kind, verdict.differences, verdict.codes)
        if key not in self._rows and len(self._rows) >= self.MOST_ROWS:
            verdict = Verdict(verdict.kind, self._MANY)
            key = (verdict.kind, verdict.differences, verdict.codes)
        row = self._rows.setdefault(key, Row(verdict, 0, []))
        row.count += 1
        if len(row.examples) < self.MOST_EXAMPLES:
            row.examples.append(id)

    def rows(self) -> list[Row]:
        """Return the rows, by kind in the order of `Kind`, the most requests first."""
        order = {kind: number for number, kind in enumerate(Kind)}
        return sorted(self._rows.values(), key=lambda row: (order[row.verdict.kind], -row.count))

    def count(self, *kinds: Kind) -> int:
        """Return how many requests have a verdict of these kinds; of all without any."""
        return sum(row.count for row in self._rows.values() if not kinds or row.verdict.kind in kinds)

    def same_percent(self) -> float | None:
        """Return the share of the requests that arrive the same, of all that the old agent does not refuse.

        None if there is none.
        """
        counted = self.count() - self.count(Kind.ARRIVES_NOW, Kind.REFUSED_BY_BOTH)
        return 100 * self.count(Kind.SAME) / counted if counted else None


QUESTION = "question"
"""The kind of a request without `input`."""
_GOOD = (Kind.SAME, Kind.ARRIVES_NOW, Kind.REFUSED_BY_BOTH)


class Check(msgspec.Struct, frozen=True):
    """What becomes of one kind of request. request: `QUESTION`, or a kind of `input`."""

    request: str
    verdict: Verdict

    @property
    def is_same(self) -> bool:
        """True if the copy takes this kind as well as the old agent does."""
        return self.verdict.kind in _GOOD

    @property
    def is_lost(self) -> bool:
        """True if only the old agent takes this kind."""
        return self.verdict.kind is Kind.REFUSED


def check_copy(old: tuple[Documents, str], new: tuple[Documents, str], options: Options) -> tuple[Check, ...]:
    """Compare an agent with its copy. old, new: the documents of a cluster, and the agent's id."""
    rehearsal = Rehearsal(rehearsed_agent(*old, options), rehearsed_agent(*new, options))
    provider = _provider(*old)
    bodies = _requests(provider)
    return tuple(Check(kind, rehearsal.judge(read_run(kind, body, False, options))) for kind, body in bodies)


def _requests(provider: str) -> Iterator[tuple[str, bytes]]:
    yield QUESTION, json.dumps({"parameters": {"question": sample("text", provider)}}).encode()
    for kind in KINDS:
        yield kind, json.dumps({"input": sample(kind, provider)}).encode()


def _provider(documents: Documents, agent_id: str) -> str:
    try:
        return documents.profile(agent_id).provider
    except UnresolvedAgent:
        return ""


def rehearsed_agent(documents: Documents, agent_id: str, options: Options) -> RehearsedAgent:
    """Return an agent whose LLM calls are rendered; if it can't be read, it says so for each request."""
    document: Document = documents.agents[agent_id]
    try:
        profile = documents.profile(agent_id)
        if profile.agent_type not in TYPES:
            raise UnresolvedAgent(f"the gateway does not know how agents of type {profile.type} take their input")
    except UnresolvedAgent as error:
        return RehearsedAgent(None, document, options, error.reason)
    return RehearsedAgent(profile, document, options)
