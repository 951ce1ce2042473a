"""The interface of a store of sessions, and its errors. `gateway.memory.stores` holds the implementations.

Several processes may use a store at the same time. A writer says how many turns it has seen, so that of two
writers only one succeeds and the other reads again.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from gateway.memory.model import Block, Owner, Page, Session, SessionKey, SessionPage, Turn

NEWEST = 2**62
"""The `before` of `Store.load` that begins with the newest message."""


class StoreError(Exception):
    """A store did not do what it was asked. The text says what happened and what to do, without any secret."""


class StoreUnavailable(StoreError):
    """The store can't be reached, or did not respond in time. Whether a turn was written is not known."""


class StoreThrottled(StoreUnavailable):
    """The store accepts no more requests at present, and did not until the deadline."""


class SessionConflict(StoreError):
    """Another writer has appended to the session. turns: how many it has now."""

    def __init__(self, reason: str, turns: int) -> None:
        super().__init__(reason)
        self.turns = turns


class SessionNotFound(StoreError):
    """The owner has no session of this id."""


class UnknownPosition(StoreError):
    """The `after` of a list of sessions is not the `next` of a page."""


class TooLargeForStore(StoreError):
    """The store can't keep a message of this size, or so many. Nothing was written."""


class Unstorable(StoreError):
    """The store can't keep this content. Nothing was written. place: where in the turn (``messages[0].content[1]``)."""

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(reason)
        self.place = place


class UnreadableSession(StoreError):
    """What the store holds is not what the gateway writes, or of a version that it does not know."""


class Store(Protocol):
    """Keeps sessions. Every method may raise `StoreUnavailable`.

    A turn is stored whole or not at all: a reader never sees a part of it, also if the writer is killed.
    """

    name: ClassVar[str]

    async def start(self) -> None:
        """Open the store; make what it needs if that does not exist."""

    async def close(self) -> None:
        """Finish what was begun, and release everything."""

    async def probe(self, size: int) -> None:
        """Write about `size` bytes, and remove them: it fails where a turn of that size can't be stored at present.

        A store that has room whenever it takes writes (opensearch, agentcore) writes little, whatever the size.
        """

    async def session(self, key: SessionKey) -> Session | None:
        """Return the session, or None if its owner has none of this id."""

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """Append `turn`, as turn number ``turns + 1``. ``turns=0`` makes the session. Return it as it is now.

        A turn whose id the session already holds is not stored again; that is no error.

        Raises:
            SessionConflict: the session does not have `turns` turns. Nothing was written.
            TooLargeForStore, Unstorable: nothing was written.
        """

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """Return the newest `limit` messages with a seq below `before`, oldest first. All are of finished writes.

        most_bytes: the page has fewer messages if they would have more bytes, but at least one (opensearch: one turn);
        0 for no limit. A store that does not know how large messages are before it reads them (agentcore) has none.

        Raises:
            SessionNotFound: there is no such session.
            UnreadableSession: a message can't be read.
        """

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """Return the sessions of `owner`, or all of the store, the last updated first. after: `SessionPage.next`.

        Raises:
            UnknownPosition: it is not one.
        """

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session with all its messages and media. Return whether it existed."""

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """Keep the session from being deleted by age or number, or no longer.

        Raises:
            SessionNotFound: there is no such session.
        """


LARGE = 65_536
"""Characters of a text from which on it is kept apart."""

Place = tuple[str | int, ...]
"""Keys and indexes that lead to a text: ``(0, "image", "source", "bytes")``."""


def take_out(content: tuple[Block, ...]) -> tuple[list[Any], dict[Place, str]]:
    """Return `content` with each large text replaced by an empty one, and the large texts by place.

    Raises:
        RecursionError: `content` is nested too deeply.
    """
    found: dict[Place, str] = {}
    return [_without(block, (index,), found) for index, block in enumerate(content)], found


def _without(value: Any, place: Place, found: dict[Place, str]) -> Any:
    match value:
        case str() if len(value) >= LARGE:
            found[place] = value
            return ""
        case dict():
            return {key: _without(item, (*place, key), found) for key, item in value.items()}
        case list() | tuple():
            return [_without(item, (*place, index), found) for index, item in enumerate(value)]
        case _:
            return value


def put_back(content: tuple[Block, ...], place: Place, text: str) -> None:
    """Write a text that was taken out into `content` again, in place.

    Raises:
        LookupError, TypeError: `content` has no such place.
    """
    value: Any = content
    for step in place[:-1]:
        value = value[step]
    value[place[-1]]  # must exist
    value[place[-1]] = text
