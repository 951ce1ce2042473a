"""Sends the calls of an upgrade, and waits until each has taken effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from gateway.migrate.connection import Cluster, ClusterError, ClusterUnreachable, answer_of
from gateway.migrate.connector_users import named_users
from gateway.migrate.reading import read_part
from gateway.migrate.steps import Call

PATIENCE = 20.0
"""Seconds to wait until a write takes effect, or to find out whether one without an answer did."""

NO_ANSWER = 0
_PAUSE = 0.1
_LATER = 2.0  # seconds that a request without an answer may still be running before it is sent again
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

    def pause(self) -> None:
        """Wait a little."""
        self.clock.sleep(_PAUSE)

    def _failure(self, call: Call, status: int, answer: Mapping[str, Any]) -> StepFailed:
        reason = {NO_ANSWER: "no answer", 200: "accepted, but it did not take effect"}.get(status)
        message = f"{call.method} {call.path}: {reason or answer_of(status, answer)}"
        users = named_users(answer) if status == 400 else []
        return InUse(message, users) if users else StepFailed(message)
