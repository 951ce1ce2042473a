"""The property of `test_branches` with each store: what it gives back has what branches need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gateway.config.memory import AgentCoreStore as AgentCoreSettings
from gateway.config.memory import OpenSearchStore as OpenSearchSettings
from gateway.config.memory import Window
from gateway.memory.model import Message, Owner, SessionKey, Turn
from gateway.memory.reading import read_messages
from gateway.memory.store import Store
from gateway.memory.stores.agentcore.store import AgentCoreStore
from gateway.memory.stores.opensearch.store import OpenSearchStore
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.strands.files import StrandsFilesStore
from tests.conftest import examples
from tests.memory.agentcore.conftest import connect
from tests.memory.agentcore.emulator import Emulator, Faults
from tests.memory.opensearch_server import OpenSearchServer
from tests.properties.test_branches import WINDOWS, Chat, converse


class Loop:
    """An event loop in a thread of its own, for all examples of a test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class StoredChat(Chat):
    """A chat whose session is in a store."""

    count = 0

    def __init__(self, data: st.DataObject, window: Window, loop: Loop, store: Store) -> None:
        super().__init__(data, window)
        StoredChat.count += 1
        self._loop, self._store_ = loop, store
        self._key = SessionKey(Owner("agent"), f"gws-{StoredChat.count}")

    def keep(self, turn: int, messages: list[Message]) -> None:
        super().keep(turn, messages)
        self._loop.run(self._store_.append(self._key, Turn(f"t{turn}", tuple(messages)), turn - 1))
        self.stored, wanted = self._loop.run(self._read()), self.stored
        assert self.stored == wanted

    async def _read(self) -> Any:
        return [stored async for stored in read_messages(self._store_, self._key)]


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.stop()


@pytest.fixture(scope="module", params=["sqlite", "strands_files", "opensearch index", "container", "agentcore"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, loop: Loop) -> Iterator[Store]:
    directory: Path = tmp_path_factory.mktemp("stores")
    with Emulator() as emulator:
        emulator.reset(Faults())
        server = OpenSearchServer("3.6.0")
        loop.run(server.__aenter__())
        amazon = AgentCoreSettings(memory_id=emulator.memory_id, endpoint=emulator.url)
        made: dict[str, Any] = {
            "sqlite": lambda: SqliteStore(directory / "sessions.sqlite3"),
            "strands_files": lambda: StrandsFilesStore(directory),
            "opensearch index": lambda: OpenSearchStore(OpenSearchSettings(kind="index"), server.url),
            "container": lambda: OpenSearchStore(OpenSearchSettings(kind="container"), server.url),
            "agentcore": lambda: AgentCoreStore(amazon, connect, pause=0.001),
        }
        opened: Store = made[request.param]()
        loop.run(opened.start())
        yield opened
        loop.run(opened.close())
        loop.run(server.__aexit__(None, None, None))


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.slow(60)
@examples(500, suppress_health_check=_CHECKS)
@given(data=st.data(), window=WINDOWS)
def test_the_llm_gets_what_the_client_sent(loop: Loop, store: Store, data: st.DataObject, window: Window) -> None:
    converse(StoredChat(data, window, loop, store))


@pytest.mark.slow(60)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@examples(10_000, suppress_health_check=_CHECKS)
@given(data=st.data(), window=WINDOWS)
def test_the_llm_gets_what_the_client_sent_in_many_conversations(
    loop: Loop, store: Store, data: st.DataObject, window: Window
) -> None:
    converse(StoredChat(data, window, loop, store))
