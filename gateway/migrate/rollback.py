"""Runs a journal to its end, or takes it back: what `upgrade --apply`, `upgrade --resume` and `rollback` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.migrate.apply import PATIENCE, Runner, Say, StepFailed
from gateway.migrate.backup import Journal
from gateway.migrate.connection import Cluster, ClusterError
from gateway.migrate.probe import ProbeFailed
from gateway.migrate.reading import read_part
from gateway.migrate.steps import Call

Failure = (StepFailed, ProbeFailed, ClusterError)


class RolledBack(Exception):
    """The upgrade failed and everything is as it was before; the message says why."""


class Stuck(Exception):
    """What was begun could not be taken back. calls: what would do it."""

    def __init__(self, message: str, calls: list[Call]) -> None:
        super().__init__(message)
        self.calls = calls


def carry_out(
    cluster: Cluster,
    journal: Journal,
    probe: Callable[[], None],
    say: Say = lambda line: None,
    credential: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Does what is not done of the journal's steps, and probes; takes everything back when that fails.

    Raises:
        RolledBack: it failed, and nothing is left of it.
        Stuck: it failed, and something is.
    """
    runner = Runner(cluster, journal, say, credential, patience)
    try:
        runner.forward()
        probe()
    except Failure as error:
        say(f"failed: {error}; taking it back")
        try:
            runner.backward()
        except Failure as worse:
            raise Stuck(f"{error}; and it could not be taken back: {worse}", runner.left()) from None
        raise RolledBack(str(error)) from None
    journal.close("applied")


def roll_back(
    cluster: Cluster, journal: Journal, say: Say = lambda line: None, force: bool = False, patience: float = PATIENCE
) -> list[str]:
    """Takes back what the journal's steps did, however far they came; what still differs from the backup.

    force: also where somebody changed the documents since.

    Raises:
        Stuck: something could not be taken back.
    """
    runner = Runner(cluster, journal, say, patience=patience)
    try:
        runner.backward(force)
        return list(_differences(cluster, journal))
    except Failure as error:
        raise Stuck(str(error), runner.left()) from None


def _differences(cluster: Cluster, journal: Journal) -> Iterator[str]:
    """Each changed document against the backup: times aside, an added parameter is all that may remain."""
    record = journal.record
    for step in record.steps:
        if step.action in ("create", "deploy"):
            continue  # whether a model is deployed is told by the step that ended it
        now = read_part(cluster, step.place)
        if now == step.before:
            continue
        if now == step.restored:
            yield f"{step.place} keeps the parameter {record.parameter!r}, which nothing uses now: a PUT adds \
parameters and removes none"
        else:
            yield f"{step.place} differs from the backup: {_names(now, step.before)}"


def _names(now: Any, before: Any) -> str:
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return f"{now!r}, in the backup {before!r}"
    return ", ".join(sorted(name for name in {*now, *before} if now.get(name) != before.get(name)))
