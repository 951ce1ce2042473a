"""Processes that are killed leave whole stores of exchanges. `make inspector-kills` does it more often."""

from __future__ import annotations

import random
from pathlib import Path

from tests.conftest import share
from tests.inspector.stores.kills import kill_rounds

ROUNDS = share(12)


async def test_killed_writers_leave_whole_exchanges(tmp_path: Path) -> None:
    result = await kill_rounds(ROUNDS, random.randrange(10**6), tmp_path)
    assert (result.rounds, result.faults) == (ROUNDS, [])
