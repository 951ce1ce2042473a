"""Exchanges that are stored together in the SQLite store: their bytes, and their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gateway.inspector.lines import Lines
from gateway.inspector.stores import sqlite_lines
from gateway.inspector.stores.encoding import encode, without_surrogates
from gateway.inspector.stores.sqlite_tables import columns, insert, newest, set_newest
from gateway.observe.record import ExchangeRecord


class Batch:
    """Records and lines. data: their bytes, as they are appended to a file."""

    def __init__(self, records: Sequence[ExchangeRecord], lines: Lines | None) -> None:
        parts: list[bytes] = []
        if lines is not None:
            try:
                parts.append(sqlite_lines.encode(lines))
            except UnicodeEncodeError:
                records, lines = lines.among(records), None
        self._lines = lines
        self._size_of_lines = place = sum(map(len, parts))
        self._rows: list[tuple[tuple[object, ...], int, int, int]] = []
        for record in records:
            try:
                head, content = encode(record)
            except UnicodeEncodeError:
                record = without_surrogates(record)
                head, content = encode(record)
            parts += (head, content)
            size = len(head) + len(content)
            self._rows.append((columns(record), place, len(head), size))
            place += size
        self.data = b"".join(parts)

    def insert(self, connection: sqlite3.Connection, file: int, start: int) -> None:
        """Insert the rows, within a transaction. file, start: where `data` is."""
        rows, lines = self._rows, self._lines
        taken = frozenset(line[-1] for line in lines.lines) if lines is not None else frozenset()
        first = newest(connection) + 1
        last = first + len(rows) + len(taken) - 1
        free = (position for position in range(first, last + 1) if position - first not in taken)
        insert(connection, [(next(free), *row, file, start + place, head, size) for row, place, head, size in rows])
        if lines is not None:
            sqlite_lines.insert(connection, lines, first, last, (file, start, self._size_of_lines))
        set_newest(connection, last)
        bytes_ = start + len(self.data)
        connection.execute("UPDATE files SET bytes = ?, last = ? WHERE number = ?", (bytes_, last, file))
