"""Plan the calls that upgrade the connectors of agents, their order and their undo. Pure.

docs/evidence/facts.md, 10_upgrade, has three ways:

- a connector inside its model is changed by ``PUT models/{id}``;
- a connector that models share is changed by ``PUT connectors/{id}`` while none of them is loaded, and serves all;
- given its credential, a new connector is created and one model is changed to use it.

A model that is loaded goes on with its old connector ("Deploy states and connector changes"), so each change is
followed by ``_undeploy``: the next request loads the model again.

The API has no compare-and-set, so every step has a start state and an end state. A step in its end state is done,
whatever the reason. A document in neither state was changed by somebody else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import Document, Rule, needed_connector, provider_of, read_profile
from gateway.delivery.advice import advise
from gateway.delivery.template_change import Code, NotOffered, TemplateChange, find_change
from gateway.errors import UnresolvedAgent
from gateway.migrate.assess import TYPES, Abilities, abilities, anonymous
from gateway.migrate.proof import CLIENT_TOOLS, KINDS, agent_proof, raw_proof
from gateway.migrate.references import EXECUTOR, texts_in
from gateway.migrate.steps import Call, Step, all_calls, change_inside_model, change_standalone, is_deployed, swap
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.profile import AgentProfile, Model
from gateway.providers import registry


class Documents(msgspec.Struct, frozen=True):
    """Agents, models and connectors by id, as GET shows them, and properties of their cluster.

    others: the agents that flows among `agents` run, if those were read.
    """

    version: tuple[int, ...]
    agents: Mapping[str, Document]
    models: Mapping[str, Document]
    connectors: Mapping[str, Document]
    rules: tuple[Rule, ...] = ()
    unified_api: bool | None = None
    others: Mapping[str, Document] = msgspec.field(default_factory=dict)

    def profile(self, agent_id: str) -> AgentProfile:
        """Return the agent's profile.

        Raises:
            UnresolvedAgent: a model or connector is missing.
        """
        doc = self.agents[agent_id]
        return read_profile(
            agent_id, doc, self.models, self.connectors, self.version, self.rules, self.unified_api, self.others
        )

    def key(self, model_id: str) -> str:
        """Return the path of the model's connector: ``connectors/ID``, or ``models/ID`` if it is inside the model."""
        connector_id = needed_connector(self.models.get(model_id, {}))
        return f"connectors/{connector_id}" if connector_id else f"models/{model_id}"

    def with_connector(self, key: str, connector: Document) -> Documents:
        """Return a copy with another connector document at `key`."""
        kind, _, id_ = key.partition("/")
        if kind == "connectors":
            return replace(self, connectors={**self.connectors, id_: connector})
        return replace(self, models={**self.models, id_: {**self.models[id_], "connector": connector}})

    def connector(self, key: str) -> Document:
        """Return the connector document at `key`."""
        kind, _, id_ = key.partition("/")
        found: Document = self.connectors[id_] if kind == "connectors" else self.models[id_]["connector"]
        return found


class Effect(msgspec.Struct, frozen=True):
    """What an upgrade changes for one agent.

    calls: number of legacy calls that were rendered before and after. differing: those that render differently.
    before, after: what arrives, for each kind of input.
    """

    agent_id: str
    name: str
    calls: int
    differing: tuple[str, ...]
    before: Abilities
    after: Abilities

    @property
    def gained(self) -> tuple[str, ...]:
        """Kinds of input that arrive only after the upgrade."""
        return tuple(kind for kind in self.after if self.after[kind].arrives and not self.before[kind].arrives)

    @property
    def improved(self) -> tuple[str, ...]:
        """Kinds of input that arrive before and after, and with fewer changes after the upgrade."""
        return tuple(
            kind
            for kind, after in self.after.items()
            if after.arrives
            and self.before[kind].arrives
            and _AVOIDED.intersection(self.before[kind].notices).difference(after.notices)
        )

    @property
    def lost(self) -> tuple[str, ...]:
        """Kinds of input that arrive only before the upgrade; an offered upgrade has none."""
        return tuple(kind for kind in self.after if self.before[kind].arrives and not self.after[kind].arrives)


_AVOIDED = frozenset(
    {
        "HISTORY_FLATTENED",
        "HISTORY_IN_QUESTION",
        "MEDIA_IN_SLOT",
        "MEMORY_HOLDS_CODE",
        "MEMORY_HOLDS_NOTE",
        "TOOLS_AS_TEXT",
    }
)
"""The changes for which docs/reference/limitations.md names the upgrade as a workaround."""


def effect(old: AgentProfile, new: AgentProfile, for_tools: bool = False) -> Effect:
    """Compare the profiles of an agent before and after an upgrade. for_tools: see `offers`."""
    proof = agent_proof(old, new)
    kinds = (*KINDS, CLIENT_TOOLS) if for_tools else KINDS
    before, after = (abilities(profile, kinds=kinds) for profile in (old, new))
    return Effect(old.id, old.name, proof.calls, proof.differing, before, after)


class Effects:
    """Compares profiles as `effect` does. Agents that differ only in names and ids are compared once."""

    def __init__(self, for_tools: bool) -> None:
        self._for_tools = for_tools
        self._known: dict[str, Effect] = {}

    def __call__(self, old: AgentProfile, new: AgentProfile) -> Effect:
        """See `effect`."""
        key = repr((anonymous(old), anonymous(new)))
        if key not in self._known:
            self._known[key] = effect(old, new, self._for_tools)
        return replace(self._known[key], agent_id=old.id, name=old.name)


class Offer(msgspec.Struct, frozen=True):
    """An upgrade that is proved and can be applied.

    key: the connector (`Documents.key`). models: those that the upgrade affects. deployed: those of them whose
    documents say so. named: the agents that the user named, and those that run the steps of named planners alone.
    others: other agents that it affects. old, new: the connector's documents. tag: marks a new connector; "" if none is
    made.
    """

    key: str
    provider: str
    models: tuple[str, ...]
    deployed: tuple[str, ...]
    named: tuple[str, ...]
    others: tuple[str, ...]
    change: TemplateChange
    old: Document
    new: Document
    steps: tuple[Step, ...]
    effects: tuple[Effect, ...]
    tag: str

    @property
    def makes_connector(self) -> bool:
        """True if a new connector is made, which needs a credential."""
        return any(step.action == "create" for step in self.steps)

    @property
    def calls(self) -> list[Call]:
        """The calls of the upgrade in their order."""
        return list(all_calls(self.steps, self.models, self.deployed))


class Refused(msgspec.Struct, frozen=True):
    """A connector that stays unchanged, or an agent whose connector is unknown.

    names: those of the agents `named`. advice: what helps in place of an upgrade, "" for nothing.
    """

    key: str
    named: tuple[str, ...]
    code: Code
    reason: str
    names: tuple[str, ...] = ()
    advice: str = ""


def offers(
    documents: Documents, wanted: Iterable[str], tag: str, new_connector: bool = False, for_tools: bool = False
) -> list[Offer | Refused]:
    """Plan the upgrades for the agents `wanted`, connector by connector.

    tag: 32 hex digits, from which the marks of new connectors are derived. new_connector: create a connector for each
    model that shares one, instead of changing the shared connector. for_tools: the client's tools get a place, too.
    """
    groups: dict[str, tuple[set[str], list[str]]] = {}
    effects = Effects(for_tools)
    found: list[Offer | Refused] = []

    def refused(key: str, ids: Sequence[str], code: Code, reason: str, advice: str = "") -> Refused:
        names = tuple(str(documents.agents[id_].get("name") or id_) for id_ in ids)
        return Refused(key, tuple(ids), code, reason, names, advice)

    for agent_id in dict.fromkeys(id_ for id_ in wanted if id_ in documents.agents):  # others were deleted meanwhile
        try:
            models = documents.profile(agent_id).models
        except UnresolvedAgent as error:
            found.append(refused(f"agents/{agent_id}", [agent_id], Code.NO_CONNECTOR, error.reason))
            continue
        if not models:
            found.append(refused(f"agents/{agent_id}", [agent_id], Code.NO_LLM, Code.NO_LLM.value))
        for model in models:
            key = documents.key(model.id)
            group = f"{key}#{model.id}" if new_connector and key.startswith("connectors/") else key
            members = groups.setdefault(group, (set(), []))
            members[0].add(model.id)
            if agent_id not in members[1]:
                members[1].append(agent_id)
    for index, (group, (model_ids, named)) in enumerate(groups.items()):
        key, _, alone = group.partition("#")
        reach = tuple(sorted(model_ids)) if alone or key.startswith("models/") else served(documents, key)
        try:
            new_tag = f"{int(tag, 16) ^ index:032x}" if alone else ""
            found.append(_offer(documents, key, reach, tuple(named), new_tag, effects, for_tools))
        except NotOffered as refusal:
            found.append(refused(key, named, refusal.code, refusal.reason, _advice(documents, named)))
    return found


def _advice(documents: Documents, agent_ids: Iterable[str]) -> str:
    """Return what helps these agents in place of an upgrade, each thing once."""
    given = (advise(documents.profile(agent_id)) for agent_id in agent_ids)
    return "; ".join(dict.fromkeys(advice.action for advice in given if advice.kind in ("rule", "agent")))


def served(documents: Documents, key: str) -> tuple[str, ...]:
    """Return the models that use the connector at `key`."""
    return tuple(sorted(model_id for model_id in documents.models if documents.key(model_id) == key))


def users(documents: Documents, models: Iterable[str]) -> tuple[str, ...]:
    """Return the agents that name one of `models` anywhere in their documents."""
    ids = frozenset(models)
    return tuple(agent_id for agent_id, doc in documents.agents.items() if not ids.isdisjoint(texts_in(doc)))


def with_change(connector: Document, change: TemplateChange) -> dict[str, Any]:
    """Return the connector's document after the change."""
    new: dict[str, Any] = copy.deepcopy(dict(connector))
    new["parameters"] = {**(new.get("parameters") or {}), **change.parameters}
    for action in new["actions"]:
        if str(action.get("action_type", "")).lower() == "predict":
            action["request_body"] = change.request_body
            break
    return new


def _offer(
    documents: Documents,
    key: str,
    models: tuple[str, ...],
    named: tuple[str, ...],
    tag: str,
    effects: Effects,
    for_tools: bool,
) -> Offer:
    """Plan one upgrade; raise NotOffered if it is impossible."""
    reached = users(documents, models)
    profiles = {}
    for agent_id in reached:
        try:
            profiles[agent_id] = documents.profile(agent_id)
        except UnresolvedAgent as error:
            raise NotOffered(Code.NO_CONNECTOR, error.reason) from None
        if profiles[agent_id].agent_type not in TYPES:
            raise NotOffered(Code.UNKNOWN_AGENT_TYPE, f"{agent_id} ({profiles[agent_id].type})")
    old_models = _models(profiles.values(), models)
    known = next((profile.provider for profile in profiles.values() if profile.provider), "")
    provider = provider_of(old_models[0].connector, known)
    raw = all(ABILITIES[profile.generation].raw_parameters for profile in profiles.values())
    change = find_change(old_models[0].connector, registry.provider(provider) if provider else None, raw, for_tools)
    old = documents.connector(key)
    new = with_change(old, change)
    later = documents.with_connector(key, new)
    changed = tuple(effects(profile, later.profile(agent_id)) for agent_id, profile in profiles.items())
    _check(changed, old_models, _models((later.profile(agent_id) for agent_id in reached), models), documents.version)
    named = (*named, *(id_ for id_ in _executors(documents, named) if id_ in profiles and id_ not in named))
    others = tuple(agent_id for agent_id in reached if agent_id not in named)
    steps = tuple(_steps(documents, key, models, change, new, tag))
    deployed = tuple(model for model in models if is_deployed(documents.models[model]))
    return Offer(key, provider, models, deployed, named, others, change, old, new, steps, changed, tag)


def _executors(documents: Documents, planners: Iterable[str]) -> Iterator[str]:
    """Yield the agents that run the steps of these planners and of no others.

    The cluster registers such an agent with a planner that names none, with the planner's own model.
    """
    run_by: dict[str, set[str]] = {}
    for agent_id, doc in documents.agents.items():
        parameters = doc.get("parameters")
        executor = parameters.get(EXECUTOR) if isinstance(parameters, Mapping) else None
        if isinstance(executor, str):
            run_by.setdefault(executor, set()).add(agent_id)
    yield from (executor for executor, users_ in run_by.items() if users_.issubset(planners))


def _models(profiles: Iterable[AgentProfile], ids: tuple[str, ...]) -> list[Model]:
    found = {model.id: model for profile in profiles for model in profile.models if model.id in ids}
    return [found[model_id] for model_id in sorted(found)]


def _check(effects: tuple[Effect, ...], old: list[Model], new: list[Model], version: tuple[int, ...]) -> None:
    for found in effects:
        if found.differing or found.lost:
            what = found.differing[0] if found.differing else f"{found.lost[0]} no longer arrives"
            raise NotOffered(Code.LEGACY_CHANGES, f"agent {found.agent_id} ({found.name}), {what}")
    for before, after in zip(old, new, strict=True):
        differing = raw_proof(before, after, version)
        if differing:
            raise NotOffered(Code.LEGACY_CHANGES, f"model {before.id}, {differing[0]}")
    if not any(found.gained or found.improved for found in effects):
        raise NotOffered(Code.NO_GAIN)


def _steps(
    documents: Documents, key: str, models: tuple[str, ...], change: TemplateChange, new: Document, tag: str
) -> Iterator[Step]:
    old = documents.connector(key)
    if key.startswith("models/"):
        yield change_inside_model(key, old, new, change.parameters)
    elif tag:
        yield from swap(key.partition("/")[2], models[0], new, tag)
    else:
        yield change_standalone(key, old, new, change.parameters)
