"""`/reload` on the admin port: reloads the settings, tells which are in effect, and why others are refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway.config.schema import Secret
from tests.conftest import StartGateway
from tests.lifecycle.process import Process
from tests.lifecycle.test_workers import children
from tests.proxy.use_case import UseCase
from tests.wire import send_request

REFUSED = 409


async def _ask(port: int, method: str = "GET", *headers: str) -> tuple[int, dict[str, Any]]:
    lines = [f"{method} /reload HTTP/1.1", "Host: localhost", "Content-Length: 0", *headers, "", ""]
    answer = await send_request(port, "\r\n".join(lines).encode())
    return int(answer.line.split()[1]), json.loads(answer.body)


def _digest(gateway: Process) -> str:
    return hashlib.sha256(gateway.file.read_bytes()).hexdigest()


def _settings(level: str, workers: int = 1) -> dict[str, Any]:
    return {"upstream": {"url": "http://127.0.0.1:1"}, "listen": {"workers": workers}, "logs": {"level": level}}


async def test_a_post_reloads_the_settings_and_the_digest_tells_which_run(tmp_path: Path) -> None:
    """So does SIGHUP. A refused one leaves the old settings in effect."""
    async with Process(tmp_path, _settings("info")) as gateway:
        _, admin = await gateway.ports()
        old = _digest(gateway)
        assert await _ask(admin) == (200, {"running": old, "file": old})

        gateway.write(_settings("debug"))
        new = _digest(gateway)
        assert await _ask(admin) == (200, {"running": old, "file": new})
        reloaded = {"status": "reloaded", "problems": [], "running": new, "file": new}
        assert await _ask(admin, "POST") == (200, reloaded)
        await gateway.event("settings reloaded")

        gateway.write(_settings("loud"))
        bad = _digest(gateway)
        status, answer = await _ask(admin, "POST")
        [problem] = answer.pop("problems")
        assert (status, answer) == (REFUSED, {"status": "refused", "running": new, "file": bad})
        assert problem.startswith("logs.level: is not allowed here; ")
        await gateway.event("reload failed")

        gateway.write(_settings("info"))
        gateway.signal(signal.SIGHUP)
        await gateway.event("settings reloaded", 2)
        assert await _ask(admin) == (200, {"running": old, "file": old})
        await asyncio.to_thread(gateway.file.unlink)
        assert await _ask(admin) == (200, {"running": old, "file": ""})


@pytest.mark.slow
async def test_a_post_reloads_all_workers_or_none(tmp_path: Path) -> None:
    """The answer comes when all have reloaded."""
    async with Process(tmp_path, _settings("info", 2)) as gateway:
        _, admin = await gateway.ports(2)
        old = _digest(gateway)
        assert await _ask(admin) == (200, {"running": old, "file": old, "workers": "2 of 2"})
        gateway.write(_settings("debug", 2))
        new = _digest(gateway)
        shown = {"running": new, "file": new, "workers": "2 of 2"}
        assert await _ask(admin, "POST") == (200, {"status": "reloaded", "problems": [], **shown})
        assert await _ask(admin) == (200, shown)
        gateway.write(_settings("debug", 3))
        status, answer = await _ask(admin, "POST")
        assert (status, answer["problems"]) == (REFUSED, ["listen.workers: can't change without a restart"])
        assert (answer["running"], answer["file"]) == (new, _digest(gateway))
        assert sum(event["event"] == "settings reloaded" for event in gateway.events) == 2


@pytest.mark.slow
async def test_a_worker_that_is_not_there_reloads_when_it_starts(tmp_path: Path) -> None:
    """The answer says that not all have: ask again."""
    async with Process(tmp_path, _settings("info", 2)) as gateway:
        _, admin = await gateway.ports(2)
        worker = children(gateway.process.pid)[0]
        os.kill(worker, signal.SIGSTOP)
        try:
            gateway.write(_settings("debug", 2))
            status, answer = await _ask(admin)
            assert (status, answer["running"], answer["workers"]) == (200, "", "1 of 2")
        finally:
            os.kill(worker, signal.SIGKILL)
        await gateway.event("worker ended")
        while (await _ask(admin, "POST"))[0] != 200:
            pass
        assert (await _ask(admin))[1] == {
            "running": _digest(gateway), "file": _digest(gateway), "workers": "2 of 2",
        }  # fmt: skip


async def test_a_gateway_without_a_source_has_no_such_page(start_gateway: StartGateway) -> None:
    """It is embedded, or a test."""
    gateway = await start_gateway("http://127.0.0.1:1", UseCase())
    for method in ("GET", "POST"):
        assert (await _ask(gateway.admin_port, method))[0] == 404


class _Reloads:
    """Stands for the settings of a gateway."""

    running = "r"
    count = 0

    async def file(self) -> str:
        return "f"

    async def run(self) -> list[str]:
        self.count += 1
        return []


@pytest.mark.parametrize("header", ["Origin: http://elsewhere.example", "Origin: null"])
async def test_pages_of_other_sites_reload_nothing(header: str, start_gateway: StartGateway) -> None:
    """A web page can send requests to the loopback interface."""
    reloads = _Reloads()
    gateway = await start_gateway("http://127.0.0.1:1", UseCase())
    gateway.offer_reloads(reloads)
    assert (await _ask(gateway.admin_port, "POST", header))[0] == 403
    assert reloads.count == 0
    assert await _ask(gateway.admin_port) == (200, {"running": "r", "file": "f"})


async def test_the_token_is_asked_for(start_gateway: StartGateway) -> None:
    """As on all pages but those of health."""
    reloads = _Reloads()
    gateway = await start_gateway("http://127.0.0.1:1", UseCase())
    gateway.offer_reloads(reloads)
    gateway._admin_pages.token = Secret("a token of the admin port")
    assert [(await _ask(gateway.admin_port, method))[0] for method in ("GET", "POST")] == [401, 401]
    assert reloads.count == 0
    authorized = "Authorization: Bearer a token of the admin port"
    assert (await _ask(gateway.admin_port, "POST", authorized))[0] == 200
    assert reloads.count == 1
