"""Copies sessions from one store to another. A copy that was interrupted continues where it ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gateway.memory.model import Session, SessionKey, Turn
from gateway.memory.reading import read_turns
from gateway.memory.store import Store, StoreError

TurnsFrom = Callable[[int], AsyncGenerator[Turn, None]]
"""Returns a session's turns from a number on; the first one is 1."""


class OtherSession(StoreError):
    """The target has other turns under the id of the session that is copied."""


async def copy_session(source: Store, target: Store, session: Session) -> int:
    """Copy the turns of `session` that the target does not have; return how many.

    Owner, id, turn ids, messages with their metadata, system text and pin are kept. The target sets the times of the
    session itself; those of the messages are kept.

    Raises:
        OtherSession: the target's session is not a beginning of this one.
        StoreError: as `Store.append` and `Store.load`.
    """
    key = session.key

    async def turns(first: int) -> AsyncGenerator[Turn, None]:
        async for messages in read_turns(source, key, first):
            number = messages[0].turn
            system = session.system or None if number == session.turns else None
            yield Turn(messages[0].turn_id, tuple(stored.message for stored in messages), system)

    written = await append_missing(target, key, turns)
    if session.pinned:
        await target.pin(key, True)
    return written


async def append_missing(target: Store, key: SessionKey, turns: TurnsFrom) -> int:
    """Append the turns that the target's session does not have yet; return how many.

    Raises:
        OtherSession: the last turn of the target's session has another id, or there are fewer turns than it has.
        StoreError: as `Store.append`.
    """
    present = await target.session(key)
    count = present.turns if present is not None else 0
    if count:
        held = (await target.load(key, limit=1)).messages
        expected = await _first(turns(count))
        if not held or expected is None or held[-1].turn_id != expected.id:
            raise OtherSession(
                f"The target has a session {key.id} whose turns are others. Delete it there to copy this one."
            )
    written = 0
    async for turn in turns(count + 1):
        await target.append(key, turn, count + written)
        written += 1
    return written


async def _first(turns: AsyncGenerator[Turn, None]) -> Turn | None:
    async with aclosing(turns):
        return await anext(turns, None)
