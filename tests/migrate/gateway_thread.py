"""A gateway with an event loop in a thread of its own, for tests of commands, which are synchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

from gateway.app.gateway import build
from gateway.app.reloading import SettingsReload
from gateway.config.load import Source
from gateway.config.schema import Settings
from gateway.observe.logs import configure


class GatewayThread:
    """Serves with the settings in `file` inside its `with` block, as a process of its own would.

    overrides: as command-line options. Its ports are free ones. url: of its admin port.
    """

    def __init__(self, file: Path, overrides: Mapping[str, Any] | None = None) -> None:
        ports = {"data_port": 0, "admin_port": 0}
        source = Source(file, {**(overrides or {}), "listen": ports})
        content = source.read_content()
        self._log = configure("error", "json")
        self.gateway = build(source.load(content), log=self._log)
        self.reloads = SettingsReload(source, content, self.gateway, self._apply)
        self.gateway.offer_reloads(self.reloads)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def _apply(self, settings: Settings) -> None:
        await self.gateway.reload(settings, self._log)

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.gateway.start())
        self.url = f"http://127.0.0.1:{self.gateway.admin_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on its loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def count(self, agent: str, cluster: str = "", answered: int = 0, failed: int = 0, refused: int = 0) -> None:
        """Count runs of a target of the route of OLD. Each answer took 2 s, had 10 and 3 tokens and cost 0.5 USD."""
        labels, routes = ("OLD", agent, cluster), self.gateway.metrics.routes
        for outcome, number in (("answered", answered), ("failed", failed)):
            for _ in range(number):
                routes.run(labels, outcome, 2.0)
        for _ in range(answered):
            routes.tokens(labels, 10, 3)
            routes.cost(labels, "USD", 0.5)
        for _ in range(refused):
            routes.run(labels, "refused")
