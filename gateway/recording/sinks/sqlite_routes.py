"""What the SQLite store has of routes: the runs of their targets, where conversations began, mirrors, weights."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.recording.sinks.sqlite_queries import ORIGINAL, RUN_SQL, rank
from gateway.recording.store import (
    Beginnings,
    Mirrored,
    Spent,
    Target,
    TargetFaults,
    TargetRuns,
    TargetWeight,
    Weights,
)

_TARGET = "route, agent_id, cluster"
_RUNS = f"FROM facts WHERE route != '' AND mirror_of = '' AND {RUN_SQL}"
"""Runs that clients asked for, and a route sent on."""


def target_runs(connection: sqlite3.Connection, since: float) -> list[TargetRuns]:
    """Return the rows of `SqliteStore.target_runs`, by route, agent and cluster."""
    sums: dict[Target, list[tuple[Any, ...]]] = defaultdict(list)  # one for each currency
    for row in connection.execute(
        f"""SELECT {_TARGET}, count(*), sum(failed), sum(form = 'refused'), sum(input_tokens), sum(output_tokens),
        count(input_tokens), max(agent_name), max(started), currency, sum(cost), count(cost)
        {_RUNS} AND started >= ? GROUP BY {_TARGET}, currency ORDER BY {_TARGET}, currency""",
        (since,),
    ):
        sums[Target(*row[:3])].append(row[3:])
    return [_sum_up(connection, since, target, rows) for target, rows in sums.items()]


def _sum_up(connection: sqlite3.Connection, since: float, target: Target, rows: list[tuple[Any, ...]]) -> TargetRuns:
    runs, failed, refused, read, written, metered = (sum(row[n] or 0 for row in rows) for n in range(6))
    p50, p95 = (_percentile(connection, since, target, share, runs - failed - refused) for share in (0.5, 0.95))
    return TargetRuns(
        target,
        max(row[6] for row in rows),
        runs,
        failed,
        refused,
        p50,
        p95,
        read,
        written,
        metered,
        tuple(Spent(currency, cost, priced) for *_, currency, cost, priced in rows if priced),
        max(row[7] for row in rows),
    )


def _percentile(
    connection: sqlite3.Connection, since: float, target: Target, share: float, answered: int
) -> float | None:
    """Return the least time that is at least as long as so many of a target's answered runs took (nearest rank).

    It is found in the order of an index. None if there are no such runs.
    """
    if not answered:
        return None
    sql = f"""SELECT seconds {_RUNS} AND form != 'refused' AND NOT failed AND ({_TARGET}) = (?, ?, ?) AND started >= ?
        ORDER BY seconds LIMIT 1 OFFSET ?"""
    values = (target.route, target.agent, target.cluster, since, rank(share, answered))
    [seconds] = connection.execute(sql, values).fetchone()
    return float(seconds)


def target_faults(connection: sqlite3.Connection, since: float) -> list[TargetFaults]:
    """Return the rows of `SqliteStore.target_faults`, the most runs first."""
    runs: Counter[tuple[Target, str, int, bool]] = Counter()
    last: dict[tuple[Target, str, int, bool], float] = defaultdict(float)
    for *target, is_refused, status, codes, count, started in connection.execute(
        f"""SELECT {_TARGET}, form = 'refused', status, problems, count(*), max(started) {_RUNS}
        AND (failed OR form = 'refused') AND started >= ? GROUP BY {_TARGET}, form = 'refused', status, problems""",
        (since,),
    ):
        for code in codes.split() or [""]:
            key = Target(*target), code, status, bool(is_refused)
            runs[key] += count
            last[key] = max(last[key], started)
    found = [TargetFaults(*key, count, last[key]) for key, count in runs.items()]
    return sorted(found, key=lambda row: (-row.runs, row.target.route, row.target.agent, row.code, row.status))


def beginnings(connection: sqlite3.Connection, since: float, bucket_seconds: float) -> list[Beginnings]:
    """Return the rows of `SqliteStore.beginnings`, by target and time.

    A conversation begins with its first recorded run; `min` gives the other columns of the same row
    (https://www.sqlite.org/lang_select.html#bareagg).
    """
    firsts = f"""SELECT {_TARGET}, min(started) AS started {_RUNS} AND conversation != ''
        GROUP BY route, conversation UNION ALL SELECT {_TARGET}, started {_RUNS} AND conversation = ''"""
    rows = connection.execute(
        f"""SELECT {_TARGET}, CAST(started / ? AS INTEGER) * ? AS bucket, count(*) FROM ({firsts}) WHERE started >= ?
        GROUP BY {_TARGET}, bucket ORDER BY {_TARGET}, bucket""",
        (bucket_seconds, bucket_seconds, since),
    )
    return [Beginnings(Target(*target), bucket, count) for *target, bucket, count in rows]


def mirrors(connection: sqlite3.Connection, since: float) -> list[Mirrored]:
    """Return the rows of `SqliteStore.mirrors`, by target."""
    metered = "copy.input_tokens + copy.output_tokens + original.input_tokens + original.output_tokens IS NOT NULL"
    answered = " AND ".join(f"{one}.form != 'refused' AND NOT {one}.failed" for one in ("copy", "original"))
    tokens, seconds = "{0}.input_tokens + {0}.output_tokens", "{0}.seconds"
    same = "coalesce(sum((copy.status, copy.failed) = (original.status, original.failed)), 0)"
    rows = connection.execute(
        f"""SELECT copy.route, copy.agent_id, copy.cluster, count(*), count(original.position), {same},
        count(original.position) - {same}, count(iif({metered}, 1, NULL)),
        {_sum(metered, tokens, "copy")}, {_sum(metered, tokens, "original")}, count(iif({answered}, 1, NULL)),
        {_sum(answered, seconds, "copy")}, {_sum(answered, seconds, "original")}
        FROM (SELECT *, {ORIGINAL} AS place FROM facts WHERE mirror_of != '' AND route != '' AND started >= ?) AS copy
        LEFT JOIN facts AS original ON original.position = copy.place GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        (since,),
    )
    return [Mirrored(Target(*row[:3]), *row[3:]) for row in rows]


def _sum(condition: str, value: str, table: str) -> str:
    return f"coalesce(sum(iif({condition}, {value.format(table)}, 0)), 0)"


_LAST = "SELECT max(rowid) FROM weights WHERE at < ? GROUP BY route"
"""The weights that were in force at a time."""


def note_weights(connection: sqlite3.Connection, at: float, weights: Mapping[str, Sequence[TargetWeight]]) -> None:
    """Add the weights that differ from those that were noted last. A route that is not among them was removed."""
    sql = "SELECT route, targets FROM weights WHERE rowid IN (SELECT max(rowid) FROM weights GROUP BY route)"
    before = dict(connection.execute(sql))
    now = {route: msgspec.json.encode(list(targets)) for route, targets in weights.items()}
    for route in {**before, **now}:
        targets = now.get(route, b"[]")
        if before.get(route, b"[]") != targets:
            connection.execute("INSERT INTO weights VALUES (?, ?, ?)", (at, route, targets))


def weights(connection: sqlite3.Connection, since: float) -> list[Weights]:
    """Return the rows of `SqliteStore.weights`."""
    sql = f"SELECT at, route, targets FROM weights WHERE at >= ? OR rowid IN ({_LAST}) ORDER BY rowid"
    return [
        Weights(at, route, _TARGETS.decode(targets)) for at, route, targets in connection.execute(sql, (since, since))
    ]


_TARGETS = msgspec.json.Decoder(tuple[TargetWeight, ...])


def forget_weights(connection: sqlite3.Connection, before: float) -> None:
    """Delete the weights that went out of force before a time."""
    connection.execute(f"DELETE FROM weights WHERE at < ? AND rowid NOT IN ({_LAST})", (before, before))
