"""A store of exchanges in memory, for tests of what reads one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gateway.observe.record import Body, Delivery, ExchangeRecord, HttpMessage
from gateway.recording.store import Filter, InvalidFilter, Row, StoreError

_STATUSES = {"1xx", "2xx", "3xx", "4xx", "5xx", "error"}


class InMemoryRecords:
    """A `RecordStore`. fails: the reason with which every read fails, if it is set."""

    name = "in memory"

    def __init__(self) -> None:
        self.fails = ""
        self._records: dict[int, ExchangeRecord] = {}
        self._media: dict[str, tuple[str, bytes]] = {}
        self._next = 1
        self._lock = threading.Lock()

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        with self._lock:
            for record in records:
                self._records[self._next] = record
                self._next += 1

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        self._media[sha256] = (media_type, data)

    def close(self) -> None:
        pass

    def rows(self, wanted: Filter, before: int | None = None, limit: int = 100) -> list[Row]:
        found = [row for row in self._matching(wanted) if before is None or row.position < before]
        return found[::-1][:limit]

    def newer(self, wanted: Filter, after: int, limit: int = 100) -> list[Row]:
        return [row for row in self._matching(wanted) if row.position > after][:limit]

    def newest(self) -> int:
        if self.fails:
            raise StoreError(self.fails)
        return self._next - 1

    def get(self, id: str) -> ExchangeRecord | None:
        return next((record for record in self._all().values() if record.id == id), None)

    def medium(self, sha256: str) -> tuple[str, bytes] | None:
        return self._media.get(sha256)

    def values(self, field: str, limit: int = 100) -> list[str]:
        counts = Counter(value for record in self._all().values() for value in _values(record, field) if value)
        return [value for value, _ in counts.most_common(limit)]

    def adoption(self, since: float, bucket_seconds: float) -> list[dict[str, Any]]:
        found: dict[tuple[str, float], dict[str, Any]] = {}
        for record in self._runs(since):
            bucket = record.started // bucket_seconds * bucket_seconds
            forms = {"legacy": 0, "unified": 0, "native": 0, "refused": 0}
            name = (record.delivery or Delivery()).agent_name
            row = found.setdefault(
                (record.agent_id, bucket), {"agent_id": record.agent_id, "agent_name": name, "bucket": bucket, **forms}
            )
            row[_form(record)] += 1
        return list(found.values())

    def legacy_clients(self, since: float) -> list[dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self._runs(since):
            if _form(record) == "legacy":
                key = (record.user_agent, record.agent_id)
                row = found.setdefault(key, {"user_agent": key[0], "agent_id": key[1], "requests": 0, "last": 0.0})
                row["requests"] += 1
                row["last"] = max(row["last"], record.started)
        return list(found.values())

    def refusals(self, since: float) -> list[dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self._runs(since):
            for code in {problem.code for problem in record.error.problems} if record.error else ():
                name = (record.delivery or Delivery()).agent_name
                row = found.setdefault(
                    (record.agent_id, code),
                    {"agent_id": record.agent_id, "agent_name": name, "code": code, "requests": 0, "last": 0.0},
                )
                row["requests"] += 1
                row["last"] = max(row["last"], record.started)
        return list(found.values())

    def clear(self) -> None:
        with self._lock:
            self._records.clear()
            self._media.clear()

    def _all(self) -> dict[int, ExchangeRecord]:
        if self.fails:
            raise StoreError(self.fails)
        with self._lock:
            return dict(self._records)

    def _runs(self, since: float) -> list[ExchangeRecord]:
        return [one for one in self._all().values() if one.intent.startswith("execute") and one.started >= since]

    def _matching(self, wanted: Filter) -> list[Row]:
        if wanted.status and wanted.status not in _STATUSES and not wanted.status.isdigit():
            raise InvalidFilter("status", "this is not a status, a class such as 4xx, or error")
        bare = {"request": HttpMessage(), "forwarded": None, "response": None, "answered": None, "steps": ()}
        return [
            Row(position, replace(record, rendered="", **bare))
            for position, record in self._all().items()
            if _matches(record, wanted)
        ]


def _values(record: ExchangeRecord, field: str) -> list[str]:
    delivery = record.delivery or Delivery()
    problems = record.error.problems if record.error else ()
    found = {
        "agent": [delivery.agent_name or record.agent_id],
        "type": [delivery.type],
        "provider": [delivery.provider],
        "strategy": [delivery.strategy],
        "status": [str(record.status)],
        "notice": [*delivery.notices, *(problem.code for problem in problems)],
    }
    return found.get(field, [])


def _matches(record: ExchangeRecord, wanted: Filter) -> bool:
    status = wanted.status
    is_error = record.status == 0 or record.status >= 400
    agent = (record.agent_id, (record.delivery or Delivery()).agent_name)
    return (
        wanted.path in record.target
        and (not wanted.agent or wanted.agent in agent)
        and all(
            not value or value in _values(record, name)
            for name, value in (
                ("type", wanted.type),
                ("provider", wanted.provider),
                ("strategy", wanted.strategy),
                ("notice", wanted.notice),
            )
        )
        and (not status or status in (str(record.status), f"{record.status // 100}xx", "error" if is_error else ""))
        and all(word.lower() in _texts(record) for word in wanted.text.split())
    )


def _texts(record: ExchangeRecord) -> str:
    bodies: list[Body] = [one.body for one in (record.request, record.forwarded, record.response) if one is not None]
    return " ".join(body.text or "" for body in bodies).lower()


def _form(record: ExchangeRecord) -> str:
    delivery = record.delivery or Delivery()
    if record.error is not None:
        return "refused"
    if delivery.input_type == "question":
        return "legacy"
    return "unified" if delivery.strategy and delivery.strategy != "native" else "native"
