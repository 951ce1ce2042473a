"""Reads a session from its first message on, or some of its turns, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gateway.memory.model import Owner, Session, SessionKey, StoredMessage
from gateway.memory.store import Store

PAGE = 100


async def read_messages(store: Store, key: SessionKey, start: int = 0) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages with a seq of `start` and more, oldest first.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    while True:
        page = await store.load(key, before=start + PAGE, limit=PAGE)
        found = [message for message in page.messages if message.seq >= start]
        for message in found:
            yield message
        if len(found) < PAGE:
            return
        start += PAGE


async def read_turns(store: Store, key: SessionKey, first: int = 1) -> AsyncGenerator[tuple[StoredMessage, ...], None]:
    """Yield the messages of turn `first`, then of each later turn.

    Raises:
        SessionNotFound, UnreadableSession: as `Store.load`.
    """
    turn: list[StoredMessage] = []
    async for message in read_messages(store, key, await _first_seq(store, key, first)):
        if turn and message.turn != turn[0].turn:
            yield tuple(turn)
            turn = []
        turn.append(message)
    if turn:
        yield tuple(turn)


async def read_sessions(store: Store, owner: Owner | None = None) -> AsyncGenerator[Session, None]:
    """Yield the sessions of `owner`, or all of the store, the last updated first."""
    after = ""
    while True:
        page = await store.sessions(owner, after, PAGE)
        for session in page.sessions:
            yield session
        after = page.next
        if not after:
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
        if page.messages and page.messages[0].turn < turn:
            low = middle + 1
        else:
            high = middle
    return low
