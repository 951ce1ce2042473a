"""Traces, logs and the access log of a running gateway."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway, build
from gateway.errors import InvalidInput
from gateway.observe.logs import configure
from gateway.ports import Forward
from tests.conftest import StartGateway, settings_for
from tests.execute.conftest import StartDeployment, start_deployment
from tests.faults.upstream import settled
from tests.proxy.use_case import UseCase
from tests.recording.memory_sink import MemorySink
from tests.sessions.conftest import RULE
from tests.telemetry.collector import Collector, attributes, running_collector
from tests.wire import OK, Parsed, RecordingUpstream, send_request

__all__ = ["start_deployment"]

EXECUTE = b"POST /_plugins/_ml/agents/a1/_execute HTTP/1.1\r\nHost: a\r\n%bContent-Length: 2\r\n\r\n{}"
GET = b"GET /_cat/indices?pretty HTTP/1.1\r\nHost: a\r\n%b\r\n"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-%b\r\ntracestate: a=1\r\n"
SAME_HOST = {"upstream": {"host_header": "client"}}
ROUNDING = 1_000
"""Nanoseconds; the times are floats until they are sent."""
SENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9]{2})")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


def traces(collector: Collector, **more: Any) -> dict[str, Any]:
    return {"telemetry": {"traces": {"endpoint": collector.url, **more}}}


def raw(request: Parsed) -> bytes:
    lines = [request.line, *(b": ".join(pair) for pair in request.headers), b"", request.body]
    return b"\r\n".join(lines)


async def spans_of(gateway: Gateway, collector: Collector, count: int) -> list[Any]:
    """Return the spans. A gateway that stops sends what waits."""
    await gateway.stop()
    return await asyncio.to_thread(collector.wait_for, count)


async def test_a_run_arrives_whole_and_in_order(start_deployment: StartDeployment, collector: Collector) -> None:
    deployment = await start_deployment(over=traces(collector))
    for _ in range(2):
        response = await deployment.execute("flow-d", {"input": "Hello"})
        assert response.status == 200
    found = await spans_of(deployment.gateway, collector, 14)
    by_trace = {span.trace_id: [one for one in found if one.trace_id == span.trace_id] for span in found}
    first, second = by_trace.values()
    assert [span.name for span in first] == [
        "invoke_agent flow-d", "read", "decode", "resolve", "plan", "upstream", "answer",
    ]  # fmt: skip
    assert [span.name for span in second] == [span.name for span in first]
    for root, *steps in (first, second):
        assert root.parent_span_id == b""
        assert {step.parent_span_id for step in steps} == {root.span_id}
        assert root.start_time_unix_nano == steps[0].start_time_unix_nano
        for before, after in itertools.pairwise(steps):
            assert before.end_time_unix_nano <= after.start_time_unix_nano + ROUNDING
        assert steps[-1].end_time_unix_nano <= root.end_time_unix_nano + ROUNDING
        known = attributes(root.attributes)
        assert known["gen_ai.agent.id"] == deployment.agents["flow-d"]
        assert known["gen_ai.provider.name"] == "aws.bedrock"
        assert known["gen_ai.request.model"] == "claude-3"
        assert (known["mlc.input_type"], known["mlc.strategy"]) == ("text", "text")
        assert "gen_ai.input.messages" not in known
    assert first[0].trace_id != second[0].trace_id


async def test_messages_by_choice(start_deployment: StartDeployment, collector: Collector) -> None:
    deployment = await start_deployment(over=traces(collector, messages=True))
    await deployment.execute("flow-d", {"input": "Hello"})
    root, *_ = await spans_of(deployment.gateway, collector, 7)
    known = attributes(root.attributes)
    assert json.loads(known["gen_ai.input.messages"])[0]["parts"] == [{"type": "text", "content": "Hello"}]
    assert json.loads(known["gen_ai.output.messages"])[0]["role"] == "assistant"


async def test_the_conversation(start_deployment: StartDeployment, collector: Collector) -> None:
    deployment = await start_deployment(over={**traces(collector), "agents": {"rules": [RULE]}})
    response = await deployment.execute("flow-d", {"input": "Hello"})
    outputs = (await response.json())["inference_results"][0]["output"]
    session = next(output["result"] for output in outputs if output["name"] == "memory_id")
    root, *_ = await spans_of(deployment.gateway, collector, 7)
    assert attributes(root.attributes)["gen_ai.conversation.id"] == session


async def test_the_clusters_parent_is_the_span_upstream(start_gateway: StartGateway, collector: Collector) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"])), traces(collector))
        await send_request(gateway.data_port, EXECUTE % b"")
        await send_request(gateway.data_port, EXECUTE % (CLIENT % b"01"))
        found = await spans_of(gateway, collector, 8)
        sent = [SENT.fullmatch(request.values("traceparent")[0]) for request in upstream.requests]
        states = [request.values("tracestate") for request in upstream.requests]
    roots = [span for span in found if span.kind == span.SPAN_KIND_SERVER]
    upstreams = [span for span in found if span.name == "upstream"]
    for match, root, span in zip(sent, roots, upstreams, strict=True):
        assert match is not None
        assert (match[1].decode(), match[2].decode()) == (root.trace_id.hex(), span.span_id.hex())
        assert match[3] == b"01"
        assert span.trace_id == root.trace_id
    assert states == [[], [b"a=1"]]
    assert (roots[1].trace_id.hex(), roots[1].parent_span_id.hex(), roots[1].trace_state) == (TRACE, SPAN, "a=1")


async def test_what_is_not_traced_passes_unchanged(start_gateway: StartGateway, collector: Collector) -> None:
    async with RecordingUpstream() as upstream:
        off = await start_gateway(upstream.url, UseCase(), SAME_HOST)
        on = await start_gateway(upstream.url, UseCase(), {**traces(collector, ratio=0), **SAME_HOST})
        for port, request in (
            (off.data_port, EXECUTE % (CLIENT % b"01")),
            (off.data_port, EXECUTE % b""),
            (on.data_port, EXECUTE % (CLIENT % b"00")),
            (on.data_port, GET % (CLIENT % b"01")),
            (on.data_port, GET % b"traceparent: nonsense\r\n"),
        ):
            await send_request(port, request)
            assert raw(upstream.requests[-1]) == request
        await send_request(on.data_port, EXECUTE % b"")
        assert SENT.fullmatch(upstream.requests[-1].values("traceparent")[0])[3] == b"00"  # type: ignore[index]
        await on.stop()
    assert collector.bodies == []


async def test_a_signed_parent_is_not_replaced(start_gateway: StartGateway, collector: Collector) -> None:
    signature = (
        b"Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/es/aws4_request, "
        b"SignedHeaders=host;traceparent, Signature=0\r\n"
    )
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {**traces(collector), **SAME_HOST})
        request = EXECUTE % (CLIENT % b"01" + signature)
        await send_request(gateway.data_port, request)
        assert len(await spans_of(gateway, collector, 4)) == 4
        assert raw(upstream.requests[-1]) == request


async def test_a_refusal_is_a_trace_too(start_gateway: StartGateway, collector: Collector) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(InvalidInput("No.")), traces(collector))
        await send_request(gateway.data_port, EXECUTE % b"")
        root, read = await spans_of(gateway, collector, 2)
    assert attributes(root.attributes)["error.type"] == "ValidationException"
    assert read.name == "read"


async def test_a_stalled_collector_stops_nothing_and_drops_are_counted(
    start_gateway: StartGateway, collector: Collector
) -> None:
    collector.released.clear()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), traces(collector, queue=4))
        for _ in range(4):
            answer = await send_request(gateway.data_port, EXECUTE % b"")
            assert answer.line == b"HTTP/1.1 200 OK"
        counted = 'mlc_gateway_records_dropped_total{error="",reason="traces"} 3.0\n'
        assert await settled(lambda: counted in gateway.metrics.render().decode())
        collector.released.set()
        assert len(await spans_of(gateway, collector, 4)) == 4


async def test_the_inspector_sees_what_it_is_set_to_see(collector: Collector, tmp_path: Path) -> None:
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        over = {
            **traces(collector),
            "inspector": {"enabled": True, "passthrough": "none", "stores": []},
            "logs": {"access": "apache", "access_file": str(tmp_path / "access.log")},
        }
        async with running(upstream.url, over, sink) as (gateway, _):
            await send_request(gateway.data_port, GET % b"")
            await send_request(gateway.data_port, EXECUTE % b"")
            await sink.wait_for(1)
            await gateway.stop()
    assert [record.intent for record in sink.records] == ["execute"]
    assert sink.records[0].request.body.text == "{}"
    assert sink.records[0].trace is not None
    assert len((tmp_path / "access.log").read_text().splitlines()) == 2


@asynccontextmanager
async def running(url: str, over: dict[str, Any], sink: MemorySink) -> AsyncIterator[tuple[Gateway, io.StringIO]]:
    """Run a gateway that logs to a string."""
    log = io.StringIO()
    gateway = build(settings_for(url, over), UseCase(), configure("debug", "json", log), sink)
    await gateway.start()
    try:
        yield gateway, log
    finally:
        await gateway.stop()


@pytest.mark.parametrize(
    "over", [{}, {"telemetry": {"traces": {"endpoint": "http://127.0.0.1:9/v1/traces", "ratio": 0}}}]
)
async def test_log_lines_have_the_trace_id(over: dict[str, Any]) -> None:
    async with RecordingUpstream() as upstream, running(upstream.url, over, MemorySink()) as (gateway, log):
        await send_request(gateway.data_port, EXECUTE % (CLIENT % b"00" + b"X-Opaque-Id: mine\r\n"))
        await send_request(gateway.data_port, EXECUTE % b"")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    with_parent, without = (line for line in lines if line["event"] == "request")
    assert (with_parent["trace_id"], with_parent["opaque_id"]) == (TRACE, "mine")
    assert "opaque_id" not in without
    assert bool(re.fullmatch("[0-9a-f]{32}", without.get("trace_id", ""))) is bool(over)


async def test_the_access_log_has_every_request(start_gateway: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"logs": {"access": "json", "access_file": str(path)}})
        await send_request(gateway.data_port, GET % (CLIENT % b"01"))
        await send_request(gateway.data_port, EXECUTE % b"User-Agent: curl/8\r\n")
        await gateway.stop()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["target"], first["status"], first["trace_id"]) == ("/_cat/indices?pretty", 200, TRACE)
    assert (second["intent"], second["agent"], second["user_agent"]) == ("execute", "a1", "curl/8")
    assert second["bytes"] == len(OK.partition(b"\r\n\r\n")[2])
    assert gateway._recording.recorder is not None


async def test_nothing_is_recorded_while_all_is_off(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
    assert gateway._recording.recorder is None


async def test_a_reload_switches_traces_on_and_off(start_gateway: StartGateway, collector: Collector) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        on, off = settings_for(upstream.url, traces(collector)), settings_for(upstream.url)
        for settings in (on, off):
            await gateway.reload(settings, gateway.log)
            await send_request(gateway.data_port, EXECUTE % b"")
        assert len(await asyncio.to_thread(collector.wait_for, 4)) == 4
        assert [len(request.values("traceparent")) for request in upstream.requests] == [1, 0]


@pytest.mark.parametrize("style", ["json", "apache"])
@pytest.mark.slow
async def test_no_secret_is_in_spans_logs_or_metrics(
    style: str, start_deployment: StartDeployment, collector: Collector, tmp_path: Path
) -> None:
    canary = "c4n4ry-5ecret"
    path = tmp_path / "access.log"
    logs = {"access": style, "access_file": str(path)}
    deployment = await start_deployment(over={**traces(collector, messages=True), "logs": logs})
    headers = {
        "Authorization": f"Bearer {canary}",
        "Cookie": f"session={canary}",
        "X-Api-Key": canary,
        "Referer": f"http://a/?token={canary}",
        "tracestate": f"a={canary}",
    }
    query = {"X-Amz-Signature": canary, "token": canary}
    secret = {"parameters": {"api_key": canary, "credential": {"secret_key": canary}}}
    for agent, body in (
        ("flow-d", {"input": "Hello", **secret}),
        ("flow-d", {"input": [{"type": "video", "source": {"type": "base64", "data": "AAAA"}}], **secret}),
        ("no-such-agent", {"input": "Hello", **secret}),
        ("flow-d", {"parameters": {"question": "Hello", **secret["parameters"]}}),
    ):
        await deployment.execute(agent, body, headers=headers, params=query)
    async with deployment.client.get("/_cat/indices", headers=headers, params=query):
        pass
    await deployment.gateway.stop()
    shown = [*collector.bodies, path.read_bytes(), deployment.gateway.metrics.render()]
    assert len(path.read_text().splitlines()) == 5
    assert len([span for span in collector.spans if span.kind == span.SPAN_KIND_SERVER]) == 4
    assert not [text for text in shown if canary.encode() in text]
