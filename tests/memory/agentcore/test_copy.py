"""Sessions are the same after a copy, from each kind of store to each other. It is here for AgentCore's emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gateway.memory.copying import copy_session
from gateway.memory.store import Store
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.strands.files import StrandsFilesStore
from gateway.memory.stores.strands.mapping import encode_record, to_record
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
@pytest.mark.slow
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


AT = "2026-01-02T03:04:05+00:00"


def written_by_strands(number: int, role: str, text_: str, **more: Any) -> dict[str, Any]:
    """Return a record as Strands writes it."""
    message = {"role": role, "content": [{"text": text_}], "metadata": {"custom": {"a": [1, None]}}, "tracking_id": "x"}
    record = {"message": message, "message_id": number, "redact_message": None, "created_at": AT, "updated_at": AT}
    return {**record, **more}


async def test_messages_of_strands_are_the_same_after_a_copy_to_agentcore_and_back(
    tmp_path: Path, new_agentcore_store: NewAgentCoreStore
) -> None:
    hidden = {"role": "user", "content": [{"text": "[hidden]"}]}
    records = [
        written_by_strands(0, "user", "My password is x.", redact_message=hidden, updated_at=AT.replace(":05", ":06")),
        written_by_strands(1, "assistant", "I forget it."),
    ]
    folder = tmp_path / "source" / f"session_{key().id}" / "agents" / f"agent_{key().owner.agent_id}" / "messages"
    folder.mkdir(parents=True)
    for record in records:
        (folder / f"message_{record['message_id']}.json").write_bytes(encode_record(record))
    source, target = StrandsFilesStore(tmp_path / "source"), StrandsFilesStore(tmp_path / "target")
    between = new_agentcore_store()
    for store in (source, between, target):
        await store.start()
    [session] = (await source.sessions()).sessions
    assert await copy_session(source, between, session) == 1
    assert await copy_session(between, target, session) == 1
    messages = (await target.load(key())).messages
    assert [to_record(stored.message, stored.seq) for stored in messages] == records
    for store in (source, between, target):
        await store.close()
