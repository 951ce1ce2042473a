"""Apply or undo the steps of an upgrade. A run may be interrupted anywhere and repeated.

`upgrade --apply`, `upgrade --resume` and `rollback` share this.

The API has no compare-and-set (docs/evidence/facts.md, 10_upgrade). So the document is read right before a write and
must be in the step's start state; after the write it must be in its end state. A step in its end state is done. Two
upgrades of one connector at a time write the same text, so neither harms the other. One gap remains: a write of another
tool between that read and the write, one round trip, is overwritten unnoticed.

A write is not in use before its models are loaded again (`loading`). Callers notice nothing of that: in 9,095 recorded
requests no sequence of these calls failed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.migrate import parking
from gateway.migrate.backup import BackupError, Journal, State
from gateway.migrate.connection import Cluster, ClusterError
from gateway.migrate.gateways import Gateways
from gateway.migrate.parking import Parking
from gateway.migrate.probe import ProbeFailed
from gateway.migrate.reading import Missing, read_part
from gateway.migrate.steps import MADE, Call, Step, deploy, undeploy
from gateway.migrate.writer import PATIENCE, Clock, InUse, Report, StepFailed, Writer, explain_if_unused

TRIES = 10
"""How often a connector in use is undeployed and changed before its models are parked."""


class Conflict(StepFailed):
    """Somebody else changed the document: it is neither in the step's start state nor in its end state."""


class Blocked(StepFailed):
    """As the cluster is now, no call of the upgrade or of its undo makes sense. The message says why."""


class NeedsCredential(StepFailed):
    """A new connector needs a credential, and none was given."""


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

    def __init__(self, message: str, calls: Sequence[Call], by_force: bool) -> None:
        super().__init__(message)
        self.calls = list(calls)
        self.by_force = by_force


class Runner:
    """Runs one journal's steps.

    report: gets each call before it is sent. credential: of the new connector. gateways: those that run meanwhile. Both
    directions let them hold the documents from before the upgrade (`Gateways`).
    """

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        report: Report = lambda line: None,
        credential: Mapping[str, Any] | None = None,
        patience: float = PATIENCE,
        clock: Clock = time,
        gateways: Gateways | None = None,
    ) -> None:
        self._cluster = cluster
        self._report = report
        self._gateways = gateways or Gateways()
        self._journal = journal
        self._record = journal.record
        self._credential = credential
        self._writer = Writer(cluster, report, patience, clock)
        self._parking = Parking(self._writer, journal)

    def carry_out(self, probe: Callable[[], None]) -> list[str]:
        """Apply the remaining steps of the journal and probe the result. If that fails, undo all steps.

        Return a line for each connector that the upgrade needed for a while and could not remove.

        Raises:
            NeedsCredential: a new connector needs a credential; everything stays as it is, and the journal open.
            RolledBack: a step or the probe failed, and all steps were undone.
            UndoFailed: a step or the probe failed, and not all steps could be undone.
        """
        try:
            self._forward()
            probe()
            self._journal.close("applied")
        except NeedsCredential:
            raise
        except Failure as error:
            self._report(f"failed: {error}; undoing it")
            try:
                self._backward()
            except Failure as worse:
                raise self._undo_failed(f"{error}; undoing the changes failed, too: {worse}", worse) from None
            raise RolledBack(str(error), _read_all(self._compare())) from None
        finally:
            self._gateways.release(self._record.tag)
        return _read_all(self._unremoved())

    def roll_back(self, force: bool = False, accept_gone: bool = False) -> list[str]:
        """Undo the journal's steps, finished or not, and return what still differs from the backup.

        force: also undo where somebody changed the documents since. accept_gone: if the document that was changed does
        not exist any more, there is nothing to undo in it; not for a cluster that may be another one than that of the
        backup.

        Raises:
            Gone: `accept_gone`, and what the upgrade changed does not exist any more.
            UndoFailed: something could not be undone.
        """
        try:
            gone = self._backward(force, accept_gone)
        except Failure as error:
            raise self._undo_failed(str(error), error) from None
        finally:
            self._gateways.release(self._record.tag)
        if gone:
            raise Gone(f"{gone} is gone from the cluster: there is nothing to undo")
        return _read_all(self._compare())

    def _undo_failed(self, message: str, error: Exception) -> UndoFailed:
        calls = [] if isinstance(error, Blocked | Missing) else self._remaining()
        return UndoFailed(message, calls, isinstance(error, Conflict))

    def _forward(self) -> None:
        """Apply every step that is not done.

        Raises:
            StepFailed: a step failed; those before it stay applied.
            ClusterError: the cluster can't be read.
            BackupError: the backup can't be written.
        """
        self._hold_documents([step for step, state in self._steps() if state != "done"], wait=False)
        self._parking.close()
        self._require_unchanged(forward=True)
        self._require_automatic()
        for index, step in enumerate(self._record.steps):
            if step.action == "create":
                self._create(index, step)
            else:
                self._do(index, step)

    def _backward(self, force: bool = False, accept_gone: bool = False) -> str:
        """Undo every step that was begun, the last one first.

        force: also overwrite somebody else's change. accept_gone: see `roll_back`. Return the document that is gone as
        ``connectors/ID`` or ``models/ID``, otherwise "".

        Raises:
            StepFailed: a step can't be undone; `_remaining` lists what is left.
            ClusterError: the cluster can't be read.
            BackupError: the backup can't be written.
        """
        gone = self._find_gone() if accept_gone else ""
        if not gone:
            # What was planned for the new template would lose images in the old one.
            self._hold_documents([step for step, state in self._steps() if state in ("begun", "done")], wait=True)
        self._parking.close()
        if not force and not gone:
            self._require_unchanged(forward=False)
        if not gone and any(state in ("begun", "done") for state in self._record.states):
            self._require_old_connector()
            self._require_automatic()
        self._journal.close("reverting")
        for index, (step, state) in reversed(list(enumerate(self._steps()))):
            if gone and step.place:
                self._journal.mark(index, "undone")
            elif state in ("begun", "done"):
                self._undo(index, step, force)
        self._journal.close("reverted")
        return gone

    def _remaining(self) -> list[Call]:
        """Return the calls that would undo the steps that are still applied."""
        left = [step for step, state in self._steps() if state in ("begun", "done")][::-1]
        calls = self._parking.remaining()
        for step in left:
            before = [undeploy(self._record.models)] if step.place.startswith("connectors/") else []
            after = [undeploy(self._record.models), *map(deploy, self._record.deployed)] if step.place else []
            calls += [*before, self._filled(step.undo), *after]
        return calls

    def _steps(self) -> list[tuple[Step, State]]:
        """Return the steps with their states as they are now."""
        return list(zip(self._record.steps, self._record.states, strict=True))

    def _hold_documents(self, steps: Iterable[Step], wait: bool) -> None:
        """Let gateways hold what these steps change as it was before the upgrade. wait: see `Gateways.hold`.

        So that nothing changes while models are parked, the ids of their connectors are held, too.
        """
        parts: dict[str, Any] = {}
        for step in steps:
            if not step.place or (step.action == "attach" and not self._is_ours(step)):
                continue
            parts[step.place] = step.before
            kind, _, id_ = step.place.partition("/")
            if kind == "connectors":
                parts |= {f"models/{model}/connector_id": id_ for model in self._record.models}
        if parts:
            self._gateways.hold(self._record.tag, parts, wait)

    def _is_ours(self, step: Step) -> bool:
        """Return True if the model uses the connector from before the upgrade or the new one, no other."""
        return read_part(self._cluster, step.place) in (step.before, self._record.made)

    def _find_gone(self) -> str:
        """Return the document that the steps change if it does not exist, otherwise ""."""
        for place in filter(None, (step.place for step in self._record.steps)):
            try:
                read_part(self._cluster, place)
            except Missing:
                return "/".join(place.split("/")[:2])
        return ""

    def _require_unchanged(self, forward: bool) -> None:
        """Raise Conflict if somebody else changed a document, before any step is begun."""
        for step, state in self._steps():
            if step.action == "write" and (forward or state in ("begun", "done")):
                now = read_part(self._cluster, step.place)
                if now not in (step.before, step.after, step.restored):
                    was = step.before if forward else step.after
                    raise Conflict(f"{step.place} was changed by somebody else: {_difference(was, now)}")

    def _require_old_connector(self) -> None:
        """Raise Blocked if a model would get a connector back that does not exist."""
        for step in self._record.steps:
            if step.action == "attach" and read_part(self._cluster, step.place) == self._record.made:
                try:
                    read_part(self._cluster, f"connectors/{step.before}")
                except Missing:
                    model = step.place.removesuffix("/connector_id")
                    raise Blocked(
                        f"connectors/{step.before} is gone from the cluster, so it can't be given back to {model}, "
                        f"which keeps connectors/{self._record.made}"
                    ) from None

    def _require_automatic(self) -> None:
        """Raise Blocked if an undeployed model would stay so: its requests would get no answer at all."""
        if not parking.is_automatic(self._cluster):
            raise Blocked(
                "the cluster does not deploy models automatically (plugins.ml_commons.model_auto_deploy.enable), so "
                "requests would get no answer while a model is loaded again: turn it on for the upgrade or rollback"
            )

    def _do(self, index: int, step: Step) -> None:
        goal = self._record.made if step.after == MADE else step.after
        now = read_part(self._cluster, step.place)
        if now == goal and self._record.states[index] == "done":
            return
        if now != goal and now not in (step.before, step.restored):
            raise Conflict(f"{step.place} was changed meanwhile: {_difference(step.before, now)}")
        self._journal.mark(index, "begun")
        if now != goal:
            try:
                self._write(self._filled(step.call), step.place, (goal,))
            except StepFailed:
                self._give_up(index, step, now)
                raise
        self._load_again()
        self._gateways.drop()
        self._journal.mark(index, "done")

    def _give_up(self, index: int, step: Step, before: Any) -> None:
        """Mark a write that was refused as not begun, if it changed nothing."""
        parking.deploy_again(self._writer, self._record.deployed)
        if read_part(self._cluster, step.place) == before:
            self._journal.mark(index, "planned")

    def _undo(self, index: int, step: Step, force: bool) -> None:
        if step.action == "create":
            self._remove_made()
            self._journal.mark(index, "undone")
            return
        goals: tuple[Any, ...] = (step.before, step.restored)
        now = read_part(self._cluster, step.place)
        if step.action == "attach" and now != self._record.made:
            goals = (now,)  # somebody chose another connector for the model: ours is not in use
        elif force and step.action == "write" and now not in goals:
            goals = (*goals, _overwritten(now, step.restored))
            now = None
        if now not in goals:
            self._write(self._filled(step.undo), step.place, goals)
        self._gateways.drop()
        self._load_again()
        self._journal.mark(index, "undone")

    def _write(self, call: Call, place: str, goals: tuple[Any, ...]) -> None:
        """Send a write; for a standalone connector, while none of its models is loaded.

        Raises:
            StepFailed: the write is refused, or time is up.
        """
        if not place.startswith("connectors/"):
            self._writer.put(call, place, goals)
            return
        for _ in range(TRIES):
            parking.unload(self._writer, self._record.models)
            try:
                self._writer.put(call, place, goals)
                return
            except InUse as refused:
                # A request loaded a model again between the two calls.
                if not set(refused.models) <= set(self._record.models):
                    raise self._explained(refused, place) from None
        self._parking.put(call, place, goals)

    def _explained(self, refused: InUse, place: str) -> StepFailed:
        """Return the failure of a write that is refused because of models that are not the upgrade's."""
        others = set(refused.models) - set(self._record.models)
        why = explain_if_unused(self._cluster, place.partition("/")[2], sorted(others))
        remedy = "make the upgrade with a new connector (--credential-file, --ask-credential)"
        return StepFailed(f"{refused}; {why}: {remedy}") if why else refused

    def _load_again(self) -> None:
        """Let the models use what was written, and restore their states."""
        parking.reload(self._writer, self._record.models)
        parking.deploy_again(self._writer, self._record.deployed)

    def _create(self, index: int, step: Step) -> None:
        if self._record.states[index] == "done":
            return
        found = self._writer.find(self._record.tag) if self._record.states[index] == "begun" else []
        if not found:
            if self._credential is None:
                raise NeedsCredential("the new connector needs a credential: give --credential-file")
            self._journal.mark(index, "begun")
            found = [self._writer.create(step.call, self._credential, self._record.tag)]
        self._record.made = found[0]
        self._journal.mark(index, "done")

    def _remove_made(self) -> None:
        for id_ in [self._record.made] if self._record.made else self._writer.find(self._record.tag):
            why = self._writer.remove(id_)
            if why:
                self._journal.note_unremoved(id_, why)
        self._record.made = ""

    def _compare(self) -> Iterator[str]:
        """Compare what the upgrade changes with the backup. Apart from times, only a parameter may remain."""
        yield from self._unremoved()
        for model in self._record.deployed:
            try:
                if not read_part(self._cluster, f"models/{model}/deployed"):
                    yield f"models/{model} is not deployed: the next request loads it"
            except Missing:
                yield f"models/{model} is gone from the cluster"
        for step in self._record.steps:
            if step.action == "create":
                continue  # it was removed or is in `unremoved`, otherwise the undo had failed
            now = read_part(self._cluster, step.place)
            if now == step.before:
                continue
            if now == step.restored:
                yield f"{step.place} still has parameters that are not used any more ({self._record.parameter}): \
a PUT can't remove parameters"
            else:
                yield f"{step.place} differs from the backup: {_names(now, step.before)}"

    def _unremoved(self) -> Iterator[str]:
        """Yield a line for each connector that could not be removed and still exists."""
        for connector, why in self._record.unremoved.items():
            try:
                read_part(self._cluster, f"connectors/{connector}")
            except Missing:
                continue
            later = "once these are gone, `mlc-gateway cleanup --apply` removes it"
            yield f"connectors/{connector}, which no model uses, could not be removed: {why}; {later}"

    def _filled(self, call: Call) -> Call:
        body = call.body and {name: self._record.made if v == MADE else v for name, v in call.body.items()}
        return Call(call.method, call.path.replace(MADE, self._record.made or MADE), body)


def _difference(was: Any, now: Any) -> str:
    """Describe what differs: the members of a connector, or the value."""
    if not isinstance(now, Mapping) or not isinstance(was, Mapping):
        return f"{now!r} in place of {was!r}"
    names = sorted(name for name in {*now, *was} if now.get(name) != was.get(name))
    return f"{', '.join(names)} changed"


def _overwritten(now: Any, restored: Any) -> Any:
    """Return the document that a forced undo leaves: our members restored, additions of others preserved."""
    parameters = {**(now.get("parameters") or {}), **(restored.get("parameters") or {})}
    return {**now, "actions": restored["actions"], "parameters": parameters}


def _read_all(lines: Iterator[str]) -> list[str]:
    """Return the lines about what is read back; one line if it can't be."""
    try:
        return list(lines)
    except ClusterError as error:
        return [f"this could not be read back: {error}"]


def _names(now: Any, before: Any) -> str:
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return f"{now!r}, in the backup {before!r}"
    return ", ".join(sorted(name for name in {*now, *before} if now.get(name) != before.get(name)))
