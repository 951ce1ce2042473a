"""Requests to the adapters' port and their answers: callers, bodies, clients that leave, event streams."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from multidict import CIMultiDict
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from gateway.adapters.agents import Agents, Profiles
from gateway.adapters.errors import AdapterError, Fault, refuse
from gateway.adapters.run import AgentRun, RunInput, begin_run
from gateway.agents.documents import keeps_sessions
from gateway.codes import NOTICE_HEADER
from gateway.config.schema import AdapterKey, Settings
from gateway.errors import InvalidInput, MemoryUnavailable
from gateway.memory.model import StoredMessage
from gateway.memory.owner import is_signed, knows_users, owner_of, thread_key
from gateway.memory.reading import read_messages
from gateway.memory.store import SessionNotFound, Store, StoreError
from gateway.memory.window import live_messages
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.proxy.data_port import DataPort

_LEFT_OUT = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "expect", "keep-alive", "origin", "proxy-connection", "referer", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers of the connection, of the body, and of the page that sends the request."""
_PREFIXES = ("mcp-", "sec-")
"""Of headers of MCP, and of pages."""
_BEARER = "bearer "


class Callers:
    """Replaces keys by the credentials that they stand for. Keys are compared in constant time, and never sent on."""

    def __init__(self, keys: Sequence[AdapterKey]) -> None:
        self._keys = [(_digest(entry.key.reveal()), entry.authorization.reveal()) for entry in keys]

    def headers(self, sent: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
        """Return the headers that say who the caller is, or of what trace the request is. sent: all headers."""
        headers: CIMultiDict[str] = CIMultiDict()
        for raw_name, raw_value in sent:
            name, value = raw_name.decode("ascii").lower(), raw_value.decode("utf-8", "surrogateescape").strip()
            if name in _LEFT_OUT or name.startswith(_PREFIXES):
                continue
            headers.add(name, self._credentials(value) if name == "authorization" else value)
        return headers

    def _credentials(self, value: str) -> str:
        if value[: len(_BEARER)].lower() != _BEARER:
            return value
        given, stands_for = _digest(value[len(_BEARER) :].strip()), value
        for key, authorization in self._keys:
            if hmac.compare_digest(given, key):
                stands_for = authorization
        return stands_for


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


EVENTS = "text/event-stream"
COMMENT = b":\n\n"
_T = TypeVar("_T")


class Conversation(NamedTuple):
    """A session: its id, "" for none; its messages without failed turns and other branches; its last turn's number."""

    session_id: str = ""
    messages: Sequence[StoredMessage] = ()
    turns: int = 0


class Place:
    """What the adapters use, made from one set of settings."""

    def __init__(
        self,
        settings: Settings,
        port: DataPort,
        profiles: Profiles,
        metrics: Metrics,
        log: Logger,
        store: Store | None = None,
    ) -> None:
        self.settings = settings
        self.port = port
        self.metrics = metrics
        self.log = log
        self._store = store
        self._profiles = profiles
        self._callers = Callers(settings.adapters.keys)

    def caller(self, request: Request) -> CIMultiDict[str]:
        """Return the headers that say who sent a request."""
        return self._callers.headers(request.scope["headers"])

    def agents(self, caller: CIMultiDict[str]) -> Agents:
        """Return the agents of a caller."""
        return Agents(self.port, self._profiles, self.settings.adapters.agents, caller)

    def remembers(self, agent: AgentProfile) -> bool:
        """Return True if the gateway keeps the agent's sessions."""
        return keeps_sessions(agent, self.settings.agents.rules)

    async def conversation(self, agent: AgentProfile, thread: str, caller: CIMultiDict[str]) -> Conversation:
        """Return what the gateway keeps of a conversation; nothing where it keeps none.

        caller: credentials with which the agent was read, so that the cluster has accepted them.

        Raises:
            InvalidInput: the tenant's header is missing, or only the cluster can check who sends the request (SigV4).
            MemoryUnavailable: the store can't be read.
        """
        if self._store is None or not thread:
            return Conversation()
        if is_signed(caller):
            raise InvalidInput(
                "A signed request (SigV4) can't be answered from the gateway's memory. Send it unsigned."
            )
        settings = self.settings
        owner = await owner_of(caller, agent.id, settings.memory, knows_users(settings))
        key = thread_key(owner, thread)
        try:
            stored = [message async for message in read_messages(self._store, key)]
        except SessionNotFound:
            return Conversation()
        except StoreError as error:
            raise MemoryUnavailable(f"The gateway's store of sessions can't be read: {error}") from None
        turns = max((message.turn for message in stored), default=0)
        return Conversation(key.id, live_messages(stored), turns)

    async def begin(self, given: RunInput) -> AgentRun:
        """Begin a run; raises as `begin_run`."""
        return await begin_run(self.port, given, self._profiles)


def address_of(request: Request) -> tuple[str, int] | None:
    """Return the client's address."""
    return (request.client.host, request.client.port) if request.client is not None else None


async def read_body(request: Request, settings: Settings) -> bytes:
    """Return the body of a request, which has to be JSON.

    Raises:
        AdapterError: it has another type or a content coding, is too long, or is late.
    """
    most = settings.limits.body
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise AdapterError(Fault(415, "UnsupportedEncoding", "Send the body as JSON: Content-Type: application/json."))
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise AdapterError(Fault(415, "UnsupportedEncoding", "Send the body without a Content-Encoding."))
    body = bytearray()
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(settings.listen.timeouts.body or None):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise AdapterError(Fault(408, "RequestTimeout", "The rest of the request's body did not come.")) from None
        if piece is None:
            return bytes(body)
        body += piece
        if len(body) > most:
            raise AdapterError(Fault(413, "BodyTooLarge", f"The body is longer than {most} bytes (limits.body)."))


def read_members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, their values as written.

    Raises:
        AdapterError: it is none.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refuse(400, f"The body is not a JSON object: {error}.") from None


def plain(value: msgspec.Raw) -> Any:
    """Return the value of a member.

    Raises:
        AdapterError: it is no JSON.
    """
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refuse(400, f"The body is not valid JSON: {error}.") from None


async def unless_left(request: Request, work: Awaitable[_T]) -> _T | None:
    """Return what `work` returns; None if the client leaves first: the work is cancelled then."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream(
    frames: AsyncGenerator[bytes, None], seconds: float, headers: Mapping[str, str], fault: Callable[[], bytes]
) -> Response:
    """Return an event stream. It has a comment whenever there was nothing else to send for `seconds`.

    fault: returns the last frame of a stream that an internal error ends.
    """
    own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers}
    return _EventStream(_with_comments(frames, seconds, fault), headers=own, media_type=EVENTS)


class _EventStream(StreamingResponse):
    """A stream whose events are closed with it: the run is abandoned if the client leaves."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def _with_comments(
    frames: AsyncGenerator[bytes, None], seconds: float, fault: Callable[[], bytes]
) -> AsyncIterator[bytes]:
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(frames))
            if not (await asyncio.wait([coming], timeout=seconds))[0]:
                yield COMMENT
                continue
            frame, coming = await coming, None
            yield frame
    except StopAsyncIteration:
        pass
    except Exception:
        yield fault()
        raise
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await frames.aclose()


async def begin_within(run: Awaitable[AgentRun], seconds: float) -> AgentRun | asyncio.Future[AgentRun]:
    """Return the run if its answer begins, or it is refused, within some seconds; otherwise what will be the run.

    Raises:
        AdapterError: it is refused by then.
    """
    beginning = asyncio.ensure_future(run)
    try:
        done, _ = await asyncio.wait([beginning], timeout=seconds)
    except BaseException:
        await _abandon(beginning)
        raise
    return beginning.result() if done else beginning


async def _abandon(beginning: asyncio.Future[AgentRun]) -> None:
    beginning.cancel()
    (begun,) = await asyncio.gather(beginning, return_exceptions=True)
    if isinstance(begun, AgentRun):
        begun.close()


class RunScope:
    """A run within a stream: begun by now or not. It is closed with the block, however that ends."""

    def __init__(self, run: AgentRun | asyncio.Future[AgentRun]) -> None:
        self._run = run

    async def __aenter__(self) -> AgentRun:
        """Return the run once its answer begins.

        Raises:
            AdapterError: it is refused.
        """
        if isinstance(self._run, AgentRun):
            return self._run
        try:
            self._run = await self._run
        except asyncio.CancelledError:
            assert not isinstance(self._run, AgentRun)
            await _abandon(self._run)
            raise
        return self._run

    async def __aexit__(self, *_: object) -> None:
        """Close the run."""
        if isinstance(self._run, AgentRun):
            self._run.close()


OF_STREAMS = frozenset({"STREAM_IN_ONE_PIECE"})
"""Notices of how a run was streamed, which say nothing about an answer that the client gets whole."""


def notice_headers(notices: Sequence[str]) -> dict[str, str]:
    """Return the header that names notices."""
    return {NOTICE_HEADER: ", ".join(notices)} if notices else {}
