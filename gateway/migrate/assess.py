"""What an agent can take, by which strategy, what limits it, and what would remove the limit. Pure.

The code that delivers also decides here: `is_native` and `rewrite_input` run as in the gateway, with one sample of each
kind of input (`gateway.migrate.proof`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import Rule, rule_for
from gateway.config.problems import ConfigProblem
from gateway.delivery.advice import CORRECT_RULE, advise, rule_fault
from gateway.delivery.call_model import CallModelCache
from gateway.delivery.client_tools import TOOLS_LEFT_OUT
from gateway.delivery.template_change import command, with_upgrades
from gateway.errors import GatewayError
from gateway.execute.rewrite import RewriteOptions, is_native, rewrite_input, rewrite_native
from gateway.migrate.proof import KINDS, agent_proof, request
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Parameters
from gateway.mlcommons.template import PREFIX
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.routing.table import Route

TYPES = frozenset(AgentType) - {AgentType.AG_UI}
"""Agent types whose input the gateway can rewrite."""


class Unreadable(msgspec.Struct, frozen=True):
    """Why an agent can't be assessed: a short code, the reasons in a line, and what to do."""

    code: str
    reason: str
    help: str


class Scanned(msgspec.Struct, frozen=True):
    """One agent. profile: as the gateway reads it; None if `unreadable` says why not."""

    id: str
    name: str
    type: str
    profile: AgentProfile | None
    unreadable: Unreadable | None = None


class Scan(msgspec.Struct, frozen=True):
    """The agents, models and connectors of a cluster.

    unified_api: as in `AgentProfile`. agents: sorted by name, then id. models, connectors: the documents, by id.
    users: connector id → ids of all models of the cluster that use it. notes: what the reader should know.
    documents: those of the agents, by id.
    """

    version: tuple[int, ...]
    unified_api: bool | None
    agents: tuple[Scanned, ...]
    models: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    connectors: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    documents: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)


class Ability(msgspec.Struct, frozen=True):
    """Whether one kind of input arrives. strategy: how, "" if it does not. code, reason: what limits it.

    notices: the codes of reported changes.
    """

    strategy: str = ""
    code: str = ""
    reason: str = ""
    notices: tuple[str, ...] = ()

    @property
    def arrives(self) -> bool:
        """True if all of the input reaches the agent's LLM."""
        return bool(self.strategy)


Abilities = Mapping[str, Ability]
"""By kind of input, in the order of `KINDS`."""


class Remedy(msgspec.Struct, frozen=True):
    """What would help an agent. kind: that of the advice (`gateway.delivery.advice`), or ``setting``.

    action: a command, or what to do. gains: the kinds of input that arrive then; () if that is not known.
    """

    kind: str
    action: str
    gains: tuple[str, ...] = ()


class ModelUse(msgspec.Struct, frozen=True):
    """A model of an agent. connector_id: "" if the model embeds it. shared_by: how many models use the connector."""

    id: str
    connector_id: str
    shared_by: int
    template: str


class Assessment(msgspec.Struct, frozen=True):
    """One agent of the table. abilities: {} if the agent can't be read. route: of its id; None without one.

    led_from: the ids whose routes lead to this agent.
    """

    agent: Scanned
    abilities: Abilities
    models: tuple[ModelUse, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    led_from: tuple[str, ...] = ()
    route: Route | None = None


def assess(
    scan: Scan,
    options: MappingOptions | None = None,
    rules: Sequence[Rule] = (),
    routes: Mapping[str, Route] = MappingProxyType({}),
    upgrade_command: Callable[[str], str] = command,
) -> tuple[Assessment, ...]:
    """Assess every agent of `scan`, in its order.

    options, rules, routes: the gateway's own (`agents.allow_prefill`, `agents.rules`, `agents.routes`).
    upgrade_command: returns the command that upgrades an agent.
    """
    judge = _Judge(options or MappingOptions(), rules, upgrade_command)

    def one(agent: Scanned) -> Assessment:
        led_from = tuple(old for old, route in routes.items() if old != agent.id and _is_target(agent.id, route))
        route = routes.get(agent.id)
        if agent.profile is None:
            return Assessment(agent, {}, led_from=led_from, route=route)
        found, remedies = judge(agent.profile)
        return Assessment(agent, found, _uses(agent.profile, scan), remedies, led_from, route)

    return tuple(map(one, scan.agents))


def _is_target(agent_id: str, route: Route) -> bool:
    target = route.target_of(agent_id)
    return target is not None and not target.cluster


class _Judge:
    """Assesses profiles. Those that differ only in names and ids are assessed once."""

    def __init__(self, options: MappingOptions, rules: Sequence[Rule], upgrade_command: Callable[[str], str]) -> None:
        self._options = options
        self._rules = rules
        self._upgrade_command = upgrade_command
        self._known: dict[tuple[str, bool], tuple[Abilities, tuple[str, ...]]] = {}

    def __call__(self, profile: AgentProfile) -> tuple[Abilities, tuple[Remedy, ...]]:
        rule = rule_for(profile.id, profile.name, self._rules)
        describes = rule is not None and rule.delivery == "describe"
        plain = anonymous(profile)
        key = repr(plain), describes
        if key not in self._known:
            policy = RewriteOptions(self._options, describes)
            found = abilities(plain, policy)
            self._known[key] = found, _gains(plain, found, policy)
        found, gains = self._known[key]
        return found, tuple(_remedies(profile, found, gains, self._upgrade_command))


def check_providers(agents: Iterable[Scanned], rules: Sequence[Rule]) -> list[ConfigProblem]:
    """Return what is wrong about the rules that name a provider, for the agents of a cluster that they apply to.

    rules: those of the settings, in their order.
    """
    wrong: dict[tuple[int, str], list[str]] = {}
    for agent in agents:
        rule = rule_for(agent.id, agent.name, rules)
        if agent.profile is not None and rule is not None and (fault := rule_fault(agent.profile)):
            index = next(index for index, one in enumerate(rules) if one is rule)
            wrong.setdefault((index, fault), []).append(agent.name or agent.id)
    return [
        ConfigProblem(f"agents.rules[{index}].provider", f"{fault} ({_agents(names)})", repr(rules[index].provider))
        for (index, fault), names in sorted(wrong.items())
    ]


_NAMED = 3


def _agents(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"agent{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"


_TURN = "sample"


def abilities(profile: AgentProfile, policy: RewriteOptions | None = None, kinds: Sequence[str] = KINDS) -> Abilities:
    """Return what happens to one input of each kind that is sent to the agent through the gateway."""
    calls = CallModelCache(profile)
    return {kind: _ability(calls, kind, policy or RewriteOptions()) for kind in kinds}


def _ability(calls: CallModelCache, kind: str, policy: RewriteOptions) -> Ability:
    profile = calls.profile
    sample, agent_input = request(kind, profile.provider)
    try:
        if is_native(profile, agent_input):
            plan = rewrite_native(profile, sample, agent_input, False, _TURN, RewriteOptions()).plan
        else:
            plan = rewrite_input(profile, sample, agent_input, policy, _TURN, calls=calls).plan
    except GatewayError as error:
        first = next(iter(error.problems), None)
        code = first.code if first is not None and first.code else error.type
        return Ability(code=code, reason=first.reason if first is not None else error.reason)
    left_out = next((notice for notice in plan.notices if notice.code == TOOLS_LEFT_OUT), None)
    if left_out is not None:
        return Ability(code=left_out.code, reason=left_out.reason)
    return Ability(plan.strategy, notices=tuple(dict.fromkeys(notice.code for notice in plan.notices)))


def _remedies(
    profile: AgentProfile, found: Abilities, gains: tuple[str, ...], upgrade_command: Callable[[str], str]
) -> Iterator[Remedy]:
    """Yield what helps against what does not arrive, and what is wrong about the rule on the agent's provider.

    gains: what an upgrade would let through.
    """
    fault, advice = rule_fault(profile), advise(profile)
    if fault and advice.kind != "rule":
        yield Remedy("rule", f"{CORRECT_RULE}: {fault}")
    codes = {ability.code for ability in found.values() if not ability.arrives}
    if not codes:
        return
    if "UNIFIED_API_OFF" in codes:
        setting = "plugins.ml_commons.unified_agent_api_enabled"
        yield Remedy("setting", f"set {setting} to true on the cluster", KINDS)
    if advice.kind == "upgrade" and gains:
        yield Remedy("upgrade", upgrade_command(advice.agent_id), gains)
    elif advice.kind == "rule" and fault:
        yield Remedy("rule", f"{advice.action}: {fault}")
    elif advice.kind in ("rule", "agent"):
        yield Remedy(advice.kind, advice.action)


def _gains(profile: AgentProfile, before: Abilities, policy: RewriteOptions) -> tuple[str, ...]:
    """Return the kinds of input that an upgrade of the connectors would let through; () if none is offered."""
    if not profile.provider or all(ability.arrives for ability in before.values()):
        return ()
    new = with_upgrades(profile, registry.provider(profile.provider))
    if new == profile:
        return ()
    after = abilities(new, policy)
    gains = tuple(kind for kind in KINDS if after[kind].arrives and not before[kind].arrives)
    return gains if gains and not agent_proof(profile, new).differing else ()


def anonymous(profile: AgentProfile) -> AgentProfile:
    """Return the profile without names, ids and registration tags, which may differ between equal agents."""
    names = {model.id: f"model {number}" for number, model in enumerate({m.id: m for m in profile.models}.values())}

    def unnamed(values: Parameters) -> Parameters:
        own = {name: names.get(value, value) for name, value in values.items() if not name.startswith("mlc_gateway")}
        return dict(sorted(own.items()))

    def without_id(model: Model) -> Model:
        connector = model.connector
        plain = replace(connector, id="its own" if connector.id else "", parameters=unnamed(connector.parameters))
        return replace(model, id=names[model.id], connector=plain)

    tools = tuple(
        replace(
            tool,
            parameters=unnamed(tool.parameters),
            config=unnamed(tool.config),
            model=without_id(tool.model) if tool.model else None,
        )
        for tool in profile.tools
    )
    return replace(
        profile,
        id="",
        name="",
        app_type="",
        parameters=unnamed(profile.parameters),
        llm=without_id(profile.llm) if profile.llm else None,
        llm_parameters=unnamed(profile.llm_parameters),
        tools=tools,
    )


def _uses(profile: AgentProfile, scan: Scan) -> tuple[ModelUse, ...]:
    def use(model: Model) -> ModelUse:
        connector = model.connector
        shared = len(scan.users.get(connector.id, ())) if connector.id else 0
        return ModelUse(model.id, connector.id, max(shared, 1), template_kind(connector))

    return tuple(use(model) for model in {model.id: model for model in profile.models}.values())


_VALUE = r"\s*:\s*" + re.escape(PREFIX) + r"\w+"
_TEMPLATES = (
    ("messages", re.compile(rf'"(messages|contents)"{_VALUE}')),
    ("content", re.compile(rf'"(content|parts)"{_VALUE}')),
    ("turn", re.compile(r"(?:[\[,]|\})\s*" + re.escape(PREFIX) + r"(?!_)\w+\}")),
    ("text", re.compile(r'"(?:[^"\\]|\\.)*' + re.escape(PREFIX) + r"(?:prompt|inputs|question|input)\b")),
)


def template_kind(connector: Connector) -> str:
    """Return where a connector's template takes the conversation.

    ``messages``: the whole array in a variable; ``content``: a turn's blocks; ``turn``: a whole turn among others;
    ``text``: text inside quotes; ``other``: none of these.
    """
    return next((kind for kind, pattern in _TEMPLATES if pattern.search(connector.request_body)), "other")
