"""The stores whose writers are killed (`tests.memory.kills`): one row each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from gateway.config.memory import AgentCoreStore as AgentCoreSettings
from gateway.memory.store import Store
from gateway.memory.stores.agentcore.store import AgentCoreStore
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.strands.files import StrandsFilesStore
from tests.memory.agentcore.conftest import connect
from tests.memory.agentcore.emulator import Emulator


@asynccontextmanager
async def nothing(folder: Path) -> AsyncIterator[str]:
    """Serve nothing: the store is in files."""
    yield str(folder)


@dataclass(frozen=True)
class Killable:
    """A store. `open` is called in the writers' processes and in the test's own.

    open: returns a store that is not started, with the data of a place. serve: runs what the store needs, such as a
    server, during all rounds, and yields the place; gets an empty folder. check: raises AssertionError if the data are
    damaged in a way that the interface of a store does not show.
    """

    open: Callable[[str], Store]
    serve: Callable[[Path], AbstractAsyncContextManager[str]] = nothing
    check: Callable[[str], None] = lambda place: None


def _open_sqlite(place: str) -> Store:
    return SqliteStore(Path(place) / "memory.sqlite3")


def _check_sqlite(place: str) -> None:
    """Check the file's structure, and that no medium is without a message."""
    with closing(sqlite3.connect(Path(place) / "memory.sqlite3")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        unused = "SELECT count(*) FROM media WHERE number NOT IN (SELECT medium FROM media_uses)"
        assert connection.execute(unused).fetchone() == (0,)


@asynccontextmanager
async def _serve_agentcore(folder: Path) -> AsyncIterator[str]:
    with Emulator() as emulator:
        yield emulator.url


def _open_agentcore(place: str) -> Store:
    return AgentCoreStore(AgentCoreSettings(memory_id=Emulator.memory_id, endpoint=place), connect, pause=0.01)


def _open_strands_files(place: str) -> Store:
    return StrandsFilesStore(Path(place) / "sessions")


def _check_strands_files(place: str) -> None:
    """Check that Strands finds whole messages, numbered without gaps."""
    for agent in (Path(place) / "sessions").glob("session_*/agents/agent_*"):
        found = {path.name: json.loads(path.read_bytes()) for path in (agent / "messages").iterdir()}
        assert {record["message_id"] for record in found.values()} == set(range(len(found)))
        assert set(found) == {f"message_{number}.json" for number in range(len(found))}


STORES: dict[str, Killable] = {
    "sqlite": Killable(_open_sqlite, check=_check_sqlite),
    "agentcore": Killable(_open_agentcore, _serve_agentcore),
    "strands_files": Killable(_open_strands_files, check=_check_strands_files),
}
