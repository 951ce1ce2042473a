"""The admin port in front of a store of exchanges, in a thread of its own, for browsers."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, cast

from gateway.admin.application import AdminListener, build_application
from gateway.admin.pages import AdminPages
from gateway.config.schema import Limits, Secret
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.recording.sinks.sqlite import SqliteStore

TOKEN = "t0ken-of-the-tests"
DATA_URL = "http://127.0.0.1:19209"
_NONE = cast(Any, None)


def admin_pages(store: SqliteStore | None, token: str = TOKEN, is_private: bool = False) -> AdminPages:
    """Return the pages of an admin port without a cluster."""
    return AdminPages({"": _NONE}, _NONE, Metrics(), Secret(token), None, is_private, store, data_url=lambda: DATA_URL)


class PageServer:
    """Serves while it is entered. url: of the port."""

    def __init__(self, store: SqliteStore | None) -> None:
        self.url = ""
        self._pages = admin_pages(store)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PageServer:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        log = configure("error", "json")
        listener = AdminListener(build_application(self._pages, log), "127.0.0.1", 0, Limits(), log, 1.0)
        await listener.start()
        self.url = f"http://127.0.0.1:{listener.port}"
        self._ready.set()
        await self._end.wait()
        self._pages.inspector.stop()
        await listener.stop()
