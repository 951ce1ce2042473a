"""The messages of turns as events of AgentCore Memory: written, and found again.

What is written is not part of the session before its record says so. Found are the messages of the turns that the
record leads to, in order, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

from msgspec import Struct

from gateway.memory.model import Block, Message, SessionKey, Turn
from gateway.memory.store import StoreError, TooLargeForStore, UnreadableSession, Unstorable
from gateway.memory.stores.agentcore import record as ids
from gateway.memory.stores.agentcore.client import NewEvent, Operation, StoredEvent
from gateway.memory.stores.agentcore.mapping import PREFIX, SEQ, Payload, to_payload
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


LARGE = 1_000_000
"""Characters of base64 from which on a medium is kept apart."""
PART = 4_000_000
"""Characters in an event."""
BLOB_TYPE = "mlc-gateway.media"
_REFERENCE = "gatewayMedia"


def digest(data: str) -> str:
    """Return the hash that names a medium."""
    return sha256(data.encode()).hexdigest()


def large_media(message: Message) -> dict[str, str]:
    """Return a message's media that are kept apart, by their hashes."""
    sources = (source for block in message.content for source in _sources(block))
    return {digest(source["bytes"]): source["bytes"] for source in sources if _is_large(source)}


def parts(data: str) -> list[str]:
    """Return a medium in parts that an event can hold."""
    return [data[start : start + PART] for start in range(0, len(data), PART)]


def join(data: list[str], name: str) -> str:
    """Return the medium with the hash `name` from its parts.

    Raises:
        UnreadableSession: it is another one.
    """
    whole = "".join(data)
    if digest(whole) != name:
        raise UnreadableSession(f"the medium {name} is not what was stored")
    return whole


def payload(name: str, number: int, part: str) -> list[dict[str, Any]]:
    """Return the payload of the event that holds part `number` of the medium with the hash `name`."""
    data = {"sha256": name, "part": number, "data": part}
    return [{"blob": {"blobType": BLOB_TYPE, "version": 1, "media": data}}]


def part_of(event_payload: list[dict[str, Any]], name: str, number: int) -> str:
    """Return the part that an event holds.

    Raises:
        UnreadableSession: it holds something else.
    """
    match event_payload:
        case [{"blob": {"blobType": "mlc-gateway.media", "version": 1, "media": {"data": str(data), **rest}}}]:
            if (rest.get("sha256"), rest.get("part")) == (name, number):
                return data
    raise UnreadableSession(f"part {number} of the medium {name} is not what was stored")


def with_references(message: Message, events: dict[str, list[str]]) -> Message:
    """Return `message` with the events of its media in place of these. events: by hash."""

    def replace(source: Block) -> Block:
        name = digest(source["bytes"])
        rest = {key: value for key, value in source.items() if key != "bytes"}
        return {**rest, _REFERENCE: {"sha256": name, "events": events[name]}}

    return _mapped(message, _is_large, replace)


def references(message: Message) -> dict[str, list[str]]:
    """Return the events of a message's media, by hash."""
    found = (source[_REFERENCE] for block in message.content for source in _sources(block) if _is_reference(source))
    return {reference["sha256"]: reference["events"] for reference in found}


def with_media(message: Message, media: dict[str, str]) -> Message:
    """Return `message` with its media in place of their references. media: by hash."""

    def replace(source: Block) -> Block:
        rest = {key: value for key, value in source.items() if key != _REFERENCE}
        return {**rest, "bytes": media[source[_REFERENCE]["sha256"]]}

    return _mapped(message, _is_reference, replace)


def _is_large(source: Block) -> bool:
    data = source.get("bytes")
    return isinstance(data, str) and len(data) >= LARGE


def _is_reference(source: Block) -> bool:
    match source.get(_REFERENCE):
        case {"sha256": str(), "events": list()}:
            return True
    return False


def _sources(value: Any) -> Iterator[Block]:
    """Find the sources of media, also in results of tools."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, dict):
                yield inner
            else:
                yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def _mapped(message: Message, applies: Callable[[Block], bool], replace: Callable[[Block], Block]) -> Message:
    def copy(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "source":
                return replace(value) if applies(value) else value
            return {name: copy(inner, name) for name, inner in value.items()}
        return [copy(inner) for inner in value] if isinstance(value, list) else value

    return Message(message.role, tuple(copy(block) for block in message.content), message.metadata)


LARGEST_EVENT = 5_000_000
"""Characters of the JSON of an event's payload. AWS documents no limit; this one is the gateway's own."""

MEDIUM = PREFIX + "medium"
"""Event metadata: the attempt, the medium's hash, and the number of the part."""


class Writer:
    """Writes one turn in one attempt. after: the entry of the turn before; None for the first turn.

    changed: whether the session's record has another head by now. events: actors and ids of the events written so far.
    """

    def __init__(
        self,
        call: Operation,
        key: SessionKey,
        turn: Turn,
        attempt: str,
        after: Entry | None,
        changed: Callable[[], Awaitable[bool]],
    ) -> None:
        self._call = call
        self._key = key
        self._turn = turn
        self._attempt = attempt
        self._changed = changed
        self._number = after.turns + 1 if after else 1
        self._root = after.last_event_id if after else ""
        uses = [block["toolUse"] for message in turn.messages for block in message.content if "toolUse" in block]
        self._tools = {str(use.get("toolUseId")): str(use.get("name")) for use in uses if isinstance(use, dict)}
        self._payloads: list[list[Payload]] = []
        self._media: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """Map the messages. Takes long if they are large.

        Raises:
            TooLargeForStore, Unstorable: AgentCore can't keep one of them, the system text or the turn's id.
        """
        place = "id"
        try:
            if len(ids.to_metadata(self._turn.id)) > ids.LONGEST_VALUE:
                raise Unstorable("the turn's id is too long for AgentCore", place)
            place = "system"
            if self._turn.system:
                self._turn.system.encode()
                _check_size(self._turn.system, "the system text takes")
            for number, message in enumerate(self._turn.messages):
                place = f"messages[{number}]"
                found = large_media(message)
                self._media |= found
                self._payloads.append(self._map(number, message, {name: [] for name in found}))
        except UnicodeEncodeError:
            raise Unstorable("the text has a lone surrogate, which is no character", place) from None
        except RecursionError:
            raise Unstorable("it is nested too deeply", place) from None

    async def write(self, timestamp: float) -> str:
        """Write all messages, the large media first, with this timestamp. Return the last one's id; "" for none.

        Raises:
            StoreError: an event is gone, as the session was deleted meanwhile.
        """
        if self._media:
            stored = {name: await self._write_medium(name, data, timestamp) for name, data in self._media.items()}
            self._payloads = await self._call.run(self._mapped, stored)
        last = ""
        for seq, message in enumerate(self._payloads):
            own = labels(self._number, self._attempt, seq, self._turn.id)
            branch = (self._attempt, self._root) if self._root else (None, None)
            last = await self._create(ids.MESSAGES, message, timestamp, own, branch)
        return last

    def _mapped(self, stored: dict[str, list[str]]) -> list[list[Payload]]:
        return [self._map(number, message, stored) for number, message in enumerate(self._turn.messages)]

    def _map(self, number: int, message: Message, stored: dict[str, list[str]]) -> list[Payload]:
        place = f"messages[{number}]"
        if references(message):
            raise Unstorable("a source has the reserved member `gatewayMedia`", place)
        kept = with_references(message, stored) if stored else message
        mapped = to_payload(kept, place, self._tools)
        _check_size(mapped, f"{place} takes, besides its large media,")
        return mapped

    async def _write_medium(self, name: str, data: str, timestamp: float) -> list[str]:
        events: list[str] = []
        for number, part in enumerate(parts(data)):
            own = {MEDIUM: f"{self._attempt}/{name}/{number}"}
            events.append(await self._create(ids.MEDIA, payload(name, number, part), timestamp, own))
        return events

    async def _create(
        self,
        kind: str,
        payload: list[dict[str, Any]],
        timestamp: float,
        own: dict[str, str],
        branch: tuple[str | None, str | None] = (None, None),
    ) -> str:
        """Create an event. Return its id. own: its metadata, which no other event has."""
        actor, session = ids.actor(kind, self._key.owner), ids.session(self._key)
        token = ids.digest(self._attempt, sorted(own.items()))
        event, repeated = await self._call.create(NewEvent(actor, session, payload, token, timestamp, own, *branch))
        if repeated:
            event = await self._find(actor, session, branch[0], own)
        self.events.append((actor, event))
        return event

    async def _find(self, actor: str, session: str, branch: str | None, own: dict[str, str]) -> str:
        """Return the id of a written event. The service does not say what it answers to a repeated write."""
        attempt = 0
        while True:
            attempt += 1
            async for page in self._call.pages(actor, session, branch, payloads=False):
                for event in page:
                    if own.items() <= event.metadata.items():
                        return event.id
            if await self._changed():
                raise StoreError("the session changed while its turn was written")
            await self._call.pause(attempt)


def _check_size(value: Any, what: str) -> None:
    size = len(json.dumps(value))
    if size > LARGEST_EVENT:
        raise TooLargeForStore(f"{what} {size:,} characters of JSON; the AgentCore store keeps up to {LARGEST_EVENT:,}")
