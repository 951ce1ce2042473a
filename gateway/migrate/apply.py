"""Does the steps of an upgrade, or takes them back, so that it may be cut off anywhere and run again.

The API has no compare-and-set (FACTS.md, 10_upgrade). So right before a write the document is read and must be what
the step starts from, and after it must be what the step ends at; a step whose end is reached already is done. Two
upgrades of one connector at once write the same text, so neither harms the other. What remains is the time between
that reading and the write, one round trip: another tool's write just then is overwritten, and is not noticed.
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
"""Seconds to wait until a write shows, or to find out what became of one whose answer was lost."""

_PAUSE = 0.2
_LATER = 2.0  # how long a request whose answer was lost may still be at work before it is sent again
_LAG = 5.0  # a search lags a write by a refresh: a second unless the index is set otherwise
_NO_ANSWER = 0

Say = Callable[[str], None]


class StepFailed(Exception):
    """A step could not be done; the message names the call and what the cluster said."""


class Conflict(StepFailed):
    """A document is neither as the step starts from nor as it ends: somebody else changed it."""


class NeedsCredential(StepFailed):
    """A new connector has to be made, and its credential is not at hand."""


class Runner:
    """Runs one journal's steps. say: told each call before it is sent. credential: for a connector to be made."""

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        say: Say = lambda line: None,
        credential: Mapping[str, Any] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._cluster = cluster
        self._journal = journal
        self._record = journal.record
        self._say = say
        self._credential = credential
        self._patience = patience

    def forward(self) -> None:
        """Does every step that is not done.

        Raises:
            StepFailed: one can't be done; those before it stay done.
            ClusterError: the cluster can't be read.
        """
        self._require_unchanged(forward=True)
        for index, step in enumerate(self._record.steps):
            if step.action == "create":
                self._create(index, step)
            else:
                self._do(index, step)

    def backward(self, force: bool = False) -> None:
        """Takes back, last first, every step that was begun. force: also over somebody else's change.

        Raises:
            StepFailed: one can't be taken back; `left` lists what remains.
            ClusterError: the cluster can't be read.
        """
        if not force:
            self._require_unchanged(forward=False)
        self._journal.close("reverting")
        for index in reversed(range(len(self._record.steps))):
            if self._record.states[index] in ("begun", "done"):
                self._undo(index, self._record.steps[index], force)
        self._journal.close("reverted")

    def left(self) -> list[Call]:
        """The calls that would take back what still stands."""
        steps = zip(self._record.steps, self._record.states, strict=True)
        return [self._filled(step.undo) for step, state in steps if state in ("begun", "done")][::-1]

    def _require_unchanged(self, forward: bool) -> None:
        """Nothing is begun where a later step would find somebody else's change."""
        for step, state in zip(self._record.steps, self._record.states, strict=True):
            if step.action == "write" and (forward or state in ("begun", "done")):
                now = read_part(self._cluster, step.place)
                if now not in (step.before, step.after, step.restored):
                    was = step.before if forward else step.after
                    raise Conflict(f"{step.place} was changed by somebody: {_difference(was, now)}")

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
            goals = (now,)  # somebody pointed the model elsewhere: ours is out of use
        elif force and step.action == "write" and now not in goals:
            goals = (*goals, _overwritten(now, step.restored))
            now = None
        if now not in goals:
            self._until(self._filled(step.undo), step.place, goals)
        self._journal.mark(index, "undone")

    def _until(self, call: Call, place: str, goals: tuple[Any, ...]) -> None:
        """Sends `call` until the part at `place` is one of `goals`.

        Raises:
            StepFailed: it does not come to that.
        """
        end = time.monotonic() + self._patience
        while True:
            status, answer = self._send(call)
            said = answer_of(status, answer) if status else "no answer came"
            wait = {200: self._patience, _NO_ANSWER: _LATER}.get(status, 0)
            if self._reached(place, goals, wait):
                break
            if status == 400 and "undeploy" in said:
                # A caller's request deploys a model again at any time, and the cluster's own search for deployed
                # models lags by a refresh: until the connector is written, try again.
                self._undeploy_all()
            elif status not in (_NO_ANSWER, 429, 502, 503, 504):
                raise StepFailed(f"{call.method} {call.path}: {said}")
            if time.monotonic() >= end:
                raise StepFailed(f"{call.method} {call.path}: {said}")
            time.sleep(_PAUSE)
        if place.startswith("connectors/"):
            # One that was deployed in the last moment would go on with the connector as it was.
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
        self._say(f"{call.method} {call.path}")
        try:
            return self._cluster.call(call.method, call.path, call.body)
        except ClusterUnreachable as error:
            # A request that never left is as good as refused; one that did may have been carried out.
            return (_NO_ANSWER if error.maybe_sent else 503), {"error": str(error)}

    def _create(self, index: int, step: Step) -> None:
        if self._record.states[index] == "done":
            return
        found = self._made() if self._record.states[index] == "begun" else []
        if not found:
            if self._credential is None:
                raise NeedsCredential("a new connector is to be made: give its credential (--credential-file)")
            self._journal.mark(index, "begun")
            body = {**(step.call.body or {}), "credential": dict(self._credential)}
            status, answer = self._send(Call(step.call.method, step.call.path, body))
            made = answer.get("connector_id")
            found = [str(made)] if made else [] if 400 <= status < 500 else self._made()
            if not found:
                said = self._without_secrets(answer_of(status, answer)) if status else "no answer came"
                raise StepFailed(f"{step.call.method} {step.call.path}: {said}")
        self._record.made = found[0]
        self._journal.mark(index, "done")

    def _made(self) -> list[str]:
        """Connectors with this upgrade's mark; waited for, as a search lags what was just made by a refresh."""
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
                # It may still seem in use: the cluster searches for models that name it.
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
    """The members of a connector, or the value, that differ."""
    if not isinstance(now, Mapping) or not isinstance(was, Mapping):
        return f"{now!r} stands where {was!r} was"
    names = sorted(name for name in {*now, *was} if now.get(name) != was.get(name))
    return f"{', '.join(names)} changed"


def _overwritten(now: Any, restored: Any) -> Any:
    """What the undo makes of somebody else's version: its own members back, the others' additions kept."""
    parameters = {**(now.get("parameters") or {}), **(restored.get("parameters") or {})}
    return {**now, "actions": restored["actions"], "parameters": parameters}
