"""Which documents an agent is made of, and from these, as `GET` returns them, to an `AgentProfile`. Pure.

The place of each value is known from the recordings (2.19.0 ``03_get_back``, 3.4.0, 3.6.0, 3.8.0). A value that is
missing or of the wrong type is reported with its document and path; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.agents.size import check_size
from gateway.errors import Problem, UndeliverableContent, UnresolvedAgent
from gateway.mlcommons.expansion import RenderFailure, expand
from gateway.mlcommons.generations import FLOW_TYPES, AgentType, generation_of
from gateway.mlcommons.profile import (
    AgentProfile,
    Connector,
    Model,
    Parameters,
    Tool,
    has_gateway_memory,
    has_unified_output,
)
from gateway.mlcommons.tool_types import AGENT_TOOL, CONNECTOR_TOOL, MODEL_TOOL, PLANNING_TOOL, type_of
from gateway.providers.base import ConnectorHints


def with_provider(profile: AgentProfile, rules: tuple[Rule, ...]) -> AgentProfile:
    """Return the profile with its provider: from the agent, its first LLM's connector, or a rule of the operator.

    Raises:
        UnresolvedAgent: several providers claim the agent's LLM, and no rule names one.
    """
    from gateway.providers import registry  # imported here, so that reading documents does not load every provider

    # Only the model that the agent calls first: another tool's connector says nothing about that call's format.
    hints = [
        ("model.model_provider", ConnectorHints(model_provider=profile.model_provider)),
        ("_llm_interface", ConnectorHints(llm_interface=profile.llm_interface)),
        *(("connector", connector_hints(model.connector)) for model in profile.models[:1]),
    ]
    rule = rule_for(profile.id, profile.name, rules)
    if rule is not None and rule.provider:
        profile = replace(profile, rule_provider=rule.provider)
    for source, hint in hints:
        try:
            provider = registry.recognise(hint)
        except registry.AmbiguousProvider as ambiguous:
            if rule is not None and rule.provider:
                break
            raise UnresolvedAgent.of([_ambiguous(profile, source, ambiguous.claims, str(ambiguous))]) from None
        if provider:
            return replace(profile, provider=provider, provider_source=source)
    if rule is not None and rule.provider:
        return replace(profile, provider=rule.provider, provider_source="rule")
    return profile


def _ambiguous(profile: AgentProfile, source: str, names: Iterable[str], claims: str) -> Problem:
    if source == "connector":
        model = profile.models[0]
        place = f"connectors/{model.connector.id}" if model.connector.id else f"models/{model.id}.connector"
    else:
        place = f"agents/{profile.id}.{source if source.startswith('model.') else f'parameters.{source}'}"
    return Problem(
        place,
        f"several providers claim this agent's LLM: {claims}",
        "one provider",
        ", ".join(names),
        "PROVIDER_AMBIGUOUS",
        "name the agent's provider in a rule of the gateway's settings: `agents.rules[].provider`",
    )


def provider_of(connector: Connector, otherwise: str = "") -> str:
    """Return the only provider that claims `connector`; `otherwise` if there is none, or several."""
    from gateway.providers import registry  # as above

    try:
        return registry.recognise(connector_hints(connector)) or otherwise
    except registry.AmbiguousProvider:
        return otherwise


def connector_hints(connector: Connector) -> ConnectorHints:
    """Return a connector's hints about its provider, with the known parameters of its URL filled in."""
    try:
        url = expand(connector.url, connector.parameters)
    except (RenderFailure, UndeliverableContent):
        url = connector.url
    return ConnectorHints(
        url=url,
        service_name=connector.parameters.get("service_name", ""),
        request_body=connector.request_body,
    )


Document = Mapping[str, Any]

_WITH_MODEL = (MODEL_TOOL, PLANNING_TOOL)
"""The types of tools whose model is read."""
_PREDICT, _EXECUTE = "predict", "execute"
_MOST_PROBLEMS = 100


class _Unreadable(Exception):
    def __init__(self, place: str, reason: str, expected: str = "", received: str = "") -> None:
        super().__init__(reason)
        self.problem = Problem(place, reason, expected, received)


def needed(agent_doc: Document) -> tuple[str, ...]:
    """Return the ids of the models to read for this agent, each once, in the order of their use.

    That is the LLM, unless the agent is a flow, and the model of every tool of `_WITH_MODEL`. An id that can't be
    read is left out: `read_profile` reports it.
    """
    ids: list[str] = []
    if not _is_flow(agent_doc):
        ids.append(_id(_mapping(agent_doc.get("llm")).get("model_id")))
    for tool in _items(agent_doc.get("tools")):
        if tool.get("type") in _WITH_MODEL:
            ids += _ids(tool, "model_id")
    return tuple(dict.fromkeys(filter(None, ids)))


def run_agents(agent_doc: Document) -> tuple[str, ...]:
    """Return the ids of the agents that a flow's AgentTools run, each once; () for any other agent."""
    return _named_by(agent_doc, AGENT_TOOL) if _is_flow(agent_doc) else ()


def tool_connectors(agent_doc: Document) -> tuple[str, ...]:
    """Return the ids of the connectors that the agent's ConnectorTools call, each once."""
    return _named_by(agent_doc, CONNECTOR_TOOL)


def _named_by(agent_doc: Document, tool_type: str) -> tuple[str, ...]:
    tools = (tool for tool in _items(agent_doc.get("tools")) if tool.get("type") == tool_type)
    return tuple(dict.fromkeys(id_ for tool in tools for id_ in _ids(tool, type_of(tool_type).id_name)))


def needed_connector(model_doc: Document) -> str | None:
    """Return the id of the connector to read for this model; None if the model embeds its own or names none."""
    if isinstance(model_doc.get("connector"), Mapping):
        return None
    return _id(model_doc.get("connector_id")) or None


def read_profile(
    agent_id: str,
    agent_doc: Document,
    models: Mapping[str, Document],
    connectors: Mapping[str, Document],
    version: tuple[int, ...],
    rules: Iterable[Rule] = (),
    unified_api: bool | None = None,
    others: Mapping[str, Document] | None = None,
) -> AgentProfile:
    """Read the profile from the documents.

    An AgentTool whose agent is another type than `flow`, or can't be read, has no `Tool.agent`; a ConnectorTool whose
    connector can't be read has no `Tool.connector`.

    Args:
        agent_id: the agent's id; its document does not hold it.
        agent_doc: the response of `GET /_plugins/_ml/agents/{id}`.
        models: model id → the response of `GET /_plugins/_ml/models/{id}`, for every id of `needed`.
        connectors: connector id → the response of `GET /_plugins/_ml/connectors/{id}`.
        version: the cluster's version as numbers.
        rules: the operator's, for an agent whose documents don't say what its provider is.
        unified_api: see `AgentProfile.unified_api`.
        others: agent id → the document of each agent that a flow's AgentTool runs, if it was read.

    Raises:
        UnresolvedAgent: with a problem for every document that is missing or can't be read; or the agent is too large
            (`gateway.agents.size`).
    """
    reader = _Reader(f"agents/{agent_id}", models, connectors, others or {})
    profile = reader.agent(agent_id, agent_doc, version, unified_api)
    if reader.problems:
        raise UnresolvedAgent.of(list(dict.fromkeys(reader.problems))[:_MOST_PROBLEMS])
    check_size(profile)
    return with_provider(profile, tuple(rules))


class _Reader:
    """Reads one agent and collects all problems, so that they are reported together."""

    def __init__(
        self,
        place: str,
        models: Mapping[str, Document],
        connectors: Mapping[str, Document],
        others: Mapping[str, Document],
    ) -> None:
        self.problems: list[Problem] = []
        self._others = others
        self._place = place
        self._models = models
        self._connectors = connectors
        # Many tools may name the same model or agent, which is read once.
        self._read_models: dict[str, Model | None] = {}
        self._read_agents: dict[str, AgentProfile | None] = {}

    def agent(self, agent_id: str, doc: Document, version: tuple[int, ...], unified_api: bool | None) -> AgentProfile:
        type_ = _text(doc.get("type")).lower()
        if not type_:
            self._report(f"{self._place}.type", "the agent has no type", "an agent type", _kind(doc.get("type")))
        llm = self._mapping(doc, "llm")
        block = self._mapping(doc, "model")
        memory = self._mapping(doc, "memory")
        parameters = self._parameters(doc, "parameters", self._place)
        return AgentProfile(
            id=agent_id,
            name=_text(doc.get("name")),
            type=type_,
            version=version,
            generation=generation_of(version, type_, bool(block)),
            app_type=_text(doc.get("app_type")),
            memory_type=_text(memory.get("type")),
            memory_container=_text(memory.get("memory_container_id")),
            parameters=parameters,
            llm=None if AgentType.of(type_) in FLOW_TYPES or not type_ else self._llm(llm),
            llm_parameters=self._parameters(llm, "parameters", f"{self._place}.llm"),
            tools=self._tools(doc, version),
            model_provider=_text(block.get("model_provider")),
            unified_api=unified_api,
            gateway_memory=has_gateway_memory(parameters),
            unified_output=has_unified_output(parameters),
        )

    def _llm(self, llm: Document) -> Model | None:
        place = f"{self._place}.llm.model_id"
        model_id = _id(llm.get("model_id"))
        if not model_id:
            self._report(place, "the agent names no LLM", "a model id", _kind(llm.get("model_id")))
            return None
        return self._model(model_id, place)

    def _tools(self, doc: Document, version: tuple[int, ...]) -> tuple[Tool, ...]:
        place = f"{self._place}.tools"
        tools = doc.get("tools")
        if tools is None:
            return ()
        if not isinstance(tools, list):
            self._report(place, "tools is not an array", "an array", _kind(tools))
            return ()
        is_flow = _is_flow(doc)
        return tuple(self._tool(tool, f"{place}[{i}]", version, is_flow) for i, tool in enumerate(tools))

    def _tool(self, tool: Any, place: str, version: tuple[int, ...], in_flow: bool) -> Tool:
        if not isinstance(tool, Mapping) or not _text(tool.get("type")):
            self._report(place, "a tool has no type", 'an object with a "type"', _kind(tool))
            return Tool("", "")
        return Tool(
            type=tool["type"],
            name=_text(tool.get("name")),
            parameters=self._parameters(tool, "parameters", place),
            config=self._parameters(tool, "config", place),
            model=self._tool_model(tool, place) if tool["type"] in _WITH_MODEL else None,
            agent=self._run_agent(tool, version) if in_flow and tool["type"] == AGENT_TOOL else None,
            connector=self._tool_connector(tool) if tool["type"] == CONNECTOR_TOOL else None,
        )

    def _tool_connector(self, tool: Document) -> Connector | None:
        """Return the connector of a ConnectorTool; None if it can't be read or the tool would call another action."""
        ids = _ids(tool, type_of(CONNECTOR_TOOL).id_name)
        doc = self._connectors.get(ids[0]) if len(ids) == 1 else None
        try:
            return None if doc is None else _connector(ids[0], doc, f"connectors/{ids[0]}", _EXECUTE)
        except _Unreadable:
            return None

    def _run_agent(self, tool: Document, version: tuple[int, ...]) -> AgentProfile | None:
        """Return the flow that an AgentTool runs; None if it is something else or can't be read.

        What its own AgentTools run is not read: they inherit this tool's `agent_id`, so they would run this flow again.
        """
        ids = _ids(tool, "agent_id")
        if len(ids) != 1:
            return None
        if ids[0] not in self._read_agents:
            self._read_agents[ids[0]] = self._other_flow(ids[0], version)
        return self._read_agents[ids[0]]

    def _other_flow(self, agent_id: str, version: tuple[int, ...]) -> AgentProfile | None:
        doc = self._others.get(agent_id)
        if doc is None or AgentType.of(_text(doc.get("type"))) is not AgentType.FLOW:
            return None
        reader = _Reader(f"agents/{agent_id}", self._models, self._connectors, {})
        profile = reader.agent(agent_id, doc, version, None)
        return None if reader.problems else profile

    def _tool_model(self, tool: Document, place: str) -> Model | None:
        ids = _ids(tool, "model_id")
        if not ids and tool["type"] == PLANNING_TOOL:
            return None  # a conversational agent may give it its own LLM
        if len(ids) != 1:
            reason = f"the {tool['type']} names no model" if not ids else f"the {tool['type']} names two models"
            self._report(f"{place}.parameters.model_id", reason, "one model id", ", ".join(ids) or "none")
            return None
        return self._model(ids[0], f"{place}.parameters.model_id")

    def _model(self, model_id: str, named_at: str) -> Model | None:
        if model_id not in self._read_models:
            try:
                self._read_models[model_id] = read_model(model_id, self._models, self._connectors, named_at)
            except _Unreadable as unreadable:
                self.problems.append(unreadable.problem)
                if model_id not in self._models:
                    return None  # reported for each place that names it
                self._read_models[model_id] = None
        return self._read_models[model_id]

    def _mapping(self, doc: Document, member: str) -> Document:
        value = doc.get(member)
        if value is not None and not isinstance(value, Mapping):
            self._report(f"{self._place}.{member}", f"{member} is not an object", "an object", _kind(value))
        return _mapping(value)

    def _parameters(self, doc: Document, member: str, place: str) -> Parameters:
        try:
            return _parameters(doc.get(member), f"{place}.{member}")
        except _Unreadable as unreadable:
            self.problems.append(unreadable.problem)
            return {}

    def _report(self, place: str, reason: str, expected: str, received: str) -> None:
        self.problems.append(Problem(place, reason, expected, received))


def read_model(
    model_id: str, models: Mapping[str, Document], connectors: Mapping[str, Document], named_at: str
) -> Model:
    """Read a model with its connector. named_at: the place of its id, for the message if it is missing."""
    place = f"models/{model_id}"
    doc = models.get(model_id)
    if doc is None:
        raise _Unreadable(named_at, f"the model {model_id} does not exist", "an existing model", model_id)
    embedded = doc.get("connector")
    connector_id = needed_connector(doc) or ""
    if isinstance(embedded, Mapping):
        connector = _connector("", embedded, f"{place}.connector")
    elif not connector_id:
        algorithm = _text(doc.get("algorithm"))[:100] or "unknown"
        raise _Unreadable(place, "the model has no connector, so it is no remote LLM", "REMOTE", algorithm)
    elif connector_id in connectors:
        connector = _connector(connector_id, connectors[connector_id], f"connectors/{connector_id}")
    else:
        raise _Unreadable(
            f"{place}.connector_id",
            f"the connector {connector_id} does not exist",
            "an existing connector",
            connector_id,
        )
    return Model(model_id, connector, _required_inputs(doc, f"{place}.interface.input"))


def _connector(connector_id: str, doc: Document, place: str, type_: str = _PREDICT) -> Connector:
    actions = list(_items(doc.get("actions")))
    found = next((a for a in enumerate(actions) if _text(a[1].get("action_type")).lower() == type_), None)
    if found is None:
        reason = f"the connector has no {type_} action"
        raise _Unreadable(f"{place}.actions", reason, type_.upper(), _kind(doc.get("actions")))
    index, action = found
    for member in ("url", "request_body"):
        if not isinstance(action.get(member), str):
            raise _Unreadable(
                f"{place}.actions[{index}].{member}",
                f"the {type_} action has no {member}",
                "a string",
                _kind(action.get(member)),
            )
    return Connector(
        id=connector_id,
        protocol=_text(doc.get("protocol")),
        url=action["url"],
        request_body=action["request_body"],
        parameters=_parameters(doc.get("parameters"), f"{place}.parameters"),
        post_process=bool(action.get("post_process_function")),
    )


def _required_inputs(model_doc: Document, place: str) -> tuple[str, ...]:
    """Return the parameters that `interface.input` requires and that may be strings.

    Bedrock connectors of some older Claude models get such an interface by default. It requires `inputs`
    (docs/evidence/facts.md, "Rendering, in detail", Lookups; 2.19.0 ``06b_tricks2``).
    """
    schema: Any = _mapping(model_doc.get("interface")).get("input")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise _Unreadable(place, "the model's input interface is not JSON", "a JSON schema") from None
    parameters = _mapping(_mapping(_mapping(schema).get("properties")).get("parameters"))
    required = parameters.get("required")
    members = _mapping(parameters.get("properties"))
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return tuple(name for name in names if _takes_string(_mapping(members.get(name)).get("type", "string")))


def _takes_string(schema_type: Any) -> bool:
    return schema_type == "string" or (isinstance(schema_type, list) and "string" in schema_type)


def _is_flow(agent_doc: Document) -> bool:
    return AgentType.of(_text(agent_doc.get("type"))) in FLOW_TYPES


def _ids(tool: Document, name: str) -> list[str]:
    """Return the ids that a tool's parameters and its config have as `name`, each once."""
    ids = (_id(_mapping(tool.get(member)).get(name)) for member in ("parameters", "config"))
    return list(dict.fromkeys(filter(None, ids)))


def _parameters(value: Any, place: str) -> Parameters:
    """Return parameters as ML Commons stores them, with every value a string (docs/evidence/facts.md, rule 2)."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _Unreadable(place, "parameters are not an object", "an object", _kind(value))
    return {name: v if isinstance(v, str) else json.dumps(v) for name, v in value.items() if v is not None}


def _mapping(value: Any) -> Document:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Document]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


_LONGEST_ID = 512  # the cluster's own limit, in bytes


def _id(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_ID else ""


_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}


def _kind(value: Any) -> str:
    return "nothing" if value is None else _KINDS.get(type(value), type(value).__name__)


DocumentKind = Literal["agents", "models", "connectors"]

SETTINGS_PATH = "/_cluster/settings?include_defaults=true&filter_path=*.plugins.ml_commons.unified_agent_api_enabled"
"""Without `flat_settings`: with it the keys hold dots and no such filter finds them (recorded, 3.4.0 to 3.8.0)."""

_FIRST_UNIFIED = (3, 5)


class Batch(msgspec.Struct, frozen=True):
    """Documents to read, which don't depend on each other. ids: each once; there may be none.

    optional: those that the caller may not read are left out, as if they did not exist.
    """

    kind: DocumentKind
    ids: tuple[str, ...]
    optional: bool = False


Found = Mapping[str, Document]
"""The documents of a batch by id. One that does not exist is left out."""


class AgentDocuments(msgspec.Struct, frozen=True):
    """What was read, by id. others: agents that the flows among `agents` run."""

    agents: Found
    models: Found
    connectors: Found
    others: Found = msgspec.field(default_factory=dict)


AgentReader = Generator[Batch, Found, AgentDocuments]


def read_agents(agent_ids: Iterable[str], model_ids: Iterable[str] = (), *, follow: bool = False) -> AgentReader:
    """Read the agents, their models and `model_ids`, and the connectors of all these models and of the agents' tools.

    follow: also the agents that AgentTools of flows run, but none behind those.
    """
    agents = yield _batch("agents", agent_ids)
    run = dict.fromkeys(id_ for document in agents.values() for id_ in run_agents(document)) if follow else ()
    others = (yield Batch("agents", tuple(run), optional=True)) if run else {}
    of_agents = (id_ for document in (*agents.values(), *others.values()) for id_ in needed(document))
    models = yield _batch("models", (*of_agents, *model_ids))
    connectors = yield _batch("connectors", filter(None, map(needed_connector, models.values())))
    of_tools = (id_ for document in (*agents.values(), *others.values()) for id_ in tool_connectors(document))
    if more := tuple(dict.fromkeys(id_ for id_ in of_tools if id_ not in connectors)):
        connectors = {**connectors, **(yield Batch("connectors", more, optional=True))}
    return AgentDocuments(agents, models, connectors, others)


def run(reader: AgentReader, fetch: Callable[[Batch], Found]) -> AgentDocuments:
    """Return what `reader` reads with `fetch`."""
    try:
        batch = next(reader)
        while True:
            batch = reader.send(fetch(batch))
    except StopIteration as end:
        documents: AgentDocuments = end.value
        return documents


def may_have_unified_api(version: tuple[int, ...]) -> bool:
    """Return True if the cluster has the unified agent API, so that `SETTINGS_PATH` says whether it is on."""
    return version >= _FIRST_UNIFIED


def _batch(kind: DocumentKind, ids: Iterable[str]) -> Batch:
    return Batch(kind, tuple(dict.fromkeys(ids)))


class ForAgents(Protocol):
    """A rule for agents. agent: a glob."""

    @property
    def agent(self) -> str:
        """The glob on the agent's id and name."""


class ForMemory(ForAgents, Protocol):
    """A rule that may say whose the agent's memory is."""

    @property
    def memory(self) -> str:
        """`gateway`, `cluster`, or `auto` for what the agent's documents say."""


_R = TypeVar("_R", bound=ForAgents)


class Rule(msgspec.Struct, frozen=True):
    """One line of the operator's configuration.

    agent: a glob, matched case-sensitively against the agent's id and its name.
    provider: the provider to use if the documents don't name one; None for no such rule.
    delivery: what to do with what can't be delivered, as in the configuration; "" for the gateway's default.
    """

    agent: str
    provider: str | None = None
    delivery: str = ""


def rule_for(agent_id: str, name: str, rules: Iterable[_R]) -> _R | None:
    """Return the first rule that matches the agent's id or its name ("" if unknown), or None."""
    for rule in rules:
        if fnmatchcase(agent_id, rule.agent) or (name and fnmatchcase(name, rule.agent)):
            return rule
    return None


def keeps_sessions(agent: AgentProfile, rules: Iterable[ForMemory]) -> bool:
    """Return True if the agent's memory is the gateway's."""
    rule = rule_for(agent.id, agent.name, rules)
    if rule is None or rule.memory == "auto":
        return agent.gateway_memory
    return rule.memory == "gateway"
