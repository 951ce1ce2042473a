"""Agents as users have them: nothing is lost or broken, before and after the upgrades that are offered.

The agents of "unseen" have been used to improve the delivery. Those of "holdout" were written later, without a look at
it, and many of them have LLMs whose format the gateway does not know.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests import matrix
from tests.matrix import VERSIONS, Cell
from tests.oracle import Outcome

pytestmark = pytest.mark.slow

# How many of a hundred cells arrive at least, untouched and after the upgrades: of all cells, and of those whose media
# the model can take at all. The rest is media in templates of text on 2.x, and an agent that needs an image each time;
# of "holdout" also agents with unknown formats.
SHARES = {
    "unseen": {"2.19.0": ((76.9, 79.4), (96.6, 99.7)), "3.4.0": ((93.6, 96.6), (96.6, 99.6))},
    "holdout": {"2.19.0": ((79.6, 85.6), (92.1, 99.0)), "3.4.0": ((90.9, 97.1), (92.7, 99.0))},
}
SETS = list(SHARES)


@cache
def whole(agents: str, version: str, upgraded: bool) -> tuple[Cell, ...]:
    return tuple(matrix.other_cells(version, agents, upgraded))


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("agents", SETS)
def test_nothing_is_lost_and_nothing_broken(agents: str, version: str, upgraded: bool) -> None:
    wrong = [
        cell for cell in whole(agents, version, upgraded) if cell.verdict.outcome in (Outcome.LOST, Outcome.BROKEN)
    ]
    assert [f"{cell.agent}, {cell.case}: {cell.verdict.detail}" for cell in wrong] == []


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("agents", SETS)
def test_as_much_arrives_as_before(agents: str, version: str, upgraded: bool) -> None:
    share = matrix.shares(whole(agents, version, upgraded))[version]
    of_all, of_takeable = SHARES[agents][version][upgraded]
    assert share["all"] >= of_all
    assert share["takeable"] >= of_takeable


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("agents", SETS)
def test_what_arrives_untouched_arrives_after_the_upgrades(agents: str, version: str) -> None:
    before, after = (
        {
            (cell.agent, cell.case)
            for cell in whole(agents, version, upgraded)
            if cell.verdict.outcome is Outcome.ARRIVED
        }
        for upgraded in (False, True)
    )
    assert before - after == set()


def test_there_are_at_least_twenty() -> None:
    counts = [
        len({cell.agent for cell in whole(agents, version, upgraded=False)}) for agents in SETS for version in VERSIONS
    ]
    assert min(counts) >= 20
