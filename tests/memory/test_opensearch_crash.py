"""Writers to the stores on OpenSearch are killed while they write: no turn is torn, doubled or out of order."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.model import Turn
from gateway.memory.store import NEWEST, SessionConflict
from gateway.memory.stores.opensearch.store import OpenSearchStore
from tests.memory.conversations import assistant, image, key, medium, texts, tool_result, tool_use, user
from tests.memory.opensearch_server import OpenSearchServer

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


@pytest.fixture(params=["2.19.0", "3.6.0"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[OpenSearchServer]:
    async with OpenSearchServer(request.param) as server:
        yield server


@pytest.mark.slow
async def test_killed_writers_leave_whole_turns(server: OpenSearchServer) -> None:
    await kill_writers(server, 8)


@pytest.mark.slow(60)
async def test_200_killed_writers_leave_whole_turns(server: OpenSearchServer) -> None:
    await kill_writers(server, 200)


async def kill_writers(server: OpenSearchServer, times: int) -> None:
    """Let two writers append to one session, and kill one of them at a random request; `times` times."""
    randomness = random.Random(times)
    for number in range(times):
        with writer(server.url, f"a{number}") as first, writer(server.url, f"b{number}") as second:
            alarm = asyncio.Event()
            server.alarms[len(server.requests) + randomness.randint(10, 80)] = alarm
            await asyncio.wait_for(alarm.wait(), 60)
            randomness.choice([first, second]).kill()
            alarm = asyncio.Event()
            server.alarms[len(server.requests) + randomness.randint(10, 30)] = alarm
            await asyncio.wait_for(alarm.wait(), 60)
    store = OpenSearchStore(Settings(), server.url)
    await check(store)
    assert (await store.append(key(), numbered("after", 0), await turns_of(store))).turns > times
    await store.close()


async def turns_of(store: OpenSearchStore) -> int:
    session = await store.session(key())
    return session.turns if session else 0


async def check(store: OpenSearchStore) -> None:
    """Check that every turn is whole, and that each writer's turns are there once and in order."""
    messages = []
    before, more = NEWEST, True
    while more:
        page = await store.load(key(), before)
        messages = [*page.messages, *messages]
        before, more = page.messages[0].seq, page.more
    assert [stored.seq for stored in messages] == list(range(len(messages)))
    last: dict[str, int] = {}
    for turn, start in enumerate(range(0, len(messages), 4), 1):
        whole = messages[start : start + 4]
        name, _, number = whole[0].turn_id.partition(":")
        assert tuple(stored.message for stored in whole) == numbered(name, int(number)).messages
        assert {stored.turn for stored in whole} == {turn}
        assert int(number) == last.get(name, -1) + 1, texts(tuple(whole))
        last[name] = int(number)


def numbered(name: str, number: int) -> Turn:
    """Return turn `number` of the writer `name`, with an image that is kept apart and a tool call."""
    messages = (
        user(f"{name} asks {number}", image(medium(70_000, number))),
        assistant(tool_use(f"{name}-{number}")),
        user(tool_result(f"{name}-{number}")),
        assistant("done"),
    )
    return Turn(f"{name}:{number}", messages)


@contextmanager
def writer(url: str, name: str) -> Iterator[Any]:
    """A process that appends turns to the session until it is killed."""
    process = _PROCESSES.Process(target=write_for_ever, args=(url, name), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def write_for_ever(url: str, name: str) -> None:
    asyncio.run(_write_for_ever(url, name))


async def _write_for_ever(url: str, name: str) -> None:
    store = OpenSearchStore(Settings(), url)
    seen = number = 0
    while True:
        try:
            seen = (await store.append(key(), numbered(name, number), seen)).turns
            number += 1
        except SessionConflict as conflict:
            seen = conflict.turns
