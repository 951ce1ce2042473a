"""Apply a journal to its end, or undo it. `upgrade --apply`, `upgrade --resume` and `rollback` share this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.migrate.apply import Blocked, Conflict, NeedsCredential, Runner
from gateway.migrate.backup import BackupError, Journal
from gateway.migrate.connection import Cluster, ClusterError
from gateway.migrate.gateways import Gateways, NoGateways
from gateway.migrate.probe import ProbeFailed
from gateway.migrate.reading import Missing, read_part
from gateway.migrate.steps import Call
from gateway.migrate.writer import PATIENCE, Clock, Report, StepFailed

Failure = (StepFailed, ProbeFailed, ClusterError, BackupError)


class RolledBack(Exception):
    """The upgrade failed and was undone. The message is the reason. left: what still differs from the backup."""

    def __init__(self, message: str, left: list[str]) -> None:
        super().__init__(message)
        self.left = left


class Gone(Exception):
    """What the upgrade changed does not exist any more, so there is nothing to undo."""


class UndoFailed(Exception):
    """A change could not be undone.

    calls: those that would undo it; none if they can't work as the cluster is now. by_force: `force` would undo it.
    """

    def __init__(self, message: str, error: Exception, runner: Runner) -> None:
        super().__init__(message)
        self.calls: list[Call] = [] if isinstance(error, Blocked | Missing) else runner.remaining()
        self.by_force = isinstance(error, Conflict)


def carry_out(
    cluster: Cluster,
    journal: Journal,
    probe: Callable[[], None],
    report: Report = lambda line: None,
    credential: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
    clock: Clock = time,
    gateways: Gateways | None = None,
) -> list[str]:
    """Apply the remaining steps of the journal and probe the result. If that fails, undo all steps.

    Return a line for each connector that the upgrade needed for a while and could not remove.

    report, credential, patience, clock, gateways: see `Runner`.

    Raises:
        NeedsCredential: a new connector needs a credential; everything stays as it is, and the journal open.
        RolledBack: a step or the probe failed, and all steps were undone.
        UndoFailed: a step or the probe failed, and not all steps could be undone.
    """
    gateways = gateways or NoGateways()
    runner = Runner(cluster, journal, report, credential, patience, clock, gateways)
    try:
        runner.forward()
        probe()
        journal.close("applied")
    except NeedsCredential:
        raise
    except Failure as error:
        report(f"failed: {error}; undoing it")
        try:
            runner.backward()
        except Failure as worse:
            raise UndoFailed(f"{error}; undoing the changes failed, too: {worse}", worse, runner) from None
        raise RolledBack(str(error), _read_all(_compare(cluster, journal))) from None
    finally:
        gateways.release(journal.record.tag)
    return _read_all(_unremoved(cluster, journal.record.unremoved))


def roll_back(
    cluster: Cluster,
    journal: Journal,
    report: Report = lambda line: None,
    force: bool = False,
    patience: float = PATIENCE,
    clock: Clock = time,
    gateways: Gateways | None = None,
    accept_gone: bool = False,
) -> list[str]:
    """Undo the journal's steps, finished or not, and return what still differs from the backup.

    force: also undo where somebody changed the documents since. report, patience, clock, gateways: see `Runner`.
    accept_gone: see `Runner.backward`; not for a cluster that may be another one than that of the backup.

    Raises:
        Gone: `accept_gone`, and what the upgrade changed does not exist any more.
        UndoFailed: something could not be undone.
    """
    gateways = gateways or NoGateways()
    runner = Runner(cluster, journal, report, patience=patience, clock=clock, gateways=gateways)
    try:
        gone = runner.backward(force, accept_gone)
    except Failure as error:
        raise UndoFailed(str(error), error, runner) from None
    finally:
        gateways.release(journal.record.tag)
    if gone:
        raise Gone(f"{gone} is gone from the cluster: there is nothing to undo")
    return _read_all(_compare(cluster, journal))


def _read_all(lines: Iterator[str]) -> list[str]:
    """Return the lines about what is read back; one line if it can't be."""
    try:
        return list(lines)
    except ClusterError as error:
        return [f"this could not be read back: {error}"]


def _compare(cluster: Cluster, journal: Journal) -> Iterator[str]:
    """Read what the upgrade changes and compare it with the backup. Apart from times, only a parameter may remain."""
    record = journal.record
    yield from _unremoved(cluster, record.unremoved)
    for model in record.deployed:
        try:
            if not read_part(cluster, f"models/{model}/deployed"):
                yield f"models/{model} is not deployed: the next request loads it"
        except Missing:
            yield f"models/{model} is gone from the cluster"
    for step in record.steps:
        if step.action == "create":
            continue  # it was removed or is in `unremoved`, otherwise the undo had failed
        now = read_part(cluster, step.place)
        if now == step.before:
            continue
        if now == step.restored:
            yield f"{step.place} still has parameters that are not used any more ({record.parameter}): \
a PUT can't remove parameters"
        else:
            yield f"{step.place} differs from the backup: {_names(now, step.before)}"


def _unremoved(cluster: Cluster, connectors: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each connector that could not be removed and still exists. connectors: ids, and why."""
    for connector, why in connectors.items():
        try:
            read_part(cluster, f"connectors/{connector}")
        except Missing:
            continue
        later = "once these are gone, `mlc-gateway cleanup --apply` removes it"
        yield f"connectors/{connector}, which no model uses, could not be removed: {why}; {later}"


def _names(now: Any, before: Any) -> str:
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return f"{now!r}, in the backup {before!r}"
    return ", ".join(sorted(name for name in {*now, *before} if now.get(name) != before.get(name)))
