"""Sessions as operators see them: filters, ids of several owners, copies and exports."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from gateway.memory import reading
from gateway.memory.copying import OtherSession, copy_session
from gateway.memory.management import (
    AmbiguousSession,
    OwnerFilter,
    export_lines,
    find_session,
    list_sessions,
    select_sessions,
)
from gateway.memory.model import Page, SessionKey, StoredMessage, Turn
from gateway.memory.reading import PAGE, read_messages, read_turn, read_turns
from gateway.memory.store import SessionNotFound, Store, StoreUnavailable
from gateway.memory.window import measure
from tests.memory.conversations import assistant, image, key, medium, texts, turn, user
from tests.memory.in_memory_store import InMemoryStore


@pytest.fixture
async def store() -> InMemoryStore:
    """A session of each of eight owners."""
    store = InMemoryStore()
    for agent_id, tenant, caller in product(("a", "b"), ("", "blue"), ("", "bob")):
        await store.append(key(f"{agent_id}-{tenant}-{caller}", agent_id, tenant, caller), turn(), 0)
    return store


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (OwnerFilter(), 8),
        (OwnerFilter("a"), 4),
        (OwnerFilter("a", tenant=""), 2),
        (OwnerFilter(caller="bob"), 4),
        (OwnerFilter("a", "blue", "bob"), 1),
        (OwnerFilter("c"), 0),
    ],
)
async def test_sessions_of_the_wanted_owners(wanted: OwnerFilter, count: int, store: InMemoryStore) -> None:
    found = [session async for session in select_sessions(store, wanted)]
    assert len(found) == count
    assert all(wanted.matches(session.key.owner) for session in found)
    pages, after = [], ""
    while True:
        page = await list_sessions(store, wanted, after, 3)
        pages += page.sessions
        after = page.next
        if not after:
            break
    assert pages == found


async def test_sessions_that_are_updated_meanwhile_are_listed_once() -> None:
    store = InMemoryStore()
    keys = [key(f"{number}") for number in range(2 * PAGE)]
    for one in keys:
        await store.append(one, turn(), 0)
    found = []
    async for session in select_sessions(store, OwnerFilter()):
        if not found:
            await store.append(keys[0], turn(), 1)  # the last one of the list becomes the first
            await store.append(keys[-1], turn(), 1)
        found.append(session.key)
    assert len(found) == len(keys)
    assert set(found) == set(keys)


async def test_a_session_is_found_by_its_id_alone(store: InMemoryStore) -> None:
    assert (await find_session(store, "gws-b-blue-bob")).key == key("b-blue-bob", "b", "blue", "bob")
    with pytest.raises(SessionNotFound):
        await find_session(store, "gws-b-blue-bob", OwnerFilter("a"))


async def test_an_id_of_several_owners_needs_the_owner(store: InMemoryStore) -> None:
    await store.append(key("a--", "a", "blue"), turn(), 0)
    with pytest.raises(AmbiguousSession, match="agent a, tenant '', caller ''"):
        await find_session(store, "gws-a--")
    assert (await find_session(store, "gws-a--", OwnerFilter(tenant="blue"))).key == key("a--", "a", "blue")
    assert (await find_session(store, "gws-a--", OwnerFilter("a", "", ""))).key == key("a--", "a")


@pytest.mark.parametrize("count", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
async def test_all_messages_are_read_in_their_order(count: int) -> None:
    store = InMemoryStore()
    await store.append(key(), turn(*(user(str(number)) for number in range(count))), 0)
    assert texts(await _collect(read_messages(store, key()))) == [str(number) for number in range(count)]
    assert texts(await _collect(read_messages(store, key(), 50))) == [str(number) for number in range(50, count)]


async def test_turns_from_any_number_on() -> None:
    store = InMemoryStore()
    for number in range(1, 121):
        await store.append(key(), turn(user(str(number)), *[assistant("a")] * (number % 3)), number - 1)
    for first in range(1, 123):
        found = [messages[0].turn async for messages in read_turns(store, key(), first)]
        assert found == list(range(first, 121))


async def test_one_turn_is_read_by_small_pages() -> None:
    class Counting(InMemoryStore):
        loaded = 0

        async def load(self, *args: Any, **values: Any) -> Page:
            page = await super().load(*args, **values)
            self.loaded += len(page.messages)
            return page

    store = Counting()
    for number in range(1, 101):
        await store.append(key(), turn(*[user(str(number))] * (number % 10 + 1)), number - 1)
    for number in range(1, 101):
        store.loaded = 0
        found = await read_turn(store, key(), number)
        assert found is not None
        assert texts(found) == [str(number)] * (number % 10 + 1)
        assert {stored.turn for stored in found} == {number}
        assert store.loaded <= 10 + 8 + len(found)  # the search for the turn, then pages of 4 and what follows it
    assert await read_turn(store, key(), 101) is None


class Measuring(InMemoryStore):
    """largest: bytes of the largest page with more than one message."""

    largest = 0

    async def load(self, *args: Any, **values: Any) -> Page:
        page = await super().load(*args, **values)
        if len(page.messages) > 1:
            self.largest = max(self.largest, sum(measure(stored.message)[0] for stored in page.messages))
        return page


@pytest.mark.parametrize("start", [0, 7, 149])
async def test_large_messages_are_not_loaded_together(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 10_000)
    store = Measuring()
    sizes = [100, *[6_000] * 5, 20_000, *[100] * 140, 6_000, 6_000, 100]
    for number, size in enumerate(sizes):
        await store.append(key(), turn(user(image(medium(size)))), number)
    found = [stored.seq async for stored in read_messages(store, key(), start)]
    assert found == list(range(start, 150))
    assert store.largest <= 10_000


class Expiring(InMemoryStore):
    """A store that has lost the messages before seq `oldest`."""

    oldest = 0

    async def load(self, *args: Any, **values: Any) -> Page:
        page = await super().load(*args, **values)
        return Page(tuple(message for message in page.messages if message.seq >= self.oldest), page.more)


@pytest.mark.parametrize("lost", [1, 60, 110, 149])
async def test_a_session_whose_oldest_turns_are_missing(lost: int) -> None:
    store = Expiring()
    for number in range(150):
        await store.append(key(), turn(), number)
    store.oldest = 2 * lost
    assert [stored.seq for stored in await _collect(read_messages(store, key()))] == list(range(2 * lost, 300))
    for first in (1, lost, lost + 1, 150):
        found = [messages[0].turn async for messages in read_turns(store, key(), first)]
        assert found == list(range(max(first, lost + 1), 151))
    assert await read_turn(store, key(), lost) is None


async def _collect(messages: AsyncIterator[StoredMessage]) -> tuple[StoredMessage, ...]:
    return tuple([message async for message in messages])


async def test_json_lines(store: InMemoryStore) -> None:
    await store.append(key("x"), turn(user("Look:", image()), assistant("A dot."), id_="t1", system="Be brief."), 0)
    session = await find_session(store, "gws-x")
    lines = [json.loads(line) async for line in export_lines(store, session)]
    assert lines[0]["session"]["id"] == "gws-x"
    assert lines[0]["session"]["system"] == "Be brief."
    assert lines[1:] == [
        {"message": {"seq": 0, "turn": 1, "turn_id": "t1", "role": "user", "content": [{"text": "Look:"}, image()]}},
        {"message": {"seq": 1, "turn": 1, "turn_id": "t1", "role": "assistant", "content": [{"text": "A dot."}]}},
    ]


async def _filled(*turns: Turn, session_key: SessionKey = key()) -> InMemoryStore:  # noqa: B008  # immutable
    store = InMemoryStore()
    for number, one in enumerate(turns):
        await store.append(session_key, one, number)
    return store


async def _contents(store: Store) -> Any:
    session = await store.session(key())
    assert session is not None
    return session.system, session.pinned, await _collect(read_messages(store, key()))


TURNS = (turn(system="Be brief."), turn(user("Look:", image()), assistant("A dot.")), turn())


async def test_a_copy_is_equal() -> None:
    source, target = await _filled(*TURNS), InMemoryStore()
    await source.pin(key(), True)
    assert await copy_session(source, target, await find_session(source, key().id)) == 3
    assert await _contents(target) == await _contents(source)
    assert await copy_session(source, target, await find_session(source, key().id)) == 0


async def test_a_copy_is_of_the_moment_while_the_source_grows() -> None:
    class Growing(InMemoryStore):
        async def load(self, *args: Any, **values: Any) -> Page:
            session = await self.session(key())
            assert session is not None
            await self.append(key(), turn(system=f"system {session.turns + 1}"), session.turns)
            return await super().load(*args, **values)

    source, target = Growing(), InMemoryStore()
    await source.append(key(), turn(system="system 1"), 0)
    listed = await find_session(source, key().id)
    await source.append(key(), turn(system="system 2"), 1)
    await source.append(key(), turn(system="system 3"), 2)
    assert await copy_session(source, target, listed) == 3
    system, _, copied = await _contents(target)
    assert system == "system 3"
    assert copied == (await InMemoryStore.load(source, key(), 6)).messages
    assert await copy_session(source, target, listed) > 0
    system, _, copied = await _contents(target)
    assert system == f"system {copied[-1].turn}"


@pytest.mark.parametrize("present", [1, 2])
async def test_an_interrupted_copy_continues(present: int) -> None:
    source, target = await _filled(*TURNS), await _filled(*TURNS[:present])
    assert await copy_session(source, target, await find_session(source, key().id)) == 3 - present
    assert await _contents(target) == await _contents(source)


async def test_a_copy_that_is_run_again_removes_the_system_text() -> None:
    source, target = await _filled(*TURNS), InMemoryStore()
    await copy_session(source, target, await find_session(source, key().id))
    await source.append(key(), turn(system=""), len(TURNS))
    assert await copy_session(source, target, await find_session(source, key().id)) == 1
    assert await _contents(target) == await _contents(source)


async def test_a_store_that_fails_midway_loses_and_doubles_nothing() -> None:
    class Failing(InMemoryStore):
        left = 2

        async def append(self, key: SessionKey, turn: Turn, turns: int) -> Any:
            if not self.left:
                raise StoreUnavailable("the disk is full")
            self.left -= 1
            return await super().append(key, turn, turns)

    source, target = await _filled(*TURNS), Failing()
    with pytest.raises(StoreUnavailable):
        await copy_session(source, target, await find_session(source, key().id))
    target.left = 9
    assert await copy_session(source, target, await find_session(source, key().id)) == 1
    assert await _contents(target) == await _contents(source)


@pytest.mark.parametrize("others", [(turn(),), (TURNS[0], turn()), (TURNS[1],)])
async def test_other_turns_under_the_same_id_are_left_alone(others: tuple[Turn, ...]) -> None:
    source, target = await _filled(*TURNS), await _filled(*others)
    before = await _contents(target)
    with pytest.raises(OtherSession):
        await copy_session(source, target, await find_session(source, key().id))
    assert await _contents(target) == before


async def test_a_session_that_went_on_in_the_target_is_left_as_it_is() -> None:
    source, target = await _filled(*TURNS), await _filled(*TURNS, turn())
    before = await _contents(target)
    assert await copy_session(source, target, await find_session(source, key().id)) == 0
    assert await _contents(target) == before
