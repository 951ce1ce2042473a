"""Apply a journal to its end, or undo it. `upgrade --apply`, `upgrade --resume` and `rollback` share this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.migrate.apply import PATIENCE, Report, Runner, StepFailed
from gateway.migrate.backup import Journal
from gateway.migrate.connection import Cluster, ClusterError
from gateway.migrate.probe import ProbeFailed
from gateway.migrate.reading import read_part
from gateway.migrate.steps import Call

Failure = (StepFailed, ProbeFailed, ClusterError)


class RolledBack(Exception):
    """The upgrade failed and was undone. The message is the reason."""


class UndoFailed(Exception):
    """A change could not be undone. calls: those that would undo it."""

    def __init__(self, message: str, calls: list[Call]) -> None:
        super().__init__(message)
        self.calls = calls


def carry_out(
    cluster: Cluster,
    journal: Journal,
    probe: Callable[[], None],
    report: Report = lambda line: None,
    credential: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Apply the remaining steps of the journal and probe the result. If that fails, undo all steps.

    Raises:
        RolledBack: a step or the probe failed, and all steps were undone.
        UndoFailed: a step or the probe failed, and not all steps could be undone.
    """
    runner = Runner(cluster, journal, report, credential, patience)
    try:
        runner.forward()
        probe()
    except Failure as error:
        report(f"failed: {error}; undoing it")
        try:
            runner.backward()
        except Failure as worse:
            raise UndoFailed(f"{error}; undoing the changes failed, too: {worse}", runner.remaining()) from None
        raise RolledBack(str(error)) from None
    journal.close("applied")


def roll_back(
    cluster: Cluster,
    journal: Journal,
    report: Report = lambda line: None,
    force: bool = False,
    patience: float = PATIENCE,
) -> list[str]:
    """Undo the journal's steps, finished or not, and return what still differs from the backup.

    force: also undo where somebody changed the documents since.

    Raises:
        UndoFailed: something could not be undone.
    """
    runner = Runner(cluster, journal, report, patience=patience)
    try:
        runner.backward(force)
        return list(_differences(cluster, journal))
    except Failure as error:
        raise UndoFailed(str(error), runner.remaining()) from None


def _differences(cluster: Cluster, journal: Journal) -> Iterator[str]:
    """Compare each changed document with the backup. Apart from times, only an added parameter may remain."""
    record = journal.record
    for step in record.steps:
        if step.action in ("create", "deploy"):
            continue  # the undeploy step covers the deployment
        now = read_part(cluster, step.place)
        if now == step.before:
            continue
        if now == step.restored:
            yield f"{step.place} still has the parameter {record.parameter!r}, which is not used any more: \
a PUT can't remove parameters"
        else:
            yield f"{step.place} differs from the backup: {_names(now, step.before)}"


def _names(now: Any, before: Any) -> str:
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return f"{now!r}, in the backup {before!r}"
    return ", ".join(sorted(name for name in {*now, *before} if now.get(name) != before.get(name)))
