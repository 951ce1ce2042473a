"""``make bench-memory``: what a turn costs in a store, beside Strands' `FileSessionManager` loading the same session.

A turn of the gateway: read the session, load its newest 200 messages, append a question and an answer. The files of
strands_files are those that Strands loads, in the same run. Strands loads all of a session; the gateway a window.

CPU time is that of the process with all its threads. It does not depend on what else the machine does; the time that
passes does, above all the time until a turn is on the disk, for which Strands never waits.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from strands.session import FileSessionManager
from strands.types.session import SessionAgent, SessionMessage

from gateway.memory.model import Message, Metadata, Owner, SessionKey, Turn
from gateway.memory.store import Store
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.strands.files import StrandsFilesStore

KEY = SessionKey(Owner("agent"), "gws-bench")
WINDOW = 200
"""Messages that are loaded: 100 turns."""
STRANDS = "Strands"
Times = dict[str, list[tuple[float, float]]]
"""Name → seconds of CPU and seconds that passed, for each round."""


def message(role: str, size: int) -> Message:
    return Message(role, ({"text": "word " * (size // 5)},), Metadata(created=1.75e9))  # type: ignore[arg-type]


def turn(size: int) -> Turn:
    return Turn(uuid.uuid4().hex, (message("user", size), message("assistant", size)))


async def fill(stores: dict[str, Store], root: Path, turns: int, size: int) -> None:
    """Write a session of so many turns, with `size` bytes a message: to the files by Strands itself."""
    manager = FileSessionManager(KEY.id, storage_dir=str(root))
    state = {"__name__": "SlidingWindowConversationManager", "removed_message_count": 0}
    manager.create_agent(KEY.id, SessionAgent(KEY.owner.agent_id, {}, state))
    for seq in range(2 * turns):
        text = {"text": "word " * (size // 5)}
        record = SessionMessage.from_message({"role": "assistant" if seq % 2 else "user", "content": [text]}, seq)
        manager.create_message(KEY.id, KEY.owner.agent_id, record)
    for number in range(turns):
        await stores["sqlite"].append(KEY, turn(size), number)


async def one_turn(store: Store, size: int) -> None:
    session = await store.session(KEY)
    page = await store.load(KEY, limit=WINDOW)
    assert session is not None
    assert len(page.messages) == min(WINDOW, session.messages)
    await store.append(KEY, turn(size), session.turns)


async def timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    await work()
    return time.process_time() - cpu, time.perf_counter() - start


async def measure(turns: int, size: int, rounds: int) -> Times:
    """Return the times of each round for each store, and for Strands."""
    found: Times = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "sessions"
        files = StrandsFilesStore(root, seconds=600)  # the first access counts what Strands wrote
        stores: dict[str, Store] = {"sqlite": SqliteStore(Path(folder) / "db"), "strands_files": files}
        for store in stores.values():
            await store.start()
        await fill(stores, root, turns, size)

        async def load_as_strands() -> None:
            manager = FileSessionManager(KEY.id, storage_dir=str(root))
            assert manager.read_agent(KEY.id, KEY.owner.agent_id) is not None
            assert len(manager.list_messages(KEY.id, KEY.owner.agent_id)) >= 2 * turns

        for number in range(-1, rounds):
            times = {name: await timed(lambda store=store: one_turn(store, size)) for name, store in stores.items()}
            times[STRANDS] = await timed(load_as_strands)
            for name, value in times.items():
                if number >= 0:  # the first round warms up
                    found[name].append(value)
        for store in stores.values():
            await store.close()
    return found


def ratio(found: Times, name: str, clock: int) -> float:
    """How many times as long Strands takes: the median of the rounds' ratios. clock: 0 for CPU, 1 for what passes."""
    rounds = zip(found[STRANDS], found[name], strict=True)
    return statistics.median(theirs[clock] / mine[clock] for theirs, mine in rounds)


def row(label: str, found: Times) -> str:
    cells = [label]
    for name in ("sqlite", "strands_files", STRANDS):
        for clock in (0, 1):
            value = f"{statistics.median(one[clock] for one in found[name]) * 1e3:.1f} ms"
            cells.append(value if name == STRANDS else f"{value} ({ratio(found, name, clock):.1f}×)")
    return f"| {' | '.join(cells)} |"


async def run(rounds: int, lengths: list[int], sizes: list[int]) -> bool:
    """Print the tables. Return whether at 100 turns each takes at most a third of Strands' CPU time."""
    names = ("sqlite", "strands_files", "Strands loads it")
    head = " | ".join(f"{name}: CPU | passes" for name in names) + " |\n|" + 7 * "---|"
    print(f"| turns stored, 1 KB a message | {head}")
    fast = True
    for turns in lengths:
        found = await measure(turns, 1000, rounds if turns <= 1000 else min(rounds, 3))
        print(row(f"{turns:,}", found), flush=True)
        fast &= turns > 100 or all(ratio(found, name, 0) >= 3 for name in ("sqlite", "strands_files"))
    print(f"\n| bytes a message, 100 turns | {head}")
    for size in sizes:
        print(row(f"{size:,}", await measure(100, size, rounds)), flush=True)
    return fast


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.memory_stores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turns", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    given = parser.parse_args()
    if asyncio.run(run(given.rounds, given.turns, given.sizes)):
        return 0
    print("\nA store takes more than a third of the CPU time that Strands takes to load the session.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
