"""Metrics beyond loopback need a token; the health pages stay open, for probes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from gateway.cli import run
from gateway.config.consistency import is_local
from gateway.config.load import ConfigError, load
from tests.conftest import StartGateway, settings_for
from tests.lifecycle.process import Process
from tests.proxy.use_case import UseCase
from tests.wire import Parsed, RecordingUpstream, send_request

GET = b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n"
TOKEN = "s3cr3t-t0ken-of-tests"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("unix:/a", True), ("", False),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_what_is_local(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_start_is_refused_without_a_token_beyond_loopback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: {admin_host: 0.0.0.0}")
    reason = "listen.admin_token: is needed when listen.admin_host is not a loopback address\n"
    for command in (["check-config"], ["serve"]):
        assert run([*command, "-c", str(file)]) == 2
        assert capsys.readouterr().err == reason


def test_a_token_lets_it_start() -> None:
    listen = {"admin_host": "0.0.0.0", "admin_token": {"env": "TOKEN"}}
    assert load(None, {"TOKEN": TOKEN}, {"listen": listen}).listen.admin_token.reveal() == TOKEN
    with pytest.raises(ConfigError):
        load(None, {"TOKEN": ""}, {"listen": listen})


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


async def test_a_unix_socket_asks_for_the_token_too(
    token_file: Path, tmp_path: Path, start_gateway: StartGateway
) -> None:
    socket = tmp_path / "admin"
    async with RecordingUpstream() as upstream:
        listen = {"admin_host": f"unix:{socket}", "admin_token": {"file": str(token_file)}}
        await start_gateway(upstream.url, UseCase(), {"listen": listen})
        async with aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(socket))) as client:
            for path in ("/metrics", "/memory/sessions", "/inspector/api/exchanges"):
                async with client.get(path) as refused:
                    assert refused.status == 401, path
            async with client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}) as shown:
                assert shown.status == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"", 401),
        (b"Authorization: Bearer s3cr3t-t0ken-of-tests\r\n", 200),
        (b"authorization: bearer  s3cr3t-t0ken-of-tests\r\n", 200),
        (b"Authorization: Bearer s3cr3t-t0ken-of-testS\r\n", 401),
        (b"Authorization: Bearer s3cr3t-t0ken-of-test\r\n", 401),
        (b"Authorization: Bearer\r\n", 401),
        (b"Authorization: Basic s3cr3t-t0ken-of-tests\r\n", 401),
        (b"Authorization: s3cr3t-t0ken-of-tests\r\n", 401),
        (b"Authorization: Bearer \xff\r\n", 401),
        (b"Authorization: Bearer s3cr3t-t0ken-of-tests\r\nAuthorization: Bearer x\r\n", 401),
    ],
)
async def test_who_sees_the_metrics(header: bytes, status: int, token_file: Path, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"listen": {"admin_token": {"file": str(token_file)}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        metrics = await send_request(gateway.admin_port, GET % (b"/metrics", header))
        nowhere = await send_request(gateway.admin_port, GET % (b"/", header))
        health = [
            await send_request(gateway.admin_port, GET % (b"/health/" + page, header)) for page in (b"live", b"ready")
        ]
    assert _status(metrics) == status
    assert _status(nowhere) == (401 if status == 401 else 404)
    assert [_status(answer) for answer in health] == [200, 200]
    if status == 401:
        assert json.loads(metrics.body)["error"]["type"] == "Unauthorized"
        assert metrics.values("www-authenticate") == [b"Bearer"]


@pytest.mark.parametrize(
    "path", [b"/health/../metrics", b"/health/%2e%2e/metrics", b"/health/..%2fmetrics", b"//health/../metrics"]
)
async def test_no_path_leads_past_the_token(path: bytes, token_file: Path, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase(), {"listen": {"admin_token": {"file": str(token_file)}}})
        assert _status(await send_request(gateway.admin_port, GET % (path, b""))) in (401, 404)


async def test_a_reload_changes_the_token(token_file: Path, start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        over = {"listen": {"admin_token": {"file": str(token_file)}}}
        gateway = await start_gateway(upstream.url, UseCase(), over)
        await asyncio.to_thread(token_file.write_text, "an0ther-t0ken-of16")
        port = {"data_port": gateway.settings.listen.data_port, "admin_port": gateway.settings.listen.admin_port}
        await gateway.reload(settings_for(upstream.url, {"listen": {**over["listen"], **port}}), gateway.log)
        old = await send_request(gateway.admin_port, GET % (b"/metrics", f"Authorization: Bearer {TOKEN}\r\n".encode()))
        new = await send_request(
            gateway.admin_port, GET % (b"/metrics", b"Authorization: Bearer an0ther-t0ken-of16\r\n")
        )
    assert (_status(old), _status(new)) == (401, 200)


@pytest.mark.slow
async def test_a_supervisor_asks_for_it_too(token_file: Path, tmp_path: Path) -> None:
    listen = {"workers": 2, "admin_token": {"file": str(token_file)}}
    async with Process(tmp_path, {"listen": listen}) as gateway:
        _, admin = await gateway.ports(workers=2)
        strange = await send_request(admin, GET % (b"/metrics", b""))
        known = await send_request(admin, GET % (b"/metrics", f"Authorization: Bearer {TOKEN}\r\n".encode()))
        live = await send_request(admin, GET % (b"/health/live", b""))
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert [_status(answer) for answer in (strange, known, live)] == [401, 200, 200]
    for worker in (b"0", b"1"):
        assert b'mlc_gateway_worker_up{worker="%b"} 1.0' % worker in known.body


def _status(answer: Parsed) -> int:
    return int(answer.line.split()[1])
