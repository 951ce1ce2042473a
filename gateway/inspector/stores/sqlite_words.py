"""The full-text index of the SQLite store.

Records are indexed later than they are stored, in the order of their positions. The index is divided into tables of
FTS5, each for a range of positions, because a whole table can be dropped at once when its exchanges are deleted. The
tables store no text (``content=''``), and change only by new rows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from gateway.inspector.stores.encoding import Content, decode_content
from gateway.inspector.stores.sqlite_files import RecordFiles, RecordReader
from gateway.storage.sqlite import transaction

STEP, STEP_BYTES = 256, 1_000_000
"""Most records that are indexed in one transaction, and their bytes; one record may have more.

No other process can write meanwhile: for about 0.1 s.
"""
LONGEST = 1_048_576
"""Characters of each body that are indexed."""
_END = " \ue000 "
"""Between two bodies: FTS5 takes it for a word, so that no phrase matches across it."""
_ESCAPE = re.compile(r"(\\+)(?:u([0-9a-fA-F]{4})|([bfnrt])(\w*))?")


def drop_indexes(connection: sqlite3.Connection, last: int) -> None:
    """Drop the indexes of records that are all at or before the position `last`, within a transaction.

    The newest is emptied, because its ``last`` says what is indexed.
    """
    old = [number for (number,) in connection.execute("SELECT number FROM words WHERE last <= ?", (last,))]
    [newest] = connection.execute("SELECT max(number) FROM words").fetchone()
    for number in old:
        connection.execute(f"DROP TABLE words_{number}")
        if number == newest:
            _create_table(connection, number)
            connection.execute("UPDATE words SET bytes = 0 WHERE number = ?", (number,))
        else:
            connection.execute("DELETE FROM words WHERE number = ?", (number,))


def _create_table(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"CREATE VIRTUAL TABLE words_{number} USING fts5(text, content='', columnsize=0)")


def count_unindexed(connection: sqlite3.Connection) -> int:
    """Return how many exchanges are not indexed yet, at most."""
    sql = """SELECT max(0, coalesce((SELECT max(position) FROM exchanges), 0) - max(
        coalesce((SELECT max(last) FROM words), 0), coalesce((SELECT min(position) FROM exchanges), 0) - 1))"""
    return int(connection.execute(sql).fetchone()[0])


def index_step(connection: sqlite3.Connection, files: RecordFiles, now: float) -> bool:
    """Index the next records, see `STEP`. Return False if there was none.

    What is read and prepared before the transaction is discarded if another process has indexed or deleted some of it
    meanwhile. The oldest are always deleted first.
    """
    [done] = connection.execute("SELECT coalesce(max(last), 0) FROM words").fetchone()
    sql = "SELECT position, file, place + head, size - head FROM exchanges WHERE position > ? ORDER BY position LIMIT ?"
    rows = connection.execute(sql, (done, STEP)).fetchall()
    sizes = accumulate(size for _, _, _, size in rows)
    del rows[max(1, sum(size <= STEP_BYTES for size in sizes)) :]
    if not rows:
        return False
    with RecordReader(files) as reader:
        texts = [(position, _text(reader.read(*where))) for position, *where in rows]
    with transaction(connection, "IMMEDIATE"):
        [last] = connection.execute("SELECT coalesce(max(last), 0) FROM words").fetchone()
        first = connection.execute("SELECT 1 FROM exchanges WHERE position = ?", (rows[0][0],)).fetchone()
        if last != done or first is None:
            return True
        number, size = _newest_index(connection, files, now)
        connection.executemany(f"INSERT INTO words_{number} (rowid, text) VALUES (?, ?)", texts)
        added = sum(len(text) for _, text in texts)
        connection.execute("UPDATE words SET last = ?, bytes = ? WHERE number = ?", (rows[-1][0], size + added, number))
    return True


def _newest_index(connection: sqlite3.Connection, files: RecordFiles, now: float) -> tuple[int, int]:
    """Return the number of the newest index and its bytes; make another one if it is full or old."""
    row = connection.execute("SELECT number, bytes, begun FROM words ORDER BY number DESC LIMIT 1").fetchone()
    if row is not None and row[1] < files.full and row[2] <= now < row[2] + files.old:
        return row[0], row[1]
    number = connection.execute("INSERT INTO words VALUES (NULL, ?, 0, 0)", (now,)).lastrowid
    assert number is not None
    _create_table(connection, number)
    return number, 0


def search(
    connection: sqlite3.Connection,
    query: str,
    bound: tuple[str, int],
    where: str,
    values: Sequence[object],
    newest_first: bool,
) -> Iterator[tuple[int, int, int, int]]:
    """Yield position, file, place and size of the head of exchanges that match the query and the condition.

    bound: ``<`` or ``>``, and a position. The condition is evaluated for all exchanges first, which is faster than for
    each that has the words.
    """
    sign, position = bound
    allowed = None
    if where:
        sql = f"SELECT position FROM exchanges WHERE position {sign} ?{where}"
        allowed = {found for (found,) in connection.execute(sql, (position, *values))}
        if not allowed:
            return
    matches = _matches(connection, query, bound, "DESC" if newest_first else "ASC")
    sql = "SELECT position, file, place, head FROM exchanges WHERE position = ?"
    rows = (connection.execute(sql, (found,)).fetchone() for found in matches if allowed is None or found in allowed)
    yield from filter(None, rows)


def _matches(connection: sqlite3.Connection, query: str, bound: tuple[str, int], direction: str) -> Iterator[int]:
    """Yield the positions of exchanges that match the query, also of deleted ones."""
    sign, position = bound
    for (number,) in connection.execute(f"SELECT number FROM words ORDER BY number {direction}").fetchall():
        table = f"words_{number}"
        sql = f"SELECT rowid FROM {table} WHERE {table} MATCH ? AND rowid {sign} ? ORDER BY rowid {direction}"
        for (found,) in connection.execute(sql, (query, position)):
            yield found


def _text(data: bytes | None) -> str:
    """Return the text of a record's bodies; "" if it can't be read."""
    try:
        content = decode_content(data or b"\x80")
    except msgspec.DecodeError:
        return ""
    return _END.join(unescape(text[:LONGEST]) for text in dict.fromkeys(_bodies(content)))


def _bodies(content: Content) -> Iterator[str]:
    for message in (content.request, content.forwarded, content.response, content.answered):
        if message is not None and message.body.text and not message.body.encoding:
            yield message.body.text
    if content.rendered:
        yield content.rendered


def unescape(text: str) -> str:
    """Return the words of a JSON text: escapes are replaced by what they stand for, or by a space.

    JSON in a string of JSON has its escapes escaped, so ``\\\\n`` may be the end of a line there, or a backslash before
    an ``n``: both readings of the word that follows are indexed.
    """
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescaped, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(found: re.Match[str]) -> str:
    backslashes, code, letter, word = found.groups()
    if code:
        return chr(int(code, 16))
    if letter is None:
        return " "
    return f" {word}" if len(backslashes) % 2 else f" {letter}{word} {word}"
