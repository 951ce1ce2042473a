"""Writers that are killed leave a store whole. `make memory-kills` does it more often."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import mostly_slow, share
from tests.memory.killable_stores import STORES
from tests.memory.kills import kill_rounds

ROUNDS = share(12)


@pytest.mark.parametrize("name", mostly_slow(STORES, len(STORES)))
async def test_killed_writers_leave_whole_turns(name: str, tmp_path: Path) -> None:
    result = await kill_rounds(name, ROUNDS, random.randrange(10**6), tmp_path)
    assert (result.rounds, result.faults) == (ROUNDS, [])
