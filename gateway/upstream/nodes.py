"""The cluster's nodes: which one gets the next request, and which are excluded for now.

The rules use counters and a clock that is passed in; `gateway.upstream.client` does the probing. There are two
independent reasons to exclude a node:

- *down*: its probes failed `health.failures` times in a row; it is back after `health.successes` good ones;
- *ejected*: `ejection.failures` requests in a row got no valid response from it; it is back after `ejection.seconds`,
  doubled each time it fails again. Then it is on probation: one failure ejects it again.

At most `ejection.max_share` of the nodes are ejected (one is always allowed), and never the last one. If all nodes are
down, all are used: a wrong probe must not stop the traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Literal

from yarl import URL

from gateway.config.schema import Ejection, Health
from gateway.config.schema import Upstream as UpstreamSettings
from gateway.errors import UpstreamUnavailable
from gateway.observe.logs import Logger
from gateway.observe.metrics import NodeState

Kind = Literal["", "connect", "reset", "invalid", "timeout"]
"""How a request failed: no connection, reset, invalid response, no response in time; "" if it did not fail."""

Clock = Callable[[], float]
Probe = Callable[["Node"], Awaitable[bool]]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that may be sent again (RFC 9110, 9.2.2). PUT and DELETE are idempotent too, but the cluster responds to the
second one differently (`updated`, `not_found`), and that would not be the response to the client's request."""

_CURSOR = b"_search/scroll"
"""Reading from a scroll advances it, even with GET: when repeated, a page would be lost."""


def may_retry(method: str, sent: bool, is_execute: bool, target: bytes = b"") -> bool:
    """Return True if a request without a response may be sent again, to this or another node.

    sent: part of it was written to a connection. is_execute: it runs an agent, whose tools may have acted. target: its
    undecoded path; a GET that advances a scroll is not safe. Any request may go to another node if no connection could
    be made, because nothing has been sent.
    """
    if is_execute:
        return False
    return not sent or (method in SAFE and _CURSOR not in target)


class Tally:
    """Counts for the metrics of a node: requests, failures by kind, rebuilds of its pool, bytes received."""

    __slots__ = ("failures", "rebuilds", "received", "requests")

    def __init__(self) -> None:
        self.requests = self.rebuilds = self.received = 0
        self.failures: Counter[str] = Counter(connect=0, reset=0, invalid=0, timeout=0)


class Node:
    """One node: its address, its state and its counts.

    pending: requests without a response yet; the connection that sends one updates it, and the tally. address: host
    and port, the label of its metrics. failures: in a row. fault: why its last probe failed, for the log.
    """

    __slots__ = (
        "_nodes",
        "_probes",
        "address",
        "authority",
        "down",
        "ejected_until",
        "ejections",
        "failures",
        "fault",
        "host",
        "pending",
        "port",
        "tally",
        "tls",
    )

    def __init__(self, url: str, nodes: NodeSet) -> None:
        where = URL(url)
        self.host = where.host or ""
        self.port = where.port or 0
        self.tls = where.scheme == "https"
        self.authority = where.raw_authority.encode("ascii")
        self.address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.pending = 0
        self.tally = Tally()
        self.down = False
        self.fault = ""
        self.ejected_until = float("-inf")
        self.ejections = 0
        self.failures = 0
        self._probes = 0
        self._nodes = nodes

    def __repr__(self) -> str:
        return f"Node({self.authority.decode()})"

    def available(self, now: float) -> bool:
        """Return True if the node is neither down nor ejected."""
        return not self.down and self.ejected_until <= now

    def report(self, ok: bool, kind: Kind = "") -> None:
        """Record the result of a request.

        Any valid response is ok, whatever its status. An idle connection that turned out to be closed and a client that
        disconnected are not reported.
        """
        if ok:
            self.failures = 0
        else:
            self.failures += 1
            self.tally.failures[kind] += 1
            self._nodes.failed(self, self.failures, kind)

    def probed(self, ok: bool, health: Health) -> bool:
        """Count a probe. Return True if it changed the state. `_probes` counts the probes against the current state."""
        if ok is not self.down:
            self._probes = 0
            return False
        self._probes += 1
        if self._probes < (health.successes if ok else health.failures):
            return False
        self._probes = 0
        self.down = not ok
        return True

    def eject(self, now: float, settings: Ejection) -> float:
        """Exclude the node from `now` on. Return the seconds."""
        last = self._span(settings)
        self.ejections = self.ejections + 1 if now - self.ejected_until < last else 1
        self.ejected_until = now + self._span(settings)
        self.failures = settings.failures - 1  # on probation afterwards
        return self.ejected_until - now

    def _span(self, settings: Ejection) -> float:
        return min(settings.seconds * 2.0 ** min(self.ejections - 1, 60), settings.max_seconds)


class NodeSet:
    """All nodes of the cluster. `start` starts the probes, if there are several nodes; `close` ends them.

    probe: returns True if a node is healthy; None: no probes. clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        probe: Probe | None = None,
        log: Logger | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.nodes: Sequence[Node] = tuple(Node(url, self) for url in settings.nodes or [settings.url])
        self._tallies: dict[str, Tally] = {}
        for node in self.nodes:
            node.tally = self._tallies.setdefault(node.address, node.tally)
        self._health = settings.health
        self._ejection = settings.ejection
        self._probe = probe
        self._log = log
        self._clock = clock
        self._turn = 0
        self._task: asyncio.Task[None] | None = None

    def pick(self, exclude: Collection[Node] = ()) -> Node:
        """Return the node for the next request: the one with the fewest pending requests; equals take turns.

        exclude: nodes that this request was tried on. Unavailable nodes are used only if no other is left.

        Raises:
            UpstreamUnavailable: all are excluded.
        """
        nodes = self.nodes
        if len(nodes) == 1 and not exclude:
            return nodes[0]
        self._turn = (self._turn + 1) % len(nodes)
        now = self._clock()
        best: Node | None = None
        rank = (True, 0)
        for node in (*nodes[self._turn :], *nodes[: self._turn]):
            its = (not node.available(now), node.pending)
            if node not in exclude and (best is None or its < rank):
                best, rank = node, its
        if best is None:
            raise UpstreamUnavailable("No node of the cluster is left to try: the request failed on each.")
        return best

    def failed(self, node: Node, times: int, kind: Kind) -> None:
        """Eject `node` if it failed often enough and enough other nodes are left. times: failures in a row."""
        now = self._clock()
        settings = self._ejection
        if not settings.failures or times < settings.failures or node.ejected_until > now:
            return
        out = sum(other.ejected_until > now for other in self.nodes)
        left = any(other is not node and other.available(now) for other in self.nodes)
        if left and out < max(1, int(settings.max_share * len(self.nodes))):
            seconds = node.eject(now, settings)
            if self._log is not None:
                self._log.warning("node ejected", node=node.address, seconds=seconds, failures=times, kind=kind)

    def available(self) -> int:
        """Return the number of nodes that are neither down nor ejected."""
        now = self._clock()
        return sum(node.available(now) for node in self.nodes)

    def inherit(self, old: NodeSet) -> None:
        """Continue the counts of `old`, for the nodes that both have."""
        for node in self.nodes:
            node.tally = self._tallies[node.address] = old._tallies.get(node.address, node.tally)

    def states(self) -> Iterator[NodeState]:
        """Yield all nodes for the metrics; nodes with the same address are one."""
        now = self._clock()
        for address, tally in self._tallies.items():
            same = [node for node in self.nodes if node.address == address]
            pending = sum(node.pending for node in same)
            ejected = all(node.ejected_until > now for node in same)
            down = all(node.down for node in same)
            yield NodeState(
                address, tally.requests, tally.failures, pending, down, ejected, tally.rebuilds, tally.received
            )

    async def start(self) -> None:
        """Start the probes, if there are several nodes."""
        if self._probe is not None and len(self.nodes) > 1 and self._health.interval:
            self._task = asyncio.create_task(self._run(self._probe), name="probes")

    async def close(self) -> None:
        """End the probes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, probe: Probe) -> None:
        while True:
            await asyncio.gather(*(self._ask(node, probe) for node in self.nodes))
            # Spreads the probes of gateways that were started together.
            await asyncio.sleep(self._health.interval * random.uniform(0.9, 1.1))

    async def _ask(self, node: Node, probe: Probe) -> None:
        if node.probed(await probe(node), self._health) and self._log is not None:
            if node.down:
                self._log.warning("node down", node=node.address, reason=node.fault)
            else:
                self._log.warning("node up", node=node.address)
