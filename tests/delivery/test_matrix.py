"""The whole matrix: nothing lost, nothing broken, and everything arrives that the floor says arrives."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import cache

import pytest

from tests import matrix
from tests.delivery.cases import CASES, FLOOR, Case
from tests.delivery.simulated_cluster import cluster_of
from tests.matrix import DOCS, VERSIONS, Cell
from tests.oracle import Outcome


@cache
def whole(version: str) -> tuple[Cell, ...]:
    return tuple(matrix.cells(version))


def described(cells: list[Cell]) -> list[str]:
    return [f"{cell.agent}, {cell.case}: {cell.verdict.detail}" for cell in cells]


def test_at_least_thirty_kinds_of_input() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_and_nothing_broken(version: str) -> None:
    wrong = [cell for cell in whole(version) if cell.verdict.outcome in (Outcome.LOST, Outcome.BROKEN)]
    assert described(wrong) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_arrives_as_widely_as_the_floor(version: str) -> None:
    assert described([cell for cell in whole(version) if cell.below_floor]) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_of_the_floor_is_met_by_an_agent(version: str) -> None:
    names = cluster_of(version).agents
    assert [pattern for pattern, _ in FLOOR[version] if not any(fnmatchcase(name, pattern) for name in names)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_refusal_names_its_code(version: str) -> None:
    refused = [cell for cell in whole(version) if cell.verdict.outcome is Outcome.REFUSED]
    assert refused
    assert described([cell for cell in refused if not cell.verdict.detail.isupper()]) == []


def test_every_strategy_is_used() -> None:
    used = {cell.verdict.strategy for version in VERSIONS for cell in whole(version)}
    assert used - {""} == {"wrap", "messages", "text", "splice"}


def test_the_page_in_the_docs_is_current() -> None:
    made = matrix.markdown([cell for version in VERSIONS for cell in whole(version)])
    assert DOCS.read_text() == made, "run python -m tests.matrix --write docs/internals/matrix.md"


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
