"""A settings file with its store, and the commands of ``mlc-gateway memory`` on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.memory.model import Session, SessionKey, Turn
from gateway.memory.reading import read_messages
from gateway.memory.store import Store
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.conversations import texts


class Place:
    """A settings file, and the store that it names."""

    def __init__(self, directory: Path, name: str = "one") -> None:
        self.config = directory / f"{name}.yaml"
        self.path = directory / f"{name}.sqlite3"
        self.files = directory / f"{name}-files"
        settings = {"sqlite": {"path": str(self.path)}, "strands_files": {"directory": str(self.files)}}
        self.config.write_text(json.dumps({"memory": settings, "upstream": {"url": "http://127.0.0.1:9"}}))

    def work(self, work: Callable[[Store], Any]) -> Any:
        """Return what `work` returns, a coroutine on the open store."""

        async def opened() -> Any:
            store = SqliteStore(self.path)
            await store.start()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(opened())

    def append(self, session_key: SessionKey, *turns: Turn) -> None:
        async def work(store: Store) -> None:
            for number, one in enumerate(turns):
                await store.append(session_key, one, number)

        self.work(work)

    def session(self, session_key: SessionKey) -> Session | None:
        found: Session | None = self.work(lambda store: store.session(session_key))
        return found

    def texts(self, session_key: SessionKey) -> list[str]:
        async def work(store: Store) -> list[str]:
            return texts(tuple([stored async for stored in read_messages(store, session_key)]))

        found: list[str] = self.work(work)
        return found


class Commands:
    """Runs ``memory …`` with the settings of a place."""

    def __init__(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        self._place = place
        self._capsys = capsys
        self.err = ""

    def __call__(self, name: str, *args: str) -> tuple[int, str]:
        """Return exit code and standard output."""
        code = run(["memory", name, "-c", str(self._place.config), *args])
        shown = self._capsys.readouterr()
        self.err = shown.err
        return code, shown.out

    def json(self, name: str, *args: str) -> Any:
        code, out = self(name, *args)
        assert code == 0, self.err
        return json.loads(out)
