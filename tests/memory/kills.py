"""Kill writers of a store at random, and check what is left: ``python -m tests.memory.kills --store sqlite``.

Each round starts two processes that append to the same sessions, kills both with SIGKILL at different times, opens the
store again and checks: every acknowledged turn is there, each turn is whole, once and in order, and what was not
acknowledged can be sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gateway.memory.model import StoredMessage
from gateway.memory.store import Store
from tests.memory.conversations import key
from tests.memory.killable_stores import STORES
from tests.memory.killed_writer import SESSIONS, append, session_of, turn_of

WRITERS = 2


@dataclass
class Result:
    """What was seen. unacknowledged: turns that were stored, whose writer was killed before it could report them."""

    rounds: int = 0
    acknowledged: int = 0
    unacknowledged: int = 0
    killed_while_opening: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {WRITERS * self.rounds} writers killed, {self.killed_while_opening} of them before "
            f"their first turn; {self.acknowledged} turns acknowledged, {self.unacknowledged} more stored; "
            f"{len(self.faults)} faults"
        )


async def kill_rounds(name: str, rounds: int, seed: int, folder: Path) -> Result:
    """Run the rounds with the store `name` in an empty folder."""
    killable, result, chance = STORES[name], Result(), random.Random(seed)
    async with killable.serve(folder) as place:
        for round_ in range(rounds):
            writers = [f"{round_}-{writer}" for writer in range(WRITERS)]
            delays = [chance.random() for _ in writers]
            counts = [chance.choice((0, chance.randrange(1, 25))) for _ in writers]
            acknowledged = await asyncio.gather(
                *(_run_and_kill(name, place, *one) for one in zip(writers, counts, delays, strict=True))
            )
            store = killable.open(place)
            await store.start()
            try:
                await _check_round(store, dict(zip(writers, acknowledged, strict=True)), result)
                killable.check(place)
            except AssertionError as fault:
                result.faults.append(f"round {round_}: {fault}")
            await store.close()
            result.rounds += 1
            _show_progress(result, rounds)
    return result


async def _run_and_kill(name: str, place: str, writer: str, count: int, delay: float) -> list[str]:
    """Start a writer, kill it a moment after it acknowledged `count` turns, and return the ids of all it did.

    delay: of the longest wait before the kill, from 0 to 1.
    """
    arguments = ("-m", "tests.memory.killed_writer", name, place, writer)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        lines = [await process.stdout.readline() for _ in range(count + 1)]
        await asyncio.sleep(delay * (0.005 if count else 0.05))
    finally:
        process.kill()
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return [line.decode().strip() for line in lines[1:] if line.endswith(b"\n")]


async def _check_round(store: Store, acknowledged: dict[str, list[str]], result: Result) -> None:
    """Raise AssertionError if a session of the round is not as its writers left it. Then send the last turns again."""
    assert all(ids == [f"{writer}-{n}" for n in range(len(ids))] for writer, ids in acknowledged.items()), acknowledged
    stored = await _stored_ids(store, acknowledged)
    lost = {id_ for ids in acknowledged.values() for id_ in ids} - set(stored)
    assert not lost, f"acknowledged but not stored: {lost}"
    possible = {f"{writer}-{len(ids)}" for writer, ids in acknowledged.items()}
    more = set(stored) - {id_ for ids in acknowledged.values() for id_ in ids}
    assert more <= possible, f"stored but never sent: {more - possible}"
    for id_ in sorted(possible):
        await append(store, id_)
    again = await _stored_ids(store, acknowledged)
    assert sorted(again) == sorted({*stored, *possible}), "a turn that was sent again is not there once"
    result.acknowledged += sum(map(len, acknowledged.values()))
    result.unacknowledged += len(more)
    result.killed_while_opening += sum(not ids for ids in acknowledged.values())


async def _stored_ids(store: Store, writers: dict[str, list[str]]) -> list[str]:
    """Return the ids of the round's turns, after a check of each session."""
    found: list[str] = []
    round_ = next(iter(writers)).split("-")[0]
    for name in (f"{round_}-{number}" for number in range(SESSIONS)):
        session = await store.session(key(name))
        if session is None:
            continue
        messages = await _load_all(store, name)
        ids = [stored.turn_id for stored in messages if stored.seq % 4 == 0]
        assert (session.turns, session.messages) == (len(ids), len(messages)), f"{name}: {session}"
        assert session.system == f"system {ids[-1]}", f"{name}: the system text is not the last turn's"
        for number, id_ in enumerate(ids):
            _check_turn(name, number, id_, messages[4 * number : 4 * number + 4])
        for writer in writers:
            own = [int(id_.split("-")[2]) for id_ in ids if id_.startswith(f"{writer}-")]
            assert own == sorted(set(own)), f"{name}: turns of {writer} in the order {own}"
        found += ids
    return found


async def _load_all(store: Store, name: str) -> list[StoredMessage]:
    page = await store.load(key(name))
    messages = list(page.messages)
    while page.more:
        page = await store.load(key(name), before=messages[0].seq)
        messages[:0] = page.messages
    return messages


def _check_turn(name: str, number: int, id_: str, messages: list[StoredMessage]) -> None:
    """Check the messages of one turn. number: how many turns are before it."""
    assert session_of(id_) == name, f"{name}: turn {id_} is of another session"
    assert tuple(stored.message for stored in messages) == turn_of(id_).messages, f"{name}: turn {id_} is torn"
    for index, stored in enumerate(messages, 4 * number):
        expected = (index, number + 1, id_)
        assert (stored.seq, stored.turn, stored.turn_id) == expected, f"{name}: {stored.seq} is not {expected}"


def _show_progress(result: Result, rounds: int) -> None:
    """Show a bar, on a terminal."""
    if sys.stderr.isatty():
        done = result.rounds / rounds
        end = "\n" if result.rounds == rounds else ""
        sys.stderr.write(f"\r[{'#' * int(40 * done):<40}] {done:4.0%}  faults: {len(result.faults)}{end}")
        sys.stderr.flush()


def main() -> int:
    """Run the rounds of the command line. Return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory.kills", description=__doc__)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="for the same random choices again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(kill_rounds(options.store, options.rounds, options.seed, Path(folder)))
    print(f"{options.store}, seed {options.seed}: {result}", *result.faults[:20], sep="\n")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
