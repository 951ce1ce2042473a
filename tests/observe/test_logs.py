from __future__ import annotations

import ast
import base64
import io
import json
from pathlib import Path

import pytest
import structlog

import gateway
from gateway.app import build
from gateway.errors import InvalidInput, Problem
from gateway.observe.logs import _FINISHED, _OWN_FIELDS, configure, describe_error, mask_place, redact, shorten, step
from gateway.ports import ExecuteCall, Forward
from tests.conftest import settings_for
from tests.proxy.use_case import UseCase
from tests.wire import RecordingUpstream, send_request

LEVELS = ("debug", "info", "warning", "error", "exception")
IMAGE = base64.b64encode(bytes(range(256)) * 20).decode()


def test_secrets_are_hidden_at_any_depth() -> None:
    shown = redact(
        {"headers": [{"Authorization": "Basic x", "cookie": "c", "X-Api-Key": "k"}], "password": b"p", "n": 1}
    )
    hidden = "[hidden]"
    assert shown == {
        "headers": [{"Authorization": hidden, "cookie": hidden, "X-Api-Key": hidden}],
        "password": hidden,
        "n": 1,
    }


def test_secrets_are_hidden_in_texts_if_payloads_are_logged() -> None:
    stream = io.StringIO()
    log = configure("debug", "json", stream, payloads=True)
    nested = json.dumps({"list": [json.dumps({"access_key": "hunter21"})]})
    try:
        raise ValueError("no user with password=hunter22")
    except ValueError:
        log.exception("internal error", parameters={"access_key": "hunter23", "deep": nested, "api_key": 12345678901})
    problem = Problem("parameters.api_key", "It is too large", received="hunter24")
    log.info("refused", **describe_error(InvalidInput.of([problem]), True), question="curl -H 'x-api-key: hunter25'")
    shown = stream.getvalue()
    assert "hunter2" not in shown
    assert "12345678901" not in shown
    assert "no user with password=[REDACTED length=8 " in shown
    assert '"field": "parameters.api_key"' in shown


def test_payloads_are_their_length_and_hash() -> None:
    assert shorten("short") == "short"
    assert shorten(IMAGE) == "[6828 characters, sha256 e2d5fb6d1c0b]" or shorten(IMAGE).startswith("[6828 characters, ")
    assert shorten(memoryview(b"abc")) == "[3 bytes, sha256 ba7816bf8f01]"
    assert IMAGE[:40] not in json.dumps(redact({"a": [{"data": IMAGE}]}))


@pytest.mark.parametrize("style", ["json", "console"])
def test_lines_carry_what_the_request_is_known_by(style: str) -> None:
    stream = io.StringIO()
    log = configure("debug", style, stream)  # type: ignore[arg-type]
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        step(log, "mapped", provider="bedrock/converse", body=IMAGE, token="t")
    line = stream.getvalue()
    assert "r1" in line
    assert "bedrock/converse" in line
    assert IMAGE[:40] not in line
    if style == "json":
        fields = json.loads(line)
        assert (fields["event"], fields["step"], fields["level"], fields["token"]) == (
            "step",
            "mapped",
            "debug",
            "[hidden]",
        )


def test_levels_below_the_configured_one_are_silent() -> None:
    stream = io.StringIO()
    step(configure("info", "json", stream), "mapped")
    assert stream.getvalue() == ""


def test_fields_of_the_gateway_itself_are_shown() -> None:
    """A field that is not listed is logged as its length and hash, which nobody can read."""
    masked = {
        f"{path}:{call.lineno}: {field.arg}"
        for path in Path(gateway.__file__).parent.rglob("*.py")
        if "log." in (text := path.read_text("utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS
        for field in call.keywords
        if field.arg not in {*_OWN_FIELDS, *_FINISHED, "exc_info", None}
    }
    assert not masked


async def test_requests_are_logged_with_the_clients_id_and_without_its_secrets() -> None:
    from gateway.app import build

    stream = io.StringIO()
    async with RecordingUpstream() as upstream:
        gateway = build(settings_for(upstream.url), UseCase(RuntimeError("boom")), configure("debug", "json", stream))
        await gateway.start()
        head = b"Host: c\r\nAuthorization: Basic c2VjcmV0\r\nX-Opaque-Id: caf\xe9\r\nX-Request-Id: mine\r\n"
        await send_request(gateway.data_port, b"GET /_cat?token=t0k3n HTTP/1.1\r\n" + head + b"\r\n")
        call = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\n"
        await send_request(gateway.data_port, call + head + b"Content-Length: 6\r\n\r\nsecret")
        refused = await send_request(gateway.data_port, b"GET / HTTP/1.1\r\n\r\n")
        await gateway.stop()
    written = stream.getvalue()
    lines = [json.loads(line) for line in written.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(line["intent"], line["path"], line["status"]) for line in requests] == [
        ("passthrough", "/_cat", 200),
        ("execute", "/_plugins/_ml/agents/a/_execute", 500),
    ]
    assert all(line["client_request_id"] == "mine" and line["opaque_id"] for line in requests)
    [failure] = [line for line in lines if line["event"] == "internal error"]
    assert failure["request_id"] == requests[1]["request_id"]
    *_, refusal = [line for line in lines if line["event"] == "refused"]
    assert refused.values("x-request-id") == [refusal["request_id"].encode()]
    assert refusal["client"] == "127.0.0.1"
    assert "raise self.answer\nbuiltins.RuntimeError: [4 characters, sha256 " in failure["exception"]
    assert "boom" not in failure["exception"]
    assert not any(secret in written for secret in ("c2VjcmV0", "t0k3n", "secret"))


def test_a_line_is_one_write_as_worker_processes_share_the_stream() -> None:
    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    writes: list[str] = []
    configure("info", "json", Writes()).info("a", b=1)
    [line] = writes
    assert line.endswith("\n")


class _Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [_Broken(), io.StringIO()], ids=["its reader is gone", "it is closed"])
async def test_a_log_that_cannot_be_written_fails_no_request(stream: io.StringIO) -> None:
    async def fail(call: ExecuteCall) -> Forward:
        stream.close()
        raise TypeError

    use_case = UseCase()
    use_case.execute = fail  # type: ignore[method-assign]
    async with RecordingUpstream() as upstream:
        gateway = build(settings_for(upstream.url), use_case, configure("debug", "json", stream))
        await gateway.start()
        raw = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"
        assert (await send_request(gateway.data_port, raw)).line == b"HTTP/1.1 500 Internal Server Error"
        assert b"mlc_gateway_in_flight 0.0" in gateway.metrics.render().splitlines()
        await gateway.stop()


@pytest.mark.parametrize("place", ["agent_id", "parameters.memory_id", "parameters.selected_tools", "size"])
def test_a_place_of_the_gateway_itself_is_shown(place: str) -> None:
    assert mask_place(place) == place
