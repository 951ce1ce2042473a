"""What a scan of a cluster finds: plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.mlcommons.agent_types import AgentType
from gateway.mlcommons.profile import AgentProfile

TYPES = frozenset(AgentType) - {AgentType.AG_UI}
"""Agent types whose input the gateway can rewrite."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why an agent can't be judged: a short code, the reasons in a line, and what to do."""

    code: str
    reason: str
    help: str


@dataclass(frozen=True, slots=True)
class Scanned:
    """One agent. profile: what the gateway would make of it; None where `unreadable` says why not."""

    id: str
    name: str
    type: str
    profile: AgentProfile | None
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """What was read.

    unified_api: as in `AgentProfile`. agents: sorted by name, then id. models, connectors: the documents, by id.
    users: connector id → ids of all models of the cluster that name it. notes: what a reader of it should know.
    """

    version: tuple[int, ...]
    unified_api: bool | None
    agents: tuple[Scanned, ...]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    connectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
