"""From an agent's id to its profile: read from the cluster with the caller's credentials, and cached."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, assert_never

import msgspec

from gateway.agents.cache import SharedCache
from gateway.agents.documents import (
    SETTINGS_PATH,
    AgentDocuments,
    Batch,
    Document,
    Found,
    Rule,
    may_have_unified_api,
    read_agents,
    read_profile,
)
from gateway.agents.holds import Holds
from gateway.agents.lookup import (
    Credentials,
    FailedLookup,
    Lookup,
    LookupFailed,
    get_document,
    get_json,
    lookup_error,
    read_unified_api,
    read_version,
)
from gateway.agents.size import SMALL_WEIGHT, Scale, is_small, weigh
from gateway.errors import Problem, UnresolvedAgent
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.metrics import Lookups
from gateway.offload import run_here_if

Kind = Literal["agents", "models", "connectors", "settings"]


class Cluster(msgspec.Struct, frozen=True):
    """The cluster's version and whether its unified agent API is on (see `AgentProfile.unified_api`)."""

    version: tuple[int, ...]
    unified_api: bool | None


T = TypeVar("T")


class ResolvedAgent:
    """An agent's profile with the values derived from it. The resolver drops both together."""

    __slots__ = ("__weakref__", "_derived", "_is_planned", "_is_refused", "digest", "profile")

    def __init__(self, profile: AgentProfile, digest: bytes = b"") -> None:
        """Create an agent of which nothing is known but its profile. digest: of what that was read from."""
        self.profile = profile
        self.digest = digest
        self._derived: dict[Callable[[AgentProfile], Any], Any] = {}
        self._is_planned = self._is_refused = False

    @property
    def is_small(self) -> bool:
        """See `gateway.agents.size.is_small`."""
        return self.derive(is_small)

    @property
    def is_easy(self) -> bool:
        """True if a request can be planned on the event loop without a noticeable delay for other clients.

        The agent is small, and no plan failed, because it takes far longer to find out why there is none.
        """
        return self._is_planned and not self._is_refused and self.is_small

    def note_plan(self, *, found: bool) -> None:
        """Note that a request was planned, or that there was no plan for it."""
        self._is_planned |= found
        self._is_refused |= not found

    def derive(self, make: Callable[[AgentProfile], T]) -> T:
        """Return `make(profile)`, called once. The result is cached with `make`, usually a class, as the key."""
        found: T | None = self._derived.get(make)
        if found is None:
            found = self._derived[make] = make(self.profile)
        return found


class _Refusal(msgspec.Struct, frozen=True):
    """Why an agent can't be used as its documents are. The error is made again for each caller, without frames."""

    type: type[UnresolvedAgent]
    reason: str
    problems: Sequence[Problem]
    hint: str
    repeats: str

    @classmethod
    def of(cls, error: UnresolvedAgent) -> _Refusal:
        return cls(type(error), error.reason, error.problems, error.hint, error.repeats)

    def error(self) -> UnresolvedAgent:
        return self.type(self.reason, self.problems, self.hint, self.repeats)


_Key = tuple[str, bytes]
_KEEP = 300.0
"""Seconds after its time in which an unused profile can be used again, if the documents have not changed."""


class Resolver:
    """Profiles of agents, cached by agent and credentials.

    One caller's profile is never used for another caller, who may have fewer rights. With a service account, which is
    the operator's explicit choice, all callers share its profiles.
    """

    def __init__(
        self,
        lookup: Lookup,
        ttl: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
        service_headers: Mapping[str, str] | None = None,
        max_entries: int = 5000,
        *,
        cluster_ttl: float = 300.0,
        rules: Sequence[Rule] = (),
        counts: Lookups | None = None,
        holds: Holds | None = None,
    ) -> None:
        """Create a resolver with empty caches.

        Args:
            lookup: the port to the cluster.
            ttl: seconds a profile is cached.
            clock: seconds, monotonic.
            service_headers: the service account's; None to use each caller's own credentials.
            max_entries: the most profiles cached at once.
            cluster_ttl: seconds the cluster's version and settings are cached.
            rules: the operator's (see `Rule`).
            counts: of profiles found in the cache and read, for the metrics.
            holds: parts of documents to use in place of the cluster's.
        """
        self._lookup = lookup
        self._service_headers = service_headers
        self._rules = tuple(rules)
        self._credentials = Credentials()
        self._holds = holds or Holds(clock)
        self._holds_version = self._holds.version
        self._agents: SharedCache[_Key, ResolvedAgent | _Refusal] = SharedCache(ttl, max_entries, clock, _KEEP, counts)
        self._clusters: SharedCache[bytes, Cluster] = SharedCache(cluster_ttl, max_entries, clock)

    def __len__(self) -> int:
        """Number of profiles in the cache."""
        return len(self._agents)

    async def agent(self, agent_id: str, caller_headers: Mapping[str, str]) -> ResolvedAgent:
        """Return the agent, as the caller (or the service account) may see it.

        Raises:
            AgentNotFound: there is no such agent.
            LookupDenied, LookupFailed: see `gateway.agents.lookup`.
            UnresolvedAgent: a document is missing or can't be read.
            UpstreamUnavailable, UpstreamTimeout: the cluster did not respond.
        """
        headers = self._credentials.of(caller_headers) if self._service_headers is None else self._service_headers
        fingerprint = self._credentials.fingerprint(headers)
        self._follow_holds()
        found = await self._agents.get(
            (agent_id, fingerprint), lambda previous: self._read_or_refuse(agent_id, headers, fingerprint, previous)
        )
        if isinstance(found, _Refusal):
            raise found.error()
        return found

    async def profile(self, agent_id: str, caller_headers: Mapping[str, str]) -> AgentProfile:
        """Return the agent's profile; raises as `agent`."""
        return (await self.agent(agent_id, caller_headers)).profile

    async def refresh(self, agent_id: str, caller_headers: Mapping[str, str]) -> ResolvedAgent:
        """Return the agent as `agent` does, but read it and the cluster's settings again."""
        caller = self.caller(caller_headers)
        self._clusters.drop(lambda key, _: key == caller)
        self._agents.drop(lambda key, _: key == (agent_id, caller))
        return await self.agent(agent_id, caller_headers)

    def caller(self, headers: Mapping[str, str]) -> bytes:
        """Return a key that distinguishes callers; never empty."""
        own = self._credentials.of(headers) if self._service_headers is None else self._service_headers
        return self._credentials.fingerprint(own)

    def peek(self, agent_id: str, caller: bytes) -> ResolvedAgent | None:
        """Return the agent if it is cached for this `caller`, without reading from the cluster."""
        self._follow_holds()
        found = self._agents.peek((agent_id, caller))
        return found if isinstance(found, ResolvedAgent) else None

    def invalidate(self, kind: Kind, id_: str | None = None) -> None:
        """Drop what a write may have changed. Call it after the write's response, whatever that is.

        Args:
            kind: what was written: an agent, a model, a connector, or the cluster's settings.
            id_: its id; None if unknown, which drops everything that a write of this kind can change.
        """
        match kind:
            case "agents":
                self._agents.drop(
                    lambda key, a: id_ in (None, key[0]) or (a is not None and _may_need(a, id_, lambda p: p.agent_ids))
                )
            case "models":
                self._agents.drop(lambda _, a: _may_need(a, id_, lambda p: (model.id for model in p.models)))
            case "connectors":
                self._agents.drop(lambda _, a: _may_need(a, id_, lambda p: p.connector_ids))
            case "settings":
                self._clusters.drop(lambda *_: True)
                self._agents.drop(lambda *_: True)
            case _:
                assert_never(kind)

    async def close(self) -> None:
        """Cancel the running lookups."""
        await self._agents.close()
        await self._clusters.close()

    def _follow_holds(self) -> None:
        """Drop all profiles if other parts of documents are held than when they were read."""
        if self._holds_version != self._holds.version:
            self._holds_version = self._holds.version
            self._agents.drop(lambda *_: True)

    async def _read_or_refuse(
        self, agent_id: str, headers: Mapping[str, str], fingerprint: bytes, previous: ResolvedAgent | _Refusal | None
    ) -> ResolvedAgent | _Refusal:
        """Read the agent. What its documents hold is a reason to refuse it that is cached; a failed lookup is not."""
        try:
            return await self._read(
                agent_id, headers, fingerprint, previous if isinstance(previous, ResolvedAgent) else None
            )
        except FailedLookup:
            raise
        except UnresolvedAgent as error:
            return _Refusal.of(error)

    async def _read(
        self, agent_id: str, headers: Mapping[str, str], fingerprint: bytes, previous: ResolvedAgent | None
    ) -> ResolvedAgent:
        """Read the agent. If nothing has changed, return `previous`, with what was derived from its profile."""
        documents, weight = await self._documents(agent_id, headers)
        cluster = await self._clusters.get(fingerprint, lambda _: self._cluster(headers))
        version, unified_api = cluster.version, cluster.unified_api
        agent, models, connectors = documents.agents[agent_id], documents.models, documents.connectors
        others = documents.others

        def read() -> ResolvedAgent:
            digest = _digest(agent, models, connectors, others, version, unified_api)
            if previous is not None and previous.digest == digest:
                return previous
            profile = read_profile(agent_id, agent, models, connectors, version, self._rules, unified_api, others)
            if previous is not None and previous.profile == profile:
                previous.digest = digest
                return previous
            return ResolvedAgent(profile, digest)

        return await run_here_if(weight <= SMALL_WEIGHT, read)

    async def _documents(self, agent_id: str, headers: Mapping[str, str]) -> tuple[AgentDocuments, int]:
        """Return the documents, and what they weigh together."""
        reader = read_agents([agent_id], follow=True)
        scale = Scale(agent_id)
        try:
            batch = next(reader)
            while True:
                batch = reader.send(await self._found(batch, headers, scale))
        except StopIteration as end:
            documents: AgentDocuments = end.value
            return documents, scale.weight

    async def _found(self, batch: Batch, headers: Mapping[str, str], scale: Scale) -> Found:
        found: dict[str, Document] = {}
        for id_ in batch.ids:
            scale.before_document()
            try:
                shown = await get_document(self._lookup, batch.kind, id_, headers)
                found[id_] = document = self._holds.apply(f"{batch.kind}/{id_}", shown)
                await run_here_if(weigh(document, SMALL_WEIGHT) <= SMALL_WEIGHT, scale.add, document)
            except FailedLookup as failed:
                # A missing model or connector is reported by `read_profile`, with the document that names it.
                is_left_out = batch.optional and failed.cluster_status in (403, 404)
                if not is_left_out and (failed.cluster_status != 404 or batch.kind == "agents"):
                    raise
        return found

    async def _cluster(self, headers: Mapping[str, str]) -> Cluster:
        version = await self._version(headers)
        if not may_have_unified_api(version):
            return Cluster(version, unified_api=False)
        status, settings = await get_json(self._lookup, SETTINGS_PATH, headers)
        return Cluster(version, read_unified_api(settings) if status == 200 else None)

    async def _version(self, headers: Mapping[str, str]) -> tuple[int, ...]:
        status, root = await get_json(self._lookup, "/", headers)
        version = read_version(root) if status == 200 else None
        if version is not None:
            return version
        if status != 200:
            raise lookup_error("cluster", "", status, root)
        raise LookupFailed(
            "the cluster does not show its OpenSearch version",
            status,
            Problem(
                "cluster",
                "the response to GET / has no version of an OpenSearch distribution",
                "version.number",
                "none",
            ),
            "set compatibility.override_main_response_version to false on the cluster",
        )


def _digest(*values: object) -> bytes:
    """Return a short value that is another one for other values."""
    return hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _may_need(
    agent: ResolvedAgent | _Refusal | None, id_: str | None, ids: Callable[[AgentProfile], Iterable[str]]
) -> bool:
    """Return True if the document `id_` may be one of those that `agent` was made of. None: not known which."""
    return id_ is None or not isinstance(agent, ResolvedAgent) or id_ in ids(agent.profile)
