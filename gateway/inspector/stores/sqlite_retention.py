"""Deletes the oldest exchanges of the SQLite store, by age and by size."""

from __future__ import annotations

import sqlite3

from gateway.inspector.stores.sqlite_files import RecordFiles
from gateway.inspector.stores.sqlite_tables import newest
from gateway.inspector.stores.sqlite_words import drop_indexes
from gateway.storage.sqlite import empty_log, read_pragma, transaction

_FREE = 8
"""The file is made smaller when one of so many pages is unused."""


def delete_before(connection: sqlite3.Connection, files: RecordFiles, started: float, now: float) -> None:
    """Delete the exchanges that started before a time, up to the first that did not.

    Exchanges that started after `now`, as the clock was ahead, are deleted with the exchanges after them.
    """
    kept = """SELECT min(first) FROM (
        SELECT min(position) AS first FROM exchanges WHERE started BETWEEN ? AND ?
        UNION ALL SELECT min(first) FROM lines WHERE started BETWEEN ? AND ?)"""
    deleted = """SELECT max(last) FROM (
        SELECT max(position) AS last FROM exchanges WHERE started < ? AND position < ?
        UNION ALL SELECT max(last) FROM lines WHERE started < ? AND last < ?)"""
    with transaction(connection, "IMMEDIATE"):
        [first] = connection.execute(kept, (started, now) * 2).fetchone()
        before = newest(connection) + 1 if first is None else first
        [last] = connection.execute(deleted, (started, before) * 2).fetchone()
        unused = [] if last is None else _delete(connection, last)
    files.delete(unused)


def shrink(connection: sqlite3.Connection, files: RecordFiles, most: int) -> None:
    """Delete the oldest exchanges, a file of records at a time, until all takes at most `most` bytes."""
    deleted = False
    while used_bytes(connection) > most:
        with transaction(connection, "IMMEDIATE"):
            [last] = connection.execute("SELECT min(last) FROM files").fetchone()
            if last is None:
                break
            unused = _delete(connection, last)
        files.delete(unused)
        deleted = True
    if deleted:
        give_back(connection)


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of all records, rows and indexes, without the unused pages of the database."""
    [records] = connection.execute("SELECT coalesce(sum(bytes), 0) FROM files").fetchone()
    pages = read_pragma(connection, "page_count") - read_pragma(connection, "freelist_count")
    return int(records) + pages * read_pragma(connection, "page_size")


def clear(connection: sqlite3.Connection, files: RecordFiles) -> None:
    """Delete all exchanges, and give their space back."""
    with transaction(connection, "IMMEDIATE"):
        unused = _delete(connection, newest(connection))
    files.delete(unused)
    give_back(connection, all_pages=True)


def tidy(connection: sqlite3.Connection, files: RecordFiles) -> None:
    """Delete files that killed processes left, and give back space if much of the database is unused."""
    with transaction(connection, "IMMEDIATE"):
        files.delete_unknown({number for (number,) in connection.execute("SELECT number FROM files")})
    give_back(connection)


def give_back(connection: sqlite3.Connection, all_pages: bool = False) -> None:
    """Make the database smaller by its unused pages, if they are many."""
    free = read_pragma(connection, "freelist_count")
    if free and (all_pages or free * _FREE > read_pragma(connection, "page_count")):
        connection.executescript("PRAGMA incremental_vacuum")  # `execute` would end it after one page
        empty_log(connection)


def _delete(connection: sqlite3.Connection, last: int) -> list[int]:
    """Delete the rows up to a position. Return the files in which no row is left."""
    connection.execute("DELETE FROM exchanges WHERE position <= ?", (last,))
    connection.execute("DELETE FROM lines WHERE last <= ?", (last,))
    drop_indexes(connection, last)
    unused = [number for (number,) in connection.execute("SELECT number FROM files WHERE last <= ?", (last,))]
    connection.execute("DELETE FROM files WHERE last <= ?", (last,))
    return unused
