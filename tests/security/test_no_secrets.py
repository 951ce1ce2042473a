"""No secret is shown: known secrets are everywhere one can be, and none is in the gateway's own output."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.app import Gateway, build
from gateway.config.load import ConfigError, load
from gateway.observe.logs import configure
from tests.conftest import settings_for
from tests.execute.stub_cluster import FLOW, ML, V1, Cluster, server_of
from tests.wire import send_until_closed

PLACES = (
    "authorization", "cookie", "header", "session-token", "proxy-user", "query", "body-credential", "connector",
    "connector-header", "account", "upstream-account", "admin-token", "aws-secret-key", "aws-session-token", "userinfo",
    "malformed", "block", "parameter", "local",
)  # fmt: skip
SECRET = {place: f"hidden-{place}-7f3a9c" for place in PLACES}
HEADERS = "".join(
    f"{name}: {value}\r\n"
    for name, value in {
        "Authorization": f"Bearer {SECRET['authorization']}",
        "Cookie": f"security_authentication={SECRET['cookie']}",
        "X-Api-Key": SECRET["header"],
        "X-Amz-Security-Token": SECRET["session-token"],
        "X-Proxy-User": SECRET["proxy-user"],
    }.items()
)
MEDIA = {"type": "image", "source": {"type": "base64", "format": "png", "data": "iVBORw0KGgo="}, "x": SECRET["block"]}
CREDENTIAL = {"credential": {"access_key": SECRET["body-credential"], "secret_key": SECRET["body-credential"]}}

BODIES: list[Any] = [
    {"parameters": {"question": "hi", "openAI_key": SECRET["parameter"]}},
    {"input": "hi", "parameters": {"api_key": SECRET["parameter"]}, **CREDENTIAL},
    {"input": [{"type": "text", "text": "hi"}, MEDIA], **CREDENTIAL},
    {"input": [{"type": "text", "text": 3, "credential": SECRET["block"]}], **CREDENTIAL},
    {"input": {"api_key": SECRET["block"]}},
    {"input": [{"type": "image", "source": {"type": "url", "url": f"https://u:{SECRET['userinfo']}@h/a.png"}}]},
    {"input": "hi", "parameters": [SECRET["parameter"]]},
    [SECRET["block"]],
]


class Variant(Cluster):
    """A cluster that shows the secrets of its connectors, as an administrator's account may see them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.seen += f"{request.raw_path}\n{dict(request.headers)}\n{(await request.read()).decode('latin-1')}\n"
        answer = await super().answer(request)
        if request.path.startswith(f"{ML}connectors/") and request.method == "GET":
            document = json.loads(answer.body)  # type: ignore[arg-type]
            document["credential"] = {"access_key": SECRET["connector"], "secret_key": SECRET["connector"]}
            for action in document.get("actions", []):
                action["headers"] = {"Authorization": f"Bearer {SECRET['connector-header']}"}
            return web.json_response(document)
        return answer


MODES: dict[str, dict[str, Any]] = {
    "pass": {},
    "accounts": {
        "upstream": {"auth": {"mode": "basic", "basic": {"username": "u", "password": {"env": "UPSTREAM"}}}},
        "agents": {"lookup": "service_account", "service_account": {"username": "s", "password": {"env": "ACCOUNT"}}},
    },
    "sigv4": {"upstream": {"auth": {"mode": "sigv4", "sigv4": {"region": "eu-west-1"}}}},
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (
        ("UPSTREAM", "upstream-account"), ("ACCOUNT", "account"), ("ADMIN", "admin-token"),
        ("AWS_SECRET_ACCESS_KEY", "aws-secret-key"), ("AWS_SESSION_TOKEN", "aws-session-token"),
    ):  # fmt: skip
        monkeypatch.setenv(name, SECRET[place])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")


def _settings(url: str, mode: str) -> Any:
    import os

    over = MODES[mode]
    listen = {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2, "admin_token": {"env": "ADMIN"}}
    data = {"listen": listen, "upstream": {"url": url, **over.get("upstream", {})}, "agents": over.get("agents", {})}
    return load(None, os.environ, data)


def _post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path}?api_key={SECRET['query']} HTTP/1.1\r\nHost: a\r\n{HEADERS}Connection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _requests() -> list[bytes]:
    bodies = [json.dumps(body).encode() for body in BODIES]
    bodies.append(b'{"input": "hi", "credential": {"secret_key": "%b"' % SECRET["malformed"].encode())
    runs = [_post(f"{ML}agents/{agent}/_execute", body) for agent in (FLOW, V1, "absent") for body in bodies]
    create = _post(f"{ML}connectors/_create", json.dumps(CREDENTIAL).encode())
    bad = SECRET["malformed"].encode()
    return [
        *runs,
        create,
        b"GET http://u:%b@a/ HTTP/1.1\r\nHost: a\r\n\r\n" % SECRET["userinfo"].encode(),
        b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer %b\r\n\r\n" % bad,
        b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n folded %b\r\n\r\n" % bad,
        b"GET /?%b HTTP/9.9\r\nHost: a\r\n\r\n" % bad,
        b"GET / HTTP/1.1\r\nHost: u:%b@a\r\n\r\n" % bad,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\n" % bad,
    ]


async def _all(gateway: Gateway) -> list[bytes]:
    return await asyncio.gather(*(send_until_closed(gateway.data_port, request) for request in _requests()))


def _leaks(text: str) -> list[str]:
    shown = [place for place, value in SECRET.items() if value in text]
    return shown + [f"{place}, base64" for place, value in SECRET.items() if _coded(value) in text]


def _coded(value: str) -> str:
    return base64.b64encode(value.encode()).decode().rstrip("=")[:-1]


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_the_gateway_says_has_a_secret(mode: str) -> None:
    written = io.StringIO()
    cluster = Variant()
    async with server_of(cluster) as server:
        gateway = build(_settings(f"http://127.0.0.1:{server.port}", mode), log=configure("debug", "json", written))
        await gateway.start()
        answers = await _all(gateway)
        cluster.lookup_status, cluster.answers = 403, [(400, {"status": 400, "error": {"reason": "no"}})]
        await gateway.reload(gateway.settings, gateway.log)  # clears the caches
        answers += await _all(gateway)
        dispatcher = gateway._now.port.dispatcher
        sound, dispatcher._execute, dispatcher._fast = dispatcher._execute, _broken, None
        answers += await _all(gateway)
        dispatcher._execute = sound
    await asyncio.sleep(0)
    answers += await _all(gateway)  # the cluster is gone
    pages = [
        await send_until_closed(
            gateway.admin_port, f"GET {path} HTTP/1.1\r\nHost: a\r\n{token}Connection: close\r\n\r\n".encode()
        )
        for path in ("/metrics", "/health/ready")
        for token in ("", f"Authorization: Bearer {SECRET['admin-token']}\r\n", HEADERS)
    ]
    await gateway.stop()
    log = written.getvalue()

    assert all(answer.startswith(b"HTTP/1.1 ") for answer in (*answers, *pages))
    statuses = {answer.split()[1] for answer in answers}
    assert {b"200", b"400", b"500", b"502"} <= statuses, statuses
    assert b'intent="execute",status="502"' in pages[1]
    assert '"event": "step"' in log
    assert '"event": "internal error"' in log
    assert _leaks(log) == []
    assert _leaks(b"\n".join((*answers, *pages)).decode("latin-1")) == []
    assert set(_leaks(cluster.seen)) >= _ARRIVES[mode], "the secrets were there to be shown"


_ARRIVES = {
    "pass": {"authorization", "cookie", "query", "body-credential", "session-token"},
    "accounts": {"cookie", "query", "body-credential"},
    "sigv4": {"aws-session-token", "query", "body-credential"},
}


async def _broken(call: object) -> Any:
    key = SECRET["local"]
    raise RuntimeError(f"a fault of {len(key)}")


@pytest.mark.parametrize(
    "over",
    [
        {"upstream": {"url": f"http://u:{SECRET['userinfo']}@h"}},
        {"upstream": {"nodes": [f"https://u:{SECRET['userinfo']}@h"]}},
        {"listen": {"admin_token": SECRET["admin-token"]}},
        {"upstream": {"auth": {"basic": {"password": SECRET["account"]}}}},
        {"upstream": {"auth": {"basic": SECRET["account"]}}},
        {"agents": {"service_account": {"password": {"value": SECRET["account"]}}}},
    ],
)
def test_nothing_said_of_wrong_settings_has_one(over: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_for("http://127.0.0.1:1", over)
    assert _leaks(str(caught.value)) == []
