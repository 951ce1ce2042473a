"""The record of a session in AgentCore Memory: a log of entries, the last of which says what the session holds.

AgentCore stores events only, so the record is events of an actor of its own. An entry is written after all messages of
its turn, and names the entry before it. The token of its write depends on that entry alone: of two writers that
continue the same entry, AgentCore stores the first one's and ignores the other's. Messages that no entry leads to are
not part of the session (docs/internals/agentcore-mapping.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from gateway.memory.model import Owner, Session, SessionKey
from gateway.memory.store import UnreadableSession
from gateway.memory.stores.agentcore.client import StoredEvent

MESSAGES = "mlc"
RECORDS = "mlcrec"
MEDIA = "mlcmed"
PROBES = "mlcprb"

_LONGEST_ACTOR = 255
LONGEST_VALUE = 256
"""Characters of a value of event metadata."""
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}", re.ASCII)
_OTHERS = re.compile(rb"[^a-zA-Z0-9-]")


def actor(kind: str, owner: Owner) -> str:
    """Return the actor of an owner's sessions: ``mlc-AGENT__TENANT__CALLER``.

    kind: `MESSAGES`, or `RECORDS` or `MEDIA`, which belong to the same sessions, or `PROBES`. Bytes other than
    letters, digits and - are ``_XX``. A name that is too long is a hash.
    """
    name = "__".join(_escaped(part) for part in (owner.agent_id, owner.tenant, owner.caller))
    if len(f"{RECORDS}-{name}") > _LONGEST_ACTOR:
        name = f"_{digest(owner.agent_id, owner.tenant, owner.caller)}"
    return f"{kind}-{name}"


def session(key: SessionKey) -> str:
    """Return the session's id; a hash of it if AgentCore does not allow it."""
    return key.id if _SESSION.fullmatch(key.id) else f"x-{digest(key.id)}"


def short_digest(turn_id: str) -> str:
    """Return what a session's record keeps of a turn's id."""
    return digest(turn_id)[:16]


def to_metadata(text: str) -> str:
    """Return `text` in the characters of event metadata. Bytes other than letters, digits and ``_.-`` are ``=XX``."""
    return quote(text, safe="").replace("~", "%7E").replace("%", "=")


def from_metadata(text: str) -> str:
    """Reverse `to_metadata`."""
    return unquote(text.replace("=", "%"))


def _escaped(text: str) -> str:
    return _OTHERS.sub(
        lambda match: b"_" + match[0].hex().upper().encode(), text.encode("utf-8", "surrogatepass")
    ).decode()


def digest(*parts: object) -> str:
    """Return a hash of `parts`, such as for the client token of a write that they identify."""
    whole = sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        whole.update(str(len(data)).encode() + b":" + data)
    return whole.hexdigest()


ENTRY = "mlc-gateway.session"
PIN = "mlc-gateway.pin"
VERSION = 1
REMEMBERED_TURNS = 1000
"""Turns that are recognised if they are sent again."""
KEPT_ENTRIES = 3


class Entry(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the session holds after a turn, or that it was deleted.

    id: of this entry, of the attempt to write the turn, and of its branch. parent: the entry before; "" for none.
    index: 0, 1, 2 …. first: the entry that made the session. branch_name, last_event_id: of the last turn with
    messages; None for the main line. time: the latest timestamp of the events. recent: digests of the last turns' ids.
    pin_index, pinned: of the latest `Pin` then, as AgentCore may remove older events; -1 for none.
    """

    id: str
    parent: str
    index: int
    kind: Literal["turn", "deleted"]
    key: SessionKey
    first: str = ""
    turns: int = 0
    messages: int = 0
    created: float = 0.0
    updated: float = 0.0
    time: float = 0.0
    system: str = ""
    branch_name: str | None = None
    last_event_id: str = ""
    recent: list[str] = []
    pin_index: int = -1
    pinned: bool = False

    def holds(self, turn_id: str) -> bool:
        """Return whether the session has the turn."""
        return short_digest(turn_id) in self.recent


class Pin(Struct, frozen=True):
    """Whether the session is pinned. first: of the session's entries. index: the greatest counts."""

    first: str
    index: int
    pinned: bool


class Record(Struct, frozen=True):
    """What is stored of a record. chain: the entries that count, each the parent of the next one. entries, pins: what
    there is, by the ids of the events."""

    chain: list[Entry]
    entries: dict[str, Entry]
    pins: dict[str, Pin]

    @property
    def head(self) -> Entry | None:
        """The last entry; None if there never was a session."""
        return self.chain[-1] if self.chain else None

    @property
    def head_event(self) -> tuple[str, Entry] | None:
        """The event of the last entry, and the entry."""
        return next(((event, entry) for event, entry in self.entries.items() if entry is self.head), None)

    def at(self, index: int) -> Entry | None:
        """Return the entry with this index; None if it is no longer, or not yet, there."""
        return next((entry for entry in self.chain if entry.index == index), None)

    @property
    def live(self) -> Entry | None:
        """The head; None if there is no session."""
        return self.head if self.head is not None and self.head.kind == "turn" else None

    @property
    def pin(self) -> Pin | None:
        """The session's latest pin."""
        head = self.head
        if head is None:
            return None
        own = [pin for pin in self.pins.values() if pin.first == head.first]
        if head.pin_index >= 0:
            own.append(Pin(head.first, head.pin_index, head.pinned))
        return max(own, key=lambda pin: (pin.index, pin.pinned), default=None)

    @property
    def session(self) -> Session | None:
        """The session, if there is one."""
        head = self.live
        if head is None:
            return None
        pinned = self.pin is not None and self.pin.pinned
        return Session(head.key, head.turns, head.messages, head.created, head.updated, head.system, pinned)

    def superseded(self) -> list[str]:
        """Return the events of entries and pins that no longer count."""
        if self.head is None:
            return []
        oldest, pin = self.head.index - KEPT_ENTRIES + 1, self.pin
        entries = [event for event, entry in self.entries.items() if entry.index < oldest]
        return entries + [event for event, other in self.pins.items() if other != pin]


def to_payload(kind: Entry | Pin) -> list[dict[str, Any]]:
    """Return the payload of the event that holds an entry or a pin."""
    name = ENTRY if isinstance(kind, Entry) else PIN
    return [{"blob": {"blobType": name, "version": VERSION, "data": msgspec.to_builtins(kind)}}]


def read(
    events: Iterable[StoredEvent], key: SessionKey | None = None, known: tuple[str, Entry] | None = None
) -> Record:
    """Return the record that these events hold. key: of the session; entries of another are not read.

    known: the last entry that an earlier list showed, and its event: it counts although these events may lack it.

    Raises:
        UnreadableSession: an event is none of a record, or of a version that is not known.
    """
    entries: dict[str, Entry] = {}
    pins: dict[str, Pin] = {}
    for event in events:
        for item in event.payload:
            match item.get("blob"):
                case {"blobType": "mlc-gateway.session", "version": 1, "data": data}:
                    entry = _convert(data, Entry)
                    if key is None or entry.key == key:
                        entries[event.id] = entry
                case {"blobType": "mlc-gateway.pin", "version": 1, "data": data}:
                    pins[event.id] = _convert(data, Pin)
                case _:
                    raise UnreadableSession(f"event {event.id} is not of a session's record, or of a later version")
    if known is not None and all(entry.index < known[1].index for entry in entries.values()):
        entries[known[0]] = known[1]
    return Record(_chain(entries), entries, pins)


def _convert(data: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise UnreadableSession(f"the session's record is malformed: {error}") from None


def _chain(entries: dict[str, Entry]) -> list[Entry]:
    """Return the entries that count.

    AgentCore stores one entry for each index. If there were two, all readers would agree on the same one.
    """
    chain: list[Entry] = []
    for entry in sorted(entries.values(), key=lambda entry: (entry.index, entry.time, entry.id)):
        if not chain or entry.index > chain[-1].index + 1 or entry.parent == chain[-1].id:
            chain.append(entry)
    return chain
