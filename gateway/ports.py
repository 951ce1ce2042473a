"""The interfaces between I/O and the use cases.

The data port reads a request, asks an `ExecuteHandler` or a `ManageHandler`, and sends what it answers. The use cases
read the cluster through a `ClusterReader`, and media through a `MediaFetcher`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.unified.model import Media


@dataclass(frozen=True, slots=True)
class ExecuteCall:
    """A request to run, register, change or delete an agent, as the client sent it.

    agent_id: percent-decoded, "" where the request names none. raw_target: undecoded, path and query.
    headers: all of them, hop-by-hop included. body: with its content-encoding undone.
    streaming: it came to ``_execute/stream``. signed: it carries a signature of the client's (SigV4) that would go on,
    so nothing can be asked in its name.
    """

    agent_id: str
    method: str
    raw_target: str
    headers: CIMultiDictProxy[str]
    body: bytes
    request_id: str
    streaming: bool
    signed: bool = False


Retry = Callable[[int, bytes], "Forward | Answer | None"]


class Forward(msgspec.Struct, frozen=True):
    """What to send to the cluster in the call's place.

    body: the pieces of the new body; None forwards the client's bytes untouched (still compressed, if so sent).
    response_headers: added to the answer.
    retry: asked once, with status and body, when the cluster answers 400 or more with a body of at most
        64 KiB; another `Forward` is sent in place of this one and its answer is final; an `Answer` goes to the client.
    """

    body: Sequence[bytes | memoryview] | None = None
    response_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    retry: Retry | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the gateway's own. headers: without those of connection and length. body: JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ExecuteHandler(Protocol):
    """The use case."""

    async def __call__(self, call: ExecuteCall) -> Forward:
        """What to send for `call`.

        Raises:
            GatewayError: the request is refused; nothing is sent.
        """


@runtime_checkable
class FastHandler(Protocol):
    """The part of the use case that takes no waiting; an `ExecuteHandler` may have it too. It never refuses."""

    def caller(self, lines: Iterable[bytes]) -> bytes:
        """Who asks, by the request's field lines: equal for equal credentials; empty where `try_fast` can't help."""

    def try_fast(self, agent_id: str, caller: bytes, body: bytes) -> Forward | None:
        """What to send for a whole body, as the handler would say; None where the handler has to be asked."""


class ManageHandler(Protocol):
    """The use cases that make, change and remove agents. Each raises GatewayError: the request is refused."""

    async def register(self, call: ExecuteCall) -> Forward | Answer:
        """``POST …/agents/_register``."""

    async def quick_execute(self, call: ExecuteCall) -> Forward | Answer:
        """``POST …/agents/_execute``: an agent for this one run."""

    async def update_agent(self, call: ExecuteCall) -> Forward | Answer:
        """``PUT …/agents/{id}``."""

    async def delete_agent(self, call: ExecuteCall) -> Forward | Answer:
        """``DELETE …/agents/{id}``."""

    async def ended(self) -> None:
        """Wait until nothing is under way; what began goes on when its client has gone."""


class ProfileCache(Protocol):
    """What the use case remembers of agents, models and connectors."""

    def invalidate(self, kind: str, id: str | None) -> None:
        """Forget one document, or with id None all of its kind. kind: agents, models, connectors or cluster.

        ``cluster`` is the cluster's settings: whether it takes the unified input may have changed.
        """


class MediaFetcher(Protocol):
    """Media of the web, for providers that take them inline only."""

    async def __call__(self, blocks: Sequence[Media]) -> Sequence[bytes]:
        """The base64 text (ASCII, padded) of each block, in order; the source of each is an http(s) `Url`.

        Raises:
            UndeliverableContent: some can't be fetched; each is a problem with its block's place.
        """


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A whole answer of the cluster; the body as it came, its content-encoding not undone."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


HeaderPairs = Mapping[str, str] | Iterable[tuple[str, str]]


class ClusterReader(Protocol):
    """The cluster, for short requests of the gateway's own."""

    async def exchange(
        self,
        method: str,
        target: str,
        headers: HeaderPairs,
        body: Sequence[bytes | memoryview] = (),
        seconds: float | None = None,
    ) -> UpstreamResponse:
        """One request and its whole answer. target: raw path and query.

        seconds: for all of it, 0 for ever; None: `upstream.timeouts.lookup`.

        Raises:
            UpstreamUnavailable, UpstreamTimeout: no answer, or one that breaks off.
        """

    async def get_json(self, path: str, headers: HeaderPairs) -> tuple[int, dict[str, Any] | None]:
        """Status and document of a GET; None when the answer is no JSON object.

        Raises:
            UpstreamUnavailable, UpstreamTimeout: as `exchange`.
        """
