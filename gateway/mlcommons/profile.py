"""The agent profile: plain values read from `GET` agent → model → connector.

All parameter values are strings, as ML Commons stores them (docs/evidence/facts.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.mlcommons.generations import AgentType, Generation
from gateway.mlcommons.tool_types import Calls, type_of
from gateway.recent import computed_once

Parameters = Mapping[str, str]


def overlay(under: Parameters, over: Parameters) -> dict[str, str]:
    """Return the parameters of both; where both have one, that of `over`.

    `over` is copied as a whole, as a text may be in very many parameters. To insert them one after the other takes six
    times as long, and no other thread runs meanwhile.
    """
    found = dict(over)
    for name, value in under.items():
        found.setdefault(name, value)
    return found


class Connector(msgspec.Struct, frozen=True):
    """A connector's predict action and parameters. id is "" for one embedded in a model.

    post_process: the cluster makes something else of the LLM's response (`post_process_function`).
    """

    id: str
    protocol: str
    url: str
    request_body: str
    parameters: Parameters = msgspec.field(default_factory=dict)
    post_process: bool = False


class Model(msgspec.Struct, frozen=True):
    """A remote model. required_inputs: parameter names its `interface.input` JSON schema requires as strings."""

    id: str
    connector: Connector
    required_inputs: tuple[str, ...] = ()


class Tool(msgspec.Struct, frozen=True):
    """A tool of an agent. model: the LLM of a tool that calls one, None if it is not read (`gateway.agents.documents`).

    agent: the flow that an AgentTool of a flow runs, connector: what a ConnectorTool calls; None if it is not read.
    config: static values that a caller's parameters can't override (docs/evidence/facts.md, rule 5).
    """

    type: str
    name: str
    parameters: Parameters = msgspec.field(default_factory=dict)
    config: Parameters = msgspec.field(default_factory=dict)
    model: Model | None = None
    agent: AgentProfile | None = None
    connector: Connector | None = None

    @property
    def key(self) -> str:
        """The tool's name in a flow: its name, or its type if it has none."""
        return self.name or self.type

    @property
    def target(self) -> Model | None:
        """What it calls, if that is read: its model, or its connector as a model without an id."""
        return Model("", self.connector) if self.connector is not None else self.model

    @property
    def calls_unread_llm(self) -> bool:
        """True if it may call something that no profile has, with all parameters of the request."""
        return self._calls_unread and not type_of(self.type).text_name

    @property
    def sends_one_text(self) -> bool:
        """True if it calls something that no profile has, with one text and no other parameter of the request."""
        return self._calls_unread and bool(type_of(self.type).text_name)

    @property
    def _calls_unread(self) -> bool:
        return type_of(self.type).calls is not Calls.NOTHING and self.target is None and self.agent is None

    @property
    def calls_llm(self) -> bool:
        """True if it calls something that is read, or runs an agent that does."""
        return self.target is not None or (self.agent is not None and any(tool.calls_llm for tool in self.agent.tools))

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that it calls: its own, or those of the agent it runs."""
        own = (self.model,) if self.model is not None else ()
        return own if self.agent is None else self.agent.models


class AgentProfile(msgspec.Struct, frozen=True, dict=True):
    """An agent, its LLM and what their documents say.

    type: flow, conversational_flow, conversational, plan_execute_and_reflect, conversational_v2, …
    version: the cluster's version as numbers, (2, 19, 0).
    parameters: the agent's own `parameters` (`_llm_interface` among them).
    llm, llm_parameters: the `llm` block of conversational agents.
    model_provider: `model.model_provider` of a unified agent, "" for a legacy one.
    provider: the provider's name, "" if unknown. provider_source: where it is from
        (``model.model_provider``, ``_llm_interface``, ``connector``, ``rule``). rule_provider: the one that the
        operator's rule names, "" for none; it is used only where the documents show no provider.
    memory_type, memory_container: `memory.type` and `memory.memory_container_id`, "" without memory.
    gateway_memory, unified_output: the marks of a registration (`gateway.mlcommons.profile`).
    unified_api: whether the cluster's unified agent API is on; None if that could not be read. False before 3.5,
        which does not have it.
    """

    id: str
    name: str
    type: str
    version: tuple[int, ...]
    generation: Generation
    app_type: str = ""
    memory_type: str = ""
    memory_container: str = ""
    parameters: Parameters = msgspec.field(default_factory=dict)
    llm: Model | None = None
    llm_parameters: Parameters = msgspec.field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    model_provider: str = ""
    provider: str = ""
    provider_source: str = ""
    unified_api: bool | None = None
    gateway_memory: bool = False
    unified_output: bool = False
    rule_provider: str = ""

    @property
    def agent_type(self) -> AgentType | None:
        """The type; None for one that is not known."""
        return AgentType.of(self.type)

    @property
    def llm_interface(self) -> str:
        """`_llm_interface`, which turns function calling on (3.0 and later)."""
        return self.parameters.get("_llm_interface", "")

    @computed_once
    def models(self) -> tuple[Model, ...]:
        """All models of this agent: its LLM, then those of its tools."""
        own = (self.llm,) if self.llm is not None else ()
        return own + tuple(model for tool in self.tools for model in tool.models)

    @property
    def filters_response(self) -> bool:
        """True if the cluster takes the text out of the LLM's response, so that the text may be any JSON."""
        tools = (tool.parameters for tool in self.tools)
        connectors = (model.connector.parameters for model in self.models)
        values = (self.parameters, self.llm_parameters, *tools, *connectors)
        return bool(self.llm_interface) or any("response_filter" in one for one in values)

    @property
    def connector_ids(self) -> tuple[str, ...]:
        """The ids of the connectors of its models, and of those that its tools call themselves."""
        of_models = tuple(model.connector.id for model in self.models)
        of_tools = tuple(tool.connector.id for tool in self.tools if tool.connector is not None)
        run = (id_ for tool in self.tools if tool.agent is not None for id_ in tool.agent.connector_ids)
        return (*of_models, *of_tools, *run)

    @computed_once
    def documents(self) -> frozenset[str]:
        """The documents of its models and connectors: ``models/ID``, ``connectors/ID``."""
        connectors = (f"connectors/{id_}" for id_ in self.connector_ids if id_)
        return frozenset((*(f"models/{model.id}" for model in self.models), *connectors))

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The ids of this agent, and of those that its tools run and that were read."""
        run = (id_ for tool in self.tools if tool.agent is not None for id_ in tool.agent.agent_ids)
        return (self.id, *run)


MEMORY_MARK = "gw_memory"
GATEWAY_SESSIONS = "sessions"
"""The value of `MEMORY_MARK`: the gateway keeps the agent's sessions."""

OUTPUT_MARK = "gw_output"
UNIFIED = "unified"
"""The value of `OUTPUT_MARK`: the gateway answers in the unified form."""

MARKS = frozenset({MEMORY_MARK, OUTPUT_MARK})


def has_gateway_memory(parameters: Mapping[str, Any]) -> bool:
    """Return True if the gateway keeps the sessions of the agent with these parameters."""
    return parameters.get(MEMORY_MARK) == GATEWAY_SESSIONS


def has_unified_output(parameters: Mapping[str, Any]) -> bool:
    """Return True if the gateway answers for the agent with these parameters in the unified form."""
    return parameters.get(OUTPUT_MARK) == UNIFIED
