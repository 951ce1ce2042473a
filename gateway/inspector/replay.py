"""Sends recorded requests again, and compares the responses with those that were recorded."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from gateway.inspector.har import text_body
from gateway.inspector.repeatable import Medium, Repeatable, repeatable
from gateway.observe.record import Body, ExchangeRecord, HttpMessage

NEW_IDS = ("memory_id", "parent_interaction_id", "parent_message_id", "session_id", "task_id")
"""Names of ids that a cluster makes for each run: of members, or of outputs of a legacy answer."""
IGNORED = (
    "headers.date",
    "headers.connection",
    "headers.content-length",
    "headers.content-encoding",
    "headers.keep-alive",
    "headers.transfer-encoding",
    "headers.x-mlc-*",
    "headers.x-opaque-id",
    "headers.x-request-id",
    "body.took",
    *(f"body.{name}" for name in NEW_IDS),
)
"""Fields that differ between two equal responses: times, ids, how the body was sent, what a gateway adds."""
_LONGEST = 200


class Difference(Struct, frozen=True):
    """A field that differs. field: ``status``, ``headers.<name>``, ``body`` or a path such as ``body.hits[0]._id``.

    expected, actual: the values, long ones cut; None for a field that is not there.
    """

    field: str
    expected: Any
    actual: Any


def differences(
    expected_status: int,
    expected: HttpMessage | None,
    actual_status: int,
    actual: HttpMessage,
    ignored: Sequence[str] = IGNORED,
) -> list[Difference]:
    """Return what differs, in the order of the message. ignored: globs on fields (`headers.*`, `body.*.id`).

    A body that was not recorded, or only in part, is not compared. JSON is compared by its values; names of headers
    without regard to case.
    """
    found: list[Difference] = []
    if expected_status != actual_status:
        found.append(Difference("status", expected_status, actual_status))
    if expected is not None:
        found += _headers(_joined(expected.headers), _joined(actual.headers))
        if expected.body.text is not None and not expected.body.omitted:
            found += _body(expected.body, actual.body)
    return [one for one in found if not any(fnmatchcase(one.field, pattern) for pattern in ignored)]


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers by name in lower case; the values of a repeated one are joined (RFC 9110, 5.3)."""
    joined: dict[str, str] = {}
    for name, value in pairs:
        lowered = name.lower()
        joined[lowered] = f"{joined[lowered]}, {value}" if lowered in joined else value
    return joined


def _headers(expected: dict[str, str], actual: dict[str, str]) -> Iterator[Difference]:
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            yield Difference(f"headers.{name}", expected.get(name), actual.get(name))


def _body(expected: Body, actual: Body) -> Iterator[Difference]:
    if (expected.text, expected.encoding) == (actual.text, actual.encoding):
        return
    if not expected.encoding and not actual.encoding:
        try:
            pair = [msgspec.json.decode(body.text or "") for body in (expected, actual)]
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            yield from _values("body", pair[0], pair[1])
            return
    yield Difference("body", _shortened(expected.text), _shortened(actual.text))


def _values(path: str, expected: Any, actual: Any) -> Iterator[Difference]:
    """Yield the differing leaves of two JSON values. 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.get("name") == actual.get("name") in NEW_IDS:
            return
        for name in dict.fromkeys((*expected, *actual)):
            yield from _members(f"{path}.{name}", expected, actual, name)
    elif isinstance(expected, list) and isinstance(actual, list):
        first, second = dict(enumerate(expected)), dict(enumerate(actual))
        for index in range(max(len(first), len(second))):
            yield from _members(f"{path}[{index}]", first, second, index)
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield Difference(path, _shortened(expected), _shortened(actual))


def _members(path: str, expected: dict[Any, Any], actual: dict[Any, Any], name: Any) -> Iterator[Difference]:
    if name in expected and name in actual:
        yield from _values(path, expected[name], actual[name])
    else:
        yield Difference(path, _shortened(expected.get(name)), _shortened(actual.get(name)))


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


_RUNS = ("execute", "execute_stream", "quick_execute")
"""Intents of requests that run an agent: its tools may act, and its LLM costs money."""


class Options(Struct, frozen=True):
    """How to replay. url: where to, such as ``http://127.0.0.1:9200``; its path is put before each target.

    headers: added to each request, in place of its own of the same name. rate: most requests a second; None: no limit.
    speed: the recorded times between requests, divided by this; None: as fast as responses come.
    connections: most requests at a time. timeout: of one request, in seconds. ignored: fields not to compare.
    """

    url: str
    headers: Mapping[str, str] = {}
    allow_execute: bool = False
    rate: float | None = None
    speed: float | None = None
    connections: int = 8
    timeout: float = 300.0
    ignored: Sequence[str] = IGNORED


class Result(Struct, frozen=True, omit_defaults=True):
    """What became of one request. skipped, failed: why it was not sent, or got no response; "" if it got one.

    seconds, recorded_seconds: until the end of the response, now and when it was recorded.
    """

    id: str
    method: str
    target: str
    recorded_status: int
    recorded_seconds: float
    status: int = 0
    seconds: float = 0.0
    skipped: str = ""
    failed: str = ""
    differences: tuple[Difference, ...] = ()


def reason_to_skip(record: ExchangeRecord, request: Repeatable, allow_execute: bool) -> str:
    """Return why a request is not sent; "" if it is."""
    if record.intent in _RUNS and not allow_execute:
        return "It runs an agent, whose tools may act: --allow-execute sends it."
    return " ".join(request.missing)


async def replay(
    records: Iterable[ExchangeRecord],
    options: Options,
    medium: Medium,
    recorded_form: Callable[[HttpMessage], HttpMessage] = lambda message: message,
) -> AsyncIterator[Result]:
    """Send the requests, and yield what became of each, as they end.

    Requests of one recorded connection are sent one after the other, those of several at a time. recorded_form: makes
    of a response what would be recorded of it (secrets redacted, media by hash), to compare the two.
    """
    ordered = sorted(records, key=lambda record: record.started)
    connections: dict[tuple[int, int], list[ExchangeRecord]] = defaultdict(list)
    for record in ordered:
        connections[record.worker, record.connection].append(record)
    results: asyncio.Queue[Result] = asyncio.Queue()
    pace = _Pace(ordered[0].started if ordered else 0.0, options)
    timeout = aiohttp.ClientTimeout(total=options.timeout)
    connector = aiohttp.TCPConnector(limit=0)
    skipped = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
    slots = asyncio.Semaphore(options.connections)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, skip_auto_headers=skipped, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        sender = _Sender(session, options, medium, recorded_form)

        async def send_all(requests: Sequence[ExchangeRecord]) -> None:
            for record in requests:
                await pace.wait(record.started)
                async with slots:
                    results.put_nowait(await sender.send(record))

        tasks = [asyncio.create_task(send_all(requests)) for requests in connections.values()]
        try:
            for _ in ordered:
                yield await _next(results, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _next(results: asyncio.Queue[Result], tasks: Sequence[asyncio.Task[None]]) -> Result:
    """Return the next result, or raise what ended a task."""
    getting = asyncio.ensure_future(results.get())
    pending: set[asyncio.Future[Any]] = {getting, *(task for task in tasks if not task.done())}
    while not getting.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {getting}:
            if (error := task.exception()) is not None:
                getting.cancel()
                raise error
    return getting.result()


class _Pace:
    """Says when the next request may be sent."""

    def __init__(self, first: float, options: Options) -> None:
        self._first = first
        self._speed = options.speed
        self._interval = 1 / options.rate if options.rate else 0.0
        self._begun = time.monotonic()
        self._free = self._begun

    async def wait(self, started: float) -> None:
        """Wait until a request that was recorded at `started` is due."""
        due = self._begun + (started - self._first) / self._speed if self._speed else 0.0
        now = time.monotonic()
        due = max(due, self._free, now)
        self._free = due + self._interval
        if due > now:
            await asyncio.sleep(due - now)


class _Sender:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        options: Options,
        medium: Medium,
        recorded_form: Callable[[HttpMessage], HttpMessage],
    ) -> None:
        self._session = session
        self._options = options
        self._medium = medium
        self._recorded_form = recorded_form

    async def send(self, record: ExchangeRecord) -> Result:
        request = await asyncio.to_thread(repeatable, record, self._medium)
        result = Result(record.id, record.method, record.target, record.status, record.seconds)
        if reason := reason_to_skip(record, request, self._options.allow_execute):
            return replace(result, skipped=reason)
        started = time.monotonic()
        try:
            status, answer = await self._exchange(request)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return replace(result, failed=f"{type(error).__name__}: {error}".rstrip(": "))
        seconds = time.monotonic() - started
        expected = record.answer
        actual = self._recorded_form(answer)
        found = differences(record.status, expected, status, actual, self._options.ignored)
        return replace(result, status=status, seconds=seconds, differences=tuple(found))

    async def _exchange(self, request: Repeatable) -> tuple[int, HttpMessage]:
        own = {name.lower() for name in self._options.headers}
        headers = [pair for pair in request.headers if pair[0].lower() not in own]
        url = URL(self._options.url.rstrip("/") + request.target, encoded=True)
        body = request.body or None
        sent = [*headers, *self._options.headers.items()]
        async with self._session.request(
            request.method, url, headers=sent, data=body, allow_redirects=False
        ) as response:
            content = await response.read()
            pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers)
            return response.status, HttpMessage(pairs, text_body(content, len(content)))
