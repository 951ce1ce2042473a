"""Apply or undo the steps of an upgrade. A run may be interrupted anywhere and repeated.

The API has no compare-and-set (docs/internals/facts.md, 10_upgrade). So the document is read right before a write and
must be in the step's start state; after the write it must be in its end state. A step in its end state is done. Two
upgrades of one connector at a time write the same text, so neither harms the other. One gap remains: a write of another
tool between that read and the write, one round trip, is overwritten unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.agents.lookup import document_path
from gateway.migrate.backup import Journal
from gateway.migrate.connection import Cluster, ClusterError, ClusterUnreachable, answer_of
from gateway.migrate.reading import read_part
from gateway.migrate.search import search_all
from gateway.migrate.steps import MADE, Call, Step, marker

PATIENCE = 20.0
"""Seconds to wait until a write takes effect, or to find out whether one without an answer did."""

_PAUSE = 0.2
_LATER = 2.0  # seconds that a request without an answer may still be running before it is sent again
_LAG = 5.0  # seconds until a search shows a write: one refresh, a second by default
_NO_ANSWER = 0

Report = Callable[[str], None]


class StepFailed(Exception):
    """A step failed. The message names the call and the cluster's error."""


class Conflict(StepFailed):
    """Somebody else changed the document: it is neither in the step's start state nor in its end state."""


class NeedsCredential(StepFailed):
    """A new connector needs a credential, and none was given."""


class Runner:
    """Runs one journal's steps. report: gets each call before it is sent. credential: of the new connector."""

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        report: Report = lambda line: None,
        credential: Mapping[str, Any] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._cluster = cluster
        self._journal = journal
        self._record = journal.record
        self._report = report
        self._credential = credential
        self._patience = patience

    def forward(self) -> None:
        """Apply every step that is not done.

        Raises:
            StepFailed: a step failed; those before it stay applied.
            ClusterError: the cluster can't be read.
        """
        self._require_unchanged(forward=True)
        for index, step in enumerate(self._record.steps):
            if step.action == "create":
                self._create(index, step)
            else:
                self._do(index, step)

    def backward(self, force: bool = False) -> None:
        """Undo every step that was begun, the last one first. force: also overwrite somebody else's change.

        Raises:
            StepFailed: a step can't be undone; `remaining` lists what is left.
            ClusterError: the cluster can't be read.
        """
        if not force:
            self._require_unchanged(forward=False)
        self._journal.close("reverting")
        for index in reversed(range(len(self._record.steps))):
            if self._record.states[index] in ("begun", "done"):
                self._undo(index, self._record.steps[index], force)
        self._journal.close("reverted")

    def remaining(self) -> list[Call]:
        """Return the calls that would undo the steps that are still applied."""
        steps = zip(self._record.steps, self._record.states, strict=True)
        return [self._filled(step.undo) for step, state in steps if state in ("begun", "done")][::-1]

    def _require_unchanged(self, forward: bool) -> None:
        """Raise Conflict if somebody else changed a document, before any step is begun."""
        for step, state in zip(self._record.steps, self._record.states, strict=True):
            if step.action == "write" and (forward or state in ("begun", "done")):
                now = read_part(self._cluster, step.place)
                if now not in (step.before, step.after, step.restored):
                    was = step.before if forward else step.after
                    raise Conflict(f"{step.place} was changed by somebody else: {_difference(was, now)}")

    def _do(self, index: int, step: Step) -> None:
        goal = self._record.made if step.after == MADE else step.after
        now = read_part(self._cluster, step.place)
        if now != goal:
            if step.action in ("write", "attach") and now not in (step.before, step.restored):
                raise Conflict(f"{step.place} was changed meanwhile: {_difference(step.before, now)}")
            self._journal.mark(index, "begun")
            self._until(self._filled(step.call), step.place, (goal,))
        self._journal.mark(index, "done")

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
            self._until(self._filled(step.undo), step.place, goals)
        self._journal.mark(index, "undone")

    def _until(self, call: Call, place: str, goals: tuple[Any, ...]) -> None:
        """Send `call` until the part at `place` is one of `goals`.

        Raises:
            StepFailed: the call is refused, or time is up.
        """
        end = time.monotonic() + self._patience
        while True:
            status, answer = self._send(call)
            reason = answer_of(status, answer) if status else "no answer"
            wait = {200: self._patience, _NO_ANSWER: _LATER}.get(status, 0)
            if self._reached(place, goals, wait):
                break
            if status == 400 and "undeploy" in reason:
                # A caller's request may deploy a model at any time, and the cluster finds deployed models by a search
                # that lags by a refresh: try again until the connector is written.
                self._undeploy_all()
            elif status not in (_NO_ANSWER, 429, 502, 503, 504):
                raise StepFailed(f"{call.method} {call.path}: {reason}")
            if time.monotonic() >= end:
                raise StepFailed(f"{call.method} {call.path}: {reason}")
            time.sleep(_PAUSE)
        if place.startswith("connectors/"):
            # A model that was deployed at the last moment would still use the old connector.
            self._undeploy_all()

    def _undeploy_all(self) -> None:
        for model in self._record.models:
            place = f"models/{model}/deployed"
            if read_part(self._cluster, place):
                self._send(Call("POST", f"{document_path('models', model)}/_undeploy"))
                self._reached(place, (False,), self._patience)

    def _reached(self, place: str, goals: tuple[Any, ...], patience: float) -> bool:
        end = time.monotonic() + patience
        while True:
            try:
                if read_part(self._cluster, place) in goals:
                    return True
            except ClusterError:
                if time.monotonic() >= end:
                    return False
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE)

    def _send(self, call: Call) -> tuple[int, dict[str, Any]]:
        self._report(f"{call.method} {call.path}")
        try:
            return self._cluster.call(call.method, call.path, call.body)
        except ClusterUnreachable as error:
            # A request that was not sent had no effect; one that was sent may have had.
            return (_NO_ANSWER if error.maybe_sent else 503), {"error": str(error)}

    def _create(self, index: int, step: Step) -> None:
        if self._record.states[index] == "done":
            return
        found = self._made() if self._record.states[index] == "begun" else []
        if not found:
            if self._credential is None:
                raise NeedsCredential("the new connector needs a credential: give --credential-file")
            self._journal.mark(index, "begun")
            body = {**(step.call.body or {}), "credential": dict(self._credential)}
            status, answer = self._send(Call(step.call.method, step.call.path, body))
            made = answer.get("connector_id")
            found = [str(made)] if made else [] if 400 <= status < 500 else self._made()
            if not found:
                reason = self._without_secrets(answer_of(status, answer)) if status else "no answer"
                raise StepFailed(f"{step.call.method} {step.call.path}: {reason}")
        self._record.made = found[0]
        self._journal.mark(index, "done")

    def _made(self) -> list[str]:
        """Search for connectors with this upgrade's mark. Wait for one, as a search lags by a refresh."""
        end = time.monotonic() + min(self._patience, _LAG)
        while True:
            ending = marker(self._record.tag)
            found = [
                id_
                for id_, source in search_all(self._cluster, "connectors")
                if str(source.get("description", "")).endswith(ending)
            ]
            if found or time.monotonic() >= end:
                return found
            time.sleep(_PAUSE)

    def _remove_made(self) -> None:
        for id_ in [self._record.made] if self._record.made else self._made():
            call = Call("DELETE", document_path("connectors", id_))
            end = time.monotonic() + min(self._patience, _LAG)
            while self._send(call)[0] not in (200, 404):
                status, answer = self._cluster.call("GET", call.path)
                if status == 404:
                    break
                # The cluster may still find a model that names it, as its search lags.
                if time.monotonic() >= end:
                    raise StepFailed(f"{call.method} {call.path} is refused: {answer_of(status, answer)}")
                time.sleep(_PAUSE)
        self._record.made = ""

    def _filled(self, call: Call) -> Call:
        body = call.body and {name: self._record.made if v == MADE else v for name, v in call.body.items()}
        return Call(call.method, call.path.replace(MADE, self._record.made or MADE), body)

    def _without_secrets(self, text: str) -> str:
        for secret in (self._credential or {}).values():
            text = text.replace(str(secret), "***") if secret else text
        return text


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
