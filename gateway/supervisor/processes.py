"""The supervisor: starts several worker processes on one data port, watches them and serves the admin port.

The kernel spreads connections over the workers (SO_REUSEPORT); the supervisor handles none. It restarts a worker that
ends, with a growing delay if it keeps ending, passes on SIGTERM and SIGHUP, and asks the workers for health and metrics
over Unix sockets in a folder of its own. A worker stops when its supervisor ends: its standard input ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from gateway import app
from gateway.admin.application import AdminListener, build_application
from gateway.config.load import ConfigError
from gateway.config.schema import Settings
from gateway.config.source import Source
from gateway.observe.logs import Logger, configure
from gateway.process import RELOAD, STOP_NOW, StopSignals, on_hang_up
from gateway.process import serve as run_gateway
from gateway.proxy.acceptor import UNIX, bind
from gateway.subprocesses import module_command
from gateway.supervisor.admin import SupervisorPages

_FIRST, _LONGEST = 0.2, 30.0
"""Seconds before a worker is restarted: the first time, and at most. The delay doubles each time."""

_STEADY = 10.0
"""Seconds after which a worker counts as healthy, so that the delay starts over."""

_GRACE = 5.0
"""Seconds after their own deadlines before workers are killed."""


class Supervisor:
    """Keeps `settings.listen.workers` processes running. source: from which they load the same settings."""

    def __init__(self, source: Source, settings: Settings, log: Logger) -> None:
        self._source = source
        self._settings = settings
        self._log = log
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._pages = SupervisorPages(settings.listen.workers, self._connect, settings.listen.admin_token)

    async def run(self) -> None:
        """Run until SIGINT or SIGTERM. A second signal ends the drain early.

        Raises:
            OSError: a port can't be opened.
        """
        listen = self._settings.listen
        for one in await bind(
            listen.data_host, listen.data_port
        ):  # fails if the port is taken; a shared bind would not
            one.close()
        reserved = await bind(listen.data_host, listen.data_port, shared=True)
        self._data_port: int = reserved[0].getsockname()[1]
        limits = self._settings.limits
        pages = build_application(self._pages, self._log)
        admin = AdminListener(pages, listen.admin_host, listen.admin_port, limits, self._log, 1.0)
        with tempfile.TemporaryDirectory(prefix="mlc-gateway-") as folder, contextlib.ExitStack() as undo:
            self._folder = Path(folder)
            for one in reserved:
                undo.callback(one.close)
            self._listen_to_signals()
            await admin.start()
            async with asyncio.TaskGroup() as workers:
                for number in range(listen.workers):
                    workers.create_task(self._keep(number))
                await self._stopping.wait()
                self._pages.draining = True
                await self._stop_all()
            await admin.stop()
        self._log.info("stopped")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(self._reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self._stopping = StopSignals(self._stop_now).received
        on_hang_up(reload)

    async def _keep(self, number: int) -> None:
        """Keep worker `number` running until the supervisor stops."""
        loop = asyncio.get_running_loop()
        pause = _FIRST
        while not self._stopping.is_set():
            began = loop.time()
            ended = await self._run_once(number)
            if self._stopping.is_set():
                return
            pause = _FIRST if loop.time() - began > _STEADY else pause
            self._pages.restarted(number)
            self._log.error("worker ended", worker=number, again_in=pause, **ended)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(pause * 2, _LONGEST)

    async def _run_once(self, number: int) -> dict[str, int | str]:
        """Start worker `number`, wait for its end, and return the fields for the log."""
        try:
            process = await asyncio.create_subprocess_exec(*self._command(number), stdin=asyncio.subprocess.PIPE)
        except OSError as exc:  # no process, no memory
            return {"reason": str(exc)}
        self._running[number] = process
        if self._stopping.is_set():  # it started after the others got the signal
            _signal(process, signal.SIGTERM)
        status = await process.wait()
        del self._running[number]
        self._socket(number).unlink(missing_ok=True)
        return {"pid": process.pid, "status": status}

    def _command(self, number: int) -> list[str]:
        over = {"listen": {"data_port": self._data_port, "admin_host": f"{UNIX}{self._socket(number)}"}}
        source = self._source.with_overrides(over).dump()
        return [*module_command("gateway.supervisor.processes"), str(number), source]

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _stop_now(self) -> None:
        """Make the workers stop at once, and kill those that do not."""
        self._log.warning("drain cut short", workers=len(self._running))
        self._tell_all(STOP_NOW)
        asyncio.get_running_loop().call_later(_GRACE, self._kill_all)

    def _kill_all(self) -> None:
        for process in self._running.values():
            self._log.error("worker killed", pid=process.pid)
            _signal(process, signal.SIGKILL)

    async def _stop_all(self) -> None:
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        listen = self._settings.listen
        waiting = [asyncio.ensure_future(process.wait()) for process in self._running.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=listen.drain_seconds + listen.shutdown_seconds + _GRACE)
        self._kill_all()

    async def _reload(self) -> None:
        """Make all workers reload, if the settings are valid and can change without a restart; else none."""
        try:
            settings = await asyncio.to_thread(app.load_checked, self._source.load, self._log, self._settings)
        except ConfigError as exc:
            self._log.error("reload failed", problems=[str(problem) for problem in exc.problems])
            return
        except Exception:
            self._log.exception("reload failed")
            return
        self._settings, self._log = settings, _log(settings)
        self._pages.token = settings.listen.admin_token
        self._tell_all(RELOAD)

    def _tell_all(self, word: bytes) -> None:
        for process in self._running.values():
            if process.stdin is not None and not process.stdin.is_closing():
                process.stdin.write(word)

    def _connect(self, number: int) -> aiohttp.ClientSession:
        """Return a client of the admin port of worker `number`."""
        return aiohttp.ClientSession("http://worker", connector=aiohttp.UnixConnector(str(self._socket(number))))


def _signal(process: asyncio.subprocess.Process, name: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(name)


def serve(source: Source) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the function that serves: one process by itself, or a supervisor of several.

    Raises:
        ConfigError: the settings are wrong.
    """
    settings = app.load_checked(source.load)
    if settings.listen.workers == 1:
        return lambda: run_gateway(source.load)
    return Supervisor(source, settings, _log(settings)).run


def _log(settings: Settings) -> Logger:
    return configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads)


def run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` on uvloop where there is one, else on asyncio's own loop."""
    if importlib.util.find_spec("uvloop"):
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def _main(number: int, source: Source) -> int:
    try:
        run_loop(lambda: run_gateway(source.load, worker=number))
    except (ConfigError, OSError) as exc:
        sys.stderr.write(f"Worker {number} can't start: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), Source.read(sys.argv[2])))
