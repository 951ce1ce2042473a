"""The short way to the head of a usual answer leads where the long way does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http1.request_heads import Reader
from gateway.http1.response_heads import Head
from gateway.http1.rules import HeadLimits, Malformed
from gateway.proxy.exchange import Exchange
from gateway.proxy.routes import Intent, Route
from gateway.upstream.connection import ResponseTimeouts

LIMITS = HeadLimits()
LINES = st.sampled_from([
    b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: X-A", b"X-A: 1",
    b"Keep-Alive: 5", b"Connection: keep-alive", b"Content-Type: text/plain",
])  # fmt: skip
HEADS = st.tuples(st.sampled_from([b"1.1 200 OK", b"1.0 200 OK", b"1.1 204 No", b"1.1 304 "]), st.lists(LINES))
REQUESTS = st.tuples(
    st.sampled_from([b"GET", b"HEAD"]), st.sampled_from([b"1.1", b"1.0"]), st.sampled_from([b"close", b"keep-alive"])
)


class Told(Exchange):
    lines = b""

    def added(self) -> bytes:
        return self.lines


@given(HEADS, REQUESTS, st.sampled_from([b"", b"X-Own: 1\r\n"]), st.booleans())
@example((b"1.1 200 OK", [b"Content-Length: 3", b"X-A: 1"]), (b"GET", b"1.1", b"keep-alive"), b"X-Own: 1\r\n", False)
def test_both_ways_lead_to_the_same_head(head: Any, request: Any, own: bytes, draining: bool) -> None:
    try:
        answer = Head(b"\r\n".join((b"HTTP/" + head[0], *head[1], b"", b"")), LIMITS)
    except Malformed:
        return
    read = Reader(LIMITS).read(b"%b / HTTP/%b\r\nHost: a\r\nConnection: %b\r\n\r\n" % request)
    port: Any = SimpleNamespace(upstream=SimpleNamespace(patience=ResponseTimeouts(0, 0)), draining=draining)
    said = []
    for forwardable_verbatim in (answer.forwardable_verbatim, False):
        answer.forwardable_verbatim = forwardable_verbatim
        exchange = Told(port, SimpleNamespace(), read, Route(Intent.PASSTHROUGH))  # type: ignore[arg-type]
        exchange.lines = own
        said.append((exchange._start_of(answer), exchange._keep, exchange._chunk))
    assert said[0] == said[1]
