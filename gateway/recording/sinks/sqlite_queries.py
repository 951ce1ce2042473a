"""What the SQLite store is asked: filters as conditions of SQL and FTS5, values to filter by, the migration view.

And which words of a record can be searched, without the escapes of JSON.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gateway.observe.record import Delivery, ExchangeRecord, Usage
from gateway.recording.sinks.encoding import Content, decode_content
from gateway.recording.store import (
    MIRRORS,
    MOST_NAMED,
    SORTS,
    UPSTREAM,
    Bucket,
    Filter,
    InvalidFilter,
    Overview,
    Sort,
    Spent,
    ambiguous,
)

LONGEST = 1_048_576
"""Characters of each body that are indexed."""
_END = " \ue000 "
"""Between two bodies: FTS5 takes it for a word, so that no phrase matches across it."""
_ESCAPE = re.compile(r"(\\+)(?:u([0-9a-fA-F]{4})|([bfnrt])(\w*))?")


def searched_text(data: bytes) -> str:
    """Return the text of a record's bodies; "" if it can't be read."""
    try:
        content = decode_content(data)
    except msgspec.DecodeError:
        return ""
    return _END.join(unescape(text[:LONGEST]) for text in dict.fromkeys(_bodies(content)))


def _bodies(content: Content) -> Iterable[str]:
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


def _unescaped(match: re.Match[str]) -> str:
    backslashes, code, letter, word = match.groups()
    if code:
        return chr(int(code, 16))
    if letter is None:
        return " "
    return f" {word}" if len(backslashes) % 2 else f" {letter}{word} {word}"


_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_PREFIX = 3
"""Least number of characters before a ``*``: shorter beginnings match too many words."""
_LONG_END = re.compile(rf"[^\W_]{{{_PREFIX}}}$")


def words_query(text: str) -> str:
    """Return the query of FTS5 (https://www.sqlite.org/fts5.html#full_text_query_syntax) for a user's words; "" for "".

    All words must be there: ``cat dog``. ``"black cat"`` is a phrase, ``cat*`` the beginning of a word. Case and
    accents do not count. Everything else has no meaning: each word is quoted, so no input is a syntax error.

    Raises:
        InvalidFilter: it has no letter or digit, or fewer than three before a ``*``.
    """
    terms = []
    for found in _TERM.finditer(text.replace("\0", " ")):
        phrase, star, word = found.groups()
        if word is not None:
            star = "*" if word.endswith("*") else ""
            phrase = word.rstrip("*")
        if star and not _LONG_END.search(phrase):
            raise InvalidFilter("text", f"{found[0]!r} needs at least {_PREFIX} letters or digits before the *")
        if any(map(str.isalnum, phrase)):
            terms.append(f'"{phrase}"{star}')
    if text.strip() and not terms:
        raise InvalidFilter("text", f"{text!r} has no letter or digit to search for")
    return " AND ".join(terms)


RUNS = ("execute", "execute_stream")
"""The intents that run an agent (`gateway.proxy.routes.RUNS`)."""
RUN_SQL = f"intent IN ({', '.join(repr(intent) for intent in RUNS)})"
_ERROR_SQL = "(status = 0 OR status >= 400)"
LARGEST = 2**62
_NO_DELIVERY, _NO_USAGE = Delivery(), Usage()
_STATUS = re.compile(r"[1-9]\d\d")
_CLASS = re.compile(r"[1-9]xx", re.IGNORECASE)
_EQUAL = ("type", "provider", "strategy")


class Condition(NamedTuple):
    """What a row of ``facts`` must be like: SQL with its values. words: of the text, see `words_query`."""

    sql: str
    values: tuple[Any, ...]
    words: str = ""


def condition(wanted: Filter) -> Condition:
    """Return the condition of a filter.

    Raises:
        InvalidFilter: a field can't be read.
    """
    parts: list[str] = []
    values: list[Any] = []

    def add(sql: str, *given: Any) -> None:
        parts.append(sql)
        values.extend(given)

    for name in _EQUAL:
        if value := getattr(wanted, name):
            add(f"{name} = ?", value)
    if wanted.path:
        add("instr(target, ?)", wanted.path)
    if wanted.agent:
        add("(agent_id = ? OR agent_name = ?)", wanted.agent, wanted.agent)
    if wanted.notice:
        code = f" {wanted.notice} "
        add("(instr(notices, ?) OR instr(problems, ?))", code, code)
    if wanted.client:
        add("(client = ? OR instr(user_agent, ?))", wanted.client, wanted.client)
    if wanted.intent == "runs":
        add(RUN_SQL)
    elif wanted.intent:
        add("intent = ?", wanted.intent)
    if wanted.since is not None:
        add("started >= ?", wanted.since)
    if wanted.until is not None:
        add("started <= ?", wanted.until)
    if wanted.status:
        add(*_status(wanted.status))
    if wanted.session:
        add("conversation != '' AND conversation = ?", wanted.session)  # the first part for the index, which has it
    if wanted.route:
        add("route != '' AND route = ?", wanted.route)  # as above
    if wanted.cluster:
        add("cluster IN (?, ?)", wanted.cluster, "" if wanted.cluster == UPSTREAM else wanted.cluster)
    if wanted.mirror and wanted.mirror not in MIRRORS:
        add("mirror_of != '' AND mirror_of = ?", wanted.mirror)  # as above
    elif wanted.mirror != "any":
        add(_MIRRORS[wanted.mirror])
    for name, column in _SPANS.items():
        if text := getattr(wanted, name).strip():
            least, most = _span(name, text)
            if least is not None:
                add(f"{column} >= ?", least)
            if most is not None:
                add(f"{column} <= ?", most)
    _check_encodable(wanted)
    return Condition("".join(f" AND {part}" for part in parts), tuple(values), words_query(wanted.text))


ORIGINAL = "(SELECT max(position) FROM exchanges WHERE id = facts.mirror_of)"
"""The position of the exchange whose copy a row is; NULL if it is not recorded."""
_OUTCOME = f"""(SELECT (original.status, original.failed) {{}} (facts.status, facts.failed)
    FROM facts AS original WHERE original.position = {ORIGINAL})"""
_MIRRORS = {
    "": "mirror_of = ''",
    "yes": "mirror_of != ''",
    "same": f"mirror_of != '' AND {_OUTCOME.format('=')}",
    "differs": f"mirror_of != '' AND {_OUTCOME.format('!=')}",
}
assert {"any", *_MIRRORS} == {"", *MIRRORS}


def complete(connection: sqlite3.Connection, wanted: Filter) -> Filter:
    """Return the filter with whole ids where it has a beginning that only one agent, or one conversation, has.

    What an exchange has as it is stays as it is, and so does what none begins with.

    Raises:
        InvalidFilter: several begin so.
    """
    whole = {}
    if wanted.agent:
        exact = "agent_id = ?1 OR agent_name = ?1"
        whole["agent"] = _complete(connection, "agent", "agent_id", exact, wanted.agent)
    if wanted.session:
        exact = "conversation != '' AND conversation = ?1"
        whole["session"] = _complete(connection, "session", "conversation", exact, wanted.session)
    if wanted.route:
        whole["route"] = _complete(connection, "route", "route", "route != '' AND route = ?1", wanted.route)
    if wanted.mirror and wanted.mirror not in MIRRORS:
        exact = "mirror_of != '' AND mirror_of = ?1"
        whole["mirror"] = _complete(connection, "mirror", "mirror_of", exact, wanted.mirror)
    return replace(wanted, **whole) if whole else wanted


def _complete(connection: sqlite3.Connection, field: str, column: str, exact: str, start: str) -> str:
    if not start.isascii() or connection.execute(f"SELECT 1 FROM facts WHERE {exact} LIMIT 1", (start,)).fetchone():
        return start
    sql = f"""SELECT DISTINCT {column} FROM facts WHERE {column} != '' AND {column} >= ? AND {column} < ?
        ORDER BY 1 LIMIT ?"""
    found = [id for (id,) in connection.execute(sql, (*span_of(start), MOST_NAMED + 1))]
    if len(found) > 1:
        raise InvalidFilter(field, ambiguous(start, found))
    return str(found[0]) if found else start


def span_of(start: str) -> tuple[str, str]:
    """Return the least text that begins with `start`, and the least after all of these. start: ASCII, not empty."""
    return start, start[:-1] + chr(ord(start[-1]) + 1)


def _status(status: str) -> tuple[Any, ...]:
    """Return the condition for a status, with its values."""
    if status == "error":
        return (_ERROR_SQL,)
    if status == "refused":
        return ("form = 'refused'",)
    if status == "failed":
        return ("failed",)
    if status == "0" or _STATUS.fullmatch(status):
        return "status = ?", int(status)
    if _CLASS.fullmatch(status):
        first = int(status[0]) * 100
        return "status BETWEEN ? AND ?", first, first + 99
    kinds = "error, refused or failed"
    raise InvalidFilter("status", f"{status!r} is neither a status such as 404, nor a class such as 4xx, nor {kinds}")


_SPANS = {"took": "seconds", "cost": "cost"}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m)?"
_LIMIT = re.compile(rf"(<=?|>=?)?\s*{_NUMBER}")
_RANGE = re.compile(rf"{_NUMBER}\s*-\s*{_NUMBER}")
_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0}


def _span(field: str, text: str) -> tuple[float | None, float | None]:
    """Return the least and the most that a filter such as ``>2``, ``<500 ms`` or ``1-5`` lets through.

    Raises:
        InvalidFilter: it has another form.
    """
    found = _RANGE.fullmatch(text)
    if found is not None and (field == "took" or not (found[2] or found[4])):
        return float(found[1]) * _UNITS[found[2] or found[4]], float(found[3]) * _UNITS[found[4]]
    found = _LIMIT.fullmatch(text)
    if found is None or (field == "cost" and found[3]):
        example = "500 ms, >2 s, 1-5 s" if field == "took" else "0.01, >0.5, 0.1-1"
        raise InvalidFilter(field, f"{text!r} is neither a limit nor a range, such as {example}")
    limit = float(found[2]) * _UNITS[found[3]]
    return (None, limit) if (found[1] or "").startswith("<") else (limit, None)


def _check_encodable(wanted: Filter) -> None:
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidFilter(name, "is not Unicode text: it has a surrogate") from None


FACTS = (
    "position INTEGER PRIMARY KEY, started REAL NOT NULL, seconds REAL NOT NULL, status INTEGER NOT NULL, "
    "intent TEXT NOT NULL, form TEXT NOT NULL, target TEXT NOT NULL, client TEXT NOT NULL, user_agent TEXT NOT NULL, "
    "agent_id TEXT NOT NULL, agent_name TEXT NOT NULL, type TEXT NOT NULL, provider TEXT NOT NULL, "
    "strategy TEXT NOT NULL, notices TEXT NOT NULL, problems TEXT NOT NULL, conversation TEXT NOT NULL, "
    "input_tokens INTEGER, output_tokens INTEGER, cost REAL, currency TEXT NOT NULL"
)
"""Columns of the table ``facts`` that version 2 of the file has.

form: of the migration view; notices, problems: codes, each between two spaces.
"""
ROUTE_FACTS = (
    "route TEXT NOT NULL DEFAULT ''",
    "cluster TEXT NOT NULL DEFAULT ''",
    "mirror_of TEXT NOT NULL DEFAULT ''",
    "failed INTEGER NOT NULL DEFAULT 0",
)
"""Columns that version 3 adds. failed: a run that was not refused, but has no answer, or a broken one."""
_FIRST = FACTS.count(",") + 1
INSERT_FIRST_FACTS = f"INSERT INTO facts VALUES (?{', ?' * (_FIRST - 1)})"
INSERT_FACTS = f"INSERT INTO facts VALUES (?{', ?' * (_FIRST + len(ROUTE_FACTS) - 1)})"


def first_facts(position: int, record: ExchangeRecord) -> tuple[object, ...]:
    """Return the values of a row of ``facts`` in version 2."""
    return facts(position, record)[:_FIRST]


def facts(position: int, record: ExchangeRecord) -> tuple[object, ...]:
    """Return the values of a row of ``facts``."""
    delivery, usage = record.delivery or _NO_DELIVERY, record.usage or _NO_USAGE
    return (
        position,
        record.started,
        record.seconds,
        record.status,
        record.intent,
        form_of(record),
        record.target,
        record.client,
        record.user_agent,
        record.agent_id,
        delivery.agent_name,
        delivery.type,
        delivery.provider,
        delivery.strategy,
        _joined(delivery.notices),
        _joined(_problems(record)),
        record.conversation,
        usage.input,
        usage.output,
        usage.cost,
        usage.currency,
        record.route,
        record.cluster,
        record.mirror_of,
        has_failed(record),
    )


_SORTED_BY = {
    "time": "started",
    "agent": "coalesce(nullif(agent_name, ''), agent_id)",
    "status": "status",
    "took": "seconds",
    "tokens": "coalesce(input_tokens, 0) + coalesce(output_tokens, 0)",
    "cost": "coalesce(cost, -1.0)",
}
assert tuple(_SORTED_BY) == SORTS


def positions(
    connection: sqlite3.Connection, wanted: Condition, before: int | None, limit: int, sort: Sort
) -> list[int]:
    """Return the positions of the first rows in an order, or of those after the one at `before`.

    Raises:
        InvalidFilter: there is no row at `before`.
    """
    key, sign, direction = _SORTED_BY[sort.by], "<" if sort.descending else ">", "DESC" if sort.descending else "ASC"
    sql, values = f"SELECT position FROM facts WHERE 1{wanted.sql}", list(wanted.values)
    if before is not None:
        row = connection.execute(f"SELECT {key} FROM facts WHERE position = ?", (min(before, LARGEST),)).fetchone()
        if row is None:
            raise InvalidFilter("before", "the exchange at this position was deleted: load the list again")
        sql += f" AND ({key}, position) {sign} (?, ?)"
        values += [row[0], before]
    sql += f" ORDER BY {key} {direction}, position {direction} LIMIT ?"
    return [position for (position,) in connection.execute(sql, (*values, limit))]


_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)
"""Seconds of a bucket that a person finds even."""


MINUTE = "CAST(started / 60 AS INTEGER)"
"""An expression that has an index of its own, so that nothing is sorted to sum up by minute."""
_SAMPLE = 20_000
"""Times of which p50 and p95 are exact. Of more, so many are chosen by their positions, evenly over all."""


def overview(connection: sqlite3.Connection, wanted: Condition, given: Filter, most: int) -> Overview:
    """Return what is stored of the matching exchanges, summed up. most: buckets of the histogram."""
    found = f"FROM facts WHERE 1{wanted.sql}"
    sql = f"""SELECT {MINUTE}, min(started), max(started), count(*), sum({_ERROR_SQL}), sum({RUN_SQL}),
        sum(input_tokens), sum(output_tokens), count(input_tokens), count(cost), sum(cost),
        min(nullif(currency, '')), max(currency) {found} GROUP BY {MINUTE}"""
    minutes = connection.execute(sql, wanted.values).fetchall()
    if not minutes:
        return Overview()
    count, errors, runs, read, written, metered, priced = (sum(row[n] or 0 for row in minutes) for n in range(3, 10))
    since = min(row[1] for row in minutes) if given.since is None else given.since
    until = max(max(row[2] for row in minutes) if given.until is None else given.until, since)
    width, buckets = _buckets(connection, wanted, minutes, since, until, most)
    times = _times(connection, f"{found} AND {RUN_SQL}" if runs else found, wanted.values, runs or count)
    return Overview(
        count,
        errors,
        runs,
        _percentile(times, 0.5),
        _percentile(times, 0.95),
        read,
        written,
        metered,
        _spent(connection, found, wanted.values, minutes) if priced else (),
        since,
        until,
        width,
        buckets,
    )


def _spent(
    connection: sqlite3.Connection, found: str, values: tuple[Any, ...], minutes: list[tuple[Any, ...]]
) -> tuple[Spent, ...]:
    """Return what runs cost. Almost always there is one currency, and the sums by minute have it."""
    currencies = {one for row in minutes for one in row[11:13] if one}
    if len(currencies) <= 1:
        return (Spent("".join(currencies), sum(row[10] or 0.0 for row in minutes), sum(row[9] for row in minutes)),)
    sql = f"SELECT currency, sum(cost), count(*) {found} AND cost IS NOT NULL GROUP BY currency ORDER BY currency"
    return tuple(Spent(*row) for row in connection.execute(sql, values))


def _buckets(
    connection: sqlite3.Connection,
    wanted: Condition,
    minutes: list[tuple[Any, ...]],
    since: float,
    until: float,
    most: int,
) -> tuple[float, tuple[Bucket, ...]]:
    """Return the seconds of a bucket, and the buckets that are not empty. Short ones are counted in the store."""
    whole = math.ceil((until - since) / most)
    width = next((one for one in _WIDTHS if one * (most - 1) >= until - since), whole)
    rows: Iterable[tuple[float, int, int]] = ((60.0 * row[0], row[3], row[4]) for row in minutes)
    if width < 60:
        sql = f"SELECT started, 1, {_ERROR_SQL} FROM facts WHERE 1{wanted.sql} ORDER BY started"
        rows = connection.execute(sql, wanted.values)
    counted: dict[float, tuple[int, int]] = {}
    for started, exchanges, failed in rows:
        start = started // width * width
        before = counted.get(start, (0, 0))
        counted[start] = before[0] + exchanges, before[1] + failed
    return float(width), tuple(Bucket(start, *numbers) for start, numbers in sorted(counted.items()))


def _times(connection: sqlite3.Connection, found: str, values: tuple[Any, ...], count: int) -> list[float]:
    """Return the seconds that exchanges took, sorted; see `_SAMPLE`. found: the SQL from FROM on."""
    sql = f"SELECT seconds {found}"
    if count > _SAMPLE:  # Knuth's multiplicative hash, so that no pattern of positions is preferred
        sql += f" AND (position * 2654435761 & 4294967295) < {2**32 * _SAMPLE // count}"
    return sorted([seconds for (seconds,) in connection.execute(sql, values)])


def _percentile(times: list[float], share: float) -> float | None:
    """Return the least time that is at least as long as so many of all."""
    return times[rank(share, len(times))] if times else None


def rank(share: float, count: int) -> int:
    """Return how many of `count` values are less than the one that a share of them does not exceed (nearest rank)."""
    return max(0, math.ceil(share * count) - 1)


def form_of(record: ExchangeRecord) -> str:
    """Return how an agent was run: legacy, unified (rewritten), native, or refused by the gateway; "" for the rest."""
    if record.intent not in RUNS:
        return ""
    if record.error is not None and 400 <= record.status < 500:
        return "refused"
    delivery = record.delivery or _NO_DELIVERY
    if delivery.input_type == "question":
        return "legacy"
    return delivery.strategy and ("native" if delivery.strategy == "native" else "unified")


def has_failed(record: ExchangeRecord) -> bool:
    """Return True for a run that was not refused, but has no answer, or one that reports an error or breaks off."""
    if record.intent not in RUNS or form_of(record) == "refused":
        return False
    return not 0 < record.status < 400 or (record.summary is not None and record.summary.broken)


MARK_FAILED = f"UPDATE facts SET failed = 1 WHERE {RUN_SQL} AND form != 'refused' AND {_ERROR_SQL}"
"""As `has_failed`, for records of older gateways, which do not tell broken answers."""


def _problems(record: ExchangeRecord) -> Iterable[str]:
    """Return the codes of the problems, or the error's type."""
    if record.error is None:
        return ()
    return [problem.code for problem in record.error.problems] or [record.error.type]


def _joined(codes: Iterable[str]) -> str:
    return f" {' '.join(dict.fromkeys(codes))} " if codes else ""


_VALUES = {
    "agent": "CASE agent_name WHEN '' THEN agent_id ELSE agent_name END",
    "type": "type",
    "provider": "provider",
    "strategy": "strategy",
    "status": "status",
    "client": "client",
    "intent": "intent",
    "route": "route",
    "cluster": "cluster",
}
"""Fields of `Filter`, and their values in ``facts``."""
_LATEST = "(SELECT * FROM facts ORDER BY position DESC LIMIT 20000)"
_FORMS = ("legacy", "unified", "native", "refused")


def values(connection: sqlite3.Connection, field: str, limit: int) -> list[str]:
    """Return the values of a field among the latest exchanges, the most frequent first.

    Raises:
        InvalidFilter: it has none to choose from.
    """
    if field == "notice":
        return _codes(connection, limit)
    if field not in _VALUES:
        raise InvalidFilter(field, f"is not one of {', '.join((*_VALUES, 'notice'))}, which have values to choose from")
    rows = connection.execute(
        f"""SELECT {_VALUES[field]} AS value, count(*) FROM {_LATEST}
        WHERE value != '' GROUP BY 1"""
    )
    counts = Counter({str(value): count for value, count in rows})
    return sorted(counts, key=lambda value: (-counts[value], value))[:limit]


def _codes(connection: sqlite3.Connection, limit: int) -> list[str]:
    """Return the codes of notices and problems."""
    rows = connection.execute(
        f"SELECT notices || problems AS codes, count(*) FROM {_LATEST} WHERE codes != '' GROUP BY 1"
    )
    counts: Counter[str] = Counter()
    for codes, count in rows:
        for code in set(codes.split()):
            counts[code] += count
    return sorted(counts, key=lambda code: (-counts[code], code))[:limit]


def adoption(connection: sqlite3.Connection, since: float, bucket_seconds: float) -> list[dict[str, Any]]:
    """Return the rows of `SqliteStore.adoption`, by agent and time."""
    forms = ", ".join(f"sum(form = '{form}') AS {form}" for form in _FORMS)
    return _rows(
        connection,
        f"""SELECT agent_id, max(agent_name) AS agent_name, CAST(started / ? AS INTEGER) * ? AS bucket, {forms}
        FROM facts WHERE form != '' AND mirror_of = '' AND started >= ?
        GROUP BY agent_id, bucket ORDER BY agent_id, bucket""",
        (bucket_seconds, bucket_seconds, since),
    )


def legacy_clients(connection: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    """Return the rows of `SqliteStore.legacy_clients`, the most requests first."""
    return _rows(
        connection,
        """SELECT user_agent, agent_id, max(agent_name) AS agent_name, count(*) AS requests, max(started) AS last
        FROM facts WHERE form = 'legacy' AND mirror_of = '' AND started >= ? GROUP BY user_agent, agent_id
        ORDER BY requests DESC, user_agent, agent_id""",
        (since,),
    )


def refusals(connection: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    """Return the rows of `SqliteStore.refusals`, the most requests first."""
    counted: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _rows(
        connection,
        """SELECT agent_id, max(agent_name) AS agent_name, problems, count(*) AS requests, max(started) AS last
        FROM facts WHERE form = 'refused' AND mirror_of = '' AND started >= ? GROUP BY agent_id, problems""",
        (since,),
    ):
        for code in row.pop("problems").split():
            known = counted.setdefault((row["agent_id"], code), {**row, "code": code, "requests": 0})
            known["agent_name"] = known["agent_name"] or row["agent_name"]
            known["requests"] += row["requests"]
            known["last"] = max(known["last"], row["last"])
    return sorted(counted.values(), key=lambda row: (-row["requests"], row["agent_id"], row["code"]))


def _rows(connection: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    cursor = connection.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
