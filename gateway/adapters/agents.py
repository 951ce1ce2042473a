"""Finds the agent that a client names, and lists those that it may name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from multidict import CIMultiDict

from gateway.adapters.errors import AdapterError, Fault, of_answer, of_gateway, refuse
from gateway.agents.errors import AgentNotFound
from gateway.errors import GatewayError
from gateway.mlcommons.profile import AgentProfile
from gateway.proxy.data_port import DataPort
from gateway.proxy.local_client import send_request

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MADE_ID = re.compile(r"[A-Za-z0-9_-]{20}")
"""Ids that a cluster makes. Anything else is more likely a name, and is looked for as one first."""
_SEARCH = "/_plugins/_ml/agents/_search"
_PAGE = 1_000
_MOST = 10_000
"""Agents that are listed: as far as a search of OpenSearch reaches."""


@runtime_checkable
class Profiles(Protocol):
    """What a use case knows of agents."""

    async def profile(self, agent_id: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return an agent as the caller may see it. headers: the caller's.

        Raises:
            AgentNotFound, GatewayError: it can't be read.
        """


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
            agents = [agent for agent in await self._search({"match": {"name": named}}, _PAGE) if agent.name == named]
        except AdapterError as error:  # who may read an agent may not be allowed to search for one
            if error.fault.status != 403:
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
        return sorted(await self._search({"match_all": {}}, _MOST), key=lambda agent: (agent.name, agent.id))

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

    async def _search(self, query: Any, most: int) -> list[Agent]:
        found: list[Agent] = []
        while len(found) < most:
            body = json.dumps({"query": query, "from": len(found), "size": min(_PAGE, most)}).encode()
            headers = [*self._caller.items(), ("content-type", "application/json"), ("accept-encoding", "identity")]
            response = await send_request(self._port, "POST", _SEARCH, headers, body)
            try:
                answer = await response.read()
            finally:
                response.close()
            if response.status != 200:
                raise of_answer(response.status, answer)
            page = [agent for hit in _hits(answer) if (agent := _agent(hit)) is not None]
            found += page
            if len(page) < _PAGE:
                break
        return found


def _hits(answer: bytes) -> list[Any]:
    try:
        hits = json.loads(answer)["hits"]["hits"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AdapterError(Fault(502, "ClusterError", "The cluster's list of agents can't be read.")) from None
    return hits if isinstance(hits, list) else []


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
