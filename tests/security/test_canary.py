"""Secrets that are sent through every route, header, error and setting are in nothing that the gateway writes or shows.

Two may have them: the cluster, to which requests are passed on, and the client that sent them, as the cluster's answer
is its own. Both are checked to have got them, so that the other checks mean something.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.app import Gateway, build
from gateway.cli import run, tail
from gateway.config.load import load
from gateway.observe.logs import configure
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.access_log import apache_line, json_line
from gateway.recording.sinks.registry import open_store
from gateway.recording.store import Filter
from tests.conftest import settings_for
from tests.execute.stub_cluster import server_of
from tests.lifecycle.process import Process
from tests.lifecycle.test_workers import children
from tests.security.canaries import (
    CORES,
    MEMBERS,
    QUERY,
    LeakyCluster,
    document,
    har,
    leaks,
    named,
    post,
    requests,
    secret,
)
from tests.telemetry.collector import running_collector
from tests.tls.certificates import Pki
from tests.wire import RecordingUpstream, reserved, send_until_closed

_AT_ONCE = 8
ENVIRONMENT = {"GUARDRAIL": "guardrail", "COLLECTOR": "collector", "ADMIN": "admin-token", "ACCOUNT": "account"}
"""Variables of the environment, and the places of their secrets."""


@dataclass
class Shown:
    """What the gateway wrote and showed, by where. answers: to clients. seen: by the cluster."""

    texts: dict[str, bytes] = field(default_factory=dict)
    answers: list[bytes] = field(default_factory=list)
    seen: bytes = b""
    records: list[ExchangeRecord] = field(default_factory=list)


def settings_of(folder: Path, url: str, collector: str, closed: int, payloads: bool) -> Any:
    webhook = {
        "name": "fails",
        "url": f"http://127.0.0.1:{closed}/",
        "secret": {"env": "GUARDRAIL"},
        "header": "X-Hook",
    }
    account = {"url": f"http://127.0.0.1:{closed}", "username": "u", "password": {"env": "ACCOUNT"}}
    data = {
        "listen": {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2, "admin_token": {"env": "ADMIN"}},
        "upstream": {"url": url},
        "limits": {"text": 60_000},
        "logs": {
            "level": "debug",
            "payloads": payloads,
            "access": "json" if payloads else "apache",
            "access_file": str(folder / "access.log"),
        },
        "inspector": {
            "enabled": True,
            "passthrough": "bodies",
            "media": "keep",
            "stores": ["sqlite", "audit_file", "opensearch"],
            "opensearch": account,
            "sqlite": {"directory": str(folder / "sqlite")},
            "audit_file": {"path": str(folder / "audit.jsonl")},
        },
        "telemetry": {"traces": {"endpoint": collector, "secret": {"env": "COLLECTOR"}, "messages": True}},
        "memory": {"opensearch": account},
        "policy": {
            "usage": True,
            "usage_header": True,
            "budgets": [{"tokens": 10**9}],
            "budget_store": "opensearch",
            "on_store_failure": "allow",
            "guardrails": [{**webhook, "on_failure": "allow"}],
        },
    }
    return load(None, {name: secret(place) for name, place in ENVIRONMENT.items()}, data)


async def _send(gateway: Gateway, requests: list[bytes]) -> list[bytes]:
    """Send the requests; for one that states more than it has, end the connection."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def send(request: bytes) -> bytes:
        async with gate:
            if b"Content-Length: 1000\r\n" not in request:
                return await send_until_closed(gateway.data_port, request)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
            writer.write(request)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return b""

    return await asyncio.gather(*map(send, requests))


async def _run(folder: Path, payloads: bool) -> Shown:
    shown, log, cluster = Shown(), io.StringIO(), LeakyCluster()
    with running_collector() as collector, reserved() as closed:
        async with server_of(cluster) as server:
            settings = settings_of(folder, f"http://127.0.0.1:{server.port}", collector.url, closed, payloads)
            gateway = build(settings, log=configure("debug", "json", log, payloads))
            await gateway.start()
            shown.answers += await _send(gateway, requests())
        shown.answers += await _send(gateway, requests()[::4])  # the cluster is gone
        await gateway._recording.stop()
        shown.texts |= await _pages(gateway)
        await gateway.stop()
        shown.texts["spans"] = b"".join(collector.bodies)
    shown.seen = cluster.seen
    shown.texts["log"] = log.getvalue().encode()
    shown.texts |= {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder)}
    shown.records = _records(settings)
    lines = [line(record) for record in shown.records for line in (json_line, apache_line)]
    shown.texts["access log"] = "\n".join(lines).encode()
    return shown


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _records(settings: Any) -> list[ExchangeRecord]:
    store = open_store(settings.inspector)
    assert store is not None
    with contextlib.closing(store):
        found = []
        after = 0
        while rows := store.newer(Filter(), after):
            for row in rows:
                record = store.get(row.record.id)
                assert record is not None
                found.append(record)
                after = row.position
        return found


async def _pages(gateway: Gateway) -> dict[str, bytes]:
    """Return all pages of the admin port."""
    found = {}
    url = f"http://127.0.0.1:{gateway.admin_port}"
    headers = {"Authorization": f"Bearer {secret('admin-token')}"}
    async with aiohttp.ClientSession(url, headers=headers) as client:

        async def get(path: str) -> bytes:
            async with client.get(path) as answer:
                found[path] = await answer.read()
                assert answer.status < 500 or path == "/health/ready", path
                return found[path]

        for path in ("/metrics", "/health/ready", "/inspector/", "/inspector/migration", "/inspector/export.har"):
            await get(path)
        for path in ("exchanges?limit=500", "values", "migration"):
            await get(f"/inspector/api/{path}")
        rows = json.loads(await get("/inspector/api/exchanges?limit=500"))["rows"]
        found["tail"] = "\n".join(line.plain for row in rows for line in tail.lines_of(row, 80)).encode()
        for row in rows[:: max(1, len(rows) // 12)]:
            one = f"/inspector/exchanges/{row['id']}"
            for tab in ("overview", "request", "response", "llm"):
                await get(f"{one}?tab={tab}")
            for name in ("curl", "python", "pytest"):
                await get(f"{one}/{name}")
        for place in ("credential", "authorization"):
            text = await get(f"/inspector/api/exchanges?text={CORES[place]}")
            assert json.loads(text)["rows"] == []
            found[f"search for {place}"] = found.pop(f"/inspector/api/exchanges?text={CORES[place]}")
        for path in (f"exchanges/{secret('admin-path')}", f"?text={secret('admin-path')}", "api/exchanges?status=x"):
            async with client.get(f"/inspector/{path}") as answer:
                await answer.read()  # may name what was asked for; the log may not
    async with aiohttp.ClientSession(url) as client:
        for token in (secret("wrong-admin-token"), secret("admin-token")):
            data, origin = {"token": token, "next": "/inspector/"}, {"Origin": url}
            async with client.post("/inspector/login", data=data, headers=origin, allow_redirects=False) as answer:
                found[f"login {len(found)}"] = str(answer.headers).encode() + await answer.read()
        async with client.get("/metrics", headers={"Authorization": f"Bearer {secret('wrong-admin-token')}"}) as answer:
            found["refused"] = str(answer.headers).encode() + await answer.read()
    return found


@pytest.fixture(
    scope="module", params=[pytest.param(False, id="masked"), pytest.param(True, id="payloads", marks=pytest.mark.slow)]
)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return asyncio.run(_run(tmp_path_factory.mktemp("canary"), request.param))


@pytest.mark.slow
def test_nothing_that_is_written_or_shown_has_a_secret(shown: Shown) -> None:
    assert {where: found for where, text in shown.texts.items() if (found := leaks(text))} == {}


def test_the_secrets_were_there_to_be_shown(shown: Shown) -> None:
    """Requests arrive at the cluster as they are, and its answers at the client."""
    seen = set(leaks(shown.seen))
    assert {*MEMBERS, *QUERY, "pair", "value first", "header list", "flat", "MCP header", "MCP credential"} <= seen
    assert {"basic", "bearer", "scheme", "cbor", "utf-16", "multipart"} <= seen
    assert {"set-cookie", "answered-token"} <= set(leaks(b"".join(shown.answers)))
    statuses = {answer.split()[1] for answer in shown.answers if answer}
    assert {b"200", b"400", b"413", b"502"} <= statuses
    kinds = {(record.intent, bool(record.error)) for record in shown.records}
    assert {("execute", False), ("execute", True), ("passthrough", False), ("passthrough", True)} <= kinds
    assert sum("[REDACTED" in str(record) for record in shown.records) > len(shown.records) * 0.9


@pytest.mark.slow
def test_no_client_gets_a_secret_of_the_settings_or_of_a_connector(shown: Shown) -> None:
    own = {*ENVIRONMENT.values(), "stored-credential", "stored-header"}
    assert own & set(leaks(b"".join(shown.answers))) == set()


def test_the_secrets_of_the_settings_reach_only_their_servers(shown: Shown) -> None:
    assert set(ENVIRONMENT.values()) & set(leaks(shown.seen)) == set()


async def test_nothing_said_of_plain_http_on_a_port_with_tls_has_a_secret(tmp_path: Path) -> None:
    cert, key = Pki(tmp_path).issue("gateway", "127.0.0.1")
    log = io.StringIO()
    over = {"listen": {"tls": {"cert_file": cert, "key_file": key}}}
    gateway = build(settings_for("http://127.0.0.1:9", over), log=configure("debug", "json", log, payloads=True))
    await gateway.start()
    answers = [await send_until_closed(gateway.data_port, post("/a", b"{}")) for _ in range(2)]
    await gateway.stop()
    assert leaks(log.getvalue()) == leaks(b"".join(answers)) == []


def test_a_har_file_of_another_program_is_imported_without_its_secrets(tmp_path: Path) -> None:
    file, settings = tmp_path / "x.har", tmp_path / "gateway.yaml"
    file.write_bytes(har())
    directory = tmp_path / "stored"
    settings.write_text(json.dumps({"inspector": {"enabled": True, "sqlite": {"directory": str(directory)}}}))
    assert run(["har", "import", "-c", str(settings), str(file)]) == 0
    [record] = _records(load(settings))
    assert record.request.body.text
    stored = b"".join(path.read_bytes() for path in _files(directory))
    assert leaks(stored + msgspec.json.encode(record)) == []


@pytest.mark.slow
async def test_no_argument_of_a_process_and_no_live_event_of_a_worker_has_a_secret(tmp_path: Path) -> None:
    """Two workers of a gateway in processes of its own, with secrets in its environment."""
    async with RecordingUpstream() as upstream:
        settings = {
            "upstream": {"url": upstream.url},
            "agents": {
                "lookup": "service_account",
                "service_account": {"username": "u", "password": {"env": "ACCOUNT"}},
            },
            "listen": {"workers": 2, "admin_token": {"env": "ADMIN"}},
            "inspector": {"enabled": True, "passthrough": "bodies", "sqlite": {"directory": str(tmp_path / "s")}},
        }
        environment = {name: secret(place) for name, place in ENVIRONMENT.items()}
        async with Process(tmp_path, settings, environment) as gateway:
            port, admin = await gateway.ports(2)
            pids = [gateway.process.pid, *children(gateway.process.pid)]
            arguments = _arguments(pids)
            body = json.dumps(document(**named())).encode()
            for _ in range(40):  # the kernel chooses the worker
                await send_until_closed(port, post("/index/_doc", body))
            shown = await _live(admin, 40)
    assert len(pids) == 3
    assert arguments.count(b"gateway") >= 3
    assert len({record.worker for record in _records(load(gateway.file, environment))}) == 2
    assert {*MEMBERS, *QUERY} <= set(leaks(b"".join(request.line + request.body for request in upstream.requests)))
    assert leaks(arguments + shown + json.dumps([gateway.events, gateway.printed]).encode()) == []


def _arguments(pids: list[int]) -> bytes:
    """Return the arguments of processes, as `ps` shows them."""
    return b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


async def _live(admin: int, count: int) -> bytes:
    """Return the live events of an admin port, from the first to the one with the `count`th exchange."""
    url = f"http://127.0.0.1:{admin}/inspector/api/live?after=0"
    headers, shown = {"Authorization": f"Bearer {secret('admin-token')}"}, b""
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as answer:
        while shown.count(b'"position":') < count:
            shown += await answer.content.readline()
    return shown


WRONG: dict[str, Any] = {
    "a password in place of its source": {"upstream": {"auth": {"basic": {"username": "u", "password": "SECRET"}}}},
    "a store's password": {"memory": {"opensearch": {"username": "u", "password": "SECRET"}}},
    "a store's URL": {"memory": {"opensearch": {"url": "https://u:SECRET@host"}}},
    "a webhook's secret": {"policy": {"guardrails": [{"name": "a", "url": "http://h/", "secret": "SECRET"}]}},
    "a webhook's URL": {"policy": {"guardrails": [{"name": "a", "url": "http://u:SECRET@h/"}]}},
    "a collector's secret": {"telemetry": {"traces": {"endpoint": "http://h/", "secret": {"value": "SECRET"}}}},
    "a collector's URL": {"telemetry": {"traces": {"endpoint": "http://u:SECRET@h/"}}},
    "the exchanges' store": {"inspector": {"opensearch": {"url": "https://u:SECRET@h", "password": "SECRET"}}},
    "an unknown member": {"upstream": {"password": "SECRET"}},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_no_message_about_a_wrong_settings_file_has_a_secret(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(WRONG[name]).replace("SECRET", secret("settings-file")))
    assert run([command, "-c", str(file)]) != 0
    printed = capsys.readouterr()
    assert leaks(printed.out + printed.err) == []
