"""What users write is not logged: a known word is everywhere a client can put one, and no line contains it."""

from __future__ import annotations

import asyncio
import copy
import gzip
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.agents.lookup import lookup_error
from gateway.app import Gateway, build
from gateway.app.process import _log_fault
from gateway.errors import GatewayError, InvalidInput, Problem, RegistrationFailed
from gateway.observe.logs import configure, describe_error
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import settings_for
from tests.delivery.cases import IMAGE
from tests.faulty_cluster import FaultyCluster
from tests.wire import send_until_closed

ML = "/_plugins/_ml"
WORD = "zanzibar"
TEXT = {"type": "text", "text": f"my {WORD} diary"}
NUMBER = 5550123456789


def _image(**source: Any) -> dict[str, Any]:
    image = copy.deepcopy(IMAGE)
    image["source"] |= source
    return image


INPUTS: list[Any] = [
    f"tell me of {WORD}",
    f"tell me of {WORD} " * 100,
    [TEXT],
    [TEXT, IMAGE],
    [{"role": role, "content": [TEXT]} for role in ("user", "assistant", "user")],
    [{"role": WORD, "content": [TEXT]}],
    [{"role": "system", "content": [TEXT]}, {"role": "user", "name": WORD, "content": [TEXT]}],
    [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": WORD, "name": WORD, "input": {WORD: WORD}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": WORD, "content": [{"text": WORD}]}}]},
    ],
    [{"role": "user", "content": [{"toolResult": {"toolUseId": WORD, "content": [{"json": {WORD: WORD}}]}}]}],
    [{"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": f"{WORD} {WORD}", "input": {}}}]}],
    [{"type": WORD, "text": WORD}],
    [{"type": "text", "text": WORD, WORD: WORD}],
    [{"type": "text", "text": {WORD: WORD}}],
    [{"type": "text", "text": WORD, f"a {WORD} 'of' keys": 1, f'a "{WORD}" key': 2}],
    [{"type": "text", "text": WORD, WORD * 20: 1}],
    [_image(format=WORD)],
    [_image(data=WORD)],
    [_image(data=f"data:image/{WORD};base64,AAAA")],
    [_image(**{WORD: 1})],
    [{"type": "image", "source": {"type": "url", "url": f"https://{WORD}.example/{WORD}.png?{WORD}"}}],
    [{"type": "image", "source": {"type": "url", "url": f"{WORD}:{WORD}"}}],
    [{"type": "image", "source": {"type": "url", "url": f"s3://{WORD}/{WORD}.png"}}],
    [{"type": "document", "name": WORD, "source": {"type": "base64", "format": "pdf", "data": "JVBERi0="}}, TEXT],
    [{"type": "video", "source": {"type": "base64", "format": "mp4", "data": "AAAA"}}, TEXT],
    {WORD: WORD},
    [WORD, {"role": "user"}],
]


def _executes() -> Iterator[Any]:
    for given in INPUTS:
        yield {"input": given}
        yield {"input": given, "parameters": {"question": WORD, WORD: WORD, "verbose": NUMBER, "memory_id": WORD}}
    yield {"parameters": {"question": WORD}}
    yield {"parameters": {"messages": [WORD], WORD: {WORD: NUMBER}}}
    yield {"input": WORD, "parameters": [WORD]}
    yield {"input": WORD, "parameters": {f"gw_{WORD}": WORD, "gw_t": WORD, "model": WORD, "prompt": WORD}}
    yield {"input": WORD, WORD: WORD}
    yield [WORD]
    yield WORD


def _registrations() -> Iterator[Any]:
    credential = {"access_key": "a", "secret_key": "b"}
    model = {"model_id": "m", "model_provider": "bedrock/converse", "credential": credential}
    body = {"name": "assistant", "type": "conversational", "model": model, "description": f"of {WORD}"}
    yield body
    yield {**body, "type": WORD}
    yield {**body, WORD: WORD}
    yield {**body, "parameters": {WORD: WORD}, "tools": [{"type": WORD, "description": WORD}]}
    yield {**body, "model": {**model, "model_provider": WORD}}
    yield {**body, "model": {**model, WORD: WORD, "credential": {WORD: WORD}}}
    yield {**body, "model": {**model, "url": f"https://{WORD}/{WORD} {WORD}"}}
    yield {**body, "model": {**model, "model_parameters": {"temperature": WORD, WORD: WORD}}}
    yield {**body, "mcp": [{"url": WORD, "protocol": WORD, "headers": {WORD: f"${{credential.{WORD}}}"}}]}
    yield {**body, "memory": {"type": WORD}}
    yield {**body, "input": f"run {WORD}"}
    yield {**body, "input": [{"type": "text", WORD: WORD}]}


def _http(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"{method} {path}?q={WORD} HTTP/1.1", "Host: a", "Connection: close", "Content-Type: application/json",
        f"X-Words: {WORD}", f"Authorization: Basic {WORD}", f"Content-Length: {len(body)}", *headers)  # fmt: skip
    return "\r\n".join((*lines, "", "")).encode() + body


def _requests(agents: list[str]) -> Iterator[bytes]:
    executes = [json.dumps(body).encode() for body in _executes()]
    for agent in agents:
        yield from (_http("POST", f"{ML}/agents/{agent}/_execute", body) for body in executes)
    one = f"{ML}/agents/{agents[0]}"
    for malformed in (b'{"input": "%b', b'{"%b\xff": 1}', b"%b", b"\\%b", b'{"a": %b}', b'{"%b": 1, "%b": 2}'):
        yield _http("POST", f"{one}/_execute", malformed.replace(b"%b", WORD.encode()))
    yield _http("POST", f"{one}/_execute", gzip.compress(executes[0])[:-4], "Content-Encoding: gzip")
    yield _http("POST", f"{one}/_execute", executes[0], f"Content-Encoding: {WORD}")
    yield _http("POST", f"{one}/_execute/stream", executes[0])
    for document in _registrations():
        body = json.dumps(document).encode()
        yield _http("POST", f"{ML}/agents/_register", body)
        yield _http("POST", f"{ML}/agents/_register", body, f"Idempotency-Key: {WORD}")
        yield _http("POST", f"{ML}/agents/_execute", body)
        yield _http("PUT", one, body)
        yield _http("POST", f"{ML}/memory", body)
    yield _http("DELETE", f"{ML}/agents/absent", b"")
    yield _http("POST", f"{ML}/agents/_search", json.dumps({"query": {"match": {"name": WORD}}}).encode())
    yield _http("TRACE", "/x", b"", "Max-Forwards: 0")
    yield _http("OPTIONS", "/x", b"", f"Max-Forwards: {WORD}")
    yield _http("POST", "/x", b"", f"Transfer-Encoding: {WORD}")
    yield f"GET http://{WORD}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    yield f"GET / HTTP/1.1\r\nHost: {WORD} {WORD}\r\n\r\n".encode()
    yield f"{WORD} {WORD}\r\n\r\n".encode()


async def _broken(call: object) -> Any:
    try:
        raise KeyError(f"no {WORD}")
    except KeyError as error:
        raise ExceptionGroup(WORD, [ValueError(WORD)]) from error


async def _send_all(gateway: Gateway, agents: list[str]) -> set[bytes]:
    answers = [await send_until_closed(gateway.data_port, request) for request in _requests(agents)]
    return {answer.split()[1] for answer in answers}


async def _log_of_all(version: str, payloads: bool, every: int) -> str:
    """Return the log after all requests, with the executes sent to every such agent of the cluster."""
    log = io.StringIO()
    async with Simulator(version) as simulator, FaultyCluster(simulator.url) as front:
        agents = list(seed_core(simulator.core, simulator.llm_url).values())
        over = {"logs": {"level": "debug", "payloads": payloads}, "registration": {"visible_within": 0.1}}
        gateway = build(settings_for(front.url, over), log=configure("debug", "json", log, payloads=payloads))
        await gateway.start()
        statuses = await _send_all(gateway, agents[::every])
        dispatcher = gateway._now.port.dispatcher
        dispatcher._execute, dispatcher._fast = _broken, None
        statuses |= await _send_all(gateway, agents[:1])
        await gateway.stop()
    assert statuses >= {b"200", b"400", b"415", b"500", b"501"}
    return log.getvalue()


@pytest.mark.parametrize(
    ("version", "every"),
    [("2.19.0", 5), *(pytest.param(version, 1, marks=pytest.mark.slow) for version in ("2.19.0", "3.4.0"))],
)
@pytest.mark.slow
async def test_no_word_of_a_user_is_logged(version: str, every: int) -> None:
    log = await _log_of_all(version, False, every)
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"step", "refused", "internal error", "request"} <= {line["event"] for line in lines}
    shown = [line for line in log.splitlines() if WORD in line.lower() or str(NUMBER) in line]
    assert shown == []
    parameters = [line["parameters"] for line in lines if line.get("step") == "planned"]
    assert parameters
    assert all(value.startswith("[") for one in parameters for value in one.values() if isinstance(value, str))


async def test_they_are_logged_where_the_operator_wants_them_and_a_warning_says_so() -> None:
    log = await _log_of_all("2.19.0", True, 1000)
    lines = [json.loads(line) for line in log.splitlines()]
    warnings = [line for line in lines if line["level"] == "warning" and line["event"] == "payloads are logged"]
    assert [line["setting"] for line in warnings] == ["logs.payloads"]
    for event in ("step", "refused", "internal error"):
        assert any(WORD in json.dumps(line) for line in lines if line["event"] == event), event
    assert f"Basic {WORD}" not in log


async def test_nothing_is_warned_of_by_default() -> None:
    log = io.StringIO()
    gateway = build(settings_for("http://127.0.0.1:1"), log=configure("debug", "json", log))
    await gateway.start()
    await gateway.stop()
    assert "payloads" not in log.getvalue()


def test_a_refusal_keeps_what_is_the_gateways_own() -> None:
    place = f'input[1].source.{WORD}["a {WORD}"].format'
    problem = Problem(place, f'Unknown member "{WORD}": give "type"', "x", WORD, "CODE")
    shown = describe_error(InvalidInput.of([problem, problem]), payloads=False)
    assert shown["type"] == "ValidationException"
    assert shown["reason"].startswith("[input[1].source.[8 characters, sha256 ")
    assert shown["reason"].endswith(': give "type" (and 1 more)')
    assert "Unknown member [8 characters, sha256 " in shown["reason"]
    assert [set(one) for one in shown["problems"]] == [{"field", "reason", "code"}] * 2
    assert WORD not in json.dumps(shown)
    assert WORD in json.dumps(describe_error(InvalidInput.of([problem]), payloads=True))


def test_words_of_the_cluster_that_may_be_a_clients_are_not_logged() -> None:
    reason = f"failed to parse [{WORD}]"
    errors: list[GatewayError] = [
        RegistrationFailed(f"The cluster refused to make the agent: {reason}", 400, repeats=reason),
        lookup_error("agents", "a1", 500, {"error": {"reason": reason}}),
        lookup_error("models", "m1", 403, {"error": {"reason": reason}}),
    ]
    for error in errors:
        shown = json.dumps(describe_error(error, payloads=False))
        assert WORD not in shown
        assert WORD in json.dumps(describe_error(error, payloads=True))
    assert "agents/a1" in json.dumps(describe_error(errors[1], payloads=False))


@pytest.mark.parametrize("payloads", [False, True])
def test_what_nothing_caught_is_logged_like_any_fault(payloads: bool) -> None:
    log = io.StringIO()
    logger = configure("error", "json", log, payloads=payloads)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: _log_fault(logger, context))

    def fail(word: str) -> None:
        raise ValueError(word)

    loop.call_soon(fail, WORD)
    loop.call_soon(loop.call_exception_handler, {"message": f"about {WORD}"})
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["internal error"] * 2
    assert "in fail" in lines[0]["exception"]
    assert (WORD in log.getvalue()) is payloads
