"""The access log: a line for each request, in JSON or in Apache's combined format, to a file or standard output."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.observe.record import ExchangeRecord
from gateway.recording.store import RecordSink, StoreError

_STDOUT = 1
_UNSAFE = re.compile(r'[\x00-\x1f"\\\x7f-\U0010ffff]')
"""Characters that Apache escapes in a log, too, so that no client can begin another field or line."""
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class AccessLog(RecordSink):
    """A `RecordSink`. path: appended to, and opened for each batch, so that it can be rotated; "" for standard output.

    Workers share a file: a batch of lines is written at once.
    """

    name = "access_log"

    def __init__(self, style: Literal["json", "apache"], path: str) -> None:
        self._format: Callable[[ExchangeRecord], str] = json_line if style == "json" else apache_line
        self._path = path
        self._cut = False
        """The last line is not whole, as the disk was full."""

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Write a line for each record.

        Raises:
            StoreError: the file can't be written.
        """
        if self._format is apache_line:  # it has no place to say what is a copy
            records = [record for record in records if not record.mirror_of]
        data = "".join(f"{self._format(record)}\n" for record in records).encode("ascii")
        try:
            if not self._path:
                self._write(_STDOUT, data)
                return
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o640)
            try:
                self._write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            where = self._path or "standard output"
            raise StoreError(f"the access log {where} can't be written: {error.strerror or error}") from error

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all of `data`, on a line of its own; a file usually takes it at once."""
        view = memoryview(b"\n" + data if self._cut else data)
        while view:
            view = view[os.write(descriptor, view) :]
            self._cut = bool(view)


def json_line(record: ExchangeRecord) -> str:
    """Return the line of a request as JSON, in ASCII."""
    delivery = record.delivery
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.started, UTC).isoformat(timespec="milliseconds"),
        "request_id": record.id,
        "trace_id": record.trace_id,
        "client": record.client,
        "method": record.method,
        "target": record.target,
        "protocol": record.protocol,
        "status": record.status,
        "bytes": _size(record),
        "s": round(record.seconds, 6),
        "upstream_s": None if record.waited is None else round(record.waited, 6),
        "referer": record.request.header("referer"),
        "user_agent": record.user_agent,
        "intent": record.intent,
        "agent": record.agent_id,
        "route": record.route,
        "cluster": record.cluster,
        "mirror_of": record.mirror_of,
        "strategy": delivery.strategy if delivery is not None else "",
        "error": record.error.type if record.error is not None else "",
        "worker": record.worker,
    }
    present = {name: _without_surrogates(value) for name, value in line.items() if value not in ("", None)}
    return json.dumps(present, separators=(",", ":"))


def apache_line(record: ExchangeRecord) -> str:
    """Return the line of a request in the combined format, followed by request id and trace id."""
    when = time.gmtime(record.started)
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[when.tm_mon - 1]
    date = f"{when.tm_mday:02}/{month}/{when.tm_year}:{time.strftime('%H:%M:%S', when)} +0000"
    size = _size(record)
    quoted = [
        f"{record.method} {record.target} {record.protocol}",
        record.request.header("referer") or "-",
        record.user_agent or "-",
        record.id,
        record.trace_id or "-",
    ]
    request, referer, agent, request_id, trace_id = (_UNSAFE.sub(_escape, text) for text in quoted)
    client = _UNSAFE.sub(_escape, record.client) or "-"
    shown = "-" if size is None else size
    return (
        f'{client} - - [{date}] "{request}" {record.status} {shown} "{referer}" "{agent}" "{request_id}" "{trace_id}"'
    )


def _size(record: ExchangeRecord) -> int | None:
    """Return the size of the response's body in bytes; None if it is not known: chunked, and not recorded."""
    message = record.answer
    if message is None:
        return None
    known = message.body.size or message.header("content-length") == "0" or not message.body.omitted
    return message.body.size if known else None


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or "".join(f"\\x{byte:02x}" for byte in _encode(char))


def _without_surrogates(value: Any) -> Any:
    """Return a text without surrogates, which have no form in UTF-8."""
    return _encode(value).decode("utf-8", "replace") if isinstance(value, str) else value


def _encode(text: str) -> bytes:
    """Return a text as it was sent: a surrogate stands for a byte that is not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
