"""Hooks, which judge documents for guardrails: a webhook, or a function of a Python entry point."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol

import aiohttp
import msgspec
from msgspec import Struct
from typing_extensions import override

from gateway.config.policy import Guardrail
from gateway.observe.connect_errors import describe_connect_error

GROUP = "mlc_gateway.guardrails"
"""The group of entry points. The value of each is a function, plain or async, from a document to a verdict."""
_THREADS = 8


class NewText(Struct, frozen=True):
    """A text in place of the one at `place`."""

    place: str
    text: str


class Verdict(Struct, frozen=True):
    """What a hook says. texts: for change. reason, place, code: for refuse; code: a short name of the rule."""

    verdict: Literal["allow", "change", "refuse"]
    texts: tuple[NewText, ...] = ()
    reason: str = ""
    place: str = ""
    code: str = ""


class HookFailed(Exception):
    """A hook gave no verdict. The message says why, without content; code: timeout, error, too_large or invalid."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Hook(Protocol):
    """Judges documents."""

    async def judge(self, document: dict[str, Any]) -> Verdict:
        """Return the verdict.

        Raises:
            HookFailed: it gave none.
        """

    async def close(self) -> None:
        """Release all resources."""
        return


def read_verdict(value: Any) -> Verdict:
    """Return the verdict in a JSON value.

    Raises:
        HookFailed: it holds no verdict.
    """
    try:
        return msgspec.convert(value, Verdict)
    except msgspec.ValidationError as error:
        raise HookFailed("invalid", f"its verdict is not valid: {error}") from None


class Webhook:
    """A hook at an HTTP server. It is sent a POST with the document, and answers 200 with the verdict.

    Redirects are not followed, and proxies of the environment are not used.
    """

    def __init__(self, settings: Guardrail) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def judge(self, document: dict[str, Any]) -> Verdict:
        """See `Hook`."""
        body, most = msgspec.json.encode(document), self._settings.max_bytes
        if len(body) > most:
            raise HookFailed("too_large", f"the content is larger than its max_bytes ({most})")
        try:
            answer = await self._ask(body)
        except (aiohttp.ClientError, OSError) as error:
            why = describe_connect_error(error) if isinstance(error, OSError) else type(error).__name__
            raise HookFailed("error", f"its server can't be reached: {why}") from None
        try:
            return read_verdict(msgspec.json.decode(answer))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise HookFailed("invalid", "its answer is not JSON") from None

    async def _ask(self, body: bytes) -> bytes:
        """Return the answer. If the connection is lost, ask once more: servers close connections that were idle."""
        try:
            return await self._post(body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post(body)

    async def _post(self, body: bytes) -> bytes:
        async with self._client().post(self._settings.url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                raise HookFailed("error", f"its server answered {response.status}, not 200")
            return await _read(response, self._settings.max_bytes)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json", "User-Agent": "mlc-gateway"}
            if self._settings.secret:
                headers[self._settings.header] = self._settings.secret.reveal()
            self._session = aiohttp.ClientSession(
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """See `Hook`."""
        if self._session is not None:
            await self._session.close()


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > most:
            raise HookFailed("too_large", f"its answer is larger than its max_bytes ({most})")
    return bytes(data)


class Function(Hook):
    """A hook in Python. A plain function runs in a thread, at most eight at a time.

    The threads are daemons: a function that never returns must not keep the process from ending.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function
        self._turns = None if is_async(function) else asyncio.Semaphore(_THREADS)

    @override
    async def judge(self, document: dict[str, Any]) -> Verdict:
        own = msgspec.json.decode(msgspec.json.encode(document))  # the function may change what it gets
        try:
            answer = await (self._function(own) if self._turns is None else self._run(self._turns, own))
        except Exception as error:
            raise HookFailed("error", f"it raised {type(error).__name__}") from None
        return read_verdict(answer)

    async def _run(self, turns: asyncio.Semaphore, document: dict[str, Any]) -> Any:
        await turns.acquire()
        loop = asyncio.get_running_loop()
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(self._function(document))
            except BaseException as error:
                done.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(turns.release)

        threading.Thread(target=run, name="guardrail", daemon=True).start()
        return await asyncio.wrap_future(done)


def is_async(function: Callable[..., Any]) -> bool:
    """Return True for an async function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def load_function(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return the function of the entry point `name`.

    Raises:
        LookupError: it is not installed, or can't be used; the message says why.
    """
    points = entry_points(group=GROUP, name=name)
    if not points:
        known = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
        raise LookupError(f"no installed package has an entry point {name!r} in {GROUP}; there are: {known}")
    point = next(iter(points))
    try:
        function = point.load()
    except Exception as error:  # a third party's code may raise anything
        raise LookupError(f"entry point {name!r} ({point.value}): {type(error).__name__}: {error}") from None
    if not callable(function):
        raise LookupError(f"entry point {name!r} ({point.value}) is not a function")
    loaded: Callable[[dict[str, Any]], Any] = function
    return loaded


def make_hook(settings: Guardrail) -> Hook:
    """Return the hook of a guardrail.

    Raises:
        LookupError: as `load_function`.
    """
    return Webhook(settings) if settings.url else Function(load_function(settings.entry_point))
