"""The data of the migration page: how agents are run, and what their routes do. Blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.codes import CODES, UPGRADE, Code
from gateway.errors import InvalidInput, Problem
from gateway.inspector.live import row_as_json
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import Filter, Row, Target, Weights

DAYS = {"1": 3600.0, "7": 6 * 3600.0, "30": 86400.0}
"""The spans of time that can be shown, in days, and the seconds of a bar."""
_OTHER = "Look up the code on the page Limitations of the documentation."
_PAIRS = 10
"""Mirrors of a route that are listed beside their originals."""


def read_days(text: str) -> str:
    """Return a span that can be shown.

    Raises:
        InvalidInput: it is none of `DAYS`.
    """
    if text not in DAYS:
        raise InvalidInput.of([Problem("days", "this span can't be shown", ", ".join(DAYS), text[:100])])
    return text


def report(store: SqliteStore, days: str) -> dict[str, Any]:
    """Return the data of the page. days: a key of `DAYS`."""
    bucket = DAYS[days]
    until = math.ceil(time.time())  # whole seconds, as a link to the list has them
    since = until - int(days) * 86400.0
    return {
        "since": since,
        "until": until,
        "bucket": bucket,
        "routes": _routes(store, since, bucket),
        "adoption": store.adoption(since, bucket),
        "legacy_clients": store.legacy_clients(since),
        "refusals": [{**row, **_explain(row["code"])} for row in store.refusals(since)],
    }


def _explain(code: str) -> dict[str, Any]:
    """Return what a code means, what would end it, and whether an upgrade of the agent would."""
    known = CODES.get(code, Code(""))
    return {"meaning": known.meaning, "remedy": known.remedy or _OTHER, "upgrade": known.remedy == UPGRADE}


def _explain_status(status: int) -> dict[str, Any]:
    """Return what a failure means that has no code, and where its reason is."""
    meaning = f"the cluster answered {status}"
    if not status:
        meaning = "the response was cut, or the client was gone"
    elif status < 400:
        meaning = "the answer reports an error, or breaks off"
    return {"meaning": meaning, "remedy": "The pages of these runs have the reason.", "upgrade": False}


def _routes(store: SqliteStore, since: float, bucket: float) -> list[dict[str, Any]]:
    """Return each route that is in force or had runs since then, with its targets side by side."""
    runs = {row.target: row for row in store.target_runs(since)}
    mirrors = {row.target: row for row in store.mirrors(since)}
    begun, faults, weights = store.beginnings(since, bucket), store.target_faults(since), store.weights(since)
    latest = {change.route: change for change in weights}
    in_force = [route for route, change in latest.items() if change.targets]
    found = []
    for route in dict.fromkeys([*in_force, *(target.route for target in (*runs, *mirrors))]):
        changes = [change for change in weights if change.route == route]
        targets = _targets(route, changes, [*runs, *mirrors])
        shares = _shares(latest.get(route))
        found.append(
            {
                "route": route,
                "in_force": bool(shares),
                "targets": [
                    {
                        **_builtins(target),
                        "share": shares.get(target),
                        "runs": _builtins(runs[target]) if target in runs else None,
                        "mirrors": _builtins(mirrors[target]) if target in mirrors else None,
                        "faults": [
                            {
                                **_builtins(fault),
                                **(_explain(fault.code) if fault.code else _explain_status(fault.status)),
                            }
                            for fault in faults
                            if fault.target == target
                        ],
                    }
                    for target in targets
                ],
                "weights": [
                    {"at": change.at, "shares": [_shares(change).get(target, 0.0) for target in targets]}
                    for change in changes
                ],
                "begun": [
                    {"target": targets.index(one.target), "bucket": one.bucket, "conversations": one.conversations}
                    for one in begun
                    if one.target.route == route
                ],
                "pairs": _pairs(store, route, since),
            }
        )
    return found


def _builtins(row: object) -> dict[str, Any]:
    """Return the fields of a row; those of its target are named only once, by the target itself."""
    fields: dict[str, Any] = msgspec.to_builtins(row)
    fields.pop("target", None)
    return fields


def _targets(route: str, changes: Sequence[Weights], seen: Sequence[Target]) -> list[Target]:
    """Return the targets of a route: those that are in force in the settings' order, then earlier ones."""
    noted = [Target(route, one.agent, one.cluster) for change in reversed(changes) for one in change.targets]
    return list(dict.fromkeys([*noted, *(target for target in seen if target.route == route)]))


def _shares(change: Weights | None) -> Mapping[Target, float]:
    """Return each target's share of the new conversations, from 0 to 1; nothing for a route that was removed."""
    if change is None:
        return {}
    whole = sum(one.weight for one in change.targets) or 1.0
    return {Target(change.route, one.agent, one.cluster): one.weight / whole for one in change.targets}


def _pairs(store: SqliteStore, route: str, since: float) -> list[dict[str, Any]]:
    """Return the newest mirrors of a route as rows of the list, with their originals; None for one that is gone."""
    rows = store.rows(Filter(route=route, mirror="yes", since=since), limit=_PAIRS)
    found = []
    for row in rows:
        original = store.get(row.record.mirror_of)
        found.append({"mirror": row_as_json(row), "original": original and row_as_json(Row(0, original))})
    return found
