"""Finds the messages of a session among its events: the turns that its record leads to, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gateway.memory.store import UnreadableSession
from gateway.memory.stores.agentcore.client import StoredEvent
from gateway.memory.stores.agentcore.mapping import PREFIX, SEQ
from gateway.memory.stores.agentcore.record import Entry, from_metadata, to_metadata

TURN = PREFIX + "turn"
"""Event metadata: number of the turn, and the attempt that wrote the event: ``3/ATTEMPT``."""
TURN_ID = PREFIX + "turn_id"


def labels(turn: int, attempt: str, seq: int, turn_id: str) -> dict[str, str]:
    """Return the metadata of an event that says where in the session its message belongs. seq: in its turn."""
    return {SEQ: str(seq), TURN: f"{turn}/{attempt}", TURN_ID: to_metadata(turn_id)}


class Place(Struct, frozen=True):
    """Where in the session an event's message belongs. turn_seq: in its turn."""

    turn: int
    attempt: str
    turn_seq: int
    turn_id: str


class Found(Struct, frozen=True):
    """An event of the session. seq: of its message in the session."""

    seq: int
    place: Place
    event: StoredEvent


class Chain:
    """Collects events in any order until the wanted messages are among them.

    A turn ends with the event that the record, or the next turn's branch, names. Each turn is written by one attempt,
    with all seq from 0 to its last event's. So a missing event is noticed, and events of other attempts are left out.

    start: seq of the oldest wanted message.
    """

    def __init__(self, head: Entry, start: int) -> None:
        self._start = start
        self._next = head.last_event_id
        self._position = head.messages
        self._events: dict[str, StoredEvent] = {}
        self._turns: dict[str, dict[int, StoredEvent]] = {}
        self.found: list[Found] = []

    @property
    def complete(self) -> bool:
        """Whether all wanted messages are there."""
        return self._position <= self._start

    @property
    def missing(self) -> str:
        """The event that is not there yet, or whose turn is not; "" if the session ends before."""
        return self._next

    def add(self, events: Iterable[StoredEvent]) -> None:
        """Add events, and follow the turns as far back as these reach."""
        for event in events:
            place = _place(event)
            if place is not None:
                self._events[event.id] = event
                self._turns.setdefault(place.attempt, {})[place.turn_seq] = event
        while not self.complete and self._step():
            pass

    def _step(self) -> bool:
        """Find the turn before those found. Return False if its events are not all there."""
        last = self._events.get(self._next)
        place = _place(last) if last else None
        if place is None:
            return False
        turn = self._turns[place.attempt]
        if any(seq not in turn for seq in range(place.turn_seq + 1)):
            return False
        self._position -= place.turn_seq + 1
        if self._position < 0:
            raise UnreadableSession(f"the session has more messages than its record says, at event {self._next}")
        self.found[:0] = [
            Found(self._position + seq, Place(place.turn, place.attempt, seq, place.turn_id), turn[seq])
            for seq in range(place.turn_seq + 1)
        ]
        self._next = next((turn[seq].root or "" for seq in turn if turn[seq].root), "")
        return True


def _place(event: StoredEvent) -> Place | None:
    """Return where an event belongs; None for an event of another writer."""
    number, _, attempt = event.metadata.get(TURN, "").partition("/")
    seq = event.metadata.get(SEQ, "")
    if not (number.isdecimal() and attempt and seq.isdecimal()):
        return None
    return Place(int(number), attempt, int(seq), from_metadata(event.metadata.get(TURN_ID, "")))
