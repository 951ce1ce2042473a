"""The matrix: nothing lost, nothing broken, and everything arrives that the floor says arrives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain

import pytest

from tests import matrix
from tests.delivery.cases import CASES, FLOOR, Case
from tests.delivery.simulated_cluster import cluster_of
from tests.matrix import DOCS, VERSIONS, Cell
from tests.oracle import Outcome

EVERY = 10
"""`make test` tries every tenth agent, the slow test all of them."""


@cache
def sampled(version: str) -> tuple[Cell, ...]:
    return tuple(matrix.cells(version, matrix.agents(cluster_of(version))[::EVERY]))


def described(cells: list[Cell]) -> list[str]:
    return [f"{cell.agent}, {cell.case}: {cell.verdict.detail}" for cell in cells]


def wrong(cells: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.verdict.outcome in (Outcome.LOST, Outcome.BROKEN) or cell.below_floor]


@pytest.mark.parametrize(
    ("version", "agent", "left_out"),
    [
        ("3.4.0", "flow-bedrock_tutorial", set()),
        ("3.4.0", "flow-gemini_text", set()),
        ("3.4.0", "flow-openai_tutorial", {"video"}),
        ("3.4.0", "flow-invoke_messages", {"video"}),
        ("2.19.0", "flow-d", set()),  # its template has no place for media, but its model takes them
        ("2.19.0", "flow-c", {name for name, case in CASES.items() if "media" in case.needs}),
    ],
)
def test_the_second_figure_leaves_out_what_the_model_can_not_take(version: str, agent: str, left_out: set[str]) -> None:
    provider = cluster_of(version).profile(agent).provider
    taken = {name for name, case in CASES.items() if matrix.can_take(provider, matrix.conversation_of(case))}
    assert set(CASES) - taken == left_out


def test_both_figures_are_counted() -> None:
    few = {name: CASES[name] for name in ("plain text", "text, image", "video")}
    cells = [*REAL_CELLS("3.4.0", ["flow-openai_tutorial"], few), *REAL_CELLS("2.19.0", ["flow-c"], few)]
    assert matrix.shares(cells) == {
        "3.4.0": {"all": 66.7, "takeable": 100.0},
        "2.19.0": {"all": 33.3, "takeable": 100.0},
    }


def test_at_least_thirty_kinds_of_input() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_or_broken_or_below_the_floor(version: str) -> None:
    assert described(wrong(sampled(version))) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_of_the_floor_is_met_by_an_agent(version: str) -> None:
    names = cluster_of(version).agents
    assert [pattern for pattern, _ in FLOOR[version] if not any(fnmatchcase(name, pattern) for name in names)] == []


@cache
def native() -> tuple[Cell, ...]:
    return tuple(matrix.native_cells())


def test_nothing_is_lost_or_broken_natively() -> None:
    assert described(wrong(native())) == []
    assert described(unnamed(native())) == []


def unnamed(cells: Iterable[Cell]) -> list[Cell]:
    refused = [cell for cell in cells if cell.verdict.outcome is Outcome.REFUSED]
    return [cell for cell in refused if not cell.verdict.detail.isupper()]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_refusal_names_its_code(version: str) -> None:
    refused = [cell for cell in sampled(version) if cell.verdict.outcome is Outcome.REFUSED]
    assert refused
    assert described(unnamed(refused)) == []


@pytest.mark.slow
def test_the_whole_matrix_and_its_page_in_the_docs() -> None:
    cells = [*chain.from_iterable(map(matrix.cells, VERSIONS)), *native()]
    assert described(wrong(cells)) == []
    assert described(unnamed(cells)) == []
    assert {cell.verdict.strategy for cell in cells} - {""} == {"wrap", "messages", "text", "splice", "native"}
    assert DOCS.read_text() == matrix.markdown(cells), "run python -m tests.matrix --write docs/evidence/matrix.md"


def test_the_command_prints_json_and_its_exit_code_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: CASES[name] for name in ("plain text", "text, image")}
    monkeypatch.setattr(matrix, "cells", lambda version: whole_few(version, few))
    assert matrix.main(["--json", "--version", "2.19.0"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["totals"] == {"cells": 2, "arrived": 1, "refused": 1, "lost": 0, "broken": 0, "below floor": 0}
    assert [cell["detail"] for cell in shown["cells"]] == ["", "MEDIA_NEEDS_UPGRADE"]


REAL_CELLS = matrix.cells


def whole_few(version: str, few: dict[str, Case]) -> list[Cell]:
    return list(REAL_CELLS(version, ["flow-d"], few))
