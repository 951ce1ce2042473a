"""Sessions in a SQLite file, for the workers of one host.

SQLite blocks, so each store has a thread of its own. The file is in WAL mode: readers never wait for writers, and
writers of several processes wait for each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import msgspec

from gateway.memory.model import (
    Block,
    Message,
    Metadata,
    Owner,
    Page,
    Role,
    Session,
    SessionKey,
    SessionPage,
    StoredMessage,
    Turn,
)
from gateway.memory.store import (
    NEWEST,
    Place,
    SessionConflict,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
    TooLargeForStore,
    UnknownPosition,
    UnreadableSession,
    Unstorable,
    put_back,
    take_out,
)
from gateway.storage.files import UnusableFile, expand
from gateway.storage.sqlite import ForeignFile, Format, SqliteThread, empty_log, error_code, transaction

APPLICATION_ID = int.from_bytes(b"MLCG", "big")
"""Marks SQLite files of sessions (`PRAGMA application_id`)."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            number INTEGER PRIMARY KEY,
            agent_id TEXT NOT NULL, tenant TEXT NOT NULL, caller TEXT NOT NULL, id TEXT NOT NULL,
            turns INTEGER NOT NULL, messages INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            system TEXT NOT NULL, pinned INTEGER NOT NULL,
            UNIQUE (agent_id, tenant, caller, id))""",
        "CREATE INDEX sessions_of_owner_by_update ON sessions (agent_id, tenant, caller, updated)",
        "CREATE INDEX sessions_by_update ON sessions (updated)",
        """CREATE TABLE turns (
            session INTEGER NOT NULL, turn INTEGER NOT NULL, id TEXT NOT NULL,
            PRIMARY KEY (session, turn), UNIQUE (session, id)) WITHOUT ROWID""",
        """CREATE TABLE messages (
            session INTEGER NOT NULL, seq INTEGER NOT NULL, turn INTEGER NOT NULL, role TEXT NOT NULL,
            content BLOB NOT NULL, metadata BLOB NOT NULL,
            PRIMARY KEY (session, seq))""",
        "CREATE TABLE media (number INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
        """CREATE TABLE media_uses (
            session INTEGER NOT NULL, seq INTEGER NOT NULL, place TEXT NOT NULL, medium INTEGER NOT NULL,
            PRIMARY KEY (session, seq, place)) WITHOUT ROWID""",
        "CREATE INDEX media_uses_by_medium ON media_uses (medium)",
    ),
)
FORMAT = Format(
    APPLICATION_ID,
    "memory.sqlite.path",
    _MIGRATIONS,
    # FULL: a turn is on the disk before the client has its answer, so that a loss of power loses none. That is one
    # fsync a turn, which is little beside an LLM's answer. secure_delete: what is deleted is overwritten.
    ("synchronous = FULL", "secure_delete = ON", "journal_size_limit = 67108864"),
)

_COLUMNS = "agent_id, tenant, caller, id, turns, messages, created, updated, system, pinned, number"
_ROLES = get_args(Role)
_CONTENT = msgspec.json.Decoder(tuple[Block, ...])
_METADATA = msgspec.json.Decoder(Metadata)
_PLACE = msgspec.json.Decoder(Place)
_PROBE = b"probe"
"""In place of the hash of a medium: no hash is so short."""


class _Row(msgspec.Struct, frozen=True):
    """A message as it is written. media: large texts by their place in the content, as JSON."""

    role: str
    content: bytes
    metadata: bytes
    media: Sequence[tuple[str, bytes, bytes]]


def probe(connection: sqlite3.Connection, size: int) -> None:
    """Insert a medium of `size` bytes and delete it. What is rolled back would never be written to the disk."""
    with transaction(connection, "IMMEDIATE"):
        connection.execute("INSERT INTO media (sha256, data) VALUES (?, randomblob(?))", (_PROBE, size))
        connection.execute("DELETE FROM media WHERE sha256 = ?", (_PROBE,))


def find(connection: sqlite3.Connection, key: SessionKey) -> Session | None:
    """Return the session, or None."""
    found = _find(connection, key)
    return found and found[0]


def _find(connection: sqlite3.Connection, key: SessionKey) -> tuple[Session, int] | None:
    """Return the session and its number, or None."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE agent_id = ? AND tenant = ? AND caller = ? AND id = ?",
        (*_owner(key.owner), key.id),
    ).fetchone()
    return row and (_session(row), row[-1])


def _owner(owner: Owner) -> tuple[str, str, str]:
    return owner.agent_id, owner.tenant, owner.caller


def _session(row: Sequence[Any]) -> Session:
    """Return the session of a row of `_COLUMNS`."""
    agent_id, tenant, caller, id_, turns, messages, created, updated, system, pinned, _ = row
    key = SessionKey(Owner(agent_id, tenant, caller), id_)
    return Session(key, turns, messages, created, updated, system, bool(pinned))


def append(connection: sqlite3.Connection, key: SessionKey, turn: Turn, turns: int, now: float) -> Session:
    """Append the turn. Errors as `Store.append`."""
    rows = [_encode(message, index) for index, message in enumerate(turn.messages)]  # before others are locked out
    with transaction(connection, "IMMEDIATE"):
        found = _find(connection, key)
        session, number = found or (Session(key, 0, 0, now, now), None)
        known = "SELECT 1 FROM turns WHERE session = ? AND id = ?"
        if number is not None and connection.execute(known, (number, turn.id)).fetchone():
            return session
        if session.turns != turns:
            raise SessionConflict(f"The session has {session.turns} turns, not {turns}", session.turns)
        longer = Session(
            key,
            turns + 1,
            session.messages + len(rows),
            session.created,
            max(now, session.updated),
            session.system if turn.system is None else turn.system,
            session.pinned,
        )
        number = _write_session(connection, number, longer)
        connection.execute("INSERT INTO turns VALUES (?, ?, ?)", (number, longer.turns, turn.id))
        for seq, row in enumerate(rows, session.messages):
            _write_message(connection, number, seq, longer.turns, row)
        return longer


def _encode(message: Message, index: int) -> _Row:
    """Encode a message. Raises Unstorable: a part can't be encoded."""
    blocks, media = [], []
    place = ""
    try:
        content, large = take_out(message.content)
        for number, block in enumerate(content):
            place = f".content[{number}]"
            blocks.append(msgspec.Raw(msgspec.json.encode(block)))
        for where, text in large.items():
            place = f".content[{where[0]}]"
            data = text.encode()
            media.append((msgspec.json.encode(where).decode(), hashlib.sha256(data).digest(), data))
        place = ".metadata"
        return _Row(message.role, msgspec.json.encode(blocks), msgspec.json.encode(message.metadata), media)
    except (UnicodeEncodeError, TypeError, RecursionError) as error:
        raise Unstorable(f"This can't be written as JSON: {error}", f"messages[{index}]{place}") from error


def _write_session(connection: sqlite3.Connection, number: int | None, session: Session) -> int:
    """Write the session's row, and return its number. number: None to make it."""
    values = (session.turns, session.messages, session.updated, session.system)
    if number is not None:
        statement = "UPDATE sessions SET turns = ?, messages = ?, updated = ?, system = ? WHERE number = ?"
        connection.execute(statement, (*values, number))
        return number
    made = connection.execute(
        "INSERT INTO sessions (turns, messages, updated, system, agent_id, tenant, caller, id, created, pinned)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (*values, *_owner(session.key.owner), session.key.id, session.created),
    ).lastrowid
    assert made is not None
    return made


def _write_message(connection: sqlite3.Connection, number: int, seq: int, turn: int, row: _Row) -> None:
    values = (number, seq, turn, row.role, row.content, row.metadata)
    connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", values)
    for place, sha256, data in row.media:
        found = connection.execute("SELECT number FROM media WHERE sha256 = ?", (sha256,)).fetchone()
        if found is None:
            found = (connection.execute("INSERT INTO media (sha256, data) VALUES (?, ?)", (sha256, data)).lastrowid,)
        connection.execute("INSERT INTO media_uses VALUES (?, ?, ?, ?)", (number, seq, place, found[0]))


def load(connection: sqlite3.Connection, key: SessionKey, before: int, limit: int, most_bytes: int) -> Page:
    """Return a page of messages. Errors as `Store.load`."""
    with transaction(connection, "DEFERRED"):
        found = _find(connection, key)
        if found is None:
            raise not_found(key)
        if most_bytes:
            limit = _count_within(connection, found[1], before, limit, most_bytes)
        rows = connection.execute(
            "SELECT seq, messages.turn, turns.id, role, content, metadata"
            " FROM messages JOIN turns ON turns.session = messages.session AND turns.turn = messages.turn"
            " WHERE messages.session = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            (found[1], min(before, NEWEST), limit),
        ).fetchall()
        rows.reverse()
        media: dict[int, list[tuple[str, bytes]]] = {}
        if rows:
            uses = connection.execute(
                "SELECT seq, place, data FROM media_uses JOIN media ON number = medium"
                " WHERE session = ? AND seq BETWEEN ? AND ?",
                (found[1], rows[0][0], rows[-1][0]),
            )
            for seq, place, data in uses:
                media.setdefault(seq, []).append((place, data))
    messages = tuple(_decode(row, media.get(row[0], ())) for row in rows)
    return Page(messages, bool(messages) and messages[0].seq > 0)


def _count_within(connection: sqlite3.Connection, number: int, before: int, limit: int, most_bytes: int) -> int:
    """Return how many of the newest messages have at most `most_bytes` together; 1 if the newest has more."""
    sizes = connection.execute(
        "SELECT length(content) + (SELECT total(length(data)) FROM media_uses AS uses JOIN media ON number = medium"
        " WHERE uses.session = messages.session AND uses.seq = messages.seq)"
        " FROM messages WHERE session = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
        (number, min(before, NEWEST), limit),
    )
    within = takewhile(lambda total: total <= most_bytes, accumulate(size for (size,) in sizes))
    return min(limit, max(1, sum(1 for _ in within)))


def _decode(row: Sequence[Any], media: Sequence[tuple[str, bytes]]) -> StoredMessage:
    """Return the message of a row. Raises UnreadableSession: it is not as `append` writes it."""
    seq, turn, turn_id, role, content, metadata = row
    try:
        if role not in _ROLES:
            raise ValueError(f"its role is {role!r}")
        blocks = _CONTENT.decode(content)
        for place, data in media:
            put_back(blocks, _PLACE.decode(place), data.decode())
        return StoredMessage(seq, turn, turn_id, Message(role, blocks, _METADATA.decode(metadata)))
    except (ValueError, LookupError, TypeError) as error:
        raise UnreadableSession(f"Message {seq} of the session can't be read: {error}. Delete the session") from error


def sessions(connection: sqlite3.Connection, owner: Owner | None, after: str, limit: int) -> SessionPage:
    """Return a page of sessions, the last updated first. after: ``updated:number`` of the last one before it."""
    where: list[str] = ["1"]
    values: list[Any] = []
    if owner is not None:
        where.append("agent_id = ? AND tenant = ? AND caller = ?")
        values += _owner(owner)
    if after:
        where.append("(updated, number) < (?, ?)")
        values += _position(after)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE {' AND '.join(where)} ORDER BY updated DESC, number DESC LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    found = tuple(map(_session, rows[:limit]))
    return SessionPage(found, f"{found[-1].updated!r}:{rows[limit - 1][-1]}" if len(rows) > limit else "")


def _position(after: str) -> tuple[float, int]:
    updated, _, number = after.partition(":")
    try:
        position = float(updated), int(number)
        if abs(position[1]) > NEWEST:
            raise ValueError
        return position
    except ValueError:
        raise UnknownPosition(f"{after!r} is not the `next` of a page of sessions") from None


def delete(connection: sqlite3.Connection, key: SessionKey) -> bool:
    """Delete the session, and the media that no other session uses. Return whether it existed."""
    with transaction(connection, "IMMEDIATE"):
        found = _find(connection, key)
        if found is None:
            return False
        number = (found[1],)
        media = connection.execute("SELECT DISTINCT medium FROM media_uses WHERE session = ?", number).fetchall()
        for table in ("media_uses", "messages", "turns"):
            connection.execute(f"DELETE FROM {table} WHERE session = ?", number)
        connection.execute("DELETE FROM sessions WHERE number = ?", number)
        unused = "DELETE FROM media WHERE number = ? AND NOT EXISTS (SELECT 1 FROM media_uses WHERE medium = number)"
        connection.executemany(unused, media)
    empty_log(connection)  # what was deleted is in the log, too
    return True


def pin(connection: sqlite3.Connection, key: SessionKey, pinned: bool) -> Session:
    """Pin the session, or no longer. Errors as `Store.pin`."""
    with transaction(connection, "IMMEDIATE"):
        found = _find(connection, key)
        if found is None:
            raise not_found(key)
        connection.execute("UPDATE sessions SET pinned = ? WHERE number = ?", (pinned, found[1]))
        return msgspec.structs.replace(found[0], pinned=pinned)


def not_found(key: SessionKey) -> SessionNotFound:
    """Return the error for a session that does not exist."""
    return SessionNotFound(f"There is no session {key.id}")


_T = TypeVar("_T")

SECONDS = 10.0
"""Longest time of an operation, waits for other processes and for this store's earlier operations included."""


class SqliteStore:
    """Keeps sessions in the SQLite file at `path`. clock: the seconds since the epoch."""

    name: ClassVar[str] = "sqlite"

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, seconds: float = SECONDS) -> None:
        self._path = expand(path)
        self._clock = clock
        self._seconds = seconds
        self._file: SqliteThread | None = None

    async def start(self) -> None:
        """Open the file; make it, and its directory, if they don't exist.

        Raises:
            StoreUnavailable: it can't be made or opened.
            UnreadableSession: it was made by another program, or by a newer gateway.
        """
        if self._file is None:
            self._file = SqliteThread(self._path, FORMAT, "memory-sqlite")
        await self._run(lambda connection: None)

    async def close(self) -> None:
        """Close the file when what was begun is finished."""
        file, self._file = self._file, None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                if file is not None:
                    await file.close()

    async def probe(self, size: int) -> None:
        """Write `size` bytes to the log of the file, and wait until they are on the disk."""
        await self._run(partial(probe, size=size))

    async def session(self, key: SessionKey) -> Session | None:
        """Return the session, or None if its owner has none of this id."""
        return await self._run(partial(find, key=key))

    async def append(self, key: SessionKey, turn: Turn, turns: int) -> Session:
        """Append the turn in one transaction."""
        return await self._run(lambda connection: append(connection, key, turn, turns, self._clock()))

    async def load(self, key: SessionKey, before: int = NEWEST, limit: int = 100, most_bytes: int = 0) -> Page:
        """Return the newest `limit` messages with a seq below `before`, oldest first."""
        return await self._run(partial(load, key=key, before=before, limit=limit, most_bytes=most_bytes))

    async def sessions(self, owner: Owner | None = None, after: str = "", limit: int = 100) -> SessionPage:
        """Return the sessions of `owner`, or all of the store, the last updated first."""
        return await self._run(partial(sessions, owner=owner, after=after, limit=limit))

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session with all its messages and media. Return whether it existed."""
        return await self._run(partial(delete, key=key))

    async def pin(self, key: SessionKey, pinned: bool) -> Session:
        """Keep the session from being deleted by age or number, or no longer."""
        return await self._run(partial(pin, key=key, pinned=pinned))

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the store's thread. It is skipped if the caller is cancelled while it waits."""
        if self._file is None:
            raise StoreUnavailable(f"The store at {self._path} is closed")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._file.run(work)
        except TimeoutError:
            reason = (
                f"{self._path} did not respond within {self._seconds:g} s. Is its disk slow, or another process busy?"
            )
            raise StoreUnavailable(reason) from None
        except UnusableFile as error:
            raise StoreUnavailable(str(error)) from error
        except ForeignFile as error:
            raise UnreadableSession(str(error)) from error
        except sqlite3.Error as error:
            raise _store_error(error, self._path) from error
        except UnicodeEncodeError as error:
            raise Unstorable(f"The ids or the system text can't be written as UTF-8: {error}", "system") from error


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the store's error for one of SQLite's (https://www.sqlite.org/rescode.html)."""
    match error_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path} is locked by another process: {error}. Try again")
        case sqlite3.SQLITE_TOOBIG:
            return TooLargeForStore(f"SQLite can't keep a message of this size: {error}")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return UnreadableSession(f"{path} can't be read: {error}. Restore it from a backup, or name another path")
        case _:
            return StoreUnavailable(f"{path} can't be used: {error}. Check the disk and the file's permissions")
