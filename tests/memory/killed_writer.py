"""A process that appends turns to a store until it is killed.

Arguments: the store's name, its place, and the writer's name (``round-writer``).

It prints ``opening``, and then the id of each turn that the store has acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import sys

from gateway.memory.model import Turn
from gateway.memory.store import SessionConflict, Store
from tests.memory.conversations import assistant, image, key, medium, text, tool_result, tool_use, turn, user
from tests.memory.killable_stores import STORES

SESSIONS = 3
"""Sessions of a round. All its writers append to each."""


def session_of(id_: str) -> str:
    """Return the name of the session to which the turn belongs. id_: ``round-writer-number``."""
    round_, _, number = id_.split("-")
    return f"{round_}-{int(number) % SESSIONS}"


def turn_of(id_: str, media_size: int = 100_000) -> Turn:
    """Return the turn with this id: always the same one. Every fourth has large media."""
    chance = random.Random(id_)
    data = medium(media_size if chance.random() < 0.25 else 100, chance.randrange(50))
    call = f"call-{id_}"
    return turn(
        user(f"question {id_}", image(data)),
        assistant(tool_use(call, query=id_)),
        user(tool_result(call, text(f"found by {id_}"), image(data))),
        assistant(f"answer {id_} " + "x" * chance.randrange(3000)),
        id_=id_,
        system=f"system {id_}",
    )


async def append(store: Store, id_: str) -> int:
    """Append the turn, after those of other writers. Return its session's number of turns."""
    own = key(session_of(id_))
    session = await store.session(own)
    seen = session.turns if session else 0
    while True:
        try:
            return (await store.append(own, turn_of(id_), seen)).turns
        except SessionConflict as conflict:
            seen = conflict.turns


async def write(store: Store, name: str) -> None:
    """Append turn after turn until killed. name: ``round-writer``."""
    print("opening", flush=True)
    await store.start()
    number = 0
    while True:
        await append(store, f"{name}-{number}")
        print(f"{name}-{number}", flush=True)
        number += 1


if __name__ == "__main__":
    asyncio.run(write(STORES[sys.argv[1]].open(sys.argv[2]), sys.argv[3]))
