"""Finds the messages of a session among its events: the turns that its record leads to, in order, and nothing else.

Also the messages of events that another program wrote.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Block, Message, Turn
from gateway.memory.store import StoreError, UnreadableSession
from gateway.memory.stores.agentcore.client import AgentCoreClient, Connect, StoredEvent
from gateway.memory.stores.agentcore.envelope import PREFIX, SEQ
from gateway.memory.stores.agentcore.mapping import from_event
from gateway.memory.stores.agentcore.record import Entry, from_metadata, to_metadata
from gateway.memory.stores.strands.mapping import starts_turn

TURN = PREFIX + "turn"
"""Event metadata: number of the turn, and the attempt that wrote the event: ``3/ATTEMPT``."""
TURN_ID = PREFIX + "turn_id"
OWN_ENTRIES = 3
"""Entries of event metadata that this module needs."""


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


_MEMBERS = {"toolUse": ("toolUseId", "name", "input"), "toolResult": ("toolUseId", "status", "content")}
"""Members of tool calls and results that agents take."""


class ForeignSessions:
    """Sessions of other programs. connect: makes boto3's client."""

    def __init__(self, settings: Settings, connect: Connect | None = None) -> None:
        self._client = AgentCoreClient(settings, connect)

    async def close(self) -> None:
        """Release everything."""
        await self._client.close()

    async def names(self, actor: str) -> list[str]:
        """Return the ids of an actor's sessions."""
        return await self._client.operation().sessions(actor)

    async def turns(self, actor: str, session: str) -> list[Turn]:
        """Return the turns of a session, in the order of time: of its main line, without other branches.

        Raises:
            UnreadableEvent: an event has a form that is not known.
            StoreError: there is no such session, or it is one of the gateway's own; or AgentCore failed.
        """
        events = await self._client.operation().events(actor, session)
        if not events:
            raise StoreError(f"the actor {actor} has no session {session}")
        if any(TURN in event.metadata for event in events):
            raise StoreError(f"the session {session} is the gateway's own: copy it with `mlc-gateway memory copy`")
        turns: list[tuple[str, list[Message]]] = []
        for event in sorted((event for event in events if event.branch is None), key=_order):
            for number, message in enumerate(from_event(event.payload, event.metadata)):
                if starts_turn(message) or not turns:
                    turns.append((f"agentcore-{event.id}-{number}", []))
                turns[-1][1].append(_own(message, event.timestamp))
        return [Turn(id_, tuple(messages)) for id_, messages in turns]


def _order(event: StoredEvent) -> tuple[float, int, str]:
    seq = event.metadata.get(SEQ, "")
    return event.timestamp, int(seq) if seq.isdecimal() else 0, event.id


def _own(message: Message, timestamp: float) -> Message:
    """Return a message with its event's time, if it has none, and without members that agents refuse."""
    metadata = msgspec.structs.replace(message.metadata, created=message.metadata.created or timestamp)
    return Message(message.role, tuple(_plain(block) for block in message.content), metadata)


def _plain(block: Block) -> Block:
    for kind, members in _MEMBERS.items():
        if isinstance(block.get(kind), dict):
            return {kind: {name: block[kind][name] for name in members if name in block[kind]}}
    return block
