"""The use case: what to send to the cluster for a request to run an agent."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gateway.agents.errors import AgentNotFound, FailedLookup
from gateway.agents.lookup import AUTH_HEADERS
from gateway.agents.memory import DEFAULT_LIMIT, MemoryReader
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.agents.rules import Rule, rule_for
from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import Settings
from gateway.delivery.native import GUARDS
from gateway.delivery.plan import Plan, Remembered
from gateway.delivery.plan_cache import PlanCache
from gateway.errors import GatewayError, UnresolvedAgent
from gateway.execute import response_headers
from gateway.execute.body import is_json
from gateway.execute.fast_path import SPECIMEN_BODY, FastPath, headers_of, text_of
from gateway.execute.media import Inliner
from gateway.execute.rewrite import (
    Policy,
    Rewritten,
    is_native,
    native,
    question_as_input,
    rewritten,
    rewritten_unproved,
)
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.observe.logs import Logger, step
from gateway.observe.metrics import Metrics
from gateway.observe.redact import describe_error, mask_place
from gateway.offload import run_here_if
from gateway.ports import ClusterReader, ExecuteCall, Forward, MediaFetcher, ProfileCache, Retry
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.budget import Budget, is_small
from gateway.unified.model import AgentInput
from gateway.unified.request import ExecuteRequest, RequestKind, read_execute

# What clusters say when they did not run the agent because of how the input came (FACTS.md, 3.5 and later).
_API_OFF = b"unified agent API is not enabled"
_CODE_NOT_FILLED = b"placeholder not filled in payload: gw_d"
_V2_ONLY = b"V2 agents require executor-provided memory"

_IDENTITY_HEADERS = frozenset(name.encode() for name in AUTH_HEADERS)


class Handler:
    """Reads a request, learns what stands behind the agent, and says what to send."""

    def __init__(
        self,
        settings: Settings,
        resolver: Resolver,
        memory: MemoryReader,
        log: Logger,
        metrics: Metrics,
        fetch: MediaFetcher | None = None,
    ) -> None:
        self._settings = settings
        self._resolver = resolver
        self._memory = memory
        self._log = log
        self._metrics = metrics
        self._rules = _rules(settings)
        agents = settings.agents
        self._options = MappingOptions(agents.roles, agents.allow_prefill)
        self._media = Inliner(self._options, fetch, log)
        self._budget = Budget.from_limits(settings.limits)
        self._traces = settings.logs.level == "debug"  # then every step of every rewrite is told

    async def __call__(self, call: ExecuteCall) -> Forward:
        """What to send for `call`.

        Raises:
            GatewayError: the input is wrong, can't be delivered, or the agent can't be read.
        """
        if not is_json(call.headers.get("Content-Type", "")):
            return Forward()
        request = await self._read(call.body)
        if request.kind is RequestKind.LEGACY or request.input is None:
            return Forward(retry=self._as_input(request))
        if request.has_question:
            self._log.warning("deprecated", agent=call.agent_id, reason="both input and parameters.question were sent")
        provider = ""
        try:
            agent = await self._agent(call, request, request.input)
            if isinstance(agent, Forward):
                return agent
            provider = agent.profile.provider
            return await self._unified(call, request, request.input, agent)
        except GatewayError as error:
            self._refused(call, request.input, provider, error)
            raise

    async def _read(self, body: bytes) -> ExecuteRequest:
        return await run_here_if(is_small(body), read_execute, body, self._budget)

    async def _agent(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput
    ) -> ResolvedAgent | Forward:
        """What stands behind the agent; or what to send where that can't be read."""
        step(self._log, "decoded", input=agent_input.type.value, messages=len(agent_input.messages))
        try:
            agent = await self._resolver.agent(call.agent_id, call.headers)
            if agent.profile.generation is Generation.UNIFIED_V2 and agent.profile.unified_api is False:
                # To be refused, and the refusal names the call that turns the API on: it may have been made since.
                agent = await self._resolver.refresh(call.agent_id, call.headers)
        except AgentNotFound:
            raise  # a cluster that doesn't know `input` would call the request empty instead
        except UnresolvedAgent as error:
            if isinstance(error, FailedLookup) and error.cluster_status == 401:
                return Forward()  # so that the client gets the cluster's own challenge
            assumed = await self._assumed(call.agent_id, request, agent_input)
            if assumed is None:
                raise
            return assumed
        profile = agent.profile
        step(
            self._log,
            "profile",
            type=profile.type,
            generation=profile.generation.value,
            provider=profile.provider,
            told_by=profile.provider_source,
        )
        return agent

    async def _unified(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, agent: ResolvedAgent
    ) -> Forward:
        profile = agent.profile
        if is_native(profile, agent_input):
            return await self._native(call, request, agent_input, agent)
        remembered, notices = await self._remembered(profile, request, call.headers)

        def deliver(said: AgentInput) -> Rewritten:
            return rewritten(profile, request, said, Policy(self._options), remembered, agent.derive(PlanCache))

        describes = self._describes(profile)
        agent_input, fetched = await self._media.inlined(profile.provider, request, agent_input, deliver, describes)
        sent = await run_here_if(
            request.is_small, self._delivered, agent, request, agent_input, remembered, (*notices, *fetched)
        )
        if text_of(call.body) is not None and agent.derive(FastPath).ready is None:
            self._learn(agent)
        return self._sent(request, agent_input, sent)

    def caller(self, lines: Iterable[bytes]) -> bytes:
        """See `gateway.ports.AtOnce`."""
        headers = None if self._traces else headers_of(lines, _IDENTITY_HEADERS)
        return b"" if headers is None else self._resolver.caller(headers)

    def try_fast(self, agent_id: str, caller: bytes, body: bytes) -> Forward | None:
        """See `gateway.ports.AtOnce`."""
        agent = self._resolver.peek(agent_id, caller)
        ready = agent.derive(FastPath).ready if agent is not None else None
        text = text_of(body) if ready is not None else None
        if ready is None or text is None:
            return None
        self._count(ready.plan)
        return ready.forward(text)

    def _learn(self, agent: ResolvedAgent) -> None:
        request = read_execute(SPECIMEN_BODY)
        assert request.input is not None
        sent = self._delivered(agent, request, request.input, (), ())
        told = response_headers.headers(self._settings.answers, sent.plan, request.input.type.value, False)
        agent.derive(FastPath).learn(sent.plan, Forward(sent.body, told))

    async def _native(
        self, call: ExecuteCall, request: ExecuteRequest, agent_input: AgentInput, agent: ResolvedAgent
    ) -> Forward:
        """The request as it came, and what to send once more should the cluster refuse it before running anything."""
        profile = agent.profile
        remembered, notices = await self._remembered(profile, request, call.headers)

        def retry_with(status: int, answer: bytes) -> Forward | None:
            if status == 400 and _CODE_NOT_FILLED in answer:
                return self._sent(request, agent_input, native(profile, request, agent_input, call.streaming, GUARDS))
            if status == 400 and _API_OFF in answer and profile.generation is not Generation.UNIFIED_V2:
                sent = self._delivered(agent, request, agent_input, remembered, notices)
                return self._sent(request, agent_input, sent)
            return None

        planned = await run_here_if(request.is_small, native, profile, request, agent_input, call.streaming)
        as_sent = self._sent(request, agent_input, planned)
        return Forward(as_sent.body, as_sent.response_headers, retry_with)

    def _delivered(
        self,
        agent: ResolvedAgent,
        request: ExecuteRequest,
        agent_input: AgentInput,
        remembered: Remembered,
        notices: tuple[Notice, ...],
    ) -> Rewritten:
        policy = Policy(self._options, self._describes(agent.profile))
        sent = rewritten(agent.profile, request, agent_input, policy, remembered, agent.derive(PlanCache))
        return Rewritten(_noted(sent.plan, notices), sent.body)

    def _describes(self, profile: AgentProfile) -> bool:
        rule = rule_for(profile.id, profile.name, self._rules)
        return rule is not None and rule.delivery == "describe"

    async def _assumed(self, agent_id: str, request: ExecuteRequest, agent_input: AgentInput) -> Forward | None:
        """The operator's word for an agent that can't be read; None where he said nothing."""
        rule = rule_for(agent_id, "", self._rules)
        if self._settings.agents.on_unproved != "assume" or rule is None or not rule.provider:
            return None
        provider = registry.provider(rule.provider)

        def deliver(said: AgentInput) -> Rewritten:
            return rewritten_unproved(provider, request, said, Policy(self._options))

        agent_input, fetched = await self._media.inlined(rule.provider, request, agent_input, deliver)
        sent = await run_here_if(request.is_small, deliver, agent_input)
        return self._sent(request, agent_input, Rewritten(_noted(sent.plan, fetched), sent.body))

    async def _remembered(
        self, profile: AgentProfile, request: ExecuteRequest, headers: Mapping[str, str]
    ) -> tuple[Remembered, tuple[Notice, ...]]:
        """What the agent will replay for the caller's memory; nothing where it has none or can't be read."""
        memory_id = request.parameters.get("memory_id")
        if (
            profile.generation is Generation.UNIFIED_V2
            or not profile.memory_type
            or not isinstance(memory_id, str)
            or not memory_id
        ):
            return (), ()
        limit = str(request.parameters.get("message_history_limit", DEFAULT_LIMIT))
        try:
            found = await self._memory.remembered(memory_id, headers, int(limit) if limit.isdigit() else DEFAULT_LIMIT)
        except FailedLookup:
            return (), (Notice("MEMORY_NOT_READ", "what the agent remembers could not be read, so not checked"),)
        return found, ()

    def _as_input(self, request: ExecuteRequest) -> Retry | None:
        """For a legacy request: its question as `input`, should the agent turn out to take nothing else."""
        if not request.has_question:
            return None

        def retry_with(status: int, answer: bytes) -> Forward | None:
            if status != 500 or _V2_ONLY not in answer:
                return None
            said = response_headers.delivery("native", "", "question") if self._settings.answers.delivery_header else ""
            return Forward(question_as_input(request), {response_headers.DELIVERY: said} if said else {})

        return retry_with

    def _sent(self, request: ExecuteRequest, agent_input: AgentInput, sent: Rewritten) -> Forward:
        plan, kind = sent.plan, agent_input.type.value
        self._count(plan)
        step(
            self._log,
            "planned",
            strategy=plan.strategy,
            provider=plan.provider,
            parameters=plan.parameters,
            notices=[f"{notice.code} {mask_place(notice.place)}".strip() for notice in plan.notices],
        )
        return Forward(sent.body, response_headers.headers(self._settings.answers, plan, kind, request.has_question))

    def _count(self, plan: Plan) -> None:
        self._metrics.rewritten(plan.provider, plan.strategy, "sent")
        for notice in plan.notices:
            self._metrics.notice(notice.code)

    def _refused(self, call: ExecuteCall, agent_input: AgentInput, provider: str, error: GatewayError) -> None:
        codes = sorted({problem.code for problem in error.problems if problem.code})
        self._metrics.rewritten(provider, "", error.type)
        self._log.warning(
            "refused",
            agent=call.agent_id,
            input=agent_input.type.value,
            provider=provider or "unknown",
            strategy="none",
            type=error.type,
            codes=codes,
            reason=describe_error(error, self._settings.logs.payloads)["reason"],
        )


class _Cache:
    """The resolver's cache under the data port's names."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def invalidate(self, kind: str, id: str | None) -> None:
        """Forget what a write that passed through may have changed."""
        match kind:
            case "agents" | "models" | "connectors":
                self._resolver.invalidate(kind, id)
            case _:
                self._resolver.invalidate("settings", None)


def build_handler(
    settings: Settings, cluster: ClusterReader, log: Logger, metrics: Metrics, fetch: MediaFetcher | None = None
) -> tuple[Handler, ProfileCache]:
    """The use case and the cache it keeps, for the data port.

    fetch: used where the settings let media be fetched.

    Raises:
        ConfigError: as `check_rules`.
    """
    check_rules(settings)
    resolver = Resolver(
        cluster, settings.agents.cache_ttl, service_headers=service_headers(settings), rules=_rules(settings)
    )
    fetch = fetch if settings.media.fetch else None
    return Handler(settings, resolver, MemoryReader(cluster), log, metrics, fetch), _Cache(resolver)


def check_rules(settings: Settings) -> None:
    """Look at the settings that only the installed providers can judge.

    Raises:
        ConfigError: a rule names a provider that is not there.
    """
    problems = []
    for index, rule in enumerate(settings.agents.rules):
        try:
            if rule.provider:
                registry.provider(rule.provider)
        except (registry.UnknownProvider, registry.BrokenProvider) as error:
            path = f"agents.rules[{index}].provider"
            problems.append(ConfigProblem(path, str(error), repr(rule.provider), ", ".join(registry.names())))
    if problems:
        raise ConfigError(problems)


def _rules(settings: Settings) -> tuple[Rule, ...]:
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in settings.agents.rules)


def service_headers(settings: Settings) -> dict[str, str] | None:
    """The headers of the account that reads in all callers' place; None where each reads with his own."""
    agents = settings.agents
    if agents.lookup != "service_account":
        return None
    pair = f"{agents.service_account.username}:{agents.service_account.password.reveal()}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _noted(plan: Plan, notices: tuple[Notice, ...]) -> Plan:
    return replace(plan, notices=(*plan.notices, *notices)) if notices else plan
