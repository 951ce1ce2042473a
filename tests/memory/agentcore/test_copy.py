"""Sessions are the same after a copy, from each kind of store to each other. It is here for AgentCore's emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path

import pytest

from gateway.memory.copying import copy_session
from gateway.memory.store import Store
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.strands_files import StrandsFilesStore
from tests.memory.agentcore.conftest import NewAgentCoreStore
from tests.memory.conversations import assistant, image, key, text, tool_result, tool_use, turn, user
from tests.memory.opensearch_server import OpenSearchServer
from tests.memory.test_opensearch import store_on

NAMES = ("sqlite", "opensearch", "agentcore", "strands_files")
TURNS = [
    turn(user("What is this?", image()), assistant("A dot."), system="Be brief."),
    turn(user("Zoom."), assistant(tool_use("c1")), user(tool_result("c1", text("red"))), assistant("It is red.")),
    turn(user("And what was it?")),
]


@pytest.fixture
async def stores(tmp_path: Path, new_agentcore_store: NewAgentCoreStore) -> AsyncIterator[dict[str, Store]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(OpenSearchServer())
        made: dict[str, Store] = {
            "sqlite": SqliteStore(tmp_path / "memory.sqlite3"),
            "opensearch": store_on(server),
            "agentcore": new_agentcore_store(),
            "strands_files": StrandsFilesStore(tmp_path / "sessions"),
        }
        for store in made.values():
            await store.start()
            stack.push_async_callback(store.close)
        yield made


@pytest.mark.parametrize(("source", "target"), list(permutations(NAMES, 2)))
async def test_a_session_is_the_same_after_a_copy(stores: dict[str, Store], source: str, target: str) -> None:
    for number, added in enumerate(TURNS):
        await stores[source].append(key(), added, number)
    [session] = (await stores[source].sessions(key().owner)).sessions
    assert await copy_session(stores[source], stores[target], session) == len(TURNS)
    assert await copy_session(stores[source], stores[target], session) == 0
    assert await stores[target].load(key()) == await stores[source].load(key())
    copied = await stores[target].session(key())
    assert copied is not None
    assert (copied.turns, copied.messages, copied.system) == (session.turns, session.messages, session.system)
