"""W3C trace context in and out, by the rules of https://www.w3.org/TR/trace-context/."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.observe.record import TraceContext
from gateway.observe.trace_context import (
    NOT_RECORDED,
    RECORDED,
    NewTraces,
    continue_trace,
    read_trace_id,
    with_context,
)

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
PARENT = b"00-%b-%b-01" % (TRACE, SPAN)
HEAD = b"Host: a\r\nContent-Length: 2\r\n\r\n"


def _begin(lines: list[bytes], ratio: float) -> TraceContext:
    return continue_trace(lines, NewTraces(ratio))


def test_a_trace_begins_without_a_parent() -> None:
    trace = _begin([b"Host: a"], 1)
    assert re.fullmatch("[0-9a-f]{32}", trace.trace_id)
    assert re.fullmatch("[0-9a-f]{16}", trace.span)
    assert (trace.sampled, trace.parent, trace.state) == (True, "", "")
    assert _begin([b"Host: a"], 1).trace_id != trace.trace_id


@pytest.mark.parametrize(("flags", "sampled"), [(b"01", True), (b"00", False), (b"03", True), (b"fe", False)])
@pytest.mark.parametrize("ratio", [0, 1])
def test_the_client_decides_about_its_own_trace(flags: bytes, sampled: bool, ratio: float) -> None:
    lines = [b"Host: a", b"TraceParent:\t00-%b-%b-%b " % (TRACE, SPAN, flags), b"tracestate: a=1", b"Tracestate: b=2"]
    trace = _begin(lines, ratio)
    assert (trace.trace_id, trace.parent, trace.sampled) == (TRACE.decode(), SPAN.decode(), sampled)
    assert trace.state == "a=1,b=2"
    assert trace.span != trace.parent


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (PARENT, True),
        (b"cc-%b-%b-01-what the future will be like" % (TRACE, SPAN), True),
        (b"00-%b-%b-01-more" % (TRACE, SPAN), False),
        (b"ff-%b-%b-01" % (TRACE, SPAN), False),
        (b"00-%b-%b-01" % (b"0" * 32, SPAN), False),
        (b"00-%b-%b-01" % (TRACE, b"0" * 16), False),
        (PARENT.upper(), False),
        (PARENT[:-1], False),
        (b"", False),
    ],
)
def test_malformed_parents_begin_a_new_trace(value: bytes, valid: bool) -> None:
    lines = [b"traceparent: " + value, b"tracestate: a=1"]
    assert (_begin(lines, 1).trace_id == TRACE.decode()) is valid
    assert _begin(lines, 1).state == ("a=1" if valid else "")
    assert read_trace_id(lines) == (TRACE.decode() if valid else "")


def test_two_parents_are_none() -> None:
    assert _begin([b"traceparent: " + PARENT] * 2, 1).parent == ""


def test_the_ratio_applies_to_traces_that_begin_here() -> None:
    assert not any(_begin([], 0).sampled for _ in range(100))
    assert all(_begin([], 1).sampled for _ in range(100))
    halves = [_begin([], 0.5) for _ in range(200)]
    assert all(one.sampled is (int(one.trace_id[16:], 16) < 2**63) for one in halves)
    assert len({one.sampled for one in halves}) == 2


def test_a_new_trace_is_sent_as_its_context_says() -> None:
    for ratio in (0.0, 0.5, 1.0):
        new = NewTraces(ratio)
        traces = [(new.context(ids), ids) for ids in islice(new.ids, 100)]
        assert len({trace.trace_id for trace, _ in traces}) == len({trace.span for trace, _ in traces}) == 100
        assert {len(trace.trace_id + trace.span) for trace, _ in traces} == {48}
        for trace, ids in traces:
            line = new.line + ids + (RECORDED if trace.sampled else NOT_RECORDED)
            assert with_context(HEAD, trace) == HEAD[:-2] + line


def test_what_is_sent_to_the_cluster() -> None:
    trace = TraceContext(TRACE.decode(), "00f067aa0ba902b7", True)
    sent = b"traceparent: 00-%b-00f067aa0ba902b7-0%d\r\n\r\n"
    assert with_context(HEAD, trace) == HEAD[:-2] + sent % (TRACE, 1)
    not_sampled = TraceContext(TRACE.decode(), "00f067aa0ba902b7", False)
    assert with_context(HEAD, not_sampled) == HEAD[:-2] + sent % (TRACE, 0)
    client = b"Host: a\r\nTraceparent: x\r\ntracestate: a=1\r\nX-Trace: 1\r\n\r\n"
    assert with_context(client, trace) == b"Host: a\r\nX-Trace: 1\r\n" + sent % (TRACE, 1)
    continued = TraceContext(TRACE.decode(), "00f067aa0ba902b7", True, SPAN.decode())
    assert with_context(client, continued) == b"Host: a\r\ntracestate: a=1\r\nX-Trace: 1\r\n" + sent % (TRACE, 1)
    passed = TraceContext(TRACE.decode(), "00f067aa0ba902b7", False, SPAN.decode())
    assert with_context(client, passed) == client


@given(st.binary(max_size=60).filter(lambda value: b"\r" not in value and b"\n" not in value) | st.just(PARENT))
def test_no_value_fails_or_is_sent_on_unread(value: bytes) -> None:
    lines = [b"Host: a", b"traceparent: " + value]
    trace = _begin(lines, 1)
    sent = with_context(b"\r\n".join((*lines, b"\r\n")), trace)
    carrier = {}
    for line in sent[:-4].split(b"\r\n"):
        name, _, text = line.partition(b": ")
        assert name.decode() not in carrier
        carrier[name.decode()] = text.decode("latin-1")
    context = next(iter(TraceContextTextMapPropagator().extract(carrier).values())).get_span_context()  # type: ignore[attr-defined]
    assert f"{context.trace_id:032x}" == trace.trace_id
