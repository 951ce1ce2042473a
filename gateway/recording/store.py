"""The interface of the stores of exchanges, and their places. All calls block, and are made in threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from gateway.config.inspector import AuditFile, SqliteExchanges
from gateway.observe.record import ExchangeRecord
from gateway.storage.paths import expand, state_directory


class Filter(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which exchanges to show. Those that match all that is given; "" and None: any.

    path: a part of the target. agent: id or name. session: the id of a conversation. Of an id, the beginning is enough
    if no other begins so. status: a status, or a class such as 4xx, or error (0 and 400 or more). notice: a code of a
    notice or a problem. text: words in any recorded body, all of them; `"a phrase"`, `beginning*`. client: an address,
    or a part of the user agent. since, until: when they began, in seconds since the epoch. intent: such as execute;
    runs: all that run an agent. took, cost: `>2`, `<0.5` or `1-5`, in seconds (or with ms, s, m), and in the prices'
    currency; a number alone is the least.
    """

    path: str = ""
    agent: str = ""
    type: str = ""
    provider: str = ""
    strategy: str = ""
    status: str = ""
    notice: str = ""
    text: str = ""
    client: str = ""
    intent: str = ""
    since: float | None = None
    until: float | None = None
    session: str = ""
    took: str = ""
    cost: str = ""


SORTS = ("time", "agent", "status", "took", "tokens", "cost")


class Sort(Struct, frozen=True):
    """The order of rows. by: one of `SORTS`; time is when the exchange began. Equal ones: the newest stored first."""

    by: str = "time"
    descending: bool = True

    @property
    def reversed(self) -> Sort:
        """Return the opposite order."""
        return Sort(self.by, not self.descending)


NEWEST_FIRST = Sort()


class InvalidFilter(Exception):
    """A filter can't be read. field: which one; the message says what it should be."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


MOST_NAMED = 10
"""Ids that are named at most where a beginning is that of several."""


def ambiguous(start: str, ids: Sequence[str]) -> str:
    """Return why the beginning of these ids stands for none."""
    some = ", ".join(ids[:MOST_NAMED]) + (", and others" if len(ids) > MOST_NAMED else "")
    return f"several ids begin with {start}: {some}; give more of one"


class Row(Struct, frozen=True, omit_defaults=True):
    """A line of the list. position: orders the exchanges as they were stored, over all workers."""

    position: int
    record: ExchangeRecord
    """Without headers, texts of bodies, and steps."""


class Bucket(Struct, frozen=True):
    """A bar of the histogram. start: seconds since the epoch. exchanges: all that began in it. errors: those that
    failed.
    """

    start: float
    exchanges: int
    errors: int


class Spent(Struct, frozen=True):
    """What runs cost. runs: how many have a price in this currency."""

    currency: str
    cost: float
    runs: int


class Overview(Struct, frozen=True):
    """Exchanges that match a filter, summed up.

    since, until: of the histogram, in seconds since the epoch; seconds: of each of its buckets, 0 without any.
    runs: how many run an agent. p50, p95: seconds that runs took, or, if there are none, all exchanges; None for none.
    metered: how many runs report their tokens.
    """

    exchanges: int = 0
    errors: int = 0
    runs: int = 0
    p50: float | None = None
    p95: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    metered: int = 0
    spent: tuple[Spent, ...] = ()
    since: float = 0.0
    until: float = 0.0
    seconds: float = 0.0
    buckets: tuple[Bucket, ...] = ()


class Loss(Struct, frozen=True):
    """Exchanges that were not recorded. reason: as in `mlc_gateway_records_dropped_total`. detail: the error, or "".

    last: when it was noted last, in seconds since the epoch.
    """

    reason: str
    detail: str
    exchanges: int
    last: float


class StoreError(Exception):
    """The store can't be read or written. The message says why and what to do.

    lost: of `RecordSink.add`, how many records are not stored, also of earlier calls; None: all of this call.
    """

    def __init__(self, message: str, lost: int | None = None) -> None:
        super().__init__(message)
        self.lost = lost


@runtime_checkable
class RecordSink(Protocol):
    """Takes records. The recorder's thread calls it, never the event loop."""

    name: str

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the records.

        Raises:
            StoreError: some are not stored; the recorder counts them as dropped (`lost`).
        """

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Store the bytes of a medium under their hash, if the store has media."""

    def note_losses(self, losses: Sequence[Loss]) -> None:
        """Note exchanges that were not recorded, if the store can tell its readers.

        Raises:
            StoreError: they are not noted.
        """

    def close(self) -> None:
        """Write what is left, and release all resources."""


@runtime_checkable
class RecordStore(RecordSink, Protocol):
    """A sink that can be read too, also by another process."""

    def rows(self, wanted: Filter, before: int | None = None, limit: int = 100, sort: Sort = NEWEST_FIRST) -> list[Row]:
        """Return the first exchanges in an order, or those that follow the one at the position `before`.

        Raises:
            InvalidFilter: the filter can't be used, or there is no such position any more.
        """

    def overview(self, wanted: Filter, buckets: int = 60) -> Overview:
        """Return the exchanges that match, summed up. buckets: at most so many."""

    def losses(self, since: float | None = None, until: float | None = None) -> list[Loss]:
        """Return what was not recorded in a time, by reason and error."""

    def position(self, id: str) -> int | None:
        """Return the position of the exchange with the id; None if there is none."""

    def newer(self, wanted: Filter, after: int, limit: int = 100) -> list[Row]:
        """Return exchanges after a position, oldest first. Later calls never return smaller positions."""

    def newest(self) -> int:
        """Return the last position that was given, also to an exchange that was deleted; 0 for none."""

    def whole_id(self, start: str) -> str | None:
        """Return the id that `start` is, or the only one that begins with it; None if there is none.

        Raises:
            InvalidFilter: several begin so.
        """

    def get(self, id: str) -> ExchangeRecord | None:
        """Return a whole record; None if there is none."""

    def medium(self, sha256: str) -> tuple[str, bytes] | None:
        """Return media type and bytes; None if they are not kept."""

    def values(self, field: str, limit: int = 100) -> list[str]:
        """Return the different values of a field of `Filter`, the most frequent first, for the page's filters."""

    def adoption(self, since: float, bucket_seconds: float) -> list[dict[str, Any]]:
        """Return rows of the migration view: agent_id, agent_name, bucket (seconds since the epoch), and the number of
        requests of each form: legacy (question), unified (rewritten), native, refused.
        """

    def legacy_clients(self, since: float) -> list[dict[str, Any]]:
        """Return clients that still send legacy requests: user_agent, agent_id, agent_name, requests, last."""

    def refusals(self, since: float) -> list[dict[str, Any]]:
        """Return refusals: agent_id, agent_name, code, requests, last."""

    def clear(self) -> None:
        """Delete all exchanges and media."""


def sqlite_directory(settings: SqliteExchanges) -> Path:
    """Return the directory of the store `sqlite`."""
    return expand(Path(settings.directory)) if settings.directory else state_directory() / "inspector"


def audit_path(settings: AuditFile) -> Path:
    """Return the file of the store `audit_file`."""
    return expand(Path(settings.path)) if settings.path else state_directory() / "audit.jsonl"
