"""The parts of the gateway that are made from one set of settings, and replaced together when it is reloaded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sized
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from gateway.agents.holds import Holds
from gateway.agents.lookup import Credentials
from gateway.config.schema import ServiceAccount, Settings
from gateway.execute.build import build_handler, check_rules, service_headers
from gateway.media.fetch import Fetcher
from gateway.memory.cluster_copies import ClusterCopies
from gateway.memory.rest import SessionResources
from gateway.memory.sessions import BusySessions, Delete, Sessions
from gateway.memory.store import Store
from gateway.memory.stores.registry import LazyStore, SharedResources, share_store
from gateway.observe.logs import Logger, configure
from gateway.observe.metrics import Metrics, NodeState
from gateway.policy.budgets import Ledger
from gateway.policy.policies import OpenPolicies
from gateway.ports import (
    ExecuteHandler,
    ManageHandler,
    PolicyKeeper,
    ProfileCache,
    RoutedMemory,
    SessionHandler,
    SessionKeeper,
)
from gateway.proxy.capture import Capture
from gateway.proxy.data_port import DataPort
from gateway.proxy.local_client import send_request
from gateway.recording.recorder import Recording
from gateway.register.handler import Manager
from gateway.routing.handler import RoutedHandler
from gateway.routing.mirrors import Copy, Mirrors
from gateway.routing.profiles import RoutedProfiles, RunPermission
from gateway.routing.table import read_routes, shares
from gateway.upstream.client import Upstream


def log_of(settings: Settings) -> Logger:
    """Return the log as the settings say."""
    logs = settings.logs
    return configure(logs.level, logs.format, payloads=logs.payloads)


class UseCases(NamedTuple):
    """The use cases that handle requests. manage: None if registration is off.

    sessions, memory, store: the gateway's own sessions on the cluster's paths, in use, and where they are kept; None
    without memory. policy: what was spent, and guardrails. holds: documents that `execute` uses in place of the
    cluster's; None if it can't. delete_session: with what the cluster has of it; None for `Store.delete`.
    routed_memory: conversations of routes' targets on the cluster's paths. mirrors: runs copies of requests.
    """

    execute: ExecuteHandler
    profiles: ProfileCache
    manage: ManageHandler | None = None
    sessions: SessionHandler | None = None
    memory: SessionKeeper | None = None
    store: Store | None = None
    policy: PolicyKeeper | None = None
    holds: Holds | None = None
    delete_session: Delete | None = None
    routed_memory: RoutedMemory | None = None
    mirrors: Mirrors | None = None


Upstreams = Mapping[str, Upstream]
"""The clusters by name; "" for the one of `upstream`."""
UseCase = Callable[[Settings, Upstreams, Logger, Metrics], UseCases | tuple[ExecuteHandler, ProfileCache]]


class Runtime:
    """One set of settings, and the parts that serve the requests which began under it.

    capture: takes the exchanges that are over; None if they are not recorded.
    """

    def __init__(
        self, settings: Settings, use_case: UseCase, log: Logger, metrics: Metrics, capture: Capture | None = None
    ) -> None:
        self.settings = settings
        self.log = log
        self.clusters: Upstreams = {
            name: Upstream(one, settings.limits, log, f"clusters.{name}" if name else "upstream")
            for name, one in {"": settings.upstream, **settings.clusters}.items()
        }
        self.upstream = self.clusters[""]
        self.shares = shares(read_routes(settings.agents).values())
        cases = UseCases(*use_case(settings, self.clusters, log, metrics))
        self.profiles, self.manage = cases.profiles, cases.manage
        self.memory, self.store, self.policy, self.holds = cases.memory, cases.store, cases.policy, cases.holds
        self.delete_session = cases.delete_session
        self.port = DataPort(
            settings,
            self.upstream,
            cases.execute,
            cases.profiles,
            log,
            metrics,
            cases.manage,
            cases.sessions,
            capture,
            self.clusters,
            cases.routed_memory,
        )
        self.mirrors = cases.mirrors
        if self.mirrors is not None:
            self.mirrors.send = partial(send_copy, self.port)

    @property
    def cached_profiles(self) -> int:
        """Number of agents in the cache; 0 for a cache that does not tell."""
        return len(self.profiles) if isinstance(self.profiles, Sized) else 0

    def node_states(self) -> Iterator[NodeState]:
        """Yield the nodes of all clusters, for the metrics."""
        for name, cluster in self.clusters.items():
            for state in cluster.node_states():
                yield state._replace(cluster=name)

    def inherit(self, old: Runtime) -> None:
        """Take over what is known of the nodes of clusters that both have."""
        for name, cluster in self.clusters.items():
            if (before := old.clusters.get(name)) is not None:
                cluster.nodes.inherit(before.nodes)

    @property
    def session_runs(self) -> int:
        """Number of sessions of gateway memory that requests use now."""
        return self.memory.in_use if self.memory is not None else 0

    async def start(self) -> None:
        """Open the connection pools.

        Raises:
            ConfigError: a file that the settings name can't be used.
        """
        for cluster in self.clusters.values():
            await cluster.start()
        if self.memory is not None:
            self.memory.start()

    async def ended(self) -> None:
        """Wait until the last request is answered, the last turn stored, the last registration finished or undone."""
        await self.port.lifecycle.ended()
        if self.memory is not None:
            await self.memory.ended()
        if self.manage is not None:
            await self.manage.ended()
        if self.policy is not None:
            await self.policy.ended()

    def stop(self) -> None:
        """End what runs in the background and delays the end: retention, copies of requests."""
        if self.memory is not None:
            self.memory.stop()
        if self.mirrors is not None:
            self.mirrors.stop()

    async def retire(self) -> None:
        """Close once the last request is answered. Other settings apply to what runs in the background."""
        self.stop()
        try:
            await self.ended()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the store of sessions, what the policies hold, the connections to the clusters; each in any case."""
        async with contextlib.AsyncExitStack() as close:  # the last first
            for cluster in self.clusters.values():
                close.push_async_callback(cluster.close)
            if self.policy is not None:
                close.push_async_callback(self.policy.close)
            if self.memory is not None:
                close.push_async_callback(self.memory.close)


@contextlib.asynccontextmanager
async def running(runtime: Runtime, recording: Recording) -> AsyncIterator[None]:
    """Run the parts of a gateway that has no ports of its own.

    Raises:
        ConfigError: a file that the settings name can't be used. StoreError: a store of exchanges can't be opened.
    """
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(recording.stop)
        await recording.start()
        undo.push_async_callback(runtime.close)
        await runtime.start()
        runtime.port.lifecycle.start()
        undo.callback(runtime.port.lifecycle.stop)
        yield
        await runtime.ended()


def build_use_case() -> UseCase:
    """Return what makes the use cases. Those of one process share the stores of sessions and budgets, and the holds."""
    stores: SharedResources[LazyStore] = SharedResources()
    ledgers: SharedResources[Ledger] = SharedResources()
    busy, holds = BusySessions(), Holds()

    def use_case(settings: Settings, clusters: Upstreams, log: Logger, metrics: Metrics) -> UseCases:
        check_rules(settings)  # before the stores are used, as nothing releases them if this fails
        cluster = clusters[""]
        policy = OpenPolicies(settings, ledgers, log, metrics)
        shared = share_store(stores, settings)
        own = service_headers(settings) or {}
        others = {name: one for name, one in clusters.items() if name}
        copies = ClusterCopies(cluster, settings.memory, own, log, metrics.cluster_copy, others=others)
        memory = Sessions(
            shared.resource, settings.memory, log, busy, close=shared.release, count=metrics.turn, copies=copies
        )
        fetch = Fetcher(settings.media)
        execute, profiles = build_handler(settings, cluster, log, metrics, fetch, memory, policy.policies, holds)
        handlers: dict[str, ExecuteHandler] = {"": execute}
        caches = {"": profiles}
        for name, other in others.items():
            its = of_cluster(settings, name)
            handlers[name], caches[name] = build_handler(its, other, log, metrics, fetch, memory, policy.policies)
        all_profiles = RoutedProfiles(settings, caches, RunPermission(cluster, settings.agents.cache_ttl))
        routed = RoutedHandler(settings, handlers, all_profiles, metrics, log, memory)
        wanted = settings.registration.enabled
        manage = Manager(settings, cluster, execute, profiles, log, metrics) if wanted else None
        resources = SessionResources(settings, shared.resource, cluster, Credentials().of, log, memory.delete)
        return UseCases(
            routed,
            all_profiles,
            manage,
            resources,
            memory,
            shared.resource,
            policy,
            holds,
            memory.delete,
            routed.read_memory,
            routed.mirrors,
        )

    return use_case


async def send_copy(port: DataPort, copy: Copy) -> int:
    """See `gateway.routing.mirrors.SendCopy`."""
    response = await send_request(port, "POST", copy.target, copy.headers, copy.body, mirror=copy.use)
    try:
        async for _ in response.pieces():
            pass
        return response.status
    finally:
        response.close()


def of_cluster(settings: Settings, name: str) -> Settings:
    """Return the settings by which agents of another cluster are read and run: its own credentials, or the caller's."""
    agents = replace(settings.agents, lookup="caller", service_account=ServiceAccount())
    return replace(settings, upstream=settings.clusters[name], agents=agents)
