"""SIGHUP: the settings are swapped whole, or not at all, and no request notices."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.app.wiring import UseCases
from gateway.config.inspector import Inspector
from gateway.recording.store import RecordSink, StoreError
from tests.conftest import StartGateway
from tests.lifecycle.load import Tally, client, echo
from tests.lifecycle.process import PATIENCE, Process
from tests.proxy.use_case import UseCase
from tests.tls.certificates import Pki
from tests.wire import RecordingUpstream, read_message, send_request

ASK = b"GET / HTTP/1.1\r\nHost: c\r\n\r\n"


def answering(name: str) -> RecordingUpstream:
    return RecordingUpstream([f"HTTP/1.1 200 OK\r\nContent-Length: {len(name)}\r\n\r\n{name}".encode()])


def upstream(url: str) -> dict[str, Any]:
    return {"upstream": {"url": url}}


@pytest.mark.slow
async def test_the_next_request_is_served_by_the_new_settings_on_open_connections_too(tmp_path: Path) -> None:
    async with answering("old") as old, answering("new") as new, Process(tmp_path, upstream(old.url)) as gateway:
        port, admin = await gateway.ports()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        assert (await read_message(reader)).body == b"old"
        gateway.write({**upstream(new.url), "logs": {"level": "debug"}})
        gateway.signal(signal.SIGHUP)
        await gateway.event("settings reloaded")
        writer.write(ASK)
        assert (await read_message(reader)).body == b"new"
        assert (await send_request(port, ASK)).body == b"new"
        assert (
            await send_request(admin, b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        ).body == b'{"status":"ready"}'
        assert [event["intent"] for event in await gateway.event("request", 2)] == ["passthrough"] * 2
        writer.close()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_reload_while_the_process_starts_follows_its_start(tmp_path: Path, workers: int) -> None:
    async with answering("old") as old, answering("new") as new:
        gateway = Process(tmp_path, {**upstream(old.url), "listen": {"workers": workers}})
        settings = gateway.file.read_text()
        gateway.file.unlink()
        os.mkfifo(gateway.file)
        async with gateway:
            with await asyncio.to_thread(gateway.file.open, "w") as pipe:  # until the process reads its settings
                gateway.signal(signal.SIGHUP)
                pipe.write(settings)
                gateway.file.unlink()
                gateway.write({**upstream(new.url), "listen": {"workers": workers}})
            port, _ = await gateway.ports(workers)
            if workers == 1:  # several may have read the new settings at their start
                await gateway.event("settings reloaded")
            assert (await send_request(port, ASK)).body == b"new"


async def test_what_is_wrong_or_fixed_leaves_the_old_settings_in_force(tmp_path: Path) -> None:
    async with answering("old") as old, answering("new") as new, Process(tmp_path, upstream(old.url)) as gateway:
        port, _ = await gateway.ports()
        bad: list[tuple[Any, list[str]]] = [
            ({**upstream(new.url), "logs": {"level": "loud"}}, ["logs.level: is not allowed here; "]),
            ("upstream: [", ["settings: "]),
            ({**upstream(new.url), "agents": {"rules": [{"agent": "a", "provider": "no"}]}}, ["agents.rules[0].prov"]),
            ({"upstream": {"url": "https://x", "tls": {"ca_file": "/no"}}}, ["upstream.tls.ca_file: /no can't be us"]),
            (
                {
                    **upstream(new.url),
                    "memory": {"store": "agentcore"},
                    "inspector": {"enabled": True, "stores": ["opensearch"]},
                    "logs": {"access": "json", "access_file": "/proc/no/access.log"},
                    "agents": {"rules": [{"agent": "a", "provider": "no"}]},
                },
                [
                    "memory.agentcore.memory_id: is needed ",
                    "inspector.opensearch.url: is needed ",
                    "logs.access_file: can't be used: ",
                    "agents.rules[0].provider: no provider 'no'",
                ],
            ),
            (
                {**upstream(new.url), "listen": {"workers": 2, "data_port": 1, "admin_host": "::1"}},
                [
                    "listen.data_port: can't change without a restart",
                    "listen.admin_host: can't change without a restart",
                    "listen.workers: can't change without a restart",
                ],
            ),
        ]
        secret = {"service_account": {"username": "reader", "password": {"env": "NOT_SET"}}}
        several = {
            **upstream(new.url),
            "agents": {**secret, "lookup": "service_account", "rules": [{"agent": "a", "provider": "no"}]},
            "listen": {"data_port": 1, "http": "other"},
            "memory": {"store": "agentcore"},
            "logs": {"level": "loud", "access": "json", "access_file": "/proc/no/access.log"},
        }
        found = [
            "listen.http: is not allowed here; ",
            "agents.service_account.password: the environment variable NOT_SET is not set",
            "logs.level: is not allowed here; ",
            "memory.agentcore.memory_id: is needed ",
            "logs.access_file: can't be used: ",
            "agents.rules[0].provider: no provider 'no'",
            "listen.data_port: can't change without a restart",
        ]
        bad.append((several, found))
        for count, (settings, problems) in enumerate(bad, 1):
            gateway.write(settings)
            gateway.signal(signal.SIGHUP)
            reported = (await gateway.event("reload failed", count))[-1]["problems"]
            assert [text[: len(start)] for text, start in zip(reported, problems, strict=True)] == problems
            assert (await send_request(port, ASK)).body == b"old"
        assert new.requests == []


class _Policy:
    """Stands for the policies of one set of settings."""

    closed = False

    async def ended(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


async def test_a_store_that_cannot_be_opened_closes_what_was_made(start_gateway: StartGateway) -> None:
    policies: list[_Policy] = []

    def use_case(*_: Any) -> UseCases:
        policies.append(_Policy())
        return UseCases(UseCase().execute, UseCase(), policy=policies[-1])

    def open_sinks(*_: Any) -> list[RecordSink]:
        raise StoreError("down")

    gateway = await start_gateway("http://127.0.0.1:1", use_case, sinks=open_sinks)
    recorded = replace(gateway.settings, inspector=Inspector(enabled=True, stores=[]))
    with pytest.raises(StoreError, match="down"):
        await gateway.reload(recorded, gateway.log)
    assert [policy.closed for policy in policies] == [False, True]


@pytest.mark.slow
async def test_requests_in_flight_end_under_the_settings_they_began_under(tmp_path: Path) -> None:
    reloaded = asyncio.Event()

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nol")
        await reloaded.wait()
        writer.write(b"d.")

    async with (
        RecordingUpstream(script=script) as old,
        answering("new") as new,
        Process(tmp_path, upstream(old.url)) as gateway,
    ):
        port, _ = await gateway.ports()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        head = await reader.readuntil(b"\r\n\r\n")
        gateway.write(upstream(new.url))
        gateway.signal(signal.SIGHUP)
        await gateway.event("settings reloaded")
        reloaded.set()
        assert (head[:15], await reader.readexactly(4)) == (b"HTTP/1.1 200 OK", b"old.")
        writer.write(ASK)
        assert (await read_message(reader)).body == b"new"
        writer.close()


@pytest.mark.slow
async def test_reloads_under_load_lose_nothing(tmp_path: Path) -> None:
    async with RecordingUpstream(script=echo) as cluster, Process(tmp_path, upstream(cluster.url)) as gateway:
        port, _ = await gateway.ports()
        tally = Tally()
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as clients:
            for number in range(4):
                clients.create_task(client(f"c{number}", port, tally, "?slow" if number == 0 else ""))
            for count in range(1, 6):
                gateway.signal(signal.SIGHUP)
                await gateway.event("settings reloaded", count)
            gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert tally.lost == []
    assert len(tally.answered) == len(cluster.requests)


@pytest.mark.slow
async def test_new_certificates_are_used_after_a_reload(tmp_path: Path) -> None:
    pki = Pki(tmp_path)

    def settings(name: str) -> dict[str, Any]:
        cert, key = pki.issue(name, "127.0.0.1", f"{name}.test")
        return {**upstream(cluster.url), "listen": {"tls": {"cert_file": cert, "key_file": key}}}

    async def names(port: int) -> list[str]:
        context = ssl.create_default_context(cafile=pki.ca_file)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = writer.get_extra_info("peercert")["subjectAltName"]
        writer.close()
        return [value for _, value in shown]

    async with answering("x") as cluster, Process(tmp_path, settings("one")) as gateway:
        port, _ = await gateway.ports()
        assert "one.test" in await names(port)
        gateway.write(settings("two"))
        gateway.signal(signal.SIGHUP)
        await gateway.event("settings reloaded")
        assert "two.test" in await names(port)
        gateway.write({**upstream(cluster.url)})
        gateway.signal(signal.SIGHUP)
        [failure] = await gateway.event("reload failed")
        assert failure["problems"] == ["listen.tls.cert_file: can't change without a restart"]
        assert "two.test" in await names(port)
