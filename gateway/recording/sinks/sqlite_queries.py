"""What the SQLite store is asked: filters as conditions of SQL and FTS5, values to filter by, the migration view."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.observe.record import Delivery, ExchangeRecord
from gateway.recording.store import Filter, InvalidFilter

RUNS = ("execute", "execute_stream")
"""The intents that run an agent (`gateway.proxy.routes.RUNS`)."""
_NO_DELIVERY = Delivery()
_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_STATUS = re.compile(r"[1-9]\d\d")
_CLASS = re.compile(r"[1-9]xx", re.IGNORECASE)
_PREFIX = 3
"""Least number of characters before a ``*``: shorter beginnings match too many words."""
_LONG_END = re.compile(rf"[^\W_]{{{_PREFIX}}}$")
_EQUAL = ("type", "provider", "strategy")


class Condition(NamedTuple):
    """What a row of ``exchanges`` must be like: SQL with its values. words: of the text, see `words_query`."""

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
        add(f"intent IN ({', '.join('?' * len(RUNS))})", *RUNS)
    elif wanted.intent:
        add("intent = ?", wanted.intent)
    if wanted.since is not None:
        add("started >= ?", wanted.since)
    if wanted.until is not None:
        add("started <= ?", wanted.until)
    if wanted.status:
        add(*_status(wanted.status))
    _check_encodable(wanted)
    return Condition("".join(f" AND {part}" for part in parts), tuple(values), words_query(wanted.text))


def _status(status: str) -> tuple[Any, ...]:
    """Return the condition for a status, with its values."""
    if status == "error":
        return ("(status = 0 OR status >= 400)",)
    if status == "0" or _STATUS.fullmatch(status):
        return "status = ?", int(status)
    if _CLASS.fullmatch(status):
        first = int(status[0]) * 100
        return "status BETWEEN ? AND ?", first, first + 99
    raise InvalidFilter("status", f"{status!r} is neither a status such as 404, nor a class such as 4xx, nor error")


def _check_encodable(wanted: Filter) -> None:
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidFilter(name, "is not Unicode text: it has a surrogate") from None


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


def columns(record: ExchangeRecord) -> tuple[object, ...]:
    """Return the values of a row of ``exchanges``, from ``id`` to ``problems``."""
    delivery = record.delivery or _NO_DELIVERY
    return (
        record.id,
        record.started,
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
    )


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
}
"""Fields of `Filter`, and their values in ``exchanges``."""
_LATEST = "(SELECT * FROM exchanges ORDER BY position DESC LIMIT 20000)"
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
    """Return the rows of `RecordStore.adoption`, by agent and time."""
    forms = ", ".join(f"sum(form = '{form}') AS {form}" for form in _FORMS)
    return _rows(
        connection,
        f"""SELECT agent_id, max(agent_name) AS agent_name, CAST(started / ? AS INTEGER) * ? AS bucket, {forms}
        FROM exchanges WHERE form != '' AND started >= ? GROUP BY agent_id, bucket ORDER BY agent_id, bucket""",
        (bucket_seconds, bucket_seconds, since),
    )


def legacy_clients(connection: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    """Return the rows of `RecordStore.legacy_clients`, the most requests first."""
    return _rows(
        connection,
        """SELECT user_agent, agent_id, count(*) AS requests, max(started) AS last FROM exchanges
        WHERE form = 'legacy' AND started >= ? GROUP BY user_agent, agent_id
        ORDER BY requests DESC, user_agent, agent_id""",
        (since,),
    )


def refusals(connection: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    """Return the rows of `RecordStore.refusals`, the most requests first."""
    counted: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _rows(
        connection,
        """SELECT agent_id, max(agent_name) AS agent_name, problems, count(*) AS requests, max(started) AS last
        FROM exchanges WHERE form = 'refused' AND started >= ? GROUP BY agent_id, problems""",
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
