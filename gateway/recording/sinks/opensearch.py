"""Exchanges in a data stream of OpenSearch.

The store's own thread sends them, so that a slow or missing cluster does not delay the other stores. They wait in
memory, up to a limit.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.inspector import OpenSearchExchanges
from gateway.memory.store import StoreError as ClusterFailure
from gateway.memory.store import StoreUnavailable
from gateway.memory.stores.opensearch.cluster import BATCH, Cluster, ClusterError, is_throttled, operation_lines
from gateway.observe.logs import Logger
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.encoding import without_surrogates
from gateway.recording.store import RecordSink, StoreError

_WAITING = 67_108_864
"""Most bytes of documents that wait to be sent; more are lost."""
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between the attempts to send documents to a cluster that can't be reached; then they are lost."""
_UNREADABLE = frozenset({400, 413})
"""Statuses of a request that the cluster, or a proxy before it, can't read as a whole."""
_REASONS = 3
_STRANGE = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of what reads an answer that has another form."""


class OpenSearchSink(RecordSink):
    """Sends records to the data stream of the settings. pauses: as `_PAUSES`. waiting: as `_WAITING`."""

    name = "opensearch"

    def __init__(
        self,
        settings: OpenSearchExchanges,
        log: Logger,
        pauses: Sequence[float] = _PAUSES,
        waiting: int = _WAITING,
    ) -> None:
        self._stream = settings.stream
        self._cluster = Cluster(settings.url, settings, "inspector")
        self._log = log
        self._pauses = pauses
        self._most = waiting
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._ready = False
        self._lost = 0
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="inspector-opensearch", daemon=True)
        self._thread.start()

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Hand the records to the thread.

        Raises:
            StoreError: some were lost, of these or of earlier calls.
        """
        operations = [operation(record) for record in records]
        with self._changed:
            for lines in operations:
                if self._bytes + len(lines) > self._most:
                    self._lose(1, "more wait to be sent than may. Is the cluster too slow?")
                    continue
                self._waiting.append(lines)
                self._bytes += len(lines)
            self._changed.notify()
            lost, self._lost = self._lost, 0
            if lost:
                raise StoreError(f"{lost} exchanges were not stored in {self._stream}: {self._reason}", lost)

    def close(self) -> None:
        """Send what waits, with one attempt, and end the thread."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join()
        if self._lost:
            self._log.warning("exchanges lost", made=self._lost, reason=self._reason)

    # On the thread

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while batch := self._take():
                runner.run(self._send(batch))
            runner.run(self._cluster.close())

    def _take(self) -> list[bytes]:
        """Wait for operations, and return those for one request; none when the store is closed."""
        with self._changed:
            while not self._waiting and not self._closing.is_set():
                self._changed.wait()
            batch: list[bytes] = []
            size = 0
            while self._waiting and (not batch or size + len(self._waiting[0]) <= BATCH):
                size += len(self._waiting[0])
                batch.append(self._waiting.popleft())
            self._bytes -= size
            return batch

    async def _send(self, batch: list[bytes]) -> None:
        """Send a batch, again after a pause if the cluster can't be reached; count what is lost."""
        for pause in (*self._pauses, None):
            try:
                await self._prepare()
                await self._bulk(batch)
                return
            except Exception as failure:  # of any class: without the thread, nothing would be sent any more
                if self._ready and len(batch) > 1 and _is_unreadable(failure):
                    half = len(batch) // 2  # it may be one of the documents
                    await self._send(batch[:half])
                    await self._send(batch[half:])
                    return
                if pause is None or not _may_pass(failure) or self._closing.is_set():
                    with self._changed:
                        self._lose(len(batch), _describe(failure))
                    return
            await asyncio.to_thread(self._closing.wait, pause)

    async def _prepare(self) -> None:
        """Make the data stream and its index template if they do not exist."""
        if self._ready:
            return
        if await self._is_missing(f"/_data_stream/{self._stream}"):
            if await self._is_missing(f"/_index_template/{self._stream}"):
                await self._cluster.call("PUT", f"/_index_template/{self._stream}", template(self._stream))
            await self._cluster.make(f"/_data_stream/{self._stream}")  # unless another process has done so meanwhile
        self._ready = True

    async def _is_missing(self, path: str) -> bool:
        try:
            await self._cluster.call("GET", path)
        except ClusterError as error:
            if error.status != 404:
                raise
            return True
        return False

    async def _bulk(self, batch: list[bytes]) -> None:
        """Send operations, and again those that the cluster throttles. Status 409: an operation was done before."""
        failed: list[str] = []
        waiting = batch
        async for last in self._cluster.attempts():
            answer = await self._cluster.call("POST", f"/{self._stream}/_bulk", b"".join(waiting))
            throttled = []
            for lines, item in zip(waiting, answer["items"], strict=True):
                [result] = item.values()
                if is_throttled(result["status"], result.get("error")) and not last:
                    throttled.append(lines)
                elif result["status"] >= 400 and result["status"] != 409:
                    failed.append(f"{result['status']} {result.get('error', {}).get('reason', '')}")
            waiting = throttled
            if not waiting:
                break
        if failed:
            reasons = "; ".join(dict.fromkeys(failed[:_REASONS]))
            with self._changed:
                self._lose(len(failed), f"the cluster refused them: {reasons}")

    def _lose(self, count: int, reason: str) -> None:
        """Count lost records, for the next `add` to report. Locked."""
        self._lost += count
        self._reason = reason


def _is_unreadable(failure: Exception) -> bool:
    return isinstance(failure, ClusterError) and failure.status in _UNREADABLE


def _may_pass(failure: Exception) -> bool:
    """Return whether another attempt may succeed: not if the cluster's answer says what is wrong, or is strange."""
    if isinstance(failure, ClusterError):
        return failure.status >= 500
    return isinstance(failure, StoreUnavailable) or not isinstance(failure, (ClusterFailure, *_STRANGE))


def _describe(failure: Exception) -> str:
    if isinstance(failure, _STRANGE):
        return f"the answer is not one of OpenSearch: {failure!r}"
    return str(failure) if isinstance(failure, ClusterFailure) else f"{type(failure).__name__}: {failure}"


TEMPLATE = Path(__file__).with_name("opensearch_template.json")
"""The index template; `config/opensearch-exchanges.json` is the same file."""
_MESSAGES = ("request", "forwarded", "response", "answered")


def template(stream: str) -> dict[str, Any]:
    """Return the index template for a data stream of this name."""
    read: dict[str, Any] = msgspec.json.decode(TEMPLATE.read_bytes())
    return read | {"index_patterns": [stream]}


def operation(record: ExchangeRecord) -> bytes:
    """Return the lines of ``_bulk`` that add a record to a data stream: once, also if they are sent again."""
    action = {"create": {"_id": record.id}}
    try:
        return operation_lines(action, document(record))
    except UnicodeEncodeError:
        record = without_surrogates(record)
        return operation_lines({"create": {"_id": record.id}}, document(record))


def document(record: ExchangeRecord) -> dict[str, Any]:
    """Return the document of a record: its fields, with ``@timestamp``, and each header as an object."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in _MESSAGES:
        if headers := (fields.get(name) or {}).get("headers"):
            fields[name]["headers"] = [{"name": key, "value": value} for key, value in headers]
    return {"@timestamp": int(record.started * 1000), **fields}
