"""A turn is stored once, also when it is sent again and with several writers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.memory.model import Session, Turn
from gateway.memory.store import SessionConflict, Store
from tests.memory.conformance.base import OpenStore, StoreTests
from tests.memory.conversations import assistant, key, texts, tool_result, tool_use, turn, user


class WriterTests(StoreTests):
    """Tests of several writers."""

    # One turn is stored once

    async def test_turn_sent_again_is_stored_once(self, store: Store, open_store: OpenStore) -> None:
        turns = [turn(), turn(), turn()]
        for number, added in enumerate(turns):
            session = await store.append(key(), added, number)
        other = await open_store()
        for turns_seen in (2, 0, 3):
            for added in turns:
                assert await other.append(key(), added, turns_seen) == session
        assert [stored.turn for stored in (await store.load(key())).messages] == [1, 1, 2, 2, 3, 3]

    async def test_turn_sent_twice_at_once_is_stored_once(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        for number in range(5):
            added = turn()
            one, two = await asyncio.gather(store.append(key(), added, number), other.append(key(), added, number))
            assert one.turns == two.turns == number + 1
        assert [stored.seq for stored in (await store.load(key())).messages] == list(range(10))

    async def test_cancelled_append_is_stored_whole_or_not_at_all(self, store: Store) -> None:
        await store.append(key(), turn(), 0)
        for number in range(1, 6):
            added = turn()
            task = asyncio.ensure_future(store.append(key(), added, number))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await store.append(key(), added, number)).turns == number + 1
        page = await store.load(key())
        assert [stored.seq for stored in page.messages] == list(range(12))
        assert [stored.turn for stored in page.messages] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]

    # Several writers

    @pytest.mark.parametrize("seen", [0, 1, 3, 9])
    async def test_append_after_another_writer_is_a_conflict(self, store: Store, seen: int) -> None:
        await store.append(key(), turn(), 0)
        await store.append(key(), turn(), 1)
        with pytest.raises(SessionConflict) as caught:
            await store.append(key(), turn(), seen)
        assert caught.value.turns == 2
        assert (await store.load(key())).messages[-1].seq == 3

    async def test_append_to_a_session_that_is_not_there_is_a_conflict(self, store: Store) -> None:
        with pytest.raises(SessionConflict) as caught:
            await store.append(key(), turn(), 2)
        assert caught.value.turns == 0
        assert await store.session(key()) is None

    async def test_of_two_writers_one_wins_each_round(self, store: Store, open_store: OpenStore) -> None:
        stores = [store, await open_store()]
        winners: list[str] = []
        for number in range(8):
            rivals = [turn(), turn()]
            results = await asyncio.gather(
                *(writer.append(key(), added, number) for writer, added in zip(stores, rivals, strict=True)),
                return_exceptions=True,
            )
            [won] = [i for i, result in enumerate(results) if isinstance(result, Session)]
            lost = results[1 - won]
            assert isinstance(lost, SessionConflict), lost
            assert lost.turns == number + 1
            winners += [rivals[won].id] * 2
        page = await store.load(key())
        assert [stored.turn_id for stored in page.messages] == winners
        assert [stored.seq for stored in page.messages] == list(range(16))

    async def test_writers_that_try_again_lose_nothing(self, store: Store, open_store: OpenStore) -> None:
        async def write(writer: Store, turns: list[Turn]) -> None:
            seen = 0
            for added in turns:
                while True:
                    try:
                        seen = (await writer.append(key(), added, seen)).turns
                        break
                    except SessionConflict as conflict:
                        if conflict.turns <= seen:
                            raise
                        seen = conflict.turns

        writers = [store, await open_store(), await open_store()]
        turns = [[turn() for _ in range(5)] for _ in writers]
        await asyncio.gather(*map(write, writers, turns))
        page = await store.load(key())
        assert [stored.turn for stored in page.messages] == [n for n in range(1, 16) for _ in range(2)]
        assert [stored.seq for stored in page.messages] == list(range(30))
        for own in turns:
            ids = [added.id for added in own for _ in range(2)]
            assert [stored.turn_id for stored in page.messages if stored.turn_id in ids] == ids

    async def test_sessions_grow_side_by_side(self, store: Store, open_store: OpenStore) -> None:
        stores = [store, await open_store()]

        async def write(number: int) -> None:
            for seen in range(3):
                await stores[number % 2].append(key(f"{number}"), turn(user(f"{number}")), seen)

        await asyncio.gather(*map(write, range(6)))
        for number in range(6):
            assert texts((await store.load(key(f"{number}"))).messages) == [f"{number}"] * 3

    async def test_readers_see_whole_turns(self, store: Store, open_store: OpenStore) -> None:
        async def write() -> None:
            for seen in range(8):
                messages = user("1"), assistant(tool_use("call-1")), user(tool_result("call-1")), assistant("4")
                await store.append(key(), turn(*messages), seen)

        reader = await open_store()
        writing = asyncio.ensure_future(write())
        loaded: list[int] = []
        while not writing.done():
            await asyncio.sleep(0)
            if session := await reader.session(key()):
                page = await reader.load(key())
                assert session.messages == 4 * session.turns <= len(page.messages)
                assert [stored.seq for stored in page.messages] == list(range(len(page.messages)))
                loaded.append(len(page.messages))
        await writing
        assert loaded == sorted(loaded)
        assert all(count % 4 == 0 for count in loaded)
        assert len((await reader.load(key())).messages) == 32

    async def test_deletion_while_another_writes_leaves_no_session(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        for number in range(5):
            own = key(f"{number}")
            await store.append(own, turn(), 0)
            appended, deleted = await asyncio.gather(
                store.append(own, turn(), 1), other.delete(own), return_exceptions=True
            )
            assert deleted is True
            if isinstance(appended, Session):
                assert appended.turns == 2
            else:
                assert isinstance(appended, SessionConflict), appended
                assert appended.turns == 0
            assert await store.session(own) is None
            assert (await store.sessions(own.owner)).sessions == ()
            assert (await other.append(own, turn(user("new")), 0)).messages == 1
            assert await store.delete(own)
