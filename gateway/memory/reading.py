"""Reads a session page by page: from its first message on, some of its turns, or what is sent with a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import inf

from gateway.config.memory import Window
from gateway.memory.model import Owner, Session, SessionKey, StoredMessage
from gateway.memory.store import NEWEST, SessionNotFound, Store
from gateway.memory.window import live_messages, measure, window_start

PAGE = 100
MOST_BYTES = 16 * 1024 * 1024
"""Of messages that are loaded together, so that large media of many messages are not in memory at once."""
_RANGE = 20
"""Messages that are loaded at a time where a range is read."""
_WINDOW = 40
"""Messages that are loaded at a time where the window is read."""
_MOST_UNSENT = 2_000
"""Messages of failed turns and other branches after which no older ones are read, so that a request has an end."""
_TURN = 4
"""Messages that are loaded at a time where one turn is read; most turns have two."""


async def read_messages(
    store: Store, key: SessionKey, start: int = 0, page_size: int = PAGE
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages with a seq of `start` and more that the session has now, oldest first.

    The oldest ones may be missing (`gateway.memory.stores.agentcore.store`). page_size: messages that are loaded
    at a time; fewer where they are large.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    session = await store.session(key)
    if session is None:
        raise SessionNotFound(f"There is no session {key.id}.")
    size = page_size
    while start < session.messages:
        end = min(start + size, session.messages)
        page = await store.load(key, before=end, limit=end - start, most_bytes=MOST_BYTES)
        if page.more and page.messages and page.messages[0].seq > start:  # they are too large to be loaded together
            size = (end - start) // 2
            continue
        for message in page.messages:
            yield message
        start, size = end, min(2 * size, page_size)


async def read_window(store: Store, key: SessionKey, limits: Window) -> tuple[int, list[StoredMessage], bool]:
    """Load pages, the newest first, until the window is full, or there are `_MOST_UNSENT` messages that are not sent.

    Return the last turn's number, the conversation's newest messages, and whether it has older ones.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    live: list[StoredMessage] = []
    turns, before, loaded = 0, NEWEST, 0
    while True:
        page = await store.load(key, before, _WINDOW, limits.bytes)
        turns = max(turns, *(stored.turn for stored in page.messages), 0)
        live = live_messages([*page.messages, *live])
        loaded += len(page.messages)
        more = page.more and bool(page.messages) and loaded - len(live) < _MOST_UNSENT
        if window_start(live, limits, more) is not None:
            return turns, live, more
        before = page.messages[0].seq


async def read_range(
    store: Store, key: SessionKey, start: int, end: int, most_bytes: int = MOST_BYTES
) -> list[StoredMessage]:
    """Return the messages with a seq from `start` to below `end`: the first ones that fit into `most_bytes`, or one.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    found: list[StoredMessage] = []
    held = 0
    async with aclosing(read_messages(store, key, start, min(end - start, _RANGE))) as messages:
        async for stored in messages:
            held += measure(stored.message)[0]
            if stored.seq >= end or (found and held > most_bytes):  # those before `end` may have expired
                break
            found.append(stored)
            if stored.seq == end - 1:
                break
    return found


async def read_turn(store: Store, key: SessionKey, number: int) -> tuple[StoredMessage, ...] | None:
    """Return the messages of turn `number`; None if the session has no such turn.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    async with aclosing(read_turns(store, key, number, _TURN)) as turns:
        async for turn in turns:
            return turn if turn[0].turn == number else None
    return None


async def read_turns(
    store: Store, key: SessionKey, first: int = 1, page_size: int = PAGE
) -> AsyncGenerator[tuple[StoredMessage, ...], None]:
    """Yield the messages of turn `first`, then of each later turn. page_size: see `read_messages`.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    turn: list[StoredMessage] = []
    async for message in read_messages(store, key, await _first_seq(store, key, first), page_size):
        if turn and message.turn != turn[0].turn:
            yield tuple(turn)
            turn = []
        turn.append(message)
    if turn:
        yield tuple(turn)


async def read_sessions(store: Store, owner: Owner | None = None) -> AsyncGenerator[Session, None]:
    """Yield the sessions of `owner`, or all of the store, once each, the last updated first.

    A session that is updated between two pages moves to the front of the list. So unless all pages were of the same
    moment, the front of the list is read again, and the sessions that were not seen follow.
    """
    seen: set[SessionKey] = set()
    since, moved = -inf, True
    while moved:
        moved = False
        newest = since
        async for page, may_have_moved in _pages(store, owner, since):
            moved |= may_have_moved
            newest = max([newest, *(session.updated for session in page)])
            for session in page:
                if session.key not in seen:
                    seen.add(session.key)
                    yield session
        since = newest


async def _pages(store: Store, owner: Owner | None, since: float) -> AsyncGenerator[tuple[list[Session], bool], None]:
    """Yield pages of the sessions that were updated at the time `since` or later.

    With each, yield whether sessions may have moved since the page before.
    """
    after = ""
    while True:
        page = await store.sessions(owner, after, PAGE)
        found = [session for session in page.sessions if session.updated >= since]
        yield found, bool(after) and not page.same_moment
        after = page.next
        if not after or len(found) < len(page.sessions):
            return


async def _first_seq(store: Store, key: SessionKey, turn: int) -> int:
    """Return the seq of the first message of `turn`; the number of messages if the session has fewer turns."""
    if turn <= 1:
        return 0
    session = await store.session(key)
    low, high = 0, session.messages if session is not None else 0
    while low < high:
        middle = (low + high) // 2
        page = await store.load(key, before=middle + 1, limit=1)
        if not page.messages or page.messages[0].turn < turn:  # the oldest ones may be missing
            low = middle + 1
        else:
            high = middle
    return low
