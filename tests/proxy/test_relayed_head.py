"""The head of a usual response is sent on verbatim, which must not differ from building it."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.http1.request_heads import RequestReader
from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import HeadLimits, Malformed
from gateway.proxy.exchange import relayed_head

LIMITS = HeadLimits()
LINES = st.sampled_from([
    b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: X-A", b"X-A: 1",
    b"Keep-Alive: 5", b"Connection: keep-alive", b"Content-Type: text/plain",
])  # fmt: skip
HEADS = st.tuples(st.sampled_from([b"1.1 200 OK", b"1.0 200 OK", b"1.1 204 No", b"1.1 304 "]), st.lists(LINES))
REQUESTS = st.tuples(
    st.sampled_from([b"GET", b"HEAD"]), st.sampled_from([b"1.1", b"1.0"]), st.sampled_from([b"close", b"keep-alive"])
)


@given(HEADS, REQUESTS, st.sampled_from([b"", b"X-Own: 1\r\n"]), st.booleans())
@example((b"1.1 200 OK", [b"Content-Length: 3", b"X-A: 1"]), (b"GET", b"1.1", b"keep-alive"), b"X-Own: 1\r\n", True)
def test_the_verbatim_head_is_the_head_that_would_be_built(head: Any, request: Any, own: bytes, keep: bool) -> None:
    try:
        response = ResponseHead(b"\r\n".join((b"HTTP/" + head[0], *head[1], b"", b"")), LIMITS)
    except Malformed:
        return
    read = RequestReader(LIMITS).read(b"%b / HTTP/%b\r\nHost: a\r\nConnection: %b\r\n\r\n" % request)
    keep = keep and read.fields.keep_alive
    found = relayed_head(response, read, own, keep)
    response.forwardable_verbatim = False
    assert relayed_head(response, read, own, keep) == found
