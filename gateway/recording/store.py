"""The interface of the stores of exchanges, and their places. All calls block, and are made in threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from gateway.config.inspector import AuditFile, SqliteExchanges
from gateway.observe.record import ExchangeRecord
from gateway.storage.files import expand, state_directory


class Filter(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which exchanges to show. Those that match all that is given; "" and None: any.

    path: a part of the target. agent: id or name of the one that ran. session: the id of a conversation. route: the
    agent's id that a client named, if a route sent its request on. Of an id, the beginning is enough if no other begins
    so. cluster: a name in `clusters`, or `upstream`. mirror: one of `MIRRORS`, or the id of an exchange, for its
    mirrors; "": none, as no client has asked for them. status: a status, a class such as 4xx, error (0, and 400 or
    more), refused (a run, by the gateway) or failed (a run, otherwise, also if only the answer says so). notice: a code
    of a notice or a problem. text: words in any recorded body, all of them; `"a phrase"`, `beginning*`. client: an
    address, or a part of the user agent. since, until: when they began, in seconds since the epoch. intent: such as
    execute; runs: all that run an agent. took, cost: `>2`, `<0.5` or `1-5`, in seconds (or with ms, s, m), and in the
    prices' currency; a number alone is the least.
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
    route: str = ""
    cluster: str = ""
    mirror: str = ""


UPSTREAM = "upstream"
"""The cluster of `upstream` in a filter. A record has "" for it."""
MIRRORS = ("any", "yes", "same", "differs")
"""Which mirrors to show. any: with the clients' own exchanges. yes: only mirrors; same, differs: only those that ended
as their original, or otherwise.
"""
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


class Target(Struct, frozen=True):
    """A target of a route, as records have it. route: the id that clients send. cluster: "" for that of `upstream`."""

    route: str
    agent: str
    cluster: str


class TargetRuns(Struct, frozen=True):
    """Runs of a target that clients asked for. name: the agent's, "" if it is not known.

    failed, refused: see `Filter.status`. p50, p95: seconds of the others; None for none. last: when the last one began,
    in seconds since the epoch. metered: how many report their tokens.
    """

    target: Target
    name: str
    runs: int
    failed: int
    refused: int
    p50: float | None
    p95: float | None
    input_tokens: int
    output_tokens: int
    metered: int
    spent: tuple[Spent, ...]
    last: float


class TargetFaults(Struct, frozen=True):
    """Runs of a target that were refused or failed for the same reason.

    code: of a problem, or the type of the gateway's error; "" if only the status tells. refused: by the gateway. last:
    as in `TargetRuns`.
    """

    target: Target
    code: str
    status: int
    refused: bool
    runs: int
    last: float


class TargetWeight(Struct, frozen=True):
    """A target, and its part of the new conversations in proportion to the others of its route."""

    agent: str
    cluster: str
    weight: float


class Weights(Struct, frozen=True):
    """Weights that came into force. at: when, in seconds since the epoch. targets: empty: the route was removed."""

    at: float
    route: str
    targets: tuple[TargetWeight, ...]


class Beginnings(Struct, frozen=True):
    """Conversations that began at a target within a bucket. bucket: seconds since the epoch."""

    target: Target
    bucket: float
    conversations: int


class Mirrored(Struct, frozen=True):
    """Mirrors at a target, and their originals.

    compared: how many have an original that is recorded; same, differs: how many of these end as it did, or not.
    tokens, original_tokens: of the `metered` pairs, in which both report them. seconds, original_seconds: of the
    `answered` pairs, in which neither failed or was refused.
    """

    target: Target
    mirrors: int
    compared: int
    same: int
    differs: int
    metered: int
    tokens: int
    original_tokens: int
    answered: int
    seconds: float
    original_seconds: float


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
    """Takes records. The recorder's thread calls it, never the event loop.

    A sink that inherits from this does nothing in the methods that it does not have.
    """

    name: str

    def add(self, records: Sequence[ExchangeRecord]) -> None:
        """Store the records.

        Raises:
            StoreError: some are not stored; the recorder counts them as dropped (`lost`).
        """

    def keep_medium(self, sha256: str, media_type: str, data: bytes) -> None:
        """Store the bytes of a medium under their hash, if the store has media."""
        return

    def note_losses(self, losses: Sequence[Loss]) -> None:
        """Note exchanges that were not recorded, if the store can tell its readers.

        Raises:
            StoreError: they are not noted.
        """
        return

    def close(self) -> None:
        """Write what is left, and release all resources."""
        return


def sqlite_directory(settings: SqliteExchanges) -> Path:
    """Return the directory of the store `sqlite`."""
    return expand(Path(settings.directory)) if settings.directory else state_directory() / "inspector"


def audit_path(settings: AuditFile) -> Path:
    """Return the file of the store `audit_file`."""
    return expand(Path(settings.path)) if settings.path else state_directory() / "audit.jsonl"
