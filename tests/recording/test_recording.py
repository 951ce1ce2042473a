"""What is recorded of exchanges through a gateway."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import threading
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.errors import InvalidInput
from gateway.observe.record import Delivery, ExchangeRecord
from gateway.observe.secrets import marker
from gateway.ports import Answer, Forward
from gateway.recording import recorder
from gateway.recording.store import StoreError
from tests.conftest import StartGateway, settings_for
from tests.exactness.table import get
from tests.exactness.test_upgrade import UPGRADE, echo
from tests.execute.conftest import StartDeployment, start_deployment
from tests.proxy.test_finish import chunked, response
from tests.proxy.use_case import Stage, UseCase
from tests.recording.memory_sink import MemorySink
from tests.wire import RecordingUpstream, read_message, send_request

__all__ = ["start_deployment"]
ON = {"inspector": {"enabled": True}}
BODIES = {"inspector": {"enabled": True, "passthrough": "bodies", "body_bytes": 1000}}
GET = b"GET /a/_doc/1?pretty HTTP/1.1\r\nHost: x\r\nUser-Agent: tests/1\r\nAuthorization: Basic YTpiYzpiYzpi\r\n\r\n"
POST = b"POST /a/_search HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
EXECUTE = b"POST /_plugins/_ml/agents/a%%2Db/_execute HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
STREAM = EXECUTE.replace(b"_execute", b"_execute/stream")


def post(body: bytes, head: bytes = POST) -> bytes:
    return head % (len(body), body)


def text_of(record: ExchangeRecord, name: str) -> str | None:
    message = getattr(record, name)
    return None if message is None else message.body.text


async def test_a_request_that_passes_is_a_line(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with RecordingUpstream([response(b"found", b"X-A: b")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        await send_request(gateway.data_port, GET)
        [record] = await sink.wait_for()
    assert (record.method, record.target, record.intent, record.status) == (
        "GET",
        "/a/_doc/1?pretty",
        "passthrough",
        200,
    )
    assert (record.client, record.user_agent) == ("127.0.0.1", "tests/1")
    assert record.request.headers[2] == ("Authorization", f"Basic {marker('YTpiYzpiYzpi')}")
    assert record.response is not None
    assert ("X-A", "b") in record.response.headers
    assert (record.request.body.size, record.response.body.size) == (0, 5)
    assert record.request.body.text is record.response.body.text is None
    assert record.forwarded is record.answered is None
    assert record.waited is not None
    assert 0 <= record.waited <= record.seconds
    assert len(record.id) == 16


async def test_nothing_is_recorded_by_default(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), sinks=sink)
        await send_request(gateway.data_port, GET)
        await gateway.stop()
    assert sink.records == []
    assert not sink.is_closed


@pytest.mark.parametrize(
    ("came", "text"),
    [
        (response(b'{"a": 1}'), '{"a": 1}'),
        (chunked(b'{"a"', b": 1}"), '{"a": 1}'),
        (response(gzip.compress(b'{"a": 1}', mtime=0), b"Content-Encoding: gzip"), '{"a": 1}'),
    ],
)
async def test_bodies_of_passing_requests_by_choice(start_gateway: StartGateway, came: bytes, text: str) -> None:
    sink = MemorySink()
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), BODIES, sinks=sink)
        await send_request(gateway.data_port, post(b'{"q": 2}'))
        [record] = await sink.wait_for()
    assert (text_of(record, "request"), text_of(record, "response")) == ('{"q": 2}', text)
    assert record.request.body.omitted == ""


async def test_a_body_that_is_refused_at_its_first_bytes(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    gateway = await start_gateway("http://127.0.0.1:9", UseCase(), BODIES, sinks=sink)
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await send_request(gateway.data_port, head + b"no size\r\n")
    [record] = await sink.wait_for()
    assert answer.line == b"HTTP/1.1 400 Bad Request"
    assert (record.status, record.request.body.omitted) == (400, "Cut: the rest did not arrive.")


async def test_a_secret_in_the_path_of_a_line_is_hidden(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    request = b"GET /a/YTpiYzpiYzpi HTTP/1.1\r\nHost: x\r\nX-Api-Key: YTpiYzpiYzpi\r\n\r\n"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        await send_request(gateway.data_port, request)
        [record] = await sink.wait_for()
    assert record.target == f"/a/{marker('YTpiYzpiYzpi')}"


async def test_long_bodies_of_passing_requests_are_cut(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    long = b'{"password": "' + b"secret words " * 400 + b'"}'
    async with RecordingUpstream([response(long)]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), BODIES, sinks=sink)
        await send_request(gateway.data_port, post(long))
        [record] = await sink.wait_for()
    for message in (record.request, record.response):
        assert message is not None
        assert message.body.size == len(long)
        assert message.body.omitted.startswith("Cut: ")
        assert message.body.text is not None
        assert message.body.text.startswith("[REDACTED length=")
        assert "words" not in message.body.text


async def test_passing_requests_are_left_out_by_choice(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    none = {"inspector": {"enabled": True, "passthrough": "none"}}
    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), none, sinks=sink)
        await send_request(gateway.data_port, GET)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
    assert record.intent == "execute"


async def test_a_tunnel_that_its_client_ends_is_not_cut(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with RecordingUpstream(script=echo) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), BODIES, sinks=sink)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(get(b"/socket", *UPGRADE))
        await reader.readuntil(b"hello")
        writer.close()
        [record] = await sink.wait_for()
    assert (record.status, text_of(record, "response")) == (101, "")
    assert record.response is not None
    assert record.response.body.omitted == ""


async def test_an_agent_run_is_recorded_before_and_after(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    forward = Forward([b'{"new', b'": 1}'], {"X-Own": "1"})
    async with RecordingUpstream([response(b'{"answer": 2}')]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(forward), ON, sinks=sink)
        await send_request(gateway.data_port, post(b'{"input": 0}', EXECUTE))
        [record] = await sink.wait_for()
        sent = upstream.requests[0]
    assert record.agent_id == "a-b"
    assert text_of(record, "request") == '{"input": 0}'
    assert text_of(record, "forwarded") == '{"new": 1}'
    assert record.forwarded is not None
    assert record.forwarded.headers == tuple((name.decode(), value.decode()) for name, value in sent.headers)
    assert text_of(record, "response") == '{"answer": 2}'
    assert record.answered is None
    assert [step.name for step in record.steps] == ["read", "upstream", "answer"]
    assert all(step.seconds >= 0 for step in record.steps)


async def test_a_finished_response_is_recorded_as_it_came_and_as_it_went(start_gateway: StartGateway) -> None:
    async def finish(status: int, body: bytes) -> Answer:
        return Answer(status, {"X-A": "b"}, b"after")

    sink = MemorySink()
    async with RecordingUpstream([chunked(b"bef", b"ore")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(finish),))), ON, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
    assert (text_of(record, "response"), text_of(record, "answered")) == ("before", "after")
    assert record.answered is not None
    names = ("Content-Type", "Content-Length", "X-A")
    assert record.answered.headers == tuple(zip(names, ("application/json", "5", "b"), strict=True))


async def test_headers_that_are_added_to_a_held_response_are_no_other_answer(start_gateway: StartGateway) -> None:
    async def finish(status: int, body: bytes) -> Answer:
        return Answer(status, {"X-A": "b"}, body)

    sink = MemorySink()
    async with RecordingUpstream([response(b"before")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(finish),))), ON, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
    assert (text_of(record, "response"), text_of(record, "answered")) == ("before", None)


async def test_the_time_of_a_held_response_is_that_of_its_head(start_gateway: StartGateway) -> None:
    async def refuse(status: int, body: bytes) -> Answer:
        raise InvalidInput("the answer is not allowed")

    sink = MemorySink()
    async with RecordingUpstream([response(b"before")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], stages=(Stage(refuse),))), ON, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
        metrics = gateway.metrics.render().decode()
    assert record.waited is not None
    assert [step.name for step in record.steps] == ["read", "upstream", "answer"]
    assert 'mlc_gateway_upstream_seconds_count{intent="execute"} 1.0' in metrics


async def test_an_event_stream_is_recorded(start_gateway: StartGateway) -> None:
    async def finish(status: int, body: bytes) -> Answer:
        return Answer(status, {}, b"data: end\n\n")

    sink = MemorySink()
    forward = Forward([b"{}"], stages=(Stage(finish, lambda piece: piece.replace(b"old", b"new")),))
    came = chunked(b"data: old\n\n", b"data: 2\n\n", kind=b"text/event-stream")
    async with RecordingUpstream([came]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(forward), ON, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", STREAM))
        [record] = await sink.wait_for()
    assert text_of(record, "response") == "data: old\n\ndata: 2\n\n"
    assert text_of(record, "answered") == "data: new\n\ndata: 2\n\ndata: end\n\n"
    assert record.answered is not None
    assert ("Content-Type", "text/event-stream") in record.answered.headers


async def test_a_refusal_is_recorded_with_what_was_known(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    deployment = await start_deployment("2.19.0", ON, sinks=sink)
    answer = await deployment.execute("flow-a", {"input": "hi", "parameters": {"gw_a": "1"}})
    assert answer.status == 400
    record = (await sink.wait_for())[-1]
    assert record.status == 400
    assert record.error is not None
    assert [problem.code for problem in record.error.problems] == ["RESERVED_NAME"]
    assert record.delivery is not None
    assert (record.delivery.type, record.delivery.input_type) == ("flow", "text")
    assert record.response is record.forwarded is None
    assert json.loads(text_of(record, "answered") or "") == json.loads(await answer.read())
    assert [step.name for step in record.steps] == ["read", "decode", "resolve", "plan"]


async def test_deliveries_of_unified_and_legacy_input(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    deployment = await start_deployment("2.19.0", ON, sinks=sink)
    for text in ("a", "b"):
        await deployment.execute("flow-b", {"input": text})
    await deployment.execute("flow-b", {"parameters": {"question": "c"}})
    first, second, legacy = await sink.wait_for(3)
    assert first.delivery == second.delivery
    for record in (first, second):
        assert [step.name for step in record.steps] == ["read", "decode", "resolve", "plan", "upstream", "answer"]
    assert legacy.delivery is not None
    assert (legacy.delivery.input_type, legacy.delivery.type) == ("question", "flow")


async def test_a_medium_is_replaced_by_its_hash_everywhere(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    keep = {"inspector": {"enabled": True, "media": "keep"}}
    deployment = await start_deployment("2.19.0", keep, sinks=sink)
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20
    data = base64.b64encode(png).decode()
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": data}}
    await deployment.execute("flow-b", {"input": [{"type": "text", "text": "look"}, image]})
    [record] = await sink.wait_for()
    digest = hashlib.sha256(png).hexdigest()
    word = f"[MEDIA type=image/png length={len(png)} sha256={digest}]"
    for name in ("request", "forwarded"):
        text = text_of(record, name)
        assert text is not None
        assert word in text
        json.loads(text)
    assert data[100:200] not in sink.text()
    assert sink.media == {digest: ("image/png", png)}


async def test_a_client_that_goes_away_is_recorded(start_gateway: StartGateway) -> None:
    arrived = asyncio.Event()

    async def wait(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        arrived.set()
        await reader.read()

    sink = MemorySink()
    async with RecordingUpstream(script=wait) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(post(b"{}", EXECUTE))
        await arrived.wait()
        writer.transport.abort()
        [record] = await sink.wait_for()
    assert record.status == 0
    assert text_of(record, "request") == "{}"
    assert record.waited is None


async def test_requests_of_a_connection_have_its_number(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        for _ in range(2):
            writer.write(GET)
            await read_message(reader)
        writer.close()
        await send_request(gateway.data_port, GET)
        first, second, other = await sink.wait_for(3)
    assert first.connection == second.connection != other.connection
    assert len({first.id, second.id, other.id}) == 3


async def test_lines_and_runs_keep_their_order(start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "GATHER", 3600.0)
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        for request in (GET, post(b"{}", EXECUTE), GET, GET, post(b"{}", STREAM)):
            await send_request(gateway.data_port, request)
        await gateway.stop()
    intents = [record.intent for record in sink.records]
    assert intents == ["passthrough", "execute", "passthrough", "passthrough", "execute_stream"]
    assert len({record.id for record in sink.records}) == 5


class Stall:
    """Makes a sink wait until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.go_on.wait()


def dropped(gateway: Gateway) -> dict[str, int]:
    return gateway.metrics.records_dropped()


async def test_a_sink_that_stalls_costs_forwarding_nothing(start_gateway: StartGateway) -> None:
    stall = Stall()
    sink = MemorySink(stall)
    few = {"inspector": {"enabled": True, "queue": 3}}
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), few, sinks=sink)
        await send_request(gateway.data_port, GET)
        await asyncio.to_thread(stall.reached.wait)
        for _ in range(5):
            assert (await send_request(gateway.data_port, GET)).line == b"HTTP/1.1 200 OK"
        assert dropped(gateway) == {"queue": 2}
        assert b'mlc_gateway_records_dropped_total{error="",reason="queue"} 2.0' in gateway.metrics.render()
        stall.go_on.set()
        assert len(await sink.wait_for(4)) == 4


async def test_the_bytes_that_wait_are_bounded(start_gateway: StartGateway) -> None:
    stall = Stall()
    sink = MemorySink(stall)
    few = {"inspector": {"enabled": True, "queue_bytes": 10_000}}
    body = json.dumps({"input": "word " * 1000}).encode()
    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), few, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        await asyncio.to_thread(stall.reached.wait)
        for _ in range(3):
            await send_request(gateway.data_port, post(body, EXECUTE))
        assert dropped(gateway) == {"queue": 2}
        stall.go_on.set()
        await sink.wait_for(2)
        await send_request(gateway.data_port, post(body, EXECUTE))
        await sink.wait_for(3)


@pytest.mark.parametrize(
    ("few", "requests"), [({"queue": 3}, [GET] * 2), ({"queue_bytes": 10_000}, [post(b" " * 6000, EXECUTE)])]
)
async def test_what_could_fill_the_queue_is_not_gathered(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, few: dict[str, int], requests: list[bytes]
) -> None:
    monkeypatch.setattr(recorder, "GATHER", 3600.0)
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"inspector": {"enabled": True, **few}}, sinks=sink)
        for request in requests:
            await send_request(gateway.data_port, request)
        await sink.wait_for(len(requests))


async def test_a_sink_that_fails_does_not_keep_the_others_from_recording(start_gateway: StartGateway) -> None:
    def fail() -> None:
        raise StoreError("the disk is full")

    bad, good = MemorySink(fail), MemorySink()
    bad.name = "bad"
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=lambda *_: [bad, good])
        for count in (1, 2):
            await send_request(gateway.data_port, GET)
            await good.wait_for(count)
    assert dropped(gateway) == {"bad": 2}


async def test_what_waits_is_recorded_when_the_gateway_stops(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=sink)
        for _ in range(20):
            await send_request(gateway.data_port, GET)
        await gateway.stop()
    assert len(sink.records) == 20
    assert sink.is_closed


async def test_a_reload_keeps_the_recorder_if_its_settings_are_the_same(start_gateway: StartGateway) -> None:
    opened: list[MemorySink] = []

    def open_sinks(*_: Any) -> list[MemorySink]:
        opened.append(MemorySink())
        return opened[-1:]

    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), ON, sinks=open_sinks)

        async def reload(over: dict[str, Any]) -> None:
            listen = {"data_port": gateway.settings.listen.data_port, "http": gateway.settings.listen.http}
            await gateway.reload(settings_for(upstream.url, {**over, "listen": listen}), gateway.log)
            await send_request(gateway.data_port, GET)

        await reload({**ON, "logs": {"level": "error"}})
        await opened[0].wait_for(1)
        await reload(BODIES)
        [record] = await opened[1].wait_for(1)
        assert record.request.body.text == ""
        await reload({})
        await gateway.stop()
    assert [len(sink.records) for sink in opened] == [1, 1]
    assert all(sink.is_closed for sink in opened)


async def test_the_first_llm_call_is_rendered(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    deployment = await start_deployment("2.19.0", ON, sinks=sink)
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20).decode()
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": png}}
    await deployment.execute("flow-b", {"input": [{"type": "text", "text": "look"}, image]})
    await deployment.execute("flow-b", {"input": "fast"})
    await deployment.execute("flow-b", {"input": "fast again"})
    records = await sink.wait_for(3)
    for record, call in zip(records, deployment.simulator.received, strict=True):
        shown = json.loads(record.rendered)
        text = json.dumps(call).replace(png, "PNG")
        assert json.dumps(shown).count("[MEDIA type=image/png") == text.count("PNG")
        assert re.sub(r"\[MEDIA [^]]*\]", "PNG", json.dumps(shown)) == text


async def test_the_usage_that_an_answer_reports_is_recorded(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    delivery = Delivery(type="flow", provider="openai/v1/chat/completions", model="gpt-4o")
    usage = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}
    message = {"role": "assistant", "content": [{"text": "hi"}]}
    answer = {"stop_reason": "end_turn", "message": message, "metrics": {"total_usage": usage}}
    price = {"provider": "*", "model": "gpt-*", "input": 1.0, "output": 2.0}
    over = {**ON, "policy": {"prices": [price]}}
    async with RecordingUpstream([response(json.dumps(answer).encode())]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], delivery=delivery)), over, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
    assert record.usage is not None
    assert (record.usage.input, record.usage.output) == (11, 7)
    assert record.usage.cost == pytest.approx((11 + 14) / 1_000_000)


async def test_what_guardrails_did_is_recorded_without_secrets(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    checks = [{"guardrail": "g", "outcome": "allow", "reason": "password=hunter22"}]
    async with RecordingUpstream([response(b"{}")]) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward([b"{}"], guardrails=checks)), ON, sinks=sink)
        await send_request(gateway.data_port, post(b"{}", EXECUTE))
        [record] = await sink.wait_for()
    assert record.guardrails == ({**checks[0], "reason": f"password={marker('hunter22')}"},)
