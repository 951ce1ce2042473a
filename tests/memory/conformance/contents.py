"""What was appended is loaded: contents, metadata, numbers, pages."""

from __future__ import annotations

import time

import pytest

from gateway.memory.model import Metadata, Session
from gateway.memory.store import Store, Unstorable
from tests.memory.conformance.base import OpenStore, StoreTests
from tests.memory.conversations import (
    MESSAGES,
    METADATA,
    assistant,
    image,
    key,
    medium,
    nested,
    text,
    texts,
    tool_result,
    tool_use,
    turn,
    user,
)


class ContentTests(StoreTests):
    """Tests of what is loaded."""

    @pytest.mark.parametrize("name", MESSAGES)
    async def test_content_comes_back(self, store: Store, open_store: OpenStore, name: str) -> None:
        message = MESSAGES[name]
        if name in self.unstorable:
            with pytest.raises(Unstorable) as caught:
                await store.append(key(), turn(user("before"), message), 0)
            assert caught.value.place.startswith("messages[1]")
            assert await store.session(key()) is None
            return
        await store.append(key(), turn(user("before"), message, assistant("after")), 0)
        for reader in (store, await open_store()):
            page = await reader.load(key())
            assert [stored.message for stored in page.messages] == [
                self.as_stored(user("before")),
                self.as_stored(message),
                self.as_stored(assistant("after")),
            ]

    async def test_a_probe_leaves_nothing(self, store: Store, open_store: OpenStore) -> None:
        await store.probe(100_000)
        assert (await store.sessions()).sessions == ()
        stored = await store.append(key(), turn(), 0)
        before = await store.load(key())
        await store.probe(100_000)
        for reader in (store, await open_store()):
            assert (await reader.sessions()).sessions == (stored,)
            assert await reader.load(key()) == before

    @pytest.mark.parametrize("name", METADATA)
    async def test_metadata_come_back(self, store: Store, open_store: OpenStore, name: str) -> None:
        messages = user("question", metadata=METADATA[name]), assistant("answer", metadata=METADATA[name])
        await store.append(key(), turn(*messages), 0)
        page = await (await open_store()).load(key())
        assert [stored.message for stored in page.messages] == [self.as_stored(message) for message in messages]

    async def test_content_that_is_nested_too_deeply_is_refused(self, store: Store) -> None:
        with pytest.raises(Unstorable) as caught:
            await store.append(key(), turn(user("before"), assistant(tool_use("call-1", deep=nested()))), 0)
        assert caught.value.place.startswith("messages[1]")
        assert await store.session(key()) is None

    async def test_large_media_come_back(self, store: Store, open_store: OpenStore) -> None:
        one, two = medium(self.media_size, 1), medium(self.media_size, 2)
        first = user(image(one), "the same twice:", image(one)), assistant(tool_use("call-1"))
        second = user(tool_result("call-1", text("found"), image(two))), assistant("a cat")
        await store.append(key(), turn(*first), 0)
        await store.append(key(), turn(*second), 1)
        page = await (await open_store()).load(key())
        expected = [self.as_stored(message) for message in first + second]
        assert [stored.message for stored in page.messages] == expected

    async def test_messages_are_numbered_without_gaps(self, store: Store) -> None:
        turns = [turn(user("1")), turn(user("2"), assistant("3"), user("4"), assistant("5")), turn(user("6"))]
        for number, added in enumerate(turns):
            session = await store.append(key(), added, number)
            assert session.turns == number + 1
        assert (session.messages, session.key) == (6, key())
        page = await store.load(key())
        assert [stored.seq for stored in page.messages] == [0, 1, 2, 3, 4, 5]
        assert [stored.turn for stored in page.messages] == [1, 2, 2, 2, 2, 3]
        assert [stored.turn_id for stored in page.messages] == [turns[i].id for i in (0, 1, 1, 1, 1, 2)]
        assert texts(page.messages) == ["1", "2", "3", "4", "5", "6"]
        assert not page.more

    async def test_session_is_as_append_returned_it(self, store: Store, open_store: OpenStore) -> None:
        before = int(time.time()) - 1
        made = await store.append(key(), turn(system="Be brief."), 0)
        assert made == Session(key(), 1, 2, made.created, made.updated, system="Be brief.")
        assert before <= made.created <= made.updated <= time.time() + 1
        await self.tick()
        longer = await store.append(key(), turn(user("and now?")), 1)
        assert (longer.turns, longer.messages, longer.created) == (2, 3, made.created)
        assert longer.updated >= made.updated
        assert await store.session(key()) == await (await open_store()).session(key()) == longer

    async def test_failed_turns_stay_marked(self, store: Store) -> None:
        failed = user("the run failed", metadata=Metadata(created=1.0, failed=True))
        for number, added in enumerate([turn(), turn(failed), turn()]):
            await store.append(key(), added, number)
        page = await store.load(key())
        assert [stored.message.metadata.failed for stored in page.messages] == [False, False, True, False, False]
        assert [stored.turn for stored in page.messages] == [1, 1, 2, 3, 3]

    # Paging

    async def test_pages_go_from_the_newest_message_to_the_oldest(self, store: Store) -> None:
        for number in range(4):
            await store.append(key(), turn(user(f"question {number}"), assistant(f"answer {number}")), number)
        everything = (await store.load(key())).messages
        newest = await store.load(key(), limit=3)
        assert (newest.messages, newest.more) == (everything[5:], True)
        middle = await store.load(key(), before=5, limit=3)
        assert (middle.messages, middle.more) == (everything[2:5], True)
        oldest = await store.load(key(), before=2, limit=3)
        assert (oldest.messages, oldest.more) == (everything[:2], False)
        exact = await store.load(key(), before=2, limit=2)
        assert (exact.messages, exact.more) == (everything[:2], False)
        none = await store.load(key(), before=0)
        assert (none.messages, none.more) == ((), False)

    async def test_pages_are_limited_in_bytes(self, store: Store) -> None:
        for number, size in enumerate([10, 1_000, 100_000, 10, 1_000]):
            await store.append(key(), turn(user(image(medium(size))), assistant("ok")), number)
        seqs: list[list[int]] = []
        before = 10
        while before:
            page = await store.load(key(), before, limit=100, most_bytes=10_000)
            seqs.append([stored.seq for stored in page.messages])
            before = seqs[-1][0]
            assert page.more == (before > 0)
        assert [seq for page in reversed(seqs) for seq in page] == list(range(10))
        assert not self.limits_bytes or [4] in seqs or [4, 5] in seqs

    async def test_long_session(self, store: Store) -> None:
        for number in range(0, 120, 40):
            await store.append(key(), turn(*(user(str(number + i)) for i in range(40))), number // 40)
        page = await store.load(key())
        assert texts(page.messages) == [str(i) for i in range(20, 120)]
        assert page.more
