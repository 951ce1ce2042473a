"""What the page shows of many exchanges together: values to filter by, and the migration view."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from gateway.inspector.store import InvalidFilter

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


def values(connection: sqlite3.Connection, field: str, limit: int, passed: Counter[str]) -> list[str]:
    """Return the values of a field among the latest exchanges, the most frequent first. passed: those of lines.

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
    counts = passed + Counter({str(value): count for value, count in rows})
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
