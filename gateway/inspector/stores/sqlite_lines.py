"""Lines in the SQLite store: many are written together, and a row of ``lines`` says where.

A row with indexed columns for each would cost more than all else that the gateway does for such a request. So they are
filtered when they are read, which takes about 1 µs each.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from gateway.inspector.lines import INTENT, Lines
from gateway.inspector.store import Filter, Row, StoreError
from gateway.inspector.stores.encoding import without_content
from gateway.inspector.stores.sqlite_files import RecordReader
from gateway.observe.record import ExchangeRecord

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Lines)
_STARTED: Final = 0
_STATUS: Final = 3
_CLIENT: Final = 5
_TARGET: Final = 8
_REQUEST: Final = 9
_PLACE: Final = 11
"""Places in a `Line`."""
_OTHERS = ("agent", "type", "provider", "strategy", "notice", "text")
"""Fields of a filter that match no line."""
_STATUSES = (0, *range(100, 1000))
_LATEST = 20_000


def encode(lines: Lines) -> bytes:
    """Return the lines as MessagePack. Raises UnicodeEncodeError for a surrogate."""
    return _ENCODER.encode(lines)


def insert(connection: sqlite3.Connection, lines: Lines, first: int, last: int, where: tuple[int, int, int]) -> None:
    """Note where lines are: file, place and size. first, last: positions of what was recorded together."""
    started = lines.offset + max(line[_STARTED] for line in lines.lines)
    row = (last, first, lines.id, started, *where)
    connection.execute("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def find(
    connection: sqlite3.Connection,
    reader: RecordReader,
    wanted: Filter,
    after: int,
    before: int,
    limit: int,
    newest_first: bool,
) -> list[Row]:
    """Return the first rows of lines that match a filter, between two positions.

    Raises:
        StoreError: lines can't be read.
    """
    if any(getattr(wanted, name) for name in _OTHERS) or wanted.intent not in ("", INTENT):
        return []
    where = f"WHERE last > ? AND first < ? ORDER BY last {'DESC' if newest_first else 'ASC'}"
    statuses = _statuses(wanted.status)
    rows: list[Row] = []
    for first, lines in _read(connection, reader, where, after, before):
        found = _matching(lines, wanted, statuses)
        places = [(first + lines.lines[index][_PLACE], index) for index in (reversed(found) if newest_first else found)]
        places = [place for place in places if after < place[0] < before]
        rows += [Row(at, without_content(lines.record(index))) for at, index in places[: limit - len(rows)]]
        if len(rows) == limit:
            break
    return rows


def get(connection: sqlite3.Connection, reader: RecordReader, id: str) -> ExchangeRecord | None:
    """Return the record of the line with an id; None if there is none. Errors as `find`."""
    with suppress(ValueError):
        number = int(id, 16)
        if id == f"{number:016x}" and number < 2**63:
            for _, lines in _read(connection, reader, "WHERE id <= ?1 AND ?1 <= id + last - first", number):
                if number - lines.id < len(lines.lines):
                    return lines.record(number - lines.id)
    return None


def count(connection: sqlite3.Connection, reader: RecordReader, field: str) -> Counter[str]:
    """Return how often the latest lines have each value of a field of `Filter`. Errors as `find`."""
    counts: Counter[str] = Counter()
    if field not in ("status", "client", "intent"):
        return counts
    for _, lines in _read(connection, reader, "ORDER BY last DESC"):
        match field:
            case "status":
                counts.update(str(line[_STATUS]) for line in lines.lines)
            case "client":
                counts.update(line[_CLIENT] for line in lines.lines)
            case _:
                counts[INTENT] += len(lines.lines)
        if counts.total() >= _LATEST:
            break
    return counts


def _read(
    connection: sqlite3.Connection, reader: RecordReader, where: str, *values: object
) -> Iterator[tuple[int, Lines]]:
    """Yield the position of the first of some lines, and the lines."""
    for first, *place in connection.execute(f"SELECT first, file, place, size FROM lines {where}", values):
        data = reader.read(*place)
        if data is None:
            continue
        try:
            yield first, _DECODER.decode(data)
        except msgspec.DecodeError as error:
            reason = f"Exchange {first} can't be read: {error}. Was it written by another version of the gateway?"
            raise StoreError(reason) from error


def _matching(lines: Lines, wanted: Filter, statuses: frozenset[int] | None) -> Sequence[int]:
    """Return the indexes of the lines that match."""
    every = lines.lines
    found: Sequence[int] = range(len(every))
    if statuses is not None:
        found = [index for index in found if every[index][_STATUS] in statuses]
    if wanted.path:
        found = [index for index in found if wanted.path in every[index][_TARGET]]
    if wanted.client:
        agents = {at for at, request in enumerate(lines.requests) if wanted.client in request.user_agent}
        found = [index for index in found if every[index][_CLIENT] == wanted.client or every[index][_REQUEST] in agents]
    if wanted.since is not None:
        since = wanted.since - lines.offset
        found = [index for index in found if every[index][_STARTED] >= since]
    if wanted.until is not None:
        until = wanted.until - lines.offset
        found = [index for index in found if every[index][_STARTED] <= until]
    return found


def _statuses(status: str) -> frozenset[int] | None:
    """Return the statuses that a valid filter allows; None for all."""
    if not status:
        return None
    if status == "error":
        return frozenset(each for each in _STATUSES if each == 0 or each >= 400)
    if status.isdecimal():
        return frozenset((int(status),))
    return frozenset(each for each in _STATUSES if str(each)[0] == status[0])
