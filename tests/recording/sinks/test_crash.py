"""Processes that are killed leave whole stores of exchanges. `make inspector-kills` does it more often."""

from __future__ import annotations

import random
from pathlib import Path

from tests.conftest import share
from tests.recording.sinks.killed_writer import BATCH, audit_file, record_of
from tests.recording.sinks.kills import check_audit, kill_rounds

ROUNDS = share(12)


async def test_killed_writers_leave_whole_exchanges(tmp_path: Path) -> None:
    result = await kill_rounds(ROUNDS, random.randrange(10**6), tmp_path)
    assert (result.rounds, result.faults) == (ROUNDS, [])


def test_a_writer_that_is_killed_before_it_makes_the_next_audit_file_loses_nothing(tmp_path: Path) -> None:
    taken = [f"0-0-0-{index}" for index in range(BATCH)]
    audit = audit_file(tmp_path)
    audit.add([record_of(id_) for id_ in taken])
    audit.path.rename(audit.path.with_name(f"{audit.path.name}.20010909T014640.000000Z"))
    check_audit(tmp_path, set(taken))
