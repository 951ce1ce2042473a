"""The stores on OpenSearch when requests fail, writers are killed, and sessions are deleted under a writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.config.types import OpenSearchAccount
from gateway.memory.model import SessionKey, SessionPage, Turn
from gateway.memory.store import SessionConflict, Store, StoreUnavailable
from gateway.memory.stores.opensearch import cluster as cluster_module
from gateway.memory.stores.opensearch.store import OpenSearchStore
from tests.lifecycle.process import until
from tests.memory.conversations import assistant, image, key, medium, texts, turn, user
from tests.memory.opensearch_server import Fault, OpenSearchServer
from tests.memory.test_opensearch import store_on


@pytest.fixture(params=["2.19.0", "3.6.0"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[OpenSearchServer]:
    async with OpenSearchServer(request.param) as server:
        yield server


@pytest.fixture
async def store(server: OpenSearchServer) -> AsyncIterator[OpenSearchStore]:
    store = store_on(server)
    await store.start()
    yield store
    await store.close()


async def ids_of(store: Store, key_: SessionKey) -> list[str]:
    return [stored.turn_id for stored in (await store.load(key_)).messages]


async def requests_of_append(server: OpenSearchServer, store: OpenSearchStore, name: str, turns: int) -> int:
    """Return how many requests an append takes to a session that has `turns` turns."""
    for number in range(turns):
        await store.append(key(name), turn(), number)
    server.counted_from_now()
    await store.append(key(name), two_messages_with_an_image(), turns)
    return len(server.requests)


def two_messages_with_an_image() -> Turn:
    return turn(user(image(medium(100_000))), assistant("a cat"))


@pytest.mark.parametrize("fault", ["refused", "lost"])
@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.slow
async def test_append_that_failed_at_any_request_is_invisible_or_whole_and_can_be_sent_again(
    server: OpenSearchServer, store: OpenSearchStore, fault: Fault, turns: int
) -> None:
    for number in range(await requests_of_append(server, store, "counted", turns)):
        own = key(f"{number}")
        earlier = [turn() for _ in range(turns)]
        for seen, added in enumerate(earlier):
            await store.append(own, added, seen)
        before = [added.id for added in earlier for _ in range(2)]
        added = two_messages_with_an_image()
        server.counted_from_now()
        server.faults[number] = fault
        try:
            await store.append(own, added, turns)
        except StoreUnavailable:
            session = await store.session(own)
            stored = session is not None and session.turns > turns
            if session is None:
                assert turns == 0
            else:
                assert await ids_of(store, own) == before + [added.id] * 2 * stored
        else:
            assert await ids_of(store, own) == before + [added.id] * 2
        assert (await store.append(own, added, turns)).turns == turns + 1
        assert await ids_of(store, own) == before + [added.id] * 2
        assert (await store.append(own, turn(), turns + 1)).turns == turns + 2


async def test_writer_that_was_overtaken_at_any_request_loses_and_leaves_nothing(
    server: OpenSearchServer, store: OpenSearchStore
) -> None:
    count = await requests_of_append(server, store, "counted", 1)
    for number in range(count):
        own = key(f"{number}")
        await store.append(own, turn(), 0)
        slow, fast = two_messages_with_an_image(), turn()
        server.counted_from_now()
        server.faults[number] = "refused"
        with contextlib.suppress(StoreUnavailable):
            await store.append(own, slow, 1)
        session = await store.session(own)
        assert session is not None
        if session.turns == 1:
            assert (await store.append(own, fast, 1)).turns == 2
            with pytest.raises(SessionConflict) as caught:
                await store.append(own, slow, 1)
            assert caught.value.turns == 2
            assert (await store.append(own, slow, 2)).turns == 3
        assert (await ids_of(store, own)).count(slow.id) == 2


@pytest.mark.parametrize("fault", ["refused", "lost"])
@pytest.mark.slow
async def test_interrupted_deletion_is_invisible_and_can_be_finished(
    server: OpenSearchServer, store: OpenSearchStore, fault: Fault
) -> None:
    await store.append(key("counted"), two_messages_with_an_image(), 0)
    server.counted_from_now()
    assert await store.delete(key("counted"))
    for number in range(len(server.requests)):
        await store.append(key(), two_messages_with_an_image(), 0)
        server.counted_from_now()
        server.faults[number] = fault
        with contextlib.suppress(StoreUnavailable):
            await store.delete(key())
        found = await store.session(key())
        if found is not None:
            assert len(await ids_of(store, key())) == 2
        assert [session.key for session in (await store.sessions()).sessions] == ([key()] if found else [])
        if number % 2:
            await store.delete(key())
        else:
            await store.append(key(), turn(user("again")), 1 if found else 0)
            assert texts((await store.load(key())).messages)[-1] == "again"
            await store.delete(key())
        assert await store.session(key()) is None
        assert server.documents() == []


async def test_deletion_goes_on_if_its_caller_is_cancelled(server: OpenSearchServer, store: OpenSearchStore) -> None:
    await store.append(key(), two_messages_with_an_image(), 0)
    server.counted_from_now()
    server.holds[3] = asyncio.Event()  # after the mark
    deletion = asyncio.ensure_future(store.delete(key()))
    await server.held.wait()
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    server.holds[3].set()
    await until(lambda: server.documents() == [])


async def test_interrupted_deletion_is_finished_by_the_next_store(
    server: OpenSearchServer, store: OpenSearchStore
) -> None:
    await store.append(key("kept"), turn(), 0)
    kept = server.documents()
    await store.append(key(), two_messages_with_an_image(), 0)
    server.counted_from_now()
    server.holds[3] = asyncio.Event()
    deletion = asyncio.ensure_future(store.delete(key()))
    await server.held.wait()
    await store.close()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    del server.holds[3]
    other = store_on(server)
    await other.start()
    await until(lambda: server.documents() == kept)
    await other.close()


@pytest.mark.parametrize("fault", ["refused", "forbidden"])
async def test_store_starts_if_it_cannot_finish_deletions(server: OpenSearchServer, fault: Fault) -> None:
    async with OpenSearchServer(server.version) as counted:
        store = store_on(counted)
        await store.start()
        await store.close()
        last = len(counted.requests) - 1
    server.faults[last] = fault
    store = store_on(server)
    await store.start()
    assert await store.delete(key()) is False
    await store.close()


async def test_reads_during_a_deletion_find_no_session(server: OpenSearchServer, store: OpenSearchStore) -> None:
    for read in (lambda: store.session(key()), lambda: store.sessions()):
        number = 0
        while True:
            await store.append(key(), turn(user("1"), system="Be brief."), 0)
            await store.append(key(), turn(user("2")), 1)
            server.counted_from_now()
            server.holds[number] = asyncio.Event()
            reading = asyncio.ensure_future(read())
            held = asyncio.ensure_future(server.held.wait())
            await asyncio.wait([reading, held], return_when=asyncio.FIRST_COMPLETED)
            if not held.done():
                break
            await store.delete(key())
            server.holds.pop(number).set()
            server.held.clear()
            assert await reading in (None, SessionPage(()))
            number += 1
        assert number > 2
        held.cancel()
        server.holds.clear()
        await store.delete(key())


async def test_append_during_a_deletion_leaves_nothing(server: OpenSearchServer, store: OpenSearchStore) -> None:
    count = await requests_of_append(server, store, "counted", 1)
    await store.delete(key("counted"))
    for number in range(count):
        await store.append(key(), turn(), 0)
        server.counted_from_now()
        server.holds[number] = asyncio.Event()
        late = asyncio.ensure_future(store.append(key(), two_messages_with_an_image(), 1))
        await server.held.wait()
        assert await store.delete(key())
        server.holds.pop(number).set()
        server.held.clear()
        with pytest.raises(SessionConflict) as caught:
            await late
        assert caught.value.turns == 0
        assert await store.session(key()) is None
        await store.delete(key())
        assert server.documents() == []


async def test_turn_sent_again_while_it_is_stored_is_stored_once(
    server: OpenSearchServer, store: OpenSearchStore
) -> None:
    count = await requests_of_append(server, store, "counted", 1)
    for number in range(count):
        await store.append(key(), turn(), 0)
        added = two_messages_with_an_image()
        server.counted_from_now()
        server.holds[number] = asyncio.Event()
        late = asyncio.ensure_future(store.append(key(), added, 1))
        await server.held.wait()
        assert (await store.append(key(), added, 1)).turns == 2
        server.holds.pop(number).set()
        server.held.clear()
        assert (await late).turns == 2
        assert len(await ids_of(store, key())) == 4  # two messages each
        await store.delete(key())


@pytest.mark.slow
async def test_session_that_is_made_again_survives_a_writer_that_finishes_the_deletion(
    server: OpenSearchServer, store: OpenSearchStore
) -> None:
    other = store_on(server)
    await other.start()
    number = 0
    while True:
        await store.append(key(), two_messages_with_an_image(), 0)
        server.counted_from_now()
        server.faults[3] = "refused"  # after the mark
        with pytest.raises(StoreUnavailable):
            await store.delete(key())
        slow, fast = turn(), turn()
        server.counted_from_now()
        server.holds[number] = asyncio.Event()
        late = asyncio.ensure_future(other.append(key(), slow, 0))
        held = asyncio.ensure_future(server.held.wait())
        await asyncio.wait([late, held], return_when=asyncio.FIRST_COMPLETED)
        if late.done():
            held.cancel()
            break
        try:
            await store.append(key(), fast, 0)
        except SessionConflict as conflict:  # `late` is held after it has written its record
            await store.append(key(), fast, conflict.turns)
        server.holds.pop(number).set()
        server.held.clear()
        with contextlib.suppress(SessionConflict):
            await late
        assert fast.id in await ids_of(store, key())
        await store.delete(key())
        assert server.documents() == []
        number += 1
    assert number > 10
    await other.close()


async def test_an_answer_without_an_end_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "LONGEST_ANSWER", 1_000_000)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await writer.drain()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        cluster = cluster_module.Cluster(f"http://127.0.0.1:{port}", OpenSearchAccount())
        with pytest.raises(StoreUnavailable, match="its answer is longer than 1000000 bytes"):
            await cluster.call("GET", "/")
        await cluster.close()
