"""A gateway in a process of its own, as operators run it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.docs.pages import ROOT
from tests.wire import PATIENCE


class Process:
    """``mlc-gateway serve`` with `settings` in a file, and more variables in its environment.

    installed: run it in `folder`, from which nothing is imported, as by the command that is installed.
    events: its log so far. printed: all other lines.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        environment: Mapping[str, str] | None = None,
        installed: bool = False,
    ) -> None:
        self.file = folder / "gateway.yaml"
        self._environment = dict(environment or {})
        self._options: tuple[str, ...] = ()
        self._directory = Path.cwd()
        if installed:
            self._environment["PYTHONPATH"] = str(ROOT)
            self._options, self._directory = ("-P",), folder
        self.events: list[dict[str, Any]] = []
        self.printed: list[str] = []
        self._more = asyncio.Condition()
        self.write(settings)

    def write(self, settings: dict[str, Any] | str) -> None:
        """Put new settings into the file."""
        if isinstance(settings, dict):
            listen = {"data_port": 0, "admin_port": 0, "shutdown_seconds": 30, **settings.get("listen", {})}
            settings = json.dumps({**settings, "listen": listen})
        self.file.write_text(settings)

    async def __aenter__(self) -> Process:
        environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("GATEWAY__")}
        environ |= self._environment
        command = (sys.executable, *self._options, "-m", "gateway", "serve", "-c", str(self.file))
        self.process = await asyncio.create_subprocess_exec(
            *command, stderr=asyncio.subprocess.PIPE, env=environ, cwd=self._directory
        )
        self._reading = asyncio.create_task(self._read())
        self._limit = asyncio.timeout(3 * PATIENCE)  # no test hangs, whatever it waits for
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, exc, trace)
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
            await self._reading

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:  # not from the log, or torn
                self.printed.append(line.decode())
                continue
            async with self._more:
                self.events.append(event)
                self._more.notify_all()

    async def event(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The first `count` lines of the log with this event, awaited."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if event["event"] == name]

        try:
            async with asyncio.timeout(PATIENCE), self._more:
                await self._more.wait_for(lambda: len(found()) >= count)
        except TimeoutError:
            raise AssertionError(f"no {name} ({count}) in {self.events}; it printed {self.printed}") from None
        return found()[:count]

    async def ports(self, workers: int = 1) -> tuple[int, int]:
        """The data port and the admin port, once all listen."""
        supervised = workers > 1
        count = 2 * workers + 1 if supervised else 2
        listening = [
            event for event in await self.event("listening", count) if not event["address"].startswith("unix:")
        ]
        admin = next(port(event) for event in listening if not supervised or "worker" not in event)
        data = {port(event) for event in listening} - {admin}
        assert len(data) == 1, f"{self.events}; it printed {self.printed}"
        return data.pop(), admin

    async def ended(self) -> int:
        """Its exit status, awaited."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nobody tells."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def port(event: dict[str, Any]) -> int:
    return int(event["address"].rpartition(":")[2])
