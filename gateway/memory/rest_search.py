"""Searches for the messages of one session, as clients of memory containers send them (3.6.0,
``v2mem.search_working_by_session``). Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gateway.memory.model import PREFIX

LARGEST_BODY = 64 * 1024
"""Largest body that is looked at, in bytes."""
_MARK = PREFIX.encode()
"""A body without it is no search for a session of the gateway."""
_FIELD = "namespace.session_id"
_MEMBERS = {"query", "size", "from", "sort"}
_ORDERS = ("message_id", "created_time")
_LARGEST = 10_000
"""Largest window of a search (`index.max_result_window`)."""


class Search(NamedTuple):
    """A search for the messages of a session. start: the first of all that match. newest_first: as it is sorted."""

    session_id: str
    start: int = 0
    size: int = 10
    newest_first: bool = False


def find_session_id(body: bytes) -> str | None:
    """Return the id of the session that a search is for; None for a search that the cluster answers."""
    search = read_search(body) if len(body) <= LARGEST_BODY and _MARK in body else None
    return search.session_id if search is not None else None


def read_search(body: bytes) -> Search | None:
    """Return the search that `body` asks for; None if it is anything but all messages of one session of the gateway.

    It is a `term` or `match` of ``namespace.session_id``, alone or as the only clause of a `bool`, with `from`, `size`
    and a `sort` by ``message_id`` or ``created_time``.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(document, dict) or not document.keys() <= _MEMBERS:
        return None
    session_id = _session_id(document.get("query"))
    start, size = document.get("from", 0), document.get("size", 10)
    newest_first = _newest_first(document.get("sort", []))
    if session_id is None or newest_first is None or not _is_count(start) or not _is_count(size):
        return None
    return Search(session_id, start, size, newest_first)


def _session_id(query: Any) -> str | None:
    match query:
        case {"term": clause, **others} | {"match": clause, **others} if not others and isinstance(clause, dict):
            value = clause.get(_FIELD) if len(clause) == 1 else None
            if isinstance(value, dict) and len(value) == 1:
                value = value.get("value", value.get("query"))
            return value if isinstance(value, str) and value.startswith(PREFIX) else None
        case {"bool": {**clauses}, **others} if not others and len(clauses) == 1:
            found = clauses.get("filter", clauses.get("must"))
            if isinstance(found, list) and len(found) == 1:
                found = found[0]
            return _session_id(found) if isinstance(found, dict) and "bool" not in found else None
    return None


def _newest_first(sort: Any) -> bool | None:
    """Return True for a descending order, False for an ascending or none, None for any other sort."""
    match [sort] if isinstance(sort, dict | str) else sort:
        case []:
            return False
        case [str(name)] if name in _ORDERS:
            return False
        case [{**by}] if len(by) == 1 and next(iter(by)) in _ORDERS:
            order = next(iter(by.values()))
            order = order.get("order", "asc") if isinstance(order, dict) and order.keys() <= {"order"} else order
            return {"asc": False, "desc": True}.get(order) if isinstance(order, str) else None
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
