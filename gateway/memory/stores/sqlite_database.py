"""Opens the SQLite file of sessions, and brings its tables up to date.

Tables: ``sessions``; ``turns``, for the ids of turns that are stored; ``messages``, each with its content as JSON;
``media``, each large text once, by its SHA-256; ``media_uses``, where in which message a medium belongs.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gateway.storage.sqlite import Format, open_file

APPLICATION_ID = int.from_bytes(b"MLCG", "big")
"""Marks SQLite files of sessions (`PRAGMA application_id`)."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
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
"""See `Format`."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file, or make it, and run the migrations that it lacks. Errors as `open_file`.

    ``synchronous=FULL``: a turn is on the disk before the client has its answer, so that a loss of power loses none.
    That is one fsync a turn, which is little beside an LLM's answer. ``secure_delete``: what is deleted is overwritten.
    """
    pragmas = ("synchronous = FULL", "secure_delete = ON", "journal_size_limit = 67108864")
    return open_file(path, Format(APPLICATION_ID, "memory.sqlite.path", MIGRATIONS, pragmas))
