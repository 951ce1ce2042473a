"""Kill processes that record exchanges, at random: ``python -m tests.recording.sinks.kills --rounds 50``.

Each round starts two writers on the same stores, kills both with SIGKILL at different times, and checks: every batch
that was taken is there, each record is whole, and the files are sound.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks.sqlite import DATABASE, SqliteStore
from gateway.recording.store import Filter
from tests.recording.sinks.killed_writer import BATCH, audit_file, bounded_store, medium_of, record_of, whole_store

WRITERS = 2


@dataclass
class Result:
    """What was seen. taken: batches."""

    rounds: int = 0
    taken: int = 0
    killed_while_opening: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {WRITERS * self.rounds} writers killed, {self.killed_while_opening} of them before "
            f"their first batch; {self.taken} batches of {BATCH} exchanges taken; {len(self.faults)} faults"
        )


async def kill_rounds(rounds: int, seed: int, place: Path) -> Result:
    """Run the rounds in an empty directory."""
    result, chance = Result(), random.Random(seed)
    for round_ in range(rounds):
        names = [f"{round_}-{writer}" for writer in range(WRITERS)]
        counts = [chance.choice((0, chance.randrange(1, 15))) for _ in names]
        delays = [chance.random() for _ in names]
        runs = (_run_and_kill(place, *one) for one in zip(names, counts, delays, strict=True))
        taken = await asyncio.gather(*runs)
        try:
            check(
                place, {f"{name}-{number}" for name, count in zip(names, taken, strict=True) for number in range(count)}
            )
        except AssertionError as fault:
            result.faults.append(f"round {round_}: {fault}")
        result.rounds += 1
        result.taken += sum(taken)
        result.killed_while_opening += taken.count(0)
        _show_progress(result, rounds)
    return result


async def _run_and_kill(place: Path, name: str, count: int, delay: float) -> int:
    """Start a writer, kill it a moment after `count` batches, and return how many were taken.

    delay: of the longest wait before the kill, from 0 to 1.
    """
    arguments = ("-m", "tests.recording.sinks.killed_writer", str(place), name, str(delay))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        lines = [await process.stdout.readline() for _ in range(count + 1)]
        await asyncio.sleep(delay * (0.05 if count else 0.01))
    finally:
        process.kill()
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return sum(line.endswith(b"\n") for line in lines[1:])


def check(place: Path, taken: Iterable[str]) -> None:
    """Raise AssertionError if a store is damaged, or lacks a batch. taken: ``round-writer-number`` of each."""
    wanted = {f"{batch}-{index}" for batch in taken for index in range(BATCH)}
    whole, bounded = whole_store(place), bounded_store(place)
    for store in (whole, bounded):
        _check_rows(store)
        store.trim()
        _check_files(store)
        _check_rows(store)
        store.close()
    lost = {id_ for id_ in wanted if whole.get(id_) != record_of(id_)}
    assert not lost, f"taken but not stored: {lost}"
    for id_ in sorted(wanted)[::20]:
        found = [row.record.id for row in whole.rows(Filter(text=f"word{id_.replace('-', 'x')}"))]
        assert found == [id_], f"a search for {id_} finds {found}"
    for id_ in (id_ for id_ in wanted if id_.endswith("-0")):
        medium = medium_of(id_)
        assert whole.medium(hashlib.sha256(medium).hexdigest()) == ("image/png", medium), f"the medium of {id_} is lost"
    whole.close()
    check_audit(place, wanted)


def _check_rows(store: SqliteStore) -> None:
    """Check that every row has its whole record, and comes once."""
    seen: set[str] = set()
    after = 0
    while rows := store.newer(Filter(), after):
        for row in rows:
            id_ = row.record.id
            assert row.position > after, f"{row.position} after {after}"
            assert id_ not in seen, f"{id_} is there twice"
            assert store.get(id_) == record_of(id_), f"{id_} is torn"
            after = row.position
            seen.add(id_)


def _check_files(store: SqliteStore) -> None:
    """Check the structure of the database and of the index."""
    with closing(sqlite3.connect(store.directory / DATABASE, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def check_audit(place: Path, wanted: set[str]) -> None:
    """Check that all lines but a last one are whole records."""
    audit = audit_file(place)
    ids = []
    # No current file: there was no batch, or a writer was killed between renaming a full file and making the next one.
    files = [*audit.full_files(), *([audit.path] if audit.path.exists() else [])]
    for path in files:
        *lines, end = path.read_bytes().split(b"\n")
        assert path == audit.path or not end, f"{path} ends with a part of a line"
        for line in lines:
            found = msgspec.json.decode(line, type=ExchangeRecord)
            assert found == record_of(found.id), f"{found.id} is torn in {path}"
            ids.append(found.id)
    assert len(ids) == len(set(ids)), "a record is there twice"
    assert wanted <= set(ids), f"taken but not in the audit file: {wanted - set(ids)}"


def _show_progress(result: Result, rounds: int) -> None:
    """Show a bar, on a terminal."""
    if sys.stderr.isatty():
        done = result.rounds / rounds
        end = "\n" if result.rounds == rounds else ""
        sys.stderr.write(f"\r[{'#' * int(40 * done):<40}] {done:4.0%}  faults: {len(result.faults)}{end}")
        sys.stderr.flush()


def main() -> int:
    """Run the rounds of the command line. Return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.recording.sinks.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="for the same random choices again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(kill_rounds(options.rounds, options.seed, Path(folder)))
    print(f"seed {options.seed}: {result}", *result.faults[:20], sep="\n")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
