"""The gateway under attack and the cluster behind it, each a process pinned to a core."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import trustme
import uvloop

from bench.attacks.client import Target, get
from bench.attacks.measure import descriptors, running_workers
from bench.attacks.ping import Plan
from bench.process import PROC, Process, free_port

ROOT = Path(__file__).parents[2]
_WITHOUT_UVLOOP = Path(__file__).parent / "without_uvloop"


@dataclass(frozen=True)
class Setup:
    """How the gateway runs. loop: uvloop or asyncio. tls: upstream, clients, both, or "" for none."""

    loop: str = "uvloop"
    tls: str = ""
    workers: int = 1

    @property
    def clients_tls(self) -> bool:
        return self.tls in ("clients", "both")

    @property
    def upstream_tls(self) -> bool:
        return self.tls in ("upstream", "both")

    def __str__(self) -> str:
        tls = f"TLS {self.tls}" if self.tls else "plain"
        return f"{self.loop}, {tls}, {self.workers} worker{'s' if self.workers > 1 else ''}"


class Stage(AbstractContextManager["Stage"]):
    """gateway, upstream: the processes. port, admin: of the gateway.

    folder: for files. pinned: the gateway gets a core of its own, and others of the machine disturb it less.
    keepalive: seconds for which idle connections to the cluster stay open.
    """

    def __init__(
        self, setup: Setup, settings: Mapping[str, Any], folder: Path, *, pinned: bool = True, keepalive: float = 1.0
    ) -> None:
        self.setup = setup
        self._pinned = pinned
        self._keepalive = keepalive
        cores = _ALL_CORES or sorted(os.sched_getaffinity(0))
        _ALL_CORES[:] = cores
        self.gateway_core, self.other_core = {cores[-1]}, {cores[0]}
        self._settings = settings
        self._folder = folder
        self.authority = str(folder / "authority.pem")
        self._certificate = str(folder / "server.pem")
        self._tls_files()

    def _tls_files(self) -> None:
        if not Path(self.authority).exists():
            authority = trustme.CA()
            authority.cert_pem.write_to_path(self.authority)
            leaf = authority.issue_cert("127.0.0.1")
            leaf.private_key_and_cert_chain_pem.write_to_path(self._certificate)

    def __enter__(self) -> Stage:
        if self._pinned:
            os.sched_setaffinity(0, self.other_core)
        behind = free_port()
        certificate = [self._certificate] if self.setup.upstream_tls else []
        self.upstream = Process(
            "upstream", [*_LAUNCH, "-m", "bench.attacks.upstream", str(behind), *certificate], behind, _PATH
        )
        self.port, self.admin = free_port(), free_port()
        file = self._folder / "gateway.json"
        file.write_text(json.dumps(self._all_settings()))
        env = dict(_PATH)
        if self.setup.loop == "asyncio":
            env["PYTHONPATH"] = os.pathsep.join((str(_WITHOUT_UVLOOP), str(ROOT)))
        command = [*_LAUNCH, "-m", "gateway", "serve", "-c", str(file)]
        self.gateway = Process("gateway", command, self.port, env)
        try:
            self.upstream.wait_until_up()
            self.gateway.wait_until_up()
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        if self._pinned:
            self.gateway.pin(self.gateway_core)
            for process, nice in ((self.gateway, -5), (self.upstream, -10)):
                _raise_priority(process, nice)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gateway.stop()
        self.upstream.stop()
        if self._pinned:
            os.sched_setaffinity(0, _ALL_CORES)

    def _all_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "listen": {"data_port": self.port, "admin_port": self.admin, "workers": self.setup.workers},
            "upstream": {
                "url": f"http{'s' if self.setup.upstream_tls else ''}://127.0.0.1:{self.upstream.port}",
                "keepalive": self._keepalive,
                "connections": 100,
            },
            "logs": {"level": "error"},
        }
        if self.setup.clients_tls:
            settings["listen"]["tls"] = {"cert_file": self._certificate}
        if self.setup.upstream_tls:
            settings["upstream"]["tls"] = {"ca_file": self.authority}
        for part, values in self._settings.items():
            settings.setdefault(part, {}).update(values)
        return settings

    def _wait_until_ready(self) -> None:
        """Wait until all workers answer, and hold no more descriptors than they always do."""
        end = time.monotonic() + 30
        while running_workers(self.admin) < self.setup.workers:
            if time.monotonic() > end:
                raise RuntimeError("the gateway's workers do not answer")
            time.sleep(0.1)
        self._warm_up()
        counts = [descriptors(self.gateway)]
        while len(counts) < 8 or len(set(counts[-8:])) > 1:  # until connections to the cluster have been closed again
            if time.monotonic() > end:
                raise RuntimeError("the gateway's descriptors are not steady")
            time.sleep(0.2 * self._keepalive)
            counts.append(descriptors(self.gateway))

    def _warm_up(self) -> None:
        """Have each worker answer a few requests."""
        target = self.target(1.0)

        async def requests() -> None:
            await target.burst(lambda _: target.ask(get("/bytes/100")), 20 * self.setup.workers, 0.2)

        uvloop.run(requests())

    def terminate(self) -> None:
        """Send SIGTERM to the gateway."""
        os.kill(self.gateway.pids()[0], signal.SIGTERM)

    def wait_for_end(self, seconds: float) -> float | None:
        """Seconds until the gateway has ended; None if it has not."""
        start = time.monotonic()
        while time.monotonic() < start + seconds:
            if self.ended():
                return time.monotonic() - start
            time.sleep(0.02)
        return None

    def ended(self) -> bool:
        """Whether the gateway's process is gone."""
        try:
            return (PROC / f"{self.gateway.pids()[0]}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def accepts(self) -> bool:
        """Whether the data port takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 2).close()
        except OSError:
            return False
        return True

    def target(self, scale: float) -> Target:
        """The gateway, for an attack."""
        context = ssl.create_default_context(cafile=self.authority) if self.setup.clients_tls else None
        return Target(self.port, context, scale, self.terminate, self.gateway.cpu)

    def ping(self, count: int, interval: float) -> subprocess.Popen[str]:
        """Start the other client."""
        plan = Plan(
            self.port, self.upstream.port, self.authority, self.setup.clients_tls, self.setup.upstream_tls,
            count, interval,
        )  # fmt: skip
        command = [*_LAUNCH, "-m", "bench.attacks.ping", json.dumps(plan.__dict__)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


_ALL_CORES: list[int] = []
_LAUNCH = (sys.executable, "-m", "bench.attacks.launch", sys.executable)
_PATH = {"PYTHONPATH": str(ROOT)}


def _raise_priority(process: Process, nice: int) -> None:
    """Let other processes of the machine disturb it less, where that is allowed."""
    for pid in process.pids():
        for task in PROC.glob(f"{pid}/task/*"):
            try:
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
            except OSError:
                return
