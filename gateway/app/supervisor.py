"""The supervisor: starts several worker processes on one data port, watches them and serves the admin port.

The kernel spreads connections over the workers (SO_REUSEPORT); the supervisor handles none. It restarts a worker that
ends, with a growing delay if it keeps ending, passes on SIGTERM and SIGHUP, and asks the workers for health and metrics
over Unix sockets in a folder of its own. A worker stops when its supervisor ends: its standard input ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.admin.application import (
    HOLD,
    MEMORY,
    RELOAD,
    AdminListener,
    NotFound,
    Page,
    Reloads,
    build_application,
    json_page,
)
from gateway.admin.pages import DROP_PROFILES, show_settings
from gateway.app.process import RELOAD as RELOAD_WORD
from gateway.app.process import STOP_NOW, StopSignals, on_hang_up
from gateway.app.process import serve as run_gateway
from gateway.app.reloading import SettingsReload, load_checked
from gateway.app.wiring import log_of
from gateway.config.load import ConfigError, Source
from gateway.config.schema import Secret, Settings
from gateway.inspector.access import INSPECTOR
from gateway.observe.logs import Logger
from gateway.observe.metrics import CONTENT_TYPE
from gateway.proxy.acceptor import UNIX, bind


def module_command(name: str) -> list[str]:
    """Return the command that runs a module in this Python, which imports from the same places as this process.

    Without `-P` it imports from the working directory first. The command `mlc-gateway` does not import from there.
    """
    try:
        options = [] if str(Path.cwd()) in sys.path else ["-P"]
    except FileNotFoundError:  # the directory was deleted
        options = ["-P"]
    return [sys.executable, *options, "-m", name]


_ASKED, _RELOADED, _RELAYED = 2.0, 30.0, 60.0
"""Seconds to wait for a worker's health or metrics, for its reload, and for each piece of what it reads from the store
of sessions."""
_SENT = ("Last-Event-ID", "Accept")
"""Headers of a request that a worker gets."""
_KEPT = ("Content-Type", "Content-Length", "Content-Disposition", "Allow", "X-Accel-Buffering")
"""Headers of a worker's answer that the client gets."""
_PIECE = 64 * 1024


class Answer(NamedTuple):
    """A worker's whole answer on its admin port."""

    status: int
    body: bytes


Connect = Callable[[int], ClientSession]
"""Returns a client of a worker's admin port. The worker is named by its number."""


class SupervisorPages:
    """The pages of the admin port for `count` workers. See `gateway.admin.application.Pages`.

    reloads: checks the settings and applies them here, but not to the workers. reload_later: makes all workers reload,
    those that still start, too.

    Counters are not added up. Each worker's series have the label ``worker``, so that a worker that restarts resets
    its own series, which Prometheus can handle. A sum would go down instead.
    """

    def __init__(self, count: int, connect: Connect, token: Secret) -> None:
        self.token = token
        self.is_private = False
        self.draining = False
        self.routes: Mapping[str, Page] = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/metrics": self._metrics,
            RELOAD: self._show_settings,
        }
        self.actions: Mapping[str, Page] = {DROP_PROFILES: self._drop_profiles, RELOAD: self._reload}
        self.reloads: Reloads | None = None
        self.reload_later: Callable[[], None] = lambda: None
        relayed = [path for start in (MEMORY, INSPECTOR) for path in (start, start + "/{rest:.*}")]
        self.resources: Sequence[web.RouteDef] = [
            web.post(HOLD, self._hold),
            web.delete(HOLD, self._hold),
            *(web.route("*", path, self._relay) for path in relayed),
        ]
        self._count = count
        self._connect = connect
        self._registry = CollectorRegistry()
        self._up = Gauge("mlc_gateway_worker_up", "Whether a worker answers.", ("worker",), registry=self._registry)
        self._restarts = Counter(
            "mlc_gateway_worker_restarts",
            "Times a worker ended and was started again.",
            ("worker",),
            registry=self._registry,
        )
        for number in range(count):
            self._restarts.labels(str(number))

    def restarted(self, worker: int) -> None:
        """Count that a worker ended and will be started again."""
        self._restarts.labels(str(worker)).inc()

    async def _live(self) -> web.Response:
        return json_page(200, {"status": "live"})

    async def _ready(self) -> web.Response:
        if self.draining:
            return json_page(503, {"status": "draining"})
        answers = await self._ask_all("/health/ready")
        ready = sum(answer is not None and answer.status == 200 for answer in answers)
        status = {"status": "ready" if ready else "not ready", "workers": f"{ready} of {self._count}"}
        return json_page(200 if ready else 503, status)

    async def _drop_profiles(self) -> web.Response:
        answers = await self._ask_all(DROP_PROFILES, "POST")
        dropped = sum(answer is not None and answer.status == 200 for answer in answers)
        status = {"status": "dropped", "workers": f"{dropped} of {self._count}"}
        return json_page(200 if dropped == self._count else 503, status)

    async def _show_settings(self) -> web.Response:
        return json_page(200, await self._settings(await self._ask_all(RELOAD)))

    async def _reload(self) -> web.Response:
        """Reload here first: if the settings are wrong, no worker reads them."""
        if self.reloads is None:
            raise NotFound("This gateway can't read its settings again.")
        if problems := await self.reloads.run():
            document = await self._settings(await self._ask_all(RELOAD))
            return json_page(409, {"status": "refused", "problems": problems, **document})
        answers = await self._ask_all(RELOAD, "POST", seconds=_RELOADED)
        problems = [one for answer in answers if answer is not None for one in _settings_of(answer)["problems"]]
        document = await self._settings(answers)
        if problems:
            return json_page(409, {"status": "refused", "problems": list(dict.fromkeys(problems)), **document})
        if None in answers:
            self.reload_later()
            return json_page(503, {"status": "not all workers answer", "problems": [], **document})
        return json_page(200, {"status": "reloaded", "problems": [], **document})

    async def _settings(self, answers: Sequence[Answer | None]) -> dict[str, str]:
        """Return what is in effect, "" if that is not the same in all workers, and what the file holds."""
        if self.reloads is None:
            raise NotFound("This gateway can't read its settings again.")
        running = [_settings_of(answer)["running"] for answer in answers if answer is not None]
        same = len(running) == self._count and len(set(running)) == 1
        document = await show_settings(self.reloads)
        return {**document, "running": running[0] if same else "", "workers": f"{len(running)} of {self._count}"}

    async def _hold(self, request: web.Request) -> web.Response:
        """Let all workers hold or release; add up their runs."""
        answers = await self._ask_all(str(request.rel_url), request.method, await request.read())
        refusal = next((one for one in answers if one is not None and one.status != 200), None)
        if refusal is not None:
            return web.Response(status=refusal.status, body=refusal.body, content_type="application/json")
        pages = [json.loads(answer.body) for answer in answers if answer is not None]
        if len(pages) < self._count:
            return json_page(503, {"status": "not all workers answer", "workers": f"{len(pages)} of {self._count}"})
        known, runs = all(page["known"] for page in pages), sum(page["runs"] for page in pages)
        return json_page(200, {**pages[0], "known": known, "runs": runs})

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        """Let the first worker that can be reached answer: all of them use the same store.

        If one ends before it answers, the next gets the request, which can safely be repeated.
        """
        sent = {name: request.headers[name] for name in _SENT if name in request.headers}
        for number in range(self._count):
            async with self._connect(number) as worker:
                try:
                    timeout = ClientTimeout(total=None, sock_read=_RELAYED)
                    answer = await worker.request(request.method, request.rel_url, headers=sent, timeout=timeout)
                except TimeoutError:
                    return json_page(504, {"status": f"worker {number} did not answer within {_RELAYED:.0f} seconds"})
                except (OSError, ClientError):
                    continue
                return await _pass_on(request, answer)
        return json_page(503, {"status": "no worker answers"})

    async def _metrics(self) -> web.Response:
        pages = {}
        for number, answer in enumerate(await self._ask_all("/metrics")):
            good = answer is not None and answer.status == 200
            self._up.labels(str(number)).set(good)
            if answer is not None and good:
                pages[str(number)] = answer.body.decode()
        body = generate_latest(self._registry) + merge_metrics(pages)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _ask_all(
        self, path: str, method: str = "GET", body: bytes = b"", seconds: float = _ASKED
    ) -> list[Answer | None]:
        return await asyncio.gather(*(self._ask(number, method, path, body, seconds) for number in range(self._count)))

    async def _ask(self, number: int, method: str, path: str, body: bytes, seconds: float) -> Answer | None:
        """Return a worker's answer; None if there is none in time."""
        try:
            async with self._connect(number) as worker:
                answer = await worker.request(method, path, data=body or None, timeout=ClientTimeout(total=seconds))
                return Answer(answer.status, await answer.read())
        except (OSError, ClientError):
            return None


def _settings_of(answer: Answer) -> dict[str, Any]:
    """Return a worker's page of `RELOAD`."""
    try:
        page = json.loads(answer.body)
    except ValueError:
        page = {}
    return {"running": str(page.get("running", "")), "problems": list(page.get("problems", ()))}


async def _pass_on(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Send a worker's answer as it comes. If it ends early, the connection is closed within the response."""
    kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    response = web.StreamResponse(status=answer.status, headers=kept)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_chunked(_PIECE):
            await response.write(piece)
    except (OSError, ClientError):
        if request.transport is not None:
            request.transport.abort()  # the client must not take what it has got for all of it
    return response


def merge_metrics(pages: Mapping[str, str]) -> bytes:
    """Merge pages in Prometheus' text format into one, each sample under the label ``worker``.

    pages: the label's value → the page.
    """
    return generate_latest(_Merged(pages))


class _Merged(Collector):
    """The metrics of several pages."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, with the samples of all pages."""
        families: dict[str, Metric] = {}
        for worker, page in self._pages.items():
            for found in text_string_to_metric_families(page):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        yield from families.values()


_FIRST, _LONGEST = 0.2, 30.0
"""Seconds before a worker is restarted: the first time, and at most. The delay doubles each time."""

_STEADY = 10.0
"""Seconds after which a worker counts as healthy, so that the delay starts over."""

_GRACE = 5.0
"""Seconds after their own deadlines before workers are killed."""


async def _reserve(host: str, port: int) -> list[socket.socket]:
    """Bind a port that workers share, without listening.

    Raises:
        OSError: it can't be opened, or another process has it, which a shared bind would not notice.
    """
    for one in await bind(host, port):
        one.close()
    return await bind(host, port, shared=True)


class Supervisor:
    """Keeps `settings.listen.workers` processes running.

    source: from which they load the same settings. content: of the file, from which `settings` were read.
    """

    def __init__(self, source: Source, content: bytes | None, settings: Settings, log: Logger) -> None:
        self.settings = settings
        self.log = log
        self._source = source
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ports: dict[str, int] = {}
        """Those that the workers share."""
        self._pages = SupervisorPages(settings.listen.workers, self._connect, settings.listen.admin_token)
        self._reloads = SettingsReload(source, content, self, self._apply)
        self._pages.reloads = self._reloads
        self._pages.reload_later = lambda: self._tell_all(RELOAD_WORD)

    async def run(self) -> None:
        """Run until SIGINT or SIGTERM. A second signal ends the drain early.

        Raises:
            OSError: a port can't be opened.
        """
        listen = self.settings.listen
        reserved = await _reserve(listen.data_host, listen.data_port)
        self._ports = {"data_port": reserved[0].getsockname()[1]}
        if listen.adapters_port is not None:
            others = await _reserve(listen.adapters_host, listen.adapters_port)
            self._ports["adapters_port"] = others[0].getsockname()[1]
            reserved += others
        limits = self.settings.limits
        pages = build_application(self._pages, self.log)
        admin = AdminListener(pages, listen.admin_host, listen.admin_port, limits, self.log, 1.0)
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
        self.log.info("stopped")

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
            self.log.error("worker ended", worker=number, again_in=pause, **ended)
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
        over = {"listen": {**self._ports, "admin_host": f"{UNIX}{self._socket(number)}"}}
        source = self._source.with_overrides(over).dump()
        return [*module_command("gateway.app.supervisor"), str(number), source]

    def _socket(self, number: int) -> Path:
        return self._folder / f"{number}.sock"

    def _stop_now(self) -> None:
        """Make the workers stop at once, and kill those that do not."""
        self.log.warning("drain cut short", workers=len(self._running))
        self._tell_all(STOP_NOW)
        asyncio.get_running_loop().call_later(_GRACE, self._kill_all)

    def _kill_all(self) -> None:
        for process in self._running.values():
            self.log.error("worker killed", pid=process.pid)
            _signal(process, signal.SIGKILL)

    async def _stop_all(self) -> None:
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        listen = self.settings.listen
        waiting = [asyncio.ensure_future(process.wait()) for process in self._running.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=listen.drain_seconds + listen.shutdown_seconds + _GRACE)
        self._kill_all()

    async def _reload(self) -> None:
        """Make all workers reload, if the settings are valid and can change without a restart; else none."""
        if not await self._reloads.run():
            self._tell_all(RELOAD_WORD)

    async def _apply(self, settings: Settings) -> None:
        self.settings, self.log = settings, log_of(settings)
        self._pages.token = settings.listen.admin_token

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


def serve(
    source: Source, greet: Callable[[Settings, Logger], None] = lambda settings, log: None
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the function that serves: one process by itself, or a supervisor of several.

    greet: is called with the settings and the log before.

    Raises:
        ConfigError: the settings are wrong.
    """
    content = source.read_content()
    settings = load_checked(lambda: source.load(content))
    greet(settings, log_of(settings))
    if settings.listen.workers == 1:
        return lambda: run_gateway(source)
    return Supervisor(source, content, settings, log_of(settings)).run


def run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` on uvloop where there is one, else on asyncio's own loop."""
    if importlib.util.find_spec("uvloop"):
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def _main(number: int, source: Source) -> int:
    try:
        run_loop(lambda: run_gateway(source, worker=number))
    except (ConfigError, OSError) as exc:
        sys.stderr.write(f"Worker {number} can't start: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), Source.read(sys.argv[2])))
