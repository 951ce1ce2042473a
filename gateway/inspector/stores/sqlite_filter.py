"""Filters as conditions of SQL and as queries of FTS5."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gateway.inspector.store import Filter, InvalidFilter
from gateway.inspector.stores.sqlite_tables import RUNS

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
