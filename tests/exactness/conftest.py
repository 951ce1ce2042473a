"""The loops these tests run on, and a gateway of its own process before the real cluster."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import uvloop

from tests.exactness.recorder import Recorder
from tests.real_cluster.conftest import real_cluster
from tests.wire import reserved

__all__ = ["real_cluster"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run these tests on both event loops that the gateway may run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Served:
    """A gateway as users run it. pid: of its process, the parent of workers if it has any."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def served(upstream: str, *options: str) -> Iterator[Served]:
    """``python -m gateway serve`` before `upstream`, from the moment it listens."""
    with reserved() as port, reserved() as admin:
        listen = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--log-level", "warning"]
        command = [sys.executable, "-m", "gateway", "serve", "--upstream", upstream, *listen, *options]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            _wait(process, port)
            yield Served(port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the gateway did not start"
            assert time.monotonic() < deadline, "the gateway does not listen"
            time.sleep(0.05)


@dataclass(frozen=True)
class Deployment:
    """The real cluster and a gateway, with a recorder before each: one that goes to the cluster directly, too."""

    cluster: int
    direct: Recorder
    client_side: Recorder
    cluster_side: Recorder
    gateway: Served


@pytest.fixture(scope="session")
def deployment(real_cluster: str) -> Iterator[Deployment]:
    port = int(real_cluster.rpartition(":")[2])
    with (
        Recorder(port) as direct,
        Recorder(port) as cluster_side,
        served(cluster_side.url) as gateway,
        Recorder(gateway.port) as client_side,
    ):
        yield Deployment(port, direct, client_side, cluster_side, gateway)


class Ledger:
    """Counts what was compared; reported at the end of the run."""

    def __init__(self) -> None:
        self.compared: dict[str, int] = {}

    def add(self, what: str, count: int) -> None:
        self.compared[what] = self.compared.get(what, 0) + count


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Iterator[Ledger]:
    book = Ledger()
    yield book
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for what, count in book.compared.items():
            print(f"\nexactness: {what}: {count} requests compared, differences 0", end="", flush=True)
