"""The history of a route's weights: steps there and back, killed commands, and edits by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migrate.route_figures import Series
from gateway.migrate.shift_history import History, HistoryError, Step, make_step, path_of, same

RUNS = Series("mlc_gateway_route_runs_total", "NEW", "new", "answered")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Return a settings file."""
    path = tmp_path / "gateway.yaml"
    path.write_text("{}\n")
    path.chmod(0o640)
    return path


def _weights(new: float) -> dict[str, float]:
    return {"OLD": 100 - new, "NEW": new}


def _step(before: float, after: float, kind: str = "to", done: bool = True, route: str = "OLD") -> Step:
    return Step("2026-11-28T19:20:00+00:00", route, kind, _weights(before), _weights(after), done)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            errno.EROFS,
            "its file system is read-only. Edit the settings where they come from, such as a ConfigMap, and reload",
        ),
        (errno.EACCES, "permission denied. Run this as the owner of the file and its folder"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_file_that_can_not_be_written(
    settings: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """What to do is said where it is known."""

    def fail(self: Path, target: Path) -> Path:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(HistoryError, match=f"can't be written: {reason}"):
        History.read(settings).add(_step(0, 5))


def test_a_step_is_read_as_it_was_written(settings: Path) -> None:
    """With the counters of each process; the file has the mode of the settings file."""
    history = History.read(settings)
    step = make_step("OLD", "to", _weights(0), _weights(5), {"http://one": {"0": {RUNS: 12.0}, "1": {RUNS: 3.0}}})
    history.add(step)
    again = History.read(settings)
    assert again.of("OLD") == [step]
    assert step.counters("http://one") == {"0": {RUNS: 12.0}, "1": {RUNS: 3.0}}
    assert step.counters("http://two") == {}
    assert path_of(settings).name == "gateway.yaml.shifts.json"
    assert path_of(settings).stat().st_mode & 0o777 == 0o640
    assert sorted(settings.parent.iterdir()) == sorted([settings, path_of(settings)])
    again.finish("OLD")
    last = History.read(settings).last("OLD")
    assert last is not None
    assert last.done
    again.undo("OLD")
    assert History.read(settings).steps == []


def test_only_the_last_steps_keep_counters(settings: Path) -> None:
    """So the file stays small."""
    history = History.read(settings)
    for number in range(30):
        history.add(make_step("OLD", "to", _weights(number), _weights(number + 1), {"http://one": {"": {RUNS: 1.0}}}))
    kept = [bool(step.gateways) for step in History.read(settings).steps]
    assert kept == [False] * 10 + [True] * 20


def test_steps_of_routes_are_kept_apart(settings: Path) -> None:
    """One file has those of all."""
    history = History(settings, [_step(0, 5), _step(0, 50, route="X")])
    assert history.before("OLD") == _weights(0)
    assert [step.route for step in history.of("X")] == ["X"]
    assert history.before("Y") is None


def test_a_step_that_the_file_does_not_have_was_not_made(settings: Path) -> None:
    """The command was killed before it replaced the settings file."""
    history = History(settings, [_step(0, 5), _step(5, 50, done=False)])
    history.compare("OLD", _weights(5))
    assert history.steps == [_step(0, 5)]


def test_a_step_that_was_not_finished_stays(settings: Path) -> None:
    """The command was killed after it replaced the settings file."""
    steps = [_step(0, 5), _step(5, 50, done=False)]
    history = History(settings, steps)
    history.compare("OLD", _weights(50))
    assert history.steps == steps


def test_other_weights_in_the_file_are_a_step_by_hand(settings: Path) -> None:
    """One step back leads to those before it."""
    history = History(settings, [_step(0, 5)])
    history.compare("OLD", {"OLD": 7, "NEW": 3})
    assert [(step.kind, step.before, step.after) for step in history.steps[1:]] == [
        ("hand", _weights(5), {"OLD": 7, "NEW": 3})
    ]
    assert history.before("OLD") == _weights(5)
    history.compare("OLD", {"OLD": 14, "NEW": 6})
    assert len(history.steps) == 2


@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=30))
def test_steps_back_lead_through_all_weights_before(moves: list[int | None]) -> None:
    """As on a stack. None: a step back."""
    history, stack, now = History(Path("none"), []), [], 50
    for move in moves:
        before = history.before("OLD")
        assert before == (_weights(stack[-1]) if stack else None)
        if move is not None:
            stack.append(now)
            history.steps.append(_step(now, move))
            now = move
        elif stack:
            history.steps.append(_step(now, stack[-1], "back"))
            now = stack.pop()


def test_shares_are_compared_not_weights() -> None:
    """An agent that is not there has none."""
    assert same({"A": 1, "B": 1}, {"A": 50, "B": 50, "C": 0})
    assert not same({"A": 1, "B": 1}, {"A": 50, "B": 49})


def test_a_file_that_is_no_history_is_not_written_over(settings: Path) -> None:
    """It says how to begin a new one."""
    path_of(settings).write_text('{"steps": [{"x": 1}]}')
    with pytest.raises(HistoryError, match=r"shifts\.json can't be read .*: move it away to begin a new history"):
        History.read(settings)
