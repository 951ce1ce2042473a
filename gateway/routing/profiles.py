"""Reads the agents of all clusters, as callers of the routes' ids see them, and asks whether callers may run agents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from msgspec.structs import replace

from gateway.agents.documents import keeps_sessions
from gateway.agents.lookup import Credentials
from gateway.config.schema import Settings
from gateway.errors import CallerRefused, CallerUnknown, GatewayError, UpstreamUnavailable
from gateway.mlcommons.profile import AgentProfile
from gateway.ports import ClusterReader, ProfileCache
from gateway.recent import Recent
from gateway.routing.caller import without_credentials
from gateway.routing.table import Target, read_routes

_NOBODY = "/_plugins/_ml/agents/mlc-gateway-may-run/_execute"
"""A run of an agent that there is not. A cluster answers 404 to who may run agents, else 401 or 403."""
_BODY = b'{"parameters":{}}'
_MOST = 10_000
_REASON = "The cluster of upstream does not let the caller run agents, so another cluster is not asked for it."
_HELP = (
    "Send the credentials of somebody who may run agents there (cluster:admin/opensearch/ml/execute). The operator can "
    "say in `agents.routes[].targets[].callers` that the other cluster checks callers itself (passed) or nobody does "
    "(trusted)."
)


class RunPermission:
    """Asks the cluster, and remembers for some seconds who may. seconds: `agents.cache_ttl`."""

    def __init__(self, cluster: ClusterReader, seconds: float) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._credentials = Credentials()
        self._until: Recent[float] = Recent(_MOST)

    async def check(self, headers: Mapping[str, str]) -> None:
        """Check that the caller may run agents. headers: the caller's.

        Raises:
            CallerRefused: the cluster does not let it, or does not know it.
            UpstreamUnavailable, UpstreamTimeout: it does not respond, or can't say.
        """
        credentials = self._credentials.of(headers)
        caller = self._credentials.fingerprint(credentials)
        if (self._until.peek(caller) or 0.0) > time.monotonic():
            return
        sent = {**credentials, "Content-Type": "application/json"}
        response = await self._cluster.exchange("POST", _NOBODY, sent, (_BODY,))
        if response.status in (401, 403):
            refusal = CallerUnknown if response.status == 401 else CallerRefused
            raise refusal(_REASON, help=_HELP)
        if response.status != 404:
            reason = (
                f"The cluster of upstream can't say whether the caller may run agents: it answers {response.status}."
            )
            raise UpstreamUnavailable(reason)
        self._until.put(caller, time.monotonic() + self._seconds)


class ReadableCache(ProfileCache, Protocol):
    """A cluster's agents; see `gateway.execute.build.ResolverCache`."""

    def __len__(self) -> int:
        """Return the number of agents in the cache."""

    async def profile(self, agent_id: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return an agent. headers: the caller's."""


class RoutedProfiles:
    """The agents of all clusters as one `ProfileCache`. caches: by name, "" for the one of `upstream`.

    permission: whether callers may run agents there.
    """

    def __init__(self, settings: Settings, caches: Mapping[str, ReadableCache], permission: RunPermission) -> None:
        self.routes = read_routes(settings.agents)
        self._caches = caches
        self._rules = settings.agents.rules
        self._permission = permission if settings.upstream.auth.mode == "pass" else None

    def __len__(self) -> int:
        return sum(map(len, self._caches.values()))

    def invalidate(self, kind: str, id: str | None) -> None:
        """See `ProfileCache`. Only writes to the cluster of `upstream` pass through the gateway."""
        for name, cache in self._caches.items():
            if not name or kind == "cluster":
                cache.invalidate(kind, id)

    async def profile(self, agent_id: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return an agent as the caller may see it; for a route's id one that stands for its targets.

        That is the route's own agent, or the first of the others that can be read, under the route's id. Of an alias it
        is the new agent.

        Raises:
            GatewayError: it can't be read.
        """
        route = self.routes.get(agent_id)
        if route is None:
            return await self._caches[""].profile(agent_id, headers)
        targets = [route.home] if route.home is not None else []
        targets += [target for target in route.drawn if target != route.home]
        failure: GatewayError | None = None
        for target in targets:
            try:
                await self.check(target, headers)
                found = await self.of_target(target, headers)
            except GatewayError as error:
                failure = failure or error
                continue
            if route.owner == target.agent:
                return found
            return replace(found, id=route.agent, gateway_memory=self.remembers(found))
        assert failure is not None
        raise failure

    async def check(self, target: Target, headers: Mapping[str, str]) -> None:
        """Check that the caller may use a target, for `callers: checked`.

        Raises:
            GatewayError: as `RunPermission.check`.
        """
        if target.cluster and target.callers == "checked" and self._permission is not None:
            await self._permission.check(headers)

    async def that_ran(self, agent_id: str, cluster: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return the agent that an answer names (`X-MLC-Agent`, `X-MLC-Cluster`). headers: the caller's.

        Raises:
            GatewayError: it can't be read.
        """
        targets = (target for route in self.routes.values() for target in route.targets)
        known = (target for target in targets if (target.agent, target.cluster) == (agent_id, cluster))
        return await self.of_target(next(known, Target(agent_id)), headers)

    async def of_target(self, target: Target, headers: Mapping[str, str]) -> AgentProfile:
        """Return the agent of a target. headers: the caller's.

        Raises:
            GatewayError: it can't be read.
        """
        known = headers if target.passes else without_credentials(headers)
        return await self._caches[target.cluster].profile(target.agent, known)

    async def find(self, target: Target, headers: Mapping[str, str]) -> AgentProfile | None:
        """Return the agent of a target; None if it can't be read."""
        try:
            return await self.of_target(target, headers)
        except GatewayError:
            return None

    def remembers(self, profile: AgentProfile) -> bool:
        """Return True if the gateway keeps the agent's sessions."""
        return keeps_sessions(profile, self._rules)
