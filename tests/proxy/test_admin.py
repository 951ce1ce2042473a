from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from gateway.app import build
from tests.conftest import StartGateway, settings_for
from tests.proxy.use_case import UseCase
from tests.wire import RecordingUpstream, reserved, send_request

GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_live_and_ready(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        live = await send_request(gateway.admin_port, GET % b"/health/live")
        ready = [await send_request(gateway.admin_port, GET % b"/health/ready") for _ in range(3)]
        assert (live.line, json.loads(live.body)) == (b"HTTP/1.1 200 OK", {"status": "live"})
        assert [json.loads(answer.body) for answer in ready] == [{"status": "ready"}] * 3
        assert [request.line for request in upstream.requests] == [b"GET / HTTP/1.1"]


async def test_not_ready_without_the_cluster(start_gateway: StartGateway) -> None:
    with reserved() as port:
        gateway = await start_gateway(f"http://127.0.0.1:{port}", UseCase())
        answer = await send_request(gateway.admin_port, GET % b"/health/ready")
    assert answer.line.split()[1] == b"503"
    assert json.loads(answer.body) == {"status": "not ready", "upstream": "The cluster can't be reached."}


@pytest.mark.parametrize(("status", "ready"), [(401, b"200"), (500, b"503")])
async def test_any_answer_below_500_shows_that_the_cluster_is_there(
    status: int, ready: bytes, start_gateway: StartGateway
) -> None:
    async with RecordingUpstream([b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        assert (await send_request(gateway.admin_port, GET % b"/health/ready")).line.split()[1] == ready


async def test_metrics_count_what_happened(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        for _ in range(3):
            await send_request(gateway.data_port, GET % b"/_cat/indices")
        gateway.metrics.traffic.rewrites["bedrock/converse", "wrap", "delivered"] += 1
        gateway.metrics.notice("SYSTEM_FOLDED")
        answer = await send_request(gateway.admin_port, GET % b"/metrics")
    lines = answer.body.decode().splitlines()
    assert answer.values("content-type")[0].startswith(b"text/plain")
    assert 'mlc_gateway_requests_total{intent="passthrough",status="200"} 3.0' in lines
    assert 'mlc_gateway_rewrites_total{outcome="delivered",provider="bedrock/converse",strategy="wrap"} 1.0' in lines
    assert 'mlc_gateway_notices_total{code="SYSTEM_FOLDED"} 1.0' in lines
    assert 'mlc_gateway_upstream_seconds_count{intent="passthrough"} 3.0' in lines
    assert "mlc_gateway_in_flight 0.0" in lines


@pytest.mark.parametrize("line", [b"GET /", b"GET /_plugins/_ml/agents/a", b"POST /"])
async def test_the_admin_port_has_nothing_else(line: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.admin_port, line + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (answer.line.split()[1], json.loads(answer.body)["error"]["type"]) == (b"404", "NotFound")
        assert not upstream.requests


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        (b"POST /metrics", b"GET, HEAD"),
        (b"DELETE /health/live", b"GET, HEAD"),
        (b"GET /profiles/drop", b"POST"),
        (b"DELETE /inspector/api/clear", b"POST"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(line: bytes, allowed: bytes, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.admin_port, line + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (answer.line.split()[1], answer.values("allow")) == (b"405", [allowed])
    assert json.loads(answer.body)["error"]["type"] == "MethodNotAllowed"


async def test_no_answer_names_versions_of_software(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        for path in (b"/health/live", b"/nowhere", b"/inspector/", b"/inspector/login"):
            assert (await send_request(gateway.admin_port, GET % path)).values("server") == []


async def test_cached_profiles_are_dropped(start_gateway: StartGateway) -> None:
    use_case = UseCase()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, use_case)
        answer = await send_request(gateway.admin_port, b"POST /profiles/drop HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (answer.line, json.loads(answer.body)) == (b"HTTP/1.1 200 OK", {"status": "dropped"})
        assert use_case.forgotten == [("cluster", None)]
        assert not upstream.requests


async def test_the_data_port_has_no_path_of_ours(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        for path in (b"/health/live", b"/health/ready", b"/metrics"):
            assert (await send_request(gateway.data_port, GET % path)).body == b"ok"
        assert len(upstream.requests) == 3


async def test_head_answers_like_get_without_a_body(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.admin_port, b"HEAD /health/live HTTP/1.1\r\nHost: a\r\n\r\n", bodyless=True)
    assert (answer.line.split()[1], answer.values("content-length"), answer.body) == (b"200", [b"17"], b"")


async def test_a_fault_of_a_page_has_the_shape_of_errors(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        gateway.metrics.render = None  # type: ignore[assignment,method-assign]
        answer = await send_request(gateway.admin_port, GET % b"/metrics")
    assert (answer.line.split()[1], json.loads(answer.body)["error"]["type"]) == (b"500", "InternalError")


async def test_what_is_no_http_is_refused(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        answer = await send_request(gateway.admin_port, b"GET /metrics HTTP/1.1\r\nA B: c\r\n\r\n")
    assert answer.line.split()[1] == b"400"


async def test_the_file_of_a_unix_socket_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    gateway = build(settings_for("http://127.0.0.1:1", {"listen": {"admin_host": f"unix:{file}"}}), UseCase())
    await gateway.start()
    assert await asyncio.to_thread(file.is_socket)
    await gateway.stop()
    assert not await asyncio.to_thread(file.exists)


async def test_the_file_of_another_gateways_unix_socket_stays(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    settings = settings_for("http://127.0.0.1:1", {"listen": {"admin_host": f"unix:{file}"}})
    old, new = build(settings, UseCase()), build(settings, UseCase())
    await old.start()
    await asyncio.to_thread(file.unlink)  # which asyncio would do on the event loop, and tests refuse
    await new.start()
    await old.stop()
    connector = aiohttp.UnixConnector(str(file))
    async with aiohttp.request("GET", "http://localhost/health/live", connector=connector) as response:
        assert response.status == 200
    await new.stop()
    assert not await asyncio.to_thread(file.exists)
