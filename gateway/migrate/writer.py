"""Sends the calls of an upgrade or a move, and waits until each has taken effect.

A mark in each document that is made finds one whose answer was lost: the mark of an agent is a parameter; of any other
document, the end of its description.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster, ClusterError, ClusterUnreachable, answer_of
from gateway.migrate.reading import Missing, read_part
from gateway.migrate.search import search_all
from gateway.migrate.steps import MOVED, Call, Kind, mark_of

PATIENCE = 20.0
"""Seconds to wait until a write takes effect, or to find out whether one without an answer did."""

NO_ANSWER = 0
_PAUSE = 0.1
_LATER = 2.0  # seconds that a request without an answer may still be running before it is sent again
_LAG = 5.0  # seconds until a search shows a write: one refresh, a second by default
_BUSY = (429, 502, 503, 504)

Report = Callable[[str], None]


class Clock(Protocol):
    """The part of the module `time` that is used."""

    def monotonic(self) -> float:
        """Return the time in seconds."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


class StepFailed(Exception):
    """A step failed. The message names the call and the cluster's error."""


class NotMade(StepFailed):
    """The cluster refused to make a document, and has not made it."""


class InUse(StepFailed):
    """The connector is not changed, as some models that use it are loaded. models: their ids."""

    def __init__(self, message: str, models: Collection[str]) -> None:
        super().__init__(message)
        self.models = models


class Writer:
    """Sends writes to a cluster. report: gets each call before it is sent. patience: seconds to wait for each."""

    def __init__(
        self, cluster: Cluster, report: Report = lambda line: None, patience: float = PATIENCE, clock: Clock = time
    ) -> None:
        self.cluster = cluster
        self.patience = patience
        self.clock = clock
        self._report = report

    def send(self, call: Call) -> tuple[int, dict[str, Any]]:
        """Send a call once and return its status and answer: `NO_ANSWER` if it may have taken effect without one."""
        self._report(f"{call.method} {call.path}")
        try:
            return self.cluster.call(call.method, call.path, call.body)
        except ClusterUnreachable as error:
            # A request that was not sent had no effect; one that was sent may have had.
            return (NO_ANSWER if error.maybe_sent else 503), {"error": str(error)}

    def put(self, call: Call, place: str, goals: Collection[Any]) -> None:
        """Send a call until the part at `place` is one of `goals`.

        Raises:
            InUse: the cluster refuses it, as models that use the connector are loaded.
            StepFailed: the cluster refuses it for another reason, or time is up.
        """
        end = self.clock.monotonic() + self.patience
        while True:
            status, answer = self.send(call)
            wait = {200: self.patience, NO_ANSWER: _LATER}.get(status, 0)
            if self.reached(place, goals, wait):
                return
            failure = self._failure(call, status, answer)
            if status not in (NO_ANSWER, *_BUSY) or self.clock.monotonic() >= end:
                raise failure
            self.pause()

    def insist(self, call: Call) -> dict[str, Any]:
        """Send a call that may be repeated, until the cluster accepts it. Return the answer.

        Raises:
            StepFailed: the cluster refuses it, or time is up.
        """
        end = self.clock.monotonic() + self.patience
        while True:
            status, answer = self.send(call)
            if status == 200:
                return answer
            if status not in (NO_ANSWER, *_BUSY) or self.clock.monotonic() >= end:
                raise self._failure(call, status, answer)
            self.pause()

    def reached(self, place: str, goals: Collection[Any], patience: float) -> bool:
        """Return True as soon as the part at `place` is one of `goals`, False after `patience` seconds."""
        end = self.clock.monotonic() + patience
        while True:
            try:
                if read_part(self.cluster, place) in goals:
                    return True
            except ClusterError:
                pass
            if self.clock.monotonic() >= end:
                return False
            self.pause()

    def create(self, call: Call, credential: Mapping[str, Any], tag: str) -> str:
        """Create a connector and return its id.

        Raises:
            StepFailed: the cluster refuses it. The message does not hold the credential.
        """
        whole = Call(call.method, call.path, {**(call.body or {}), "credential": dict(credential)})
        return self.make("connectors", whole, tag, credential.values())

    def make(self, kind: Kind, call: Call, tag: str, secrets: Iterable[Any] = ()) -> str:
        """Make a document of `kind`, whose body holds the mark, and return its id. secrets: those in the body.

        Raises:
            StepFailed: the cluster refuses it. The message holds no secret.
        """
        status, answer = self.send(call)
        made = answer.get(f"{kind.removesuffix('s')}_id")
        found = [str(made)] if made else [] if 400 <= status < 500 else self.find(tag, kind)
        if not found:
            reason = _without_secrets(answer_of(status, answer), secrets) if status else "no answer"
            failure = NotMade if 400 <= status < 500 else StepFailed
            raise failure(f"{call.method} {call.path}: {reason}")
        return found[0]

    def find(self, tag: str, kind: Kind = "connectors") -> list[str]:
        """Search for documents with the mark. Wait for one, as a search lags by a refresh."""
        end = self.clock.monotonic() + min(self.patience, _LAG)
        while True:
            found = find_marked(self.cluster, kind).get(tag, [])
            if found or self.clock.monotonic() >= end:
                return found
            self.pause()

    def remove(self, id_: str, kind: Kind = "connectors") -> str:
        """Delete a document; a model is undeployed first. A missing one is fine.

        Return "", or why a connector stays although no model uses it: see `explain_if_unused`.

        Raises:
            StepFailed: the cluster refuses it for another reason.
            ClusterError: a model that the refusal names can't be read.
        """
        call = Call("DELETE", document_path(kind, id_))
        end = self.clock.monotonic() + min(self.patience, _LAG)
        while True:
            if kind == "models":
                self.send(Call("POST", document_path(kind, id_, "/_undeploy")))
            status, answer = self.send(call)
            if status in (200, 404) or self.cluster.call("GET", call.path)[0] == 404:
                return ""
            # The cluster may still find a model that names it, as its search lags; or a model may still be deployed.
            if self.clock.monotonic() >= end:
                why = explain_if_unused(self.cluster, id_, named_users(answer)) if kind == "connectors" else ""
                if why:
                    return why
                reason = answer_of(status, answer) if status else "no answer"
                raise StepFailed(f"{call.method} {call.path}: {reason}")
            self.pause()

    def pause(self) -> None:
        """Wait a little."""
        self.clock.sleep(_PAUSE)

    def _failure(self, call: Call, status: int, answer: Mapping[str, Any]) -> StepFailed:
        reason = {NO_ANSWER: "no answer", 200: "accepted, but it did not take effect"}.get(status)
        message = f"{call.method} {call.path}: {reason or answer_of(status, answer)}"
        users = named_users(answer) if status == 400 else []
        return InUse(message, users) if users else StepFailed(message)


def find_marked(cluster: Cluster, kind: Kind) -> dict[str, list[str]]:
    """Return the ids of all documents of a kind that have a mark, by mark.

    Raises:
        ClusterError: they can't be searched.
    """
    found: dict[str, list[str]] = {}
    member = f"parameters.{MOVED}" if kind == "agents" else "description"
    for id_, source in search_all(cluster, kind, source=(member,)):
        if tag := mark_of(kind, source):
            found.setdefault(tag, []).append(id_)
    return found


def _without_secrets(text: str, secrets: Iterable[Any]) -> str:
    for secret in secrets:
        text = text.replace(str(secret), "***") if secret else text
    return text


_NAMED = re.compile(r"models are still using this connector, [^\[]*\[([^\]]*)\]")


def named_users(answer: object) -> list[str]:
    """Return the models that the cluster's refusal names as users of a connector; none if it is another refusal."""
    found = _NAMED.search(str(answer))
    return found[1].split(", ") if found else []


def explain_if_unused(cluster: Cluster, connector: str, models: Iterable[str]) -> str:
    """Return why the cluster names `models` as users, if there are any and none uses `connector`; otherwise "".

    ML Commons searches models for the words of the connector's id. So a model of another connector counts as a user, if
    the two ids have a word between dashes in common (docs/evidence/facts.md, "Deploy states and connector changes", 3).

    Raises:
        ClusterError: a model can't be read.
    """
    named = list(models)
    if not named or any(_uses(cluster, model, connector) for model in named):
        return ""
    shown = ", ".join(f"models/{model}" for model in named)
    return (
        f"the cluster takes {shown} for its users, which use other connectors: their ids and this one have a word "
        "between dashes in common"
    )


def _uses(cluster: Cluster, model: str, connector: str) -> bool:
    try:
        return bool(read_part(cluster, f"models/{model}/connector_id") == connector)
    except Missing:
        return False
