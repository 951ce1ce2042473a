"""A registration as plain values: read by `registration`, converted to documents by `documents`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.config.schema import Secret
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


@dataclass(frozen=True, slots=True)
class Registration:
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
