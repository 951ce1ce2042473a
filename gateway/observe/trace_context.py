"""W3C trace context (https://www.w3.org/TR/trace-context/): the client's trace is continued, or one begins."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

from gateway.observe.record import TraceContext

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NAMES = (b"traceparent", b"tracestate")
_BEGINNING = b"trace"
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_SAMPLED = 1
NOT_RECORDED, RECORDED = b"-00\r\n\r\n", b"-01\r\n\r\n"
"""The end of a `traceparent` line, with the empty line, of a trace that is not recorded or is."""
_MOST_STATE = 512
"""Characters of `tracestate` that must be sent on (3.3.1.5); a longer one is not recorded."""


class NewTraces:
    """The traces that begin here, each with a span for the request to the cluster.

    The first half of their ids is the same for all of a process. `ids` yields the rest of each trace: the last half, a
    dash and the span's id, with 16 hexadecimal digits each. They are random, so the same traces are recorded wherever
    the ratio is the same (OpenTelemetry's TraceIdRatioBased). An id of zeros, which is not valid, has a chance of
    2**-64.

    ratio: the share of traces to record. limit: a trace is recorded if its `ids` are below. line: the header line up to
    `ids`, which `RECORDED` or `NOT_RECORDED` follows.
    """

    __slots__ = ("_first_half", "ids", "limit", "line")

    def __init__(self, ratio: float) -> None:
        self._first_half = f"{random.getrandbits(64):016x}"
        self.ids = _make_ids()
        self.limit = b"%016x" % int(ratio * 2**64) if ratio < 1 else b"g"  # above all hexadecimal digits
        self.line = b"traceparent: 00-" + self._first_half.encode("ascii")

    def context(self, ids: bytes) -> TraceContext:
        """Return the context of a trace. ids: see `NewTraces`."""
        last_half, _, span = ids.decode("ascii").partition("-")
        return TraceContext(self._first_half + last_half, span, ids < self.limit)


def _make_ids() -> Iterator[bytes]:
    """Yield the `ids` of new traces."""
    while True:
        yield random.randbytes(16).hex("-", 8).encode("ascii")


def continue_trace(lines: Iterable[bytes], new: NewTraces) -> TraceContext:
    """Return the trace context of a request that may have one, with a new span for the request to the cluster.

    lines: the request's header lines. A client decides whether its own traces are recorded. new: begins the trace of a
    request without a valid context.
    """
    parent, state = _read(lines)
    if parent is None:
        return new.context(next(new.ids))
    span = f"{random.getrandbits(64) or 1:016x}"
    trace_id, parent_id, flags = parent.group(2, 3, 4)
    sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id.decode(), span, sampled, parent_id.decode(), state)


def has_context(lines: Iterable[bytes]) -> bool:
    """Return True if header lines may have a trace context."""
    return any(line[:5].lower() == _BEGINNING for line in lines)


def read_trace_id(lines: Iterable[bytes]) -> str:
    """Return the trace id that a client sent, 32 hexadecimal digits; "" if there is none."""
    parent, _ = _read(lines)
    return parent[2].decode() if parent is not None else ""


def with_context(head: bytes, trace: TraceContext) -> bytes:
    """Return header lines (with the empty line) that may have a trace context as they are sent to the cluster.

    A trace that the client does not record passes unchanged. One that begins here replaces a malformed one, with its
    `tracestate`.
    """
    if trace.parent and not trace.sampled:
        return head
    if _BEGINNING in head.lower():
        dropped = _NAMES[:1] if trace.parent else _NAMES
        lines = (line for line in head[:-4].split(b"\r\n") if line.partition(b":")[0].lower() not in dropped)
        head = b"\r\n".join((*lines, b"\r\n"))
    parent = f"traceparent: 00-{trace.trace_id}-{trace.span}-{trace.sampled:02x}\r\n\r\n"
    return head[:-2] + parent.encode("ascii")


def _read(lines: Iterable[bytes]) -> tuple[re.Match[bytes] | None, str]:
    """Return the client's `traceparent` and `tracestate`; None and "" without a valid parent."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for line in lines:
        if line[:5].lower() == _BEGINNING:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == _NAMES[0]:
                parents.append(value.strip(b" \t"))
            elif name == _NAMES[1]:
                states.append(value.strip(b" \t"))
    match = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None or match[1] == b"ff" or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return None, ""
    if match[1] == b"00" and match[5] is not None:
        return None, ""
    state = b",".join(states).decode("latin-1")
    return match, state if len(state) <= _MOST_STATE else ""
