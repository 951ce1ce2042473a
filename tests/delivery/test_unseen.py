"""Agents as users have them: nothing is lost or broken, before and after the upgrades that are offered."""

from __future__ import annotations

from functools import cache

import pytest

from tests import matrix
from tests.matrix import VERSIONS, Cell
from tests.oracle import Outcome

pytestmark = pytest.mark.slow

# How many of a hundred cells arrive at least, untouched and after the upgrades: of all cells, and of those whose media
# the model can take at all. The rest is media in templates of text on 2.x, and an agent that needs an image each time.
SHARES = {"2.19.0": ((77.2, 79.7), (96.6, 99.8)), "3.4.0": ((93.1, 96.2), (96.5, 99.7))}


@cache
def whole(version: str, upgraded: bool) -> tuple[Cell, ...]:
    return tuple(matrix.other_cells(version, "unseen", upgraded))


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_and_nothing_broken(version: str, upgraded: bool) -> None:
    wrong = [cell for cell in whole(version, upgraded) if cell.verdict.outcome in (Outcome.LOST, Outcome.BROKEN)]
    assert [f"{cell.agent}, {cell.case}: {cell.verdict.detail}" for cell in wrong] == []


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_as_much_arrives_as_before(version: str, upgraded: bool) -> None:
    share = matrix.shares(whole(version, upgraded))[version]
    of_all, of_takeable = SHARES[version][upgraded]
    assert share["all"] >= of_all
    assert share["takeable"] >= of_takeable


@pytest.mark.parametrize("version", VERSIONS)
def test_what_arrives_untouched_arrives_after_the_upgrades(version: str) -> None:
    before, after = (
        {(cell.agent, cell.case) for cell in whole(version, upgraded) if cell.verdict.outcome is Outcome.ARRIVED}
        for upgraded in (False, True)
    )
    assert before - after == set()


def test_there_are_at_least_twenty() -> None:
    assert all(len({cell.agent for cell in whole(version, upgraded=False)}) >= 20 for version in VERSIONS)
