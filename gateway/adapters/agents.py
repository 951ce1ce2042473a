"""Finds the agent that a client names, and lists those that it may name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from multidict import CIMultiDict

from gateway.adapters.errors import AdapterError, Fault, of_answer, of_gateway, refuse
from gateway.agents.lookup import AgentNotFound
from gateway.errors import GatewayError
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.providers.responses import member
from gateway.proxy.data_port import DataPort
from gateway.proxy.local_client import send_request
from gateway.unified.limits import SMALL_TEXT

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MADE_ID = re.compile(r"[A-Za-z0-9_-]{20}")
"""Ids that a cluster makes. Anything else is more likely a name, and is looked for as one first."""
_SEARCH = "/_plugins/_ml/agents/_search"
_MOST = 10_000
"""Agents that one search of OpenSearch can show. All come in one answer, as pages of several searches may overlap."""


@runtime_checkable
class Profiles(Protocol):
    """What a use case knows of agents."""

    async def profile(self, agent_id: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return an agent as the caller may see it. headers: the caller's.

        Raises:
            AgentNotFound, GatewayError: it can't be read.
        """

    async def that_ran(self, agent_id: str, cluster: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return the agent of a route's target that an answer names, as `profile`. cluster: "" for `upstream`."""


class Agent(Struct, frozen=True):
    """An agent in a list. created: seconds since 1970; 0 if that is not known."""

    id: str
    name: str
    created: int = 0


class Agents:
    """The agents of one caller. names: the operator's (`adapters.agents`); {} for all that the caller may read."""

    def __init__(self, port: DataPort, profiles: Profiles, names: Mapping[str, str], caller: CIMultiDict[str]) -> None:
        self._port = port
        self._profiles = profiles
        self._names = names
        self._caller = caller

    async def find(self, named: str) -> AgentProfile:
        """Return the agent of this name or id.

        Raises:
            AdapterError: there is none, there are several, or it can't be read.
        """
        if self._names:
            return await self.find_id(self._names.get(named, named))
        if _MADE_ID.fullmatch(named) and (agent := await self._of_id(named)) is not None:
            return agent
        denied: AdapterError | None = None
        agents: Sequence[Agent] = []
        try:
            agents = [agent for agent in await self._search({"match": {"name": named}}) if agent.name == named]
        except AdapterError as error:  # who may read an agent may not be allowed to search for one, or find too many
            if error.fault.status not in (400, 403):
                raise
            denied = error
        if not agents and _ID.fullmatch(named) and (agent := await self._of_id(named)) is not None:
            return agent
        if denied is not None:
            raise denied
        if not agents:
            raise _not_found(named, "Give the id or the exact name of an agent that you may read.")
        if len(agents) > 1:
            ids = ", ".join(agent.id for agent in agents)
            raise refuse(400, f"Several agents are called {named!r}: {ids}. Name one of these ids.")
        return await self._read(agents[0].id)

    async def find_id(self, id: str) -> AgentProfile:
        """Return the agent of this id; raises as `find`."""
        if self._names and id not in self._names.values():
            raise _not_found(id, f"It is one of {', '.join(sorted(self._names))}.")
        return await self._read(id)

    async def readable(self) -> Sequence[Agent]:
        """Return the agents that the caller may name, by name.

        Raises:
            AdapterError: they can't be read.
        """
        if self._names:
            return [Agent(id, name) for name, id in sorted(self._names.items())]
        return sorted(await self._search({"match_all": {}}), key=lambda agent: (agent.name, agent.id))

    async def _of_id(self, id: str) -> AgentProfile | None:
        """Return the agent of this id; None if there is none."""
        try:
            return await self._read(id)
        except AdapterError as error:
            if error.fault.status != 404:
                raise
        return None

    async def _read(self, id: str) -> AgentProfile:
        try:
            return await self._profiles.profile(id, self._caller)
        except AgentNotFound:
            raise _not_found(id, "The cluster has no agent of this id.") from None
        except GatewayError as error:
            raise of_gateway(error) from None

    async def _search(self, query: Any) -> list[Agent]:
        """Return the agents that match.

        Raises:
            AdapterError: the cluster refuses, or there are more than a search can show.
        """
        fields = ["name", "created_time"]
        search = {"query": query, "size": _MOST, "_source": fields, "track_total_hits": True}
        headers = [*self._caller.items(), ("content-type", "application/json"), ("accept-encoding", "identity")]
        response = await send_request(self._port, "POST", _SEARCH, headers, json.dumps(search).encode())
        try:
            answer = await response.read()
        finally:
            response.close()
        if response.status == 404 and b"index_not_found" in answer:
            return []  # no agent was ever registered
        if response.status != 200:
            raise of_answer(response.status, answer)
        hits, total = await run_here_if(len(answer) <= SMALL_TEXT, _read_hits, answer)
        if total > len(hits) and len(hits) >= _MOST:
            raise refuse(
                400,
                f"There are {total} such agents, and a search shows {_MOST}. Name the agent by its id; the operator "
                "can give the agents names in `adapters.agents`.",
            )
        return [agent for hit in hits if (agent := _agent(hit)) is not None]


def _read_hits(answer: bytes) -> tuple[list[Any], int]:
    """Return the hits of a search, and how many there are in all.

    Raises:
        AdapterError: it is no answer of a search, or a shard did not answer.
    """
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        document = None
    hits, total = member(document, "hits", "hits"), member(document, "hits", "total", "value")
    if not isinstance(hits, list):
        raise AdapterError(Fault(502, "ClusterError", "The cluster's list of agents can't be read."))
    if member(document, "_shards", "failed"):
        raise AdapterError(Fault(502, "ClusterError", "The cluster could not search all of its agents. Try again."))
    return hits, total if isinstance(total, int) else len(hits)


def _agent(hit: Any) -> Agent | None:
    """Return the agent in a hit of a search; None for what is none."""
    source = hit.get("_source") if isinstance(hit, dict) else None
    if not isinstance(source, dict) or not isinstance(hit.get("_id"), str):
        return None
    name, created = source.get("name"), source.get("created_time")
    seconds = created // 1000 if isinstance(created, int) else 0
    return Agent(hit["_id"], name if isinstance(name, str) else hit["_id"], seconds)


def _not_found(named: str, help: str) -> AdapterError:
    return AdapterError(Fault(404, "AgentNotFound", f"There is no agent {named!r}. {help}"))
