"""The documents of sessions on an OpenSearch cluster. Pure.

A session has these documents, beside those of its messages:

- the `Head`, whose id follows from owner and session id. It names the session's *incarnation*, a random word with which
  the ids of all its other documents start, so that a session that is deleted and made again shares none with the old;
- a `Record` for each turn, ``<incarnation>.<number>``, only ever created. Of two writers of the same turn number,
  OpenSearch lets one create it, and a turn exists if and only if its record does;
- the number of each turn by its id, ``<incarnation>.id.<hash>``, written before the record. With it a turn that is sent
  again is found; it counts only if the record of that number names the same turn.

Messages and large texts are written before the record, which lists them. Without a record nobody sees them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Block, Message, Metadata, Role, Session, SessionKey, StoredMessage, Turn
from gateway.memory.store import Place, TooLargeForStore, UnreadableSession, Unstorable, put_back, take_out
from gateway.memory.stores.strands.mapping import starts_turn
from gateway.memory.structured import from_structured, single_calls, structured

VERSION = 1
INDEX = "index"
"""The `Record.place` of messages in the gateway's own index."""
PART = 2_000_000
"""Characters of a large text in one document."""
MOST_BYTES = 8_000_000
"""Most bytes of a message's JSON without its large texts."""
MOST_SHOWN = 4_000_000
"""Most bytes of a message in the form of ML Commons' agents with its media; of a larger one, texts name them there."""

Reference = tuple[str, int]
"""Id of a document, and the bytes of its content."""


class Head(Struct, frozen=True):
    """A session. turns, updated: may be behind the records. deleted: it is being deleted, and nobody sees it."""

    key: SessionKey
    incarnation: str
    created: float
    updated: float
    turns: int = 0
    pinned: bool = False
    deleted: bool = False
    version: int = VERSION


class Record(Struct, frozen=True):
    """A turn that is stored. first: the seq of its first message.

    place: "index", or the id of the memory container that holds the documents. parts: the pieces of each large text, by
    the text's SHA-256. system: the system text from now on, if this is turn number `system_turn`.
    """

    turn: int
    turn_id: str
    first: int
    updated: float
    place: str
    messages: list[Reference]
    parts: dict[str, list[Reference]] = {}
    system_turn: int = 0
    system: str = ""
    version: int = VERSION

    @property
    def end(self) -> int:
        """The seq after the turn's last message."""
        return self.first + len(self.messages)


class _Taken(Struct):
    """A large text: where it was in the content, and its SHA-256."""

    place: Place
    sha256: str


class Content(Struct, omit_defaults=True):
    """What a message's ``structured_data_blob`` holds.

    message: role and content; in a container in the form of ML Commons' agents (`gateway.memory.structured`). json: the
    content in a container, as it is read again: the cluster reorders the keys of JSON objects there.
    """

    message: dict[str, Any]
    about: Metadata = Metadata()
    large: list[_Taken] = []
    json: str = ""


class Document(Struct, frozen=True):
    """A document to write. id: where the writer may choose it. seq: None for a piece of a large text."""

    id: str
    blob: bytes
    seq: int | None = None
    metadata: dict[str, str] = {}


class EncodedTurn(Struct, frozen=True):
    """The documents of a turn. parts: the pieces of each large text, by its SHA-256."""

    messages: list[Document]
    parts: dict[str, list[Document]]


def head_id(key: SessionKey) -> str:
    """Return the id of a session's head."""
    owner = key.owner
    return "session." + digest(json.dumps([owner.agent_id, owner.tenant, owner.caller, key.id]))


def owner_hash(key: SessionKey) -> str:
    """Return a word for the session's owner."""
    return digest(json.dumps([key.owner.agent_id, key.owner.tenant, key.owner.caller]))


def new_head(key: SessionKey, now: float) -> Head:
    """Return the head of a new session."""
    return Head(key, secrets.token_hex(10), now, now)


def record_id(incarnation: str, turn: int) -> str:
    """Return the id of the record of turn number `turn`."""
    return f"{incarnation}.{turn}"


def digest(text: str) -> str:
    """Return a word of letters and digits for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def session_of(head: Head, record: Record, system: str) -> Session:
    """Return the session whose last turn is `record`."""
    updated = max(record.updated, head.created)
    return Session(head.key, record.turn, record.end, head.created, updated, system, head.pinned)


def encode_turn(head: Head, turn: Turn, first: int, in_container: bool) -> EncodedTurn:
    """Encode a turn whose first message has the seq `first`.

    Raises:
        Unstorable: a part can't be written as JSON.
        TooLargeForStore: a message has more than `MOST_BYTES` without its large texts.
    """
    prefix = f"{head.incarnation}.{digest(turn.id)}"
    messages: list[Document] = []
    parts: dict[str, list[Document]] = {}
    place = "system"
    calls = single_calls(turn.messages) if in_container else None
    try:
        _check_size(msgspec.json.encode((head.key, turn.id, turn.system)), place)
        for index, message in enumerate(turn.messages):
            place = f"messages[{index}]"
            blob = _encode(head.incarnation, message, parts, calls)
            _check_size(blob, place)
            messages.append(Document(f"{prefix}.{index}", blob, first + index, _searchable(message)))
    except (UnicodeEncodeError, TypeError, RecursionError) as error:
        raise Unstorable(f"This can't be written as JSON: {error}", place) from error
    return EncodedTurn(messages, parts)


def _encode(incarnation: str, message: Message, parts: dict[str, list[Document]], calls: set[str] | None) -> bytes:
    """Return the ``structured_data_blob`` of a message; add the pieces of its large texts to `parts`.

    calls: of a message in a container, the tool calls that are written as such (`structured`).
    """
    content, large = take_out(message.content)
    taken = []
    for place, text in large.items():
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        taken.append(_Taken(place, sha256))
        if sha256 not in parts:
            parts[sha256] = _parts(incarnation, sha256, text)
    if calls is None:
        return msgspec.json.encode(Content({"role": message.role, "content": content}, message.metadata, taken))
    shown = structured(message, calls)
    if len(msgspec.json.encode(shown)) > MOST_SHOWN:  # without the media
        shown = structured(Message(message.role, tuple(content)), calls)
    if len(msgspec.json.encode(shown)) > MOST_SHOWN:
        shown = structured(Message(message.role, ({"text": "(a message that is too large to be shown here)"},)))
    as_was = msgspec.json.encode(content).decode()
    return msgspec.json.encode(Content(shown, message.metadata, taken, as_was))


def _check_size(data: bytes, place: str) -> None:
    if len(data) > MOST_BYTES:
        raise TooLargeForStore(f"Text and structure of {place} have {len(data)} bytes; the store takes {MOST_BYTES}")


def _parts(incarnation: str, sha256: str, text: str) -> list[Document]:
    pieces = [text[start : start + PART] for start in range(0, len(text), PART)]
    return [
        Document(f"{incarnation}.part.{sha256}.{number}", msgspec.json.encode({"part": piece}))
        for number, piece in enumerate(pieces)
    ]


def _searchable(message: Message) -> dict[str, str]:
    """Return what others may search for, as in the RFC: texts only."""
    about = message.metadata
    values = {
        "type": "structured_message",
        "role": message.role,
        "input_type": about.input_type,
        "provider": about.provider,
        "model": about.model,
    }
    return {name: value[:1_000] for name, value in values.items() if value}


def decode_message(record: Record, index: int, blobs: dict[str, dict[str, Any]]) -> StoredMessage:
    """Return message number `index` of a turn. blobs: ``structured_data_blob`` by the id of the document.

    Raises:
        UnreadableSession: a document is missing, or is not as `encode_turn` writes it.
    """
    try:
        stored = msgspec.convert(blobs[record.messages[index][0]], Content)
        if record.place != INDEX and not stored.json:  # an agent of the cluster wrote it
            message = msgspec.structs.replace(
                from_structured(stored.message), metadata=Metadata(created=record.updated)
            )
            return StoredMessage(record.first + index, record.turn, record.turn_id, message)
        role = msgspec.convert("user" if stored.message["role"] == "tool" else stored.message["role"], Role)
        content = msgspec.json.decode(stored.json) if stored.json else stored.message["content"]
        for large in stored.large:
            pieces = [blobs[id_]["part"] for id_, _ in record.parts[large.sha256]]
            put_back(content, large.place, "".join(pieces))
        message = Message(role, tuple(msgspec.convert(content, list[Block])), stored.about)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"Message {record.first + index} of the session can't be read ({error!r}). Delete the session"
        raise UnreadableSession(reason) from error
    return StoredMessage(record.first + index, record.turn, record.turn_id, message)


def turns_of_agent(last: Record, added: Sequence[tuple[Reference, Message]], now: float) -> list[Record]:
    """Return the records of the turns that an agent of the cluster added to the session after its record `last`."""
    turns: list[list[Reference]] = []
    for reference, message in added:
        if starts_turn(message) or not turns:
            turns.append([])
        turns[-1].append(reference)
    records = []
    for messages in turns:
        last = Record(
            turn=last.turn + 1,
            turn_id=f"agent-{messages[0][0]}",
            first=last.end,
            updated=max(now, last.updated),
            place=last.place,
            messages=messages,
            system_turn=last.system_turn,
        )
        records.append(last)
    return records


def read_head(source: dict[str, Any]) -> Head:
    """Return the head in a document. Raises UnreadableSession."""
    head: Head = _read(source, Head)
    return head


def read_record(source: dict[str, Any]) -> Record:
    """Return the record in a document. Raises UnreadableSession."""
    record: Record = _read(source, Record)
    return record


def _read(source: dict[str, Any], type_: Any) -> Any:
    try:
        found = msgspec.convert(source["body"], type_)
    except (msgspec.ValidationError, KeyError) as error:
        raise UnreadableSession(f"A document of the session can't be read ({error}). Delete the session") from error
    if found.version != VERSION:
        raise UnreadableSession(f"The session was written by a newer gateway (version {found.version})")
    return found


def newest_within(records: Sequence[Record], most_bytes: int) -> list[Record]:
    """Return the newest of `records` that have at most `most_bytes` together, or the last one.

    A turn is not divided, as all its large texts are read with each of its messages.
    """
    sizes = (sum(size for _, size in all_documents(record)) for record in reversed(records))
    count = sum(1 for _ in takewhile(lambda total: total <= most_bytes, accumulate(sizes)))
    return list(records[-max(count, 1) :])


def all_documents(record: Record) -> list[Reference]:
    """Return the documents of a turn's messages and large texts."""
    return record.messages + [part for parts in record.parts.values() for part in parts]


def references(records: Sequence[Record], low: int, high: int) -> list[Reference]:
    """Return the documents of the messages with seqs from `low` to below `high`, and all large texts of their turns."""
    found = []
    for record in records:
        found += record.messages[max(low - record.first, 0) : max(high - record.first, 0)]
        found += [part for parts in record.parts.values() for part in parts]
    return found
