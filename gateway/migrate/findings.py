"""What a scan of a cluster finds, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile

TYPES = frozenset(AgentType) - {AgentType.AG_UI}
"""Agent types whose input the gateway can rewrite."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why an agent can't be assessed: a short code, the reasons in a line, and what to do."""

    code: str
    reason: str
    help: str


@dataclass(frozen=True, slots=True)
class Scanned:
    """One agent. profile: as the gateway reads it; None if `unreadable` says why not."""

    id: str
    name: str
    type: str
    profile: AgentProfile | None
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The agents, models and connectors of a cluster.

    unified_api: as in `AgentProfile`. agents: sorted by name, then id. models, connectors: the documents, by id.
    users: connector id → ids of all models of the cluster that use it. notes: what the reader should know.
    """

    version: tuple[int, ...]
    unified_api: bool | None
    agents: tuple[Scanned, ...]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    connectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
