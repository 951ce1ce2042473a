"""The gateway as an aiohttp application, to be run, nested or given middlewares by another program."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from gateway.app.wiring import Runtime, UseCase, build_use_case, running
from gateway.config.schema import Settings
from gateway.observe.logs import Logger, configure
from gateway.observe.metrics import Metrics
from gateway.proxy.application import RUNNER_OPTIONS as RUNNER_OPTIONS
from gateway.proxy.application import Application
from gateway.recording.recorder import Recording


def create_app(settings: Settings, use_case: UseCase | None = None, log: Logger | None = None) -> web.Application:
    """Make an aiohttp application that is the gateway, to be run, nested or given middlewares.

    It answers every request for which the application has no route of its own. Run it with `auto_decompress=False`, so
    that bodies are relayed unchanged, and with `handler_cancellation=True`, so that a client that has gone ends its
    request; `gateway.app.RUNNER_OPTIONS` holds both. It has no admin port, and listens where its runner says.

    Raises:
        ConfigError: as `Gateway`; on startup also a file that the settings name can't be used.
    """
    log = log or configure(settings.logs.level, settings.logs.format, payloads=settings.logs.payloads)
    metrics = Metrics()
    recording = Recording(settings, log, metrics)
    runtime = Runtime(settings, use_case or build_use_case(), log, metrics, recording.recorder)

    async def run(_: web.Application) -> AsyncIterator[None]:
        async with running(runtime, recording):
            yield

    app = web.Application()
    Application(runtime.port).add_to(app)
    app.cleanup_ctx.append(run)
    return app
