"""Whether a caller may run agents: asked of the cluster of `upstream` before another one is sent a run in its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.agents.lookup import Credentials
from gateway.errors import CallerRefused, CallerUnknown, UpstreamUnavailable
from gateway.ports import ClusterReader
from gateway.recent import Recent

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

    def __init__(self, cluster: ClusterReader, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._clock = clock
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
        if (self._until.peek(caller) or 0.0) > self._clock():
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
        self._until.put(caller, self._clock() + self._seconds)
