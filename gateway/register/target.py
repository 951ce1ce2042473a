"""A registration as plain values, and what a cluster supports of it, by its version and its settings. Pure.

Read from the sources of 2.19.0.0, 3.0.0.0 to 3.6.0.0 and 3.8.0.0; the `model` block and its setting are also recorded
(docs/evidence/facts.md, "3.5 and later"). `docs/operate/registration.md` shows the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.config.schema import Secret
from gateway.errors import InvalidInput, Problem
from gateway.mlcommons.generations import FLOW_TYPES, AgentType
from gateway.providers import registry
from gateway.providers.connector import ModelSpec

Parameters = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server of the `mcp` block.

    protocol: `mcp_sse` or `mcp_streamable_http`. endpoint: the path below `url`, "" for the cluster's default. headers:
    sent to the server; `${credential.x}` in a value is replaced by the credential x. They are not shown, because a
    client may write a secret there. tools: regular expressions of the tools the agent may use; empty: all of them.
    """

    name: str
    url: str
    protocol: str = "mcp_sse"
    endpoint: str = ""
    headers: Parameters = field(default_factory=dict, repr=False)
    credential: Mapping[str, Secret] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


class Registration(msgspec.Struct, frozen=True):
    """A `POST /_plugins/_ml/agents/_register` that needs the gateway's help.

    document: the body without `model` and `mcp`, so without a credential. type: the agent's type, lower case, in
    ML Commons' own spelling; `conversational` by default. type_given: as the client wrote it, "" for none.
    """

    document: Mapping[str, Any]
    model: ModelSpec | None = None
    mcp: tuple[McpServer, ...] = ()
    type: str = "conversational"
    type_given: str = ""

    @property
    def memory_type(self) -> str:
        """`memory.type`, lower case; "" if it is not given."""
        return str((self.document.get("memory") or {}).get("type") or "").lower()

    @property
    def lacks_container(self) -> bool:
        """True if the memory is one in a container, and names none."""
        memory = self.document.get("memory") or {}
        return self.memory_type.endswith("agentic_memory") and not memory.get("memory_container_id")

    @property
    def has_mcp(self) -> bool:
        """True if the agent has tools of MCP servers."""
        return bool(self.mcp or own_mcp_connectors(self.document.get("parameters") or {}))


def own_mcp_connectors(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the client's own entries of `parameters.mcp_connectors`, which may be a list or a JSON string."""
    own = parameters.get("mcp_connectors") or []
    entries: list[Any] = json.loads(own) if isinstance(own, str) else own
    return entries


Release = tuple[int, int]

V2 = AgentType.CONVERSATIONAL_V2.value
PLAN = AgentType.PLANNER.value
FLOWS = frozenset(type_.value for type_ in FLOW_TYPES)

_TYPES: dict[str, Release] = {
    AgentType.FLOW.value: (2, 0),
    AgentType.CONVERSATIONAL_FLOW.value: (2, 0),
    AgentType.CONVERSATIONAL.value: (2, 0),
    PLAN: (3, 0),
    AgentType.AG_UI.value: (3, 5),
    V2: (3, 6),
}
_BY_MODEL_BLOCK = frozenset({AgentType.AG_UI.value, V2})
"""Types that only work with a `model` block of the cluster's own."""

TYPES = tuple(_TYPES)
"""The agent types of ML Commons, lower case."""

_MCP: dict[str, Release] = {"mcp_sse": (3, 0), "mcp_streamable_http": (3, 3)}
MCP_PROTOCOLS = tuple(_MCP)
_SSE_ENDPOINT: Release = (3, 1)
_FLOW_MCP: Release = (3, 8)

CONVERSATION_INDEX = "conversation_index"
_MEMORIES: dict[str, Release] = {
    CONVERSATION_INDEX: (2, 0),
    "agentic_memory": (3, 5),
    "remote_agentic_memory": (3, 5),
}
MEMORIES = tuple(_MEMORIES)
"""The types of `memory`."""

MCP_SETTING = "plugins.ml_commons.mcp_connector_enabled"
ENABLE_MCP = f'PUT /_cluster/settings {{"persistent":{{"{MCP_SETTING}":true}}}}'
"""The call with which an administrator allows MCP connectors."""


class Target(msgspec.Struct, frozen=True):
    """The cluster a registration goes to.

    version: (2, 19, 0). unified_api, mcp_enabled: the settings `plugins.ml_commons.unified_agent_api_enabled` and
    `plugins.ml_commons.mcp_connector_enabled`; None if they could not be read. keeps_sessions: the gateway can keep
    the agent's sessions; False for an agent of one run, which nobody could continue. has_container: the agent's memory
    has its container. Without one the cluster registers the agent and refuses every run of it
    (docs/evidence/facts.md, "conversational_v2").
    """

    version: tuple[int, ...]
    unified_api: bool | None = None
    mcp_enabled: bool | None = None
    keeps_sessions: bool = True
    has_container: bool = True

    def since(self, release: Release) -> bool:
        """Return True if the cluster has this release or a later one."""
        return self.version[:2] >= release

    @property
    def model_block(self) -> bool:
        """True if the cluster makes connector and model from a `model` block itself (3.5, if the setting is on)."""
        return self.since((3, 5)) and bool(self.unified_api)

    def has_type(self, agent_type: str) -> bool:
        """Return True if the cluster can have this agent as one of this type (lower case)."""
        release = _TYPES.get(agent_type)
        if agent_type == V2 and not self.has_container:
            return False
        return release is not None and self.since(release) and (agent_type not in _BY_MODEL_BLOCK or self.model_block)

    def has_memory(self, memory_type: str) -> bool:
        """Return True if the cluster can give this agent this type of memory (lower case)."""
        return self.since(_MEMORIES[memory_type]) and (memory_type == CONVERSATION_INDEX or self.has_container)

    def llm_interface(self, provider: str) -> str:
        """Return `_llm_interface` for a provider, "" if the cluster has no function calling for it."""
        support = registry.provider(provider).cluster
        return support.llm_interface if support and self.since(support.since) else ""


def makes_model(target: Target, registration: Registration) -> bool:
    """Return True if the gateway has to make the model, by `documents.model_body`.

    Also on a cluster that takes the block: for a provider that the cluster does not know, for a `url`, which the block
    has no member for (but see `sets_url`), and for the flow types, whose tools could not name a model the cluster makes
    (3.8.0 recordings, ``u_flow``: it never runs).
    """
    spec = registration.model
    if spec is None:
        return False
    native = target.model_block and target.has_type(registration.type)
    native = native and registry.provider(spec.provider).cluster is not None
    if native and registration.type in _BY_MODEL_BLOCK:
        return False
    return not native or bool(spec.url) or registration.type in FLOWS


def sets_url(target: Target, registration: Registration) -> bool:
    """Return True if the `url` has to be set in the model that the cluster makes, because the type needs that model."""
    spec = registration.model
    return spec is not None and bool(spec.url) and not makes_model(target, registration)


def takes(target: Target, registration: Registration) -> bool:
    """Return True if the cluster accepts the registration in one call, after the edits of `native`."""
    needs_calls = registration.mcp or makes_model(target, registration) or sets_url(target, registration)
    return not needs_calls


def check(registration: Registration, target: Target) -> None:
    """Check that the agent can be made on this cluster.

    Raises:
        InvalidInput: with a problem and its code for everything that this version or its settings do not allow.
    """
    problems = list(_ruled_out(registration, target))
    if problems:
        raise InvalidInput.of(problems)


def _ruled_out(registration: Registration, target: Target) -> Iterator[Problem]:
    asked = registration.type
    if asked != V2 and not target.has_type(asked):
        yield Problem(
            "type",
            f"This cluster ({_shown(target)}) can't have {asked} agents",
            ", ".join(name for name in TYPES if target.has_type(name)),
            asked,
            "TYPE_NOT_ON_VERSION",
            f"It needs {_release(_TYPES[asked])} or later"
            + (", with plugins.ml_commons.unified_agent_api_enabled." if asked in _BY_MODEL_BLOCK else "."),
        )
    spec = registration.model
    known = spec is None or registry.provider(spec.provider).cluster is not None
    if not known and asked in _BY_MODEL_BLOCK and target.has_type(asked):
        yield Problem(
            "type",
            f"{asked} agents need a provider that the cluster itself supports in a `model` block",
            ", ".join(name for name in TYPES if name not in _BY_MODEL_BLOCK),
            asked,
            "TYPE_NOT_ON_VERSION",
            "Use another type, or a provider of this type.",
        )
    for index, server in enumerate(registration.mcp):
        reason, needed = _missing_mcp(server, asked, target)
        if reason:
            help = f"It needs {_release(needed)} or later."
            yield Problem(f"mcp[{index}]", reason, "", server.protocol, "MCP_NOT_ON_VERSION", help)
    if registration.mcp and target.mcp_enabled is False and target.since(_MCP["mcp_sse"]):
        help = f"An administrator runs: {ENABLE_MCP}"
        yield Problem("mcp", "MCP connectors are off on this cluster", "", "", "MCP_DISABLED", help)


def _missing_mcp(server: McpServer, agent_type: str, target: Target) -> tuple[str, Release]:
    here = f"this cluster ({_shown(target)})"
    needed = _MCP[server.protocol]
    if not target.since(needed):
        return f"{here} has no {server.protocol} connectors".capitalize(), needed
    if server.protocol == "mcp_sse" and server.endpoint not in ("", "/sse") and not target.since(_SSE_ENDPOINT):
        return f"Connectors of {here} always use the endpoint /sse", _SSE_ENDPOINT
    if agent_type in FLOWS and not target.since(_FLOW_MCP):
        return f"{agent_type} agents of {here} can't use MCP tools", _FLOW_MCP
    return "", needed


def _shown(target: Target) -> str:
    return ".".join(str(number) for number in target.version)


def _release(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
