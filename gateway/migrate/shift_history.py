"""The changes of weights of routes that `mlc-gateway shift` has made, in a file beside the settings file.

Each step is written before the settings file is replaced, and marked as done when all gateways run with it. So a step
that is not done tells what a command that was killed has left to do.

The JSON: {"steps": [{"time", "route", "kind", "before", "after", "done", "gateways"}]}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.migrate.route_figures import Processes, Series
from gateway.migrate.settings_file import describe_write_error, write_beside
from gateway.storage.files import replace_file

_MOST_STEPS = 500
_MOST_READINGS = 20
"""Steps that keep the gateways' counters: the last ones."""

Weights = Mapping[str, float]
"""The weight of each target by its agent."""


class HistoryError(Exception):
    """The file of the history can't be read or written. The message names it."""


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a route's weights. time: UTC, ISO 8601. kind: `hand` for a change that was found in the file.

    done: all gateways ran with it. gateways: their counters before it, by address and process; rows of `Series` with
    the value at the end.
    """

    time: str
    route: str
    kind: Literal["to", "back", "hand"]
    before: dict[str, float]
    after: dict[str, float]
    done: bool = False
    gateways: dict[str, dict[str, list[tuple[str, str, str, str, float]]]] = {}

    def counters(self, gateway: str) -> Processes:
        """Return the counters of a gateway before this step; {} if it was not named."""
        processes = self.gateways.get(gateway, {})
        return {worker: {Series(*row[:-1]): row[-1] for row in rows} for worker, rows in processes.items()}


class _File(Struct, forbid_unknown_fields=True):
    steps: list[Step] = []


def make_step(
    route: str,
    kind: Literal["to", "back", "hand"],
    before: Weights,
    after: Weights,
    readings: Mapping[str, Processes] | None = None,
) -> Step:
    """Return a step of this moment. readings: the counters of each gateway by its address."""
    rows = {
        gateway: {
            worker: [(*series, value) for series, value in counts.items()] for worker, counts in processes.items()
        }
        for gateway, processes in (readings or {}).items()
    }
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return Step(time, route, kind, dict(before), dict(after), kind == "hand", rows)


class History:
    """The steps of all routes of a settings file, the oldest first. path: of the history's file."""

    def __init__(self, settings: Path, steps: Sequence[Step]) -> None:
        self.path = path_of(settings)
        self.steps = list(steps)
        self._settings = settings

    @classmethod
    def read(cls, settings: Path) -> History:
        """Read the history of a settings file, whose path has no symbolic link. It may not exist.

        Raises:
            HistoryError: it can't be read.
        """
        path = path_of(settings)
        try:
            return cls(settings, msgspec.json.decode(path.read_bytes(), type=_File).steps)
        except FileNotFoundError:
            return cls(settings, [])
        except (OSError, msgspec.DecodeError) as error:
            raise HistoryError(f"{path} can't be read ({error}): move it away to begin a new history") from None

    def of(self, route: str) -> list[Step]:
        """Return the steps of a route."""
        return [step for step in self.steps if step.route == route]

    def last(self, route: str) -> Step | None:
        """Return the last step of a route."""
        return next((step for step in reversed(self.steps) if step.route == route), None)

    def compare(self, route: str, weights: Weights) -> None:
        """Take notice of what the settings file holds: drop a last step that it does not have.

        Other weights than after the last step become a step by hand. Nothing is written.
        """
        last = self.last(route)
        if last is not None and not last.done and not same(last.after, weights) and same(last.before, weights):
            self.steps.remove(last)
            last = self.last(route)
        if last is not None and not same(last.after, weights):
            self.steps.append(make_step(route, "hand", last.after, weights))

    def before(self, route: str) -> Weights | None:
        """Return the weights to which one more step back leads; None: there is no step before."""
        stack: list[Weights] = []
        for step in self.of(route):
            if step.kind != "back":
                stack.append(step.before)
            elif stack:
                stack.pop()
        return stack[-1] if stack else None

    def add(self, step: Step) -> None:
        """Add a step, and write the file.

        Raises:
            HistoryError: it can't be written.
        """
        self.steps.append(step)
        self._write()

    def finish(self, route: str) -> None:
        """Mark the last step of a route as done, and write the file.

        Raises:
            HistoryError: it can't be written.
        """
        last = self.last(route)
        if last is not None and not last.done:
            self.steps[self.steps.index(last)] = replace(last, done=True)
            self._write()

    def undo(self, route: str) -> None:
        """Remove the last step of a route, which did not come into effect, and write the file.

        Raises:
            HistoryError: it can't be written.
        """
        last = self.last(route)
        if last is not None:
            self.steps.remove(last)
            self._write()

    def _write(self) -> None:
        steps = self.steps[-_MOST_STEPS:]
        steps = [*(replace(step, gateways={}) for step in steps[:-_MOST_READINGS]), *steps[-_MOST_READINGS:]]
        content = msgspec.json.format(msgspec.json.encode(_File(steps)), indent=1) + b"\n"
        try:
            new = write_beside(self._settings, self.path.name + ".new", content)
            replace_file(new, self.path)
        except OSError as error:
            raise HistoryError(f"{self.path} can't be written: {describe_write_error(error)}") from None


def path_of(settings: Path) -> Path:
    """Return the path of the history of a settings file."""
    return settings.with_name(f"{settings.name}.shifts.json")


def same(one: Weights, other: Weights) -> bool:
    """Return True if the shares are the same, whatever the weights add up to. An agent that is missing has weight 0."""
    sums = sum(one.values()) or 1, sum(other.values()) or 1
    return all(abs(one.get(agent, 0) / sums[0] - other.get(agent, 0) / sums[1]) < 1e-6 for agent in {*one, *other})
