"""The interfaces between I/O and the use cases.

The data port reads a request, calls an `ExecuteHandler` or a `ManageHandler`, and sends the result. The use cases read
the cluster through a `ClusterReader`, and media through a `MediaFetcher`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.codes import NOTICE_HEADER
from gateway.errors import GatewayError
from gateway.observe.record import Delivery
from gateway.unified.model import Media
from gateway.unified.request import ExecuteRequest


class SessionUse(NamedTuple):
    """What a run that comes through an adapter has to do with sessions.

    thread: the client's name of the conversation, whose session the run continues or begins; "" if the client keeps the
    conversation itself, and nothing is remembered. inherits_system: system text of earlier requests applies, too.
    """

    thread: str
    inherits_system: bool = True


class Steps:
    """The steps of handling one request, in the order in which they ended.

    delivery, routed: what is known of the agent and the input, and where a route sends the request, so far: for one
    that is refused.
    """

    __slots__ = ("_last", "delivery", "routed", "taken")

    def __init__(self, now: float) -> None:
        self._last = now
        self.delivery: Delivery | None = None
        self.routed: Routed | None = None
        self.taken: list[tuple[str, float, float]] = []
        """Name, beginning and end of each, in seconds of `time.monotonic`."""

    def end(self, name: str, now: float) -> None:
        """Note a step that began when the one before it ended, and ends now."""
        self.taken.append((name, self._last, now))
        self._last = now


class Routed(NamedTuple):
    """What a route (`agents.routes`) makes of a request to run an agent.

    route: the id that the client named. agent_id, cluster: the agent that runs; cluster: "" for the one of `upstream`.
    owner: the agent under whose id new sessions are kept. owners: those whose sessions the request may name.
    caller: the client's headers. passes: all of them go to the cluster. by_user: a cluster has accepted the caller's
    credentials, so that the user whom they name counts (`memory.by_user`).
    """

    route: str
    agent_id: str
    cluster: str
    owner: str
    owners: Set[str]
    caller: CIMultiDictProxy[str]
    passes: bool = True
    by_user: bool = False


class MirrorUse(NamedTuple):
    """What a request is that runs on another target of a route after its original.

    of: the original's id. agent: the target.
    """

    of: str
    agent: str


class ExecuteCall(msgspec.Struct, frozen=True):
    """A request to run, register, change or delete an agent, or for a session, as the client sent it.

    agent_id: percent-decoded, "" if the path has none. raw_target: path and query, not decoded.
    headers: all of them, including hop-by-hop. body: with its content-encoding removed.
    streaming: the path is ``_execute/stream``. whole: its answer must be known whole before any of it is sent.
    signed: it has the client's own signature (SigV4), which would be forwarded, so the gateway can't send other
    requests with it. temporary: the agent is removed after this run.
    steps: where the use case notes its steps; None if nobody asks. request: the body, if it was read before.
    session: None if the request itself says which session it is of. routed: None if no route concerns it.
    mirror: None for a client's own request.
    """

    agent_id: str
    method: str
    raw_target: str
    headers: CIMultiDictProxy[str]
    body: bytes
    request_id: str
    streaming: bool
    whole: bool = False
    signed: bool = False
    temporary: bool = False
    steps: Steps | None = None
    request: ExecuteRequest | None = None
    session: SessionUse | None = None
    routed: Routed | None = None
    mirror: MirrorUse | None = None

    @property
    def caller(self) -> CIMultiDictProxy[str]:
        """The client's own headers: those of `headers` may lack what another cluster must not get."""
        return self.headers if self.routed is None else self.routed.caller


class Answer(msgspec.Struct, frozen=True):
    """A response of the gateway's own. headers: without those for connection and length. body: JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class AnswerStage:
    """A step that reads or changes the response to a run. A stage overrides what it needs; here nothing is done.

    holds: the whole response is held for `finish`; of an event stream, only its end. Without it `feed`, `finish` and
    `leave` are not called. reports: `report` is called.
    """

    holds = True
    reports = False

    def prepare(self, forward: Forward) -> Forward:
        """Return the request to send with what the stage adds to it, also for the one that a retry sends."""
        return forward

    def feed(self, piece: bytes) -> bytes:
        """Return what is sent in place of a piece of an event stream."""
        return piece

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """Return the response as it is sent. It is called once.

        answer: with the decoded body, as the stage before left it, and the headers to add. The body of a redirect or an
        error that can't be decoded is empty. streamed: an event stream has gone through `feed`; the body is its end,
        which is still to be sent.

        Raises:
            GatewayError: the response to send instead, unless that is an event stream.
        """
        return answer

    def leave(self) -> Mapping[str, str]:
        """Return the headers to add to a response of success that can't be held or decoded, and is sent as it came.

        Raises:
            GatewayError: the response to send instead.
        """
        return {}

    def cut(self, error: GatewayError) -> bytes:
        """Return what is sent of an event stream that breaks off, after what was sent of it. `finish` is not called."""
        return b""

    def abandon(self) -> None:
        """Give up: `finish` will not be called, or not again. After a `finish` that returned, do nothing."""

    def fail(self, error: GatewayError) -> None:
        """Note that the cluster gave no answer, or broke it off. `abandon` and perhaps `report` are called later."""

    def withdraw(self) -> None:
        """Give up as if nothing had been sent: another target of the route gets the request."""
        self.abandon()

    def report(self, status: int, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Take the cluster's whole response (an event stream's, too), after it was sent on. It is called once.

        body: decoded; b"" if it has more than 16 MiB, is incomplete or can't be decoded. status: 0 if there was no
        response. If nothing was sent, it is not called. What takes longer is returned, and awaited.
        """
        return None


Retry = Callable[[int, bytes], "Forward | Answer | Awaitable[Answer | Forward] | None"]


class Forward(msgspec.Struct, frozen=True):
    """The request to send to the cluster instead of the call.

    body: the new body in pieces; None forwards the client's bytes unchanged (still compressed if they were).
    response_headers: added to the response.
    retry: called once, with status and body, if the cluster responds with 400 or more and a body of at most 64 KiB. If
        it returns a `Forward`, that is sent and its response is final; an `Answer` is sent to the client.
    stages: what the response goes through, in this order.
    delivery: how the input is delivered, for logs, traces and the inspector; one object for all requests of a plan.
    render: returns the body of the agent's first LLM call, as JSON text, for the body that is sent; "" if that is not
        known. It may take milliseconds, and is called in another thread.
    guardrails: what guardrails did, see `ExchangeRecord`; those that check the response are added before it is sent.
    documents: those that the plan depends on, ``models/ID`` and ``connectors/ID``.
    whole: a request for a stream goes to ``_execute``, without one.
    routed: None if it goes where the client sent it. target: raw path and query in place of the client's; b"": those.
    hand_over: called once, if the target of a route fails by itself before its answer begins; returns what to do next.
    """

    body: Sequence[bytes | memoryview] | None = None
    response_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    retry: Retry | None = None
    stages: tuple[AnswerStage, ...] = ()
    delivery: Delivery | None = None
    render: Callable[[str], str] | None = None
    guardrails: Sequence[dict[str, Any]] = ()
    documents: Set[str] = frozenset()
    whole: bool = False
    routed: Routed | None = None
    target: bytes = b""
    hand_over: Callable[[], Awaitable[Forward | Answer]] | None = None

    def through(self, stage: AnswerStage) -> Forward:
        """Return the request whose response goes through `stage` first, as that of a retry does."""
        forward = stage.prepare(self)
        again = None if self.retry is None else _retry_through(self.retry, stage)
        return msgspec.structs.replace(forward, stages=(stage, *forward.stages), retry=again)

    @property
    def holds(self) -> bool:
        """True if a stage holds the response."""
        return any(stage.holds for stage in self.stages)

    def feed(self, piece: bytes) -> bytes:
        """Return what is sent in place of a piece of an event stream."""
        for stage in self.stages:
            if stage.holds:
                piece = stage.feed(piece)
        return piece

    async def finish(self, answer: Answer, streamed: bool = False) -> Answer:
        """Return the response as the stages change it.

        Raises:
            GatewayError: the response to send instead.
        """
        for stage in self.stages:
            if stage.holds:
                answer = await stage.finish(answer, streamed)
        return answer

    def leave(self) -> dict[str, str]:
        """Return the headers to add to a response that is sent as it came, because it can't be held or decoded.

        Raises:
            GatewayError: the response to send instead.
        """
        headers: dict[str, str] = {}
        for stage in self.stages:
            if stage.holds:
                notices = headers.get(NOTICE_HEADER)
                headers |= stage.leave()
                if notices and headers[NOTICE_HEADER] != notices:
                    headers[NOTICE_HEADER] = f"{notices}, {headers[NOTICE_HEADER]}"
        return headers

    def cut(self, error: GatewayError) -> bytes:
        """Return what is sent of an event stream that breaks off."""
        return b"".join(stage.cut(error) for stage in self.stages)

    def abandon(self) -> None:
        """Give up all stages."""
        for stage in self.stages:
            stage.abandon()

    def withdraw(self) -> None:
        """Give up all stages, as if nothing had been sent."""
        for stage in self.stages:
            stage.withdraw()


def _retry_through(retry: Retry, stage: AnswerStage) -> Retry:
    def retry_with(status: int, body: bytes) -> Forward | Answer | Awaitable[Answer | Forward] | None:
        again = retry(status, body)
        return again.through(stage) if isinstance(again, Forward) else again

    return retry_with


class ExecuteHandler(Protocol):
    """The use case that runs agents."""

    async def __call__(self, call: ExecuteCall) -> Forward:
        """Return the request to send for `call`.

        Raises:
            GatewayError: the request is refused; nothing is sent.
        """


class ManageHandler(Protocol):
    """The use cases that register, update and delete agents. Each raises GatewayError to refuse the request."""

    async def register(self, call: ExecuteCall) -> Forward | Answer:
        """Handle ``POST …/agents/_register``."""

    async def quick_execute(self, call: ExecuteCall) -> Forward | Answer:
        """Handle ``POST …/agents/_execute``: make an agent for this one run."""

    async def update_agent(self, call: ExecuteCall) -> Forward | Answer:
        """Handle ``PUT …/agents/{id}``."""

    async def delete_agent(self, call: ExecuteCall) -> Forward | Answer:
        """Handle ``DELETE …/agents/{id}``."""

    async def ended(self) -> None:
        """Wait until all work has ended. Work that has begun continues after its client disconnects."""


class SessionHandler(Protocol):
    """The use case that shows and deletes the gateway's own sessions on the cluster's memory paths."""

    async def __call__(self, resource: str, id: str, call: ExecuteCall) -> Answer:
        """Return the response to a request for a resource of the session or message `id`.

        resource: memory, messages, message, traces, session or working (see `gateway.proxy.routes`); search: the body
        is a search for the messages of the session.

        Raises:
            GatewayError: the request is refused.
        """


class RoutedMemory(Protocol):
    """The use case for requests about conversations whose ids have the mark of a route's target."""

    async def __call__(self, call: ExecuteCall) -> Forward | None:
        """Return what to send, and where; None if no target has that mark.

        Raises:
            GatewayError: the request is refused.
        """


class SessionKeeper(Protocol):
    """Keeps the gateway's own sessions."""

    @property
    def in_use(self) -> int:
        """Number of sessions that requests use now."""

    def start(self) -> None:
        """Begin what runs in the background."""

    def stop(self) -> None:
        """End what runs in the background."""

    async def ended(self) -> None:
        """Wait until all turns are stored."""

    async def close(self) -> None:
        """Release the store."""


class PolicyKeeper(Protocol):
    """Keeps what was spent of budgets, and the guardrails' connections."""

    async def ended(self) -> None:
        """Wait until all amounts are stored, or could not be."""

    async def close(self) -> None:
        """Release the store and the connections."""


class ProfileCache(Protocol):
    """The use case's cache of agents, models and connectors."""

    def invalidate(self, kind: str, id: str | None) -> None:
        """Drop one document, or with id None all of its kind. kind: agents, models, connectors or cluster.

        ``cluster`` means the cluster's settings, which decide if it takes the unified input.
        """


class MediaContent(NamedTuple):
    """What was fetched: the block's format, or the one found if it has none, and the base64 text (ASCII, padded)."""

    format: str
    text: bytes


class MediaFetcher(Protocol):
    """Fetches media by URL, for providers that accept them only inline."""

    async def __call__(self, blocks: Sequence[Media]) -> Sequence[MediaContent]:
        """Return the content of each block, in order; the source of each is an http(s) `Url`.

        Raises:
            UndeliverableContent: some can't be fetched; each is a problem with the place of its block.
        """


class UpstreamResponse(msgspec.Struct, frozen=True):
    """A whole response of the cluster. body: as received, with its content-encoding."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


HeaderPairs = Mapping[str, str] | Iterable[tuple[str, str]]


class ClusterReader(Protocol):
    """Sends short requests of the gateway's own to the cluster."""

    async def exchange(
        self,
        method: str,
        target: str,
        headers: HeaderPairs,
        body: Sequence[bytes | memoryview] = (),
        seconds: float | None = None,
        most: int | None = None,
    ) -> UpstreamResponse:
        """Send one request and return the whole response. target: raw path and query.

        seconds: timeout of the whole exchange, 0 for none; None: `upstream.timeouts.lookup`. most: bytes of the
        response's body; None: `limits.text`.

        Raises:
            AnswerTooLarge: the response's body is longer than `most`.
            UpstreamUnavailable, UpstreamTimeout: no response, or an incomplete one.
        """

    async def get_json(self, path: str, headers: HeaderPairs) -> tuple[int, dict[str, Any] | None]:
        """Return status and document of a GET; the document is None if the response is not a JSON object.

        Raises:
            AnswerTooLarge: the response is longer than `limits.text`, or has more values than `limits.values`.
            UpstreamUnavailable, UpstreamTimeout: as `exchange`.
        """
