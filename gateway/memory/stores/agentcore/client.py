"""Calls AWS Bedrock AgentCore Memory through boto3, in a bounded pool of threads.

Calls that AWS throttles are repeated until the deadline of their operation, with growing pauses; after other failures
that may pass they are repeated a few times. Every write has a client token, so that a repeated one takes effect once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.store import StoreError, StoreThrottled, StoreUnavailable, TooLargeForStore

_P = ParamSpec("_P")
_T = TypeVar("_T")
Connect = Callable[[Settings], Any]
"""Returns boto3's client. It may block."""

PAGE = 100
"""Most events of a page. The service allows no more."""
_LONGEST_PAUSE = 2.0
_ATTEMPTS = 4
"""Attempts of a call that fails for another reason than throttling."""
_THROTTLED = {"ThrottledException", "ThrottlingException", "TooManyRequestsException", "429"}
_PASSING = {"ServiceException", "InternalServerException", "RetryableConflictException"}
_MISSING = "ResourceNotFoundException"


class StoredEvent(Struct, frozen=True):
    """An event as AgentCore lists it. branch: None for the main line. root: the event that its branch begins after."""

    id: str
    timestamp: float
    payload: list[dict[str, Any]]
    metadata: dict[str, str]
    branch: str | None = None
    root: str | None = None


class NewEvent(Struct, frozen=True):
    """An event to create. timestamp: seconds since the epoch. root: the last event before its branch."""

    actor: str
    session: str
    payload: list[dict[str, Any]]
    token: str
    timestamp: float
    metadata: Mapping[str, str] = {}
    branch: str | None = None
    root: str | None = None


class AgentCoreClient:
    """Makes the calls of one store. pause: seconds before the first repetition of a call."""

    def __init__(self, settings: Settings, connect: Connect | None = None, pause: float = 0.2) -> None:
        self._settings = settings
        self._connect = connect or _connect
        self._pause = pause
        self._threads = ThreadPoolExecutor(settings.threads, "agentcore")
        self._service: Any = None
        self._connecting = asyncio.Lock()

    def operation(self, seconds: float | None = None) -> Operation:
        """Begin an operation: some calls with one deadline. seconds: its time, by default that of the settings."""
        return Operation(self, self._settings.seconds if seconds is None else seconds, self._pause)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` in the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def call(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Call the service once. Raises what boto3 raises."""
        async with self._connecting:
            if self._service is None:
                self._service = await self.run(self._connect, self._settings)
        method = getattr(self._service, name)
        return dict(await self.run(method, memoryId=self._settings.memory_id, **parameters))

    async def close(self) -> None:
        """Release the threads. Calls that have begun end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Operation:
    """Calls that share a deadline. They raise `StoreThrottled` or `StoreUnavailable` after it, or other errors."""

    def __init__(self, client: AgentCoreClient, seconds: float, pause: float) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline = self._loop.time() + seconds
        self._first_pause = pause

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._loop.time()

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` in the pool."""
        async with self._timed():
            return await self._client.run(function, *args, **kwargs)

    async def create(self, event: NewEvent) -> tuple[str, bool]:
        """Create an event. Return its id, and whether it was repeated, so that the id may not be right."""
        branch = {"name": event.branch, "rootEventId": event.root} if event.branch else None
        answer, attempts = await self._call(
            "create_event",
            actorId=event.actor,
            sessionId=event.session,
            eventTimestamp=datetime.fromtimestamp(event.timestamp, UTC),
            payload=event.payload,
            clientToken=event.token,
            **({"metadata": {k: {"stringValue": v} for k, v in event.metadata.items()}} if event.metadata else {}),
            **({"branch": branch} if branch else {}),
        )
        return _member(_member(answer, "event"), "eventId"), attempts > 1

    async def pages(
        self, actor: str, session: str, branch: str | None = None, payloads: bool = True
    ) -> AsyncIterator[list[StoredEvent]]:
        """List a session's events, in any order. branch: only of this branch and of those that it grew from."""
        parameters: dict[str, Any] = {"actorId": actor, "sessionId": session, "includePayloads": payloads}
        if branch is not None:
            parameters["filter"] = {"branch": {"name": branch, "includeParentBranches": True}}
        async for events in self._list("list_events", "events", parameters):
            yield [_stored(event) for event in events]

    async def events(self, actor: str, session: str, payloads: bool = True) -> list[StoredEvent]:
        """List all of a session's events, in any order."""
        return [event async for page in self.pages(actor, session, payloads=payloads) for event in page]

    async def event(self, actor: str, session: str, event_id: str) -> StoredEvent | None:
        """Return one event; None if there is none."""
        answer = await self._find("get_event", actorId=actor, sessionId=session, eventId=event_id)
        return _stored(_member(answer, "event")) if answer else None

    async def delete(self, actor: str, session: str, event_id: str) -> None:
        """Delete an event, if it is there."""
        await self._find("delete_event", actorId=actor, sessionId=session, eventId=event_id)

    async def sessions(self, actor: str) -> list[str]:
        """Return the ids of an actor's sessions."""
        parameters = {"actorId": actor}
        return [
            _member(one, "sessionId")
            async for page in self._list("list_sessions", "sessionSummaries", parameters)
            for one in page
        ]

    async def actors(self) -> list[str]:
        """Return the ids of all actors."""
        pages = self._list("list_actors", "actorSummaries", {}, may_be_missing=False)
        return [_member(actor, "actorId") async for page in pages for actor in page]

    async def pause(self, attempt: int) -> None:
        """Wait before attempt number `attempt` + 1.

        Raises:
            StoreUnavailable: the deadline would pass.
        """
        longest = max(_LONGEST_PAUSE, self._first_pause)
        seconds = min(longest, self._first_pause * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
        if seconds >= self.remaining:
            raise StoreUnavailable(f"AgentCore Memory does not show what was written within {self._seconds:g} s")
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _timed(self) -> AsyncIterator[None]:
        """Raise StoreUnavailable in the block when the deadline is over."""
        try:
            async with asyncio.timeout(max(0.0, self.remaining)) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StoreUnavailable(f"AgentCore Memory did not respond within {self._seconds:g} s") from None

    async def _list(
        self, method: str, name: str, parameters: dict[str, Any], may_be_missing: bool = True
    ) -> AsyncIterator[list[dict[str, Any]]]:
        token: dict[str, str] = {}
        while True:
            try:
                answer, _ = await self._call(method, **parameters, maxResults=PAGE, **token)
            except _Missing:
                if may_be_missing:
                    await self._find_memory()
                    return
                raise
            yield _member(answer, name)
            if not answer.get("nextToken"):
                return
            token = {"nextToken": answer["nextToken"]}

    async def _find_memory(self) -> None:
        """Check that it is not the memory itself that is missing: its sessions must not look as if they never were.

        Raises:
            StoreUnavailable: the service does not know the memory.
        """
        try:
            await self._call("list_actors", maxResults=1)
        except _Missing:
            raise
        except StoreError:  # such as a missing permission
            return

    async def _find(self, method: str, **parameters: Any) -> dict[str, Any] | None:
        """Call the service; None if there is no such event, session or actor."""
        try:
            return (await self._call(method, **parameters))[0]
        except _Missing:
            return None

    async def _call(self, method: str, **parameters: Any) -> tuple[dict[str, Any], int]:
        """Call the service until it succeeds. Return its answer and the number of attempts."""
        attempt = failures = 0
        while True:
            attempt += 1
            try:
                async with self._timed():
                    return await self._client.call(method, parameters), attempt
            except StoreError:
                raise
            except Exception as error:  # botocore, files and networks raise many kinds of errors
                fault = _fault(error)
                failures += not fault.throttled
                if fault.lasting or failures >= _ATTEMPTS:
                    raise fault.error from error
                try:
                    await self.pause(attempt)
                except StoreUnavailable:
                    raise fault.error from error


class _Missing(StoreUnavailable):
    """The service knows no such memory, actor, session or event."""


class _Fault(Struct):
    error: StoreError
    lasting: bool
    throttled: bool = False


def _fault(error: Exception) -> _Fault:
    """Return the store's error for one of boto3, and whether it may pass."""
    from botocore.exceptions import (  # type: ignore[import-untyped]
        ClientError,
        ConnectionError,
        HTTPClientError,
        ParamValidationError,
    )

    if isinstance(error, (ParamValidationError, RecursionError)):
        return _Fault(StoreError(f"AgentCore Memory does not take this request: {error}"), lasting=True)
    if not isinstance(error, ClientError):
        passing = isinstance(error, (ConnectionError, HTTPClientError, OSError))
        reason = f"AgentCore Memory can't be reached: {type(error).__name__}: {error}"
        return _Fault(StoreUnavailable(reason), lasting=not passing)
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    reason = (
        f"AgentCore Memory refuses {error.operation_name}: {error.response.get('Error', {}).get('Message') or code}"
    )
    if code in _THROTTLED or status == 429:
        return _Fault(StoreThrottled(reason), lasting=False, throttled=True)
    if code in _PASSING or status >= 500:
        return _Fault(StoreUnavailable(reason), lasting=False)
    if code == _MISSING:
        return _Fault(_Missing(reason), lasting=True)
    if status == 413:
        return _Fault(TooLargeForStore(reason), lasting=True)
    if code in ("ValidationException", "InvalidInputException"):
        return _Fault(StoreError(reason), lasting=True)
    return _Fault(StoreUnavailable(reason), lasting=True)


def _member(answer: Mapping[str, Any], name: str) -> Any:
    """Return a member that every answer has.

    Raises:
        StoreUnavailable: this one lacks it.
    """
    try:
        return answer[name]
    except KeyError:
        raise StoreUnavailable(
            f"AgentCore Memory's answer has no `{name}`. Is it another service that answers?"
        ) from None


def _stored(event: Mapping[str, Any]) -> StoredEvent:
    branch = event.get("branch") or {}
    name = branch.get("name")
    return StoredEvent(
        _member(event, "eventId"),
        _member(event, "eventTimestamp").timestamp(),
        list(event.get("payload") or ()),
        {key: value.get("stringValue", "") for key, value in (event.get("metadata") or {}).items()},
        None if name == "main" else name,  # as the service calls the main line
        branch.get("rootEventId"),
    )


def _connect(settings: Settings) -> Any:
    import boto3  # type: ignore[import-untyped]  # imported here because it is slow to load
    from botocore.config import Config  # type: ignore[import-untyped]

    session = boto3.session.Session(region_name=settings.region or None)
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=min(5.0, settings.seconds),
        read_timeout=settings.seconds,
        max_pool_connections=settings.threads,
    )
    return session.client("bedrock-agentcore", endpoint_url=settings.endpoint or None, config=config)
