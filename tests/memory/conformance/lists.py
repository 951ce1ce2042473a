"""Sessions are listed, kept apart by owner, pinned, deleted; the system text is kept."""

from __future__ import annotations

import pytest

from gateway.memory.model import Owner, Session, SessionKey
from gateway.memory.store import SessionNotFound, Store
from tests.memory.conformance.base import OWNERS, OpenStore, StoreTests
from tests.memory.conversations import (
    assistant,
    image,
    key,
    medium,
    texts,
    turn,
    user,
)


class ListTests(StoreTests):
    """Tests of sessions as a whole."""

    # The system text

    async def test_system_text_is_kept_replaced_and_removed(self, store: Store, open_store: OpenStore) -> None:
        expected = {None: "", "Be brief. ü": "Be brief. ü", "Be long.": "Be long.", "": ""}
        number = 0
        for system, kept in expected.items():
            for added in (turn(system=system), turn()):
                session = await store.append(key(), added, number)
                number += 1
                assert session.system == kept
            assert (await (await open_store()).session(key()) or session).system == kept

    # Lists, pins and deletion

    async def test_sessions_of_an_owner_are_listed_last_updated_first(self, store: Store) -> None:
        seen: dict[SessionKey, int] = {}
        for name in ("a", "b", "c", "d", "e", "b", "a", "c"):
            seen[key(name)] = (await store.append(key(name), turn(), seen.get(key(name), 0))).turns
            await self.tick()
        await store.append(key("z", agent_id="other"), turn(), 0)
        page = await store.sessions(key().owner)
        assert [session.key for session in page.sessions] == [key("c"), key("a"), key("b"), key("e"), key("d")]
        assert page.next == ""
        assert [await store.session(session.key) for session in page.sessions] == list(page.sessions)

    @pytest.mark.parametrize("limit", [1, 2, 5, 6])
    async def test_lists_have_pages(self, store: Store, open_store: OpenStore, limit: int) -> None:
        for number in range(6):
            await store.append(key(f"{number}"), turn(), 0)
            await self.tick()
        found: list[str] = []
        after, other = "", await open_store()
        while True:
            page = await other.sessions(key().owner, after, limit)
            assert len(page.sessions) <= limit
            found += [session.key.id for session in page.sessions]
            after = page.next
            if not after:
                break
            assert page.sessions
        assert found == [key(f"{number}").id for number in (5, 4, 3, 2, 1, 0)]

    async def test_owners_are_kept_apart(self, store: Store, open_store: OpenStore) -> None:
        keys = [SessionKey(owner, "gws-same") for owner in OWNERS]
        for number, own in enumerate(keys):
            assert await store.session(own) is None
            await store.append(own, turn(user(f"of {number}")), 0)
        other = await open_store()
        for number, own in enumerate(keys):
            assert texts((await other.load(own)).messages) == [f"of {number}"]
            listed = await other.sessions(own.owner)
            assert [session.key for session in listed.sessions] == [own]
        everyone = await other.sessions()
        assert sorted(session.key for session in everyone.sessions) == sorted(keys)
        assert await store.delete(keys[0])
        assert [await other.session(own) is not None for own in keys] == [False] + [True] * (len(keys) - 1)

    async def test_list_of_an_unknown_owner_is_empty(self, store: Store) -> None:
        await store.append(key(), turn(), 0)
        page = await store.sessions(Owner("unknown"))
        assert (page.sessions, page.next) == ((), "")

    async def test_deleted_session_is_gone_and_can_be_made_anew(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        await store.append(key(), turn(user("old", image(medium(self.media_size))), system="old"), 0)
        await store.append(key(), turn(user("old")), 1)
        await store.append(key("kept"), turn(user("kept")), 0)
        await store.pin(key(), True)
        assert await store.delete(key()) is True
        assert await store.delete(key()) is False
        assert await other.session(key()) is None
        with pytest.raises(SessionNotFound):
            await other.load(key())
        assert [session.key for session in (await other.sessions()).sessions] == [key("kept")]
        again = await other.append(key(), turn(user("new")), 0)
        assert (again.turns, again.messages, again.system, again.pinned) == (1, 1, "", False)
        assert texts((await store.load(key())).messages) == ["new"]
        assert texts((await store.load(key("kept"))).messages) == ["kept"]

    async def test_pinned_session_stays_pinned(self, store: Store, open_store: OpenStore) -> None:
        made = await store.append(key(), turn(), 0)
        assert not made.pinned
        pinned = await store.pin(key(), True)
        assert pinned == Session(key(), 1, 2, made.created, pinned.updated, pinned=True)
        assert (await store.append(key(), turn(), 1)).pinned
        assert [session.pinned for session in (await (await open_store()).sessions()).sessions] == [True]
        assert not (await store.pin(key(), False)).pinned
        assert not (await store.append(key(), turn(), 2)).pinned

    async def test_unknown_session(self, store: Store) -> None:
        await store.append(key("other"), turn(), 0)
        assert await store.session(key()) is None
        assert await store.delete(key()) is False
        with pytest.raises(SessionNotFound):
            await store.load(key())
        with pytest.raises(SessionNotFound):
            await store.pin(key(), True)

    # Open and close

    async def test_closed_store_can_be_opened_again(self, store: Store, open_store: OpenStore) -> None:
        await store.append(key(), turn(user("question", image()), assistant("answer")), 0)
        before = await store.load(key())
        session = await store.session(key())
        await store.close()
        await store.close()
        again = await open_store()
        assert await again.load(key()) == before
        assert await again.session(key()) == session
        assert (await again.append(key(), turn(), 1)).turns == 2
