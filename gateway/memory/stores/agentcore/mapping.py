"""Maps messages to events of AWS Bedrock AgentCore Memory, and events of several writers to messages.

One message is one event. Texts are conversational payloads, which feed long-term memory; everything else is in blobs
(`gateway.memory.stores.agentcore.envelope`). What does not come back as it was, the limits, and the two generations of
the form: docs/internals/agentcore-mapping.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.memory.model import Block, Message, Metadata, Role
from gateway.memory.store import TooLargeForStore, Unstorable
from gateway.memory.stores.agentcore import content as content
from gateway.memory.stores.agentcore import envelope as metadata_form
from gateway.memory.stores.agentcore.envelope import BlobType, MalformedBlob, UnknownMessageType, unwrap, wrap

MappingForm = Literal["metadata", "envelope"]
Payload = dict[str, Any]

LONGEST_TEXT = 100_000
"""UTF-16 code units of a conversational text."""
MOST_PAYLOADS = 100

ROLE = metadata_form.PREFIX + "role"
"""Event metadata: the role of a message, if its payloads do not show it."""
JOINED = metadata_form.PREFIX + "joined"
"""Event metadata: the payloads that continue the text of the one before, as the bits of a hexadecimal number."""

_NAME = "name"
"""In `Metadata.extra`, and in an envelope's properties: the user's name."""
_ROLES: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "TOOL": "user"}
_EXPLICIT_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool_call_result": "user"}


class Event(Struct, frozen=True):
    """What a message is in AgentCore: the arguments `payload` and `metadata` of CreateEvent."""

    payload: list[Payload]
    metadata: dict[str, str]


def to_event(
    message: Message,
    form: MappingForm = "metadata",
    place: str = "message",
    tools: Mapping[str, str] | None = None,
    room: int = metadata_form.MOST_ENTRIES,
) -> Event:
    """Return `message` as an event.

    place: of the message, for errors. tools: names of tools by the ids of their calls, for results. room: entries of
    event metadata that may be used.

    Raises:
        Unstorable: a text is not valid Unicode, or a number is none of JSON's.
        TooLargeForStore: the message has more parts than an event can have.
    """
    _check_json(message, place)
    payload, joined = _payload(message, tools or {})
    own = {JOINED: format(joined, "x")} if joined else {}
    explicit = None if _inferred_role(payload) == message.role else message.role
    if form == "metadata":
        if explicit is not None:
            own[ROLE] = explicit
        strings = metadata_form.to_strings(message.metadata, place)
        fitting, others = metadata_form.split(strings, room - len(own))
        own |= fitting
        if others:
            payload.append({"blob": wrap(BlobType.METADATA, others)})
    else:
        values = metadata_form.to_json(message.metadata, place)
        properties: dict[str, Any] = {} if explicit is None else {"role": explicit}
        if message.role == "user" and isinstance(values.get(_NAME), str):
            properties[_NAME] = values.pop(_NAME)
        payload.append({"blob": wrap(BlobType.METADATA, values, properties or None)})
    if len(payload) > MOST_PAYLOADS:
        raise TooLargeForStore(
            f"{place} has {len(payload):,} parts; an event of AgentCore has at most {MOST_PAYLOADS} "
            f"(a text of more than {LONGEST_TEXT:,} characters has several)"
        )
    return Event(payload, own)


def from_event(payload: list[Payload], metadata: Mapping[str, str] | None = None) -> list[Message]:
    """Return the messages of an event of any known writer. Events that only hold a writer's state have none.

    Raises:
        UnreadableEvent: no known writer stores such an event.
    """
    values = dict(metadata or {})
    try:
        if not any(name == metadata_form.SEQ or name.startswith(metadata_form.PREFIX) for name in values):
            found = messages(payload, values)
            if found is not None:
                return found
        return [_message(payload, values)] if payload or ROLE in values else []
    except RecursionError:
        raise MalformedBlob("it is nested too deeply", "payload") from None


# Message to event


def _payload(message: Message, tools: Mapping[str, str]) -> tuple[list[Payload], int]:
    """Return all payloads but metadata: results of tools, content in its order, calls. joined: see `JOINED`."""
    results = [block for block in message.content if content.is_result(block)]
    calls = [content.call_from(block) for block in message.content if content.is_call(block)]
    payload: list[Payload] = []
    joined = 0
    if results:
        result_text = "\n".join(text for block in results for text in content.texts_of_result(block))
        payload += [_conversational("TOOL", part) for part in _parts(result_text)]
        data = [content.result_from(block, tools.get(block["toolResult"]["toolUseId"])) for block in results]
        payload.append({"blob": wrap(BlobType.TOOL_RESULTS, data)})
    for block in message.content:
        if content.is_result(block) or content.is_call(block):
            continue
        text = content.text_of(block)
        if not text:
            payload.append({"blob": wrap(BlobType.CONTENT, content.content_from(block))})
            continue
        for number, part in enumerate(_parts(text)):
            joined |= (number > 0) << len(payload)
            payload.append(_conversational(message.role.upper(), part))
    if calls:
        payload.append({"blob": wrap(BlobType.TOOL_CALLS, calls)})
    return payload, joined


def _conversational(role: str, text: str) -> Payload:
    return {"conversational": {"role": role, "content": {"text": text}}}


def _parts(text: str) -> list[str]:
    """Return `text` in parts that a payload can hold."""
    if len(text) <= LONGEST_TEXT // 2 or len(text.encode("utf-16-le")) <= 2 * LONGEST_TEXT:
        return [text] if text else []
    step = LONGEST_TEXT if max(text) <= "\uffff" else LONGEST_TEXT // 2
    return [text[start : start + step] for start in range(0, len(text), step)]


def _check_json(message: Message, place: str) -> None:
    """Refuse what JSON in UTF-8 can't hold."""
    parts: list[tuple[str, Any]] = [(f"{place}.content[{number}]", part) for number, part in enumerate(message.content)]
    known = msgspec.structs.asdict(message.metadata)
    del known["usage"]
    for where, value in [*parts, (f"{place}.metadata", known)]:
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise Unstorable("the text has a lone surrogate, which is no character", where) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise Unstorable(f"this is no JSON that can be stored: {error}", where) from None


# Event to message


class _Reading:
    """Collects what an event's payloads hold."""

    def __init__(self, joined: int) -> None:
        self._joined = joined
        self._text_before = False
        self.blocks: list[Block] = []
        self.results: list[Block] | None = None
        self.calls: list[Block] = []
        self.tool_texts: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.role: Any = None

    def add(self, number: int, item: Payload, place: str) -> None:
        match item:
            case {"conversational": {"role": str(role), "content": {"text": str(text)}}}:
                self._add_text(number, role, text, place)
            case {"blob": blob}:
                self._add_blob(blob, f"{place}.blob")
                self._text_before = False
            case _:
                raise UnknownMessageType("expected a conversational text or a blob", place)

    def _add_text(self, number: int, role: str, text: str, place: str) -> None:
        if role not in _ROLES:
            raise UnknownMessageType(f"unknown role {role[:100]!r}", f"{place}.conversational.role")
        if role == "TOOL":
            self.tool_texts.append(text)
        elif self._joined >> number & 1:
            if not self._text_before:
                raise MalformedBlob("a part of a text follows none", place)
            self.blocks[-1] = {"text": self.blocks[-1]["text"] + text}
        else:
            self.blocks.append({"text": text})
        self._text_before = role != "TOOL"

    def _add_blob(self, blob: Any, place: str) -> None:
        envelope = unwrap(blob, place)
        match envelope.type:
            case BlobType.CONTENT:
                self.blocks.append(content.block_from(envelope.data, f"{place}.content"))
            case BlobType.TOOL_CALLS:
                self.calls += [
                    content.use_from(call, f"{place}.toolCalls[{n}]") for n, call in enumerate(envelope.data)
                ]
            case BlobType.TOOL_RESULTS:
                self.results = (self.results or []) + [
                    content.result_block(result, f"{place}.results[{n}]") for n, result in enumerate(envelope.data)
                ]
            case BlobType.METADATA:
                self.metadata |= envelope.data
                self.role = envelope.properties.get("role", self.role)
                if envelope.properties.get(_NAME) is not None:
                    self.metadata.setdefault(_NAME, envelope.properties[_NAME])

    def content(self) -> tuple[Block, ...]:
        """Return all blocks. Results say what they are; the text of older tool messages is a result without id."""
        results = self.results
        if results is None:
            text = "\n".join(self.tool_texts)
            results = [content.result_block({"content": text}, "payload")] if text else []
        return (*results, *self.blocks, *self.calls)


def _message(payload: list[Payload], values: dict[str, str]) -> Message:
    try:
        joined = int(values.get(JOINED, "0"), 16)
    except ValueError:
        raise MalformedBlob("expected a hexadecimal number", f"metadata.{JOINED}") from None
    reading = _Reading(joined)
    for number, item in enumerate(payload):
        reading.add(number, item, f"payload[{number}]")
    role = _role(values.get(ROLE, reading.role), payload)
    known: Metadata = metadata_form.from_values({**values, **reading.metadata}, "metadata")
    return Message(role, reading.content(), known)


def _role(explicit: Any, payload: list[Payload]) -> Role:
    if explicit is not None:
        role = _EXPLICIT_ROLES.get(explicit.lower()) if isinstance(explicit, str) else None
        if role is None:
            raise UnknownMessageType(f"unknown role {str(explicit)[:100]!r}", "metadata")
        return role
    inferred = _inferred_role(payload)
    if inferred is None:
        raise UnknownMessageType("nothing shows whether the user or the assistant sent it", "payload")
    return inferred


def _inferred_role(payload: list[Payload]) -> Role | None:
    """Return the role that the payloads show; None if they show none, or several."""
    roles: set[Role] = set()
    for item in payload:
        if "conversational" in item:
            roles.add(_ROLES[item["conversational"]["role"]])
        else:
            kind = unwrap(item.get("blob"), "payload").type
            if kind is BlobType.TOOL_CALLS:
                roles.add("assistant")
            elif kind is BlobType.TOOL_RESULTS:
                roles.add("user")
    return roles.pop() if len(roles) == 1 else None


_STATE = {"session", "agent"}
"""Lower-case values of the event metadata `stateType` of events that hold the plug-in's own state."""


def messages(payload: list[dict[str, Any]], metadata: dict[str, str]) -> list[Message] | None:
    """Return the messages of an event of the plug-in; None for an event of another writer.

    Raises:
        MalformedBlob: the event is the plug-in's, but not in a form that is known.
    """
    if metadata.get("stateType", "").lower() in _STATE:
        return []
    records = [_record(item) for item in payload]
    if not records or any(record is None for record in records):
        return None
    found = (_plugin_message(record, f"payload[{number}]") for number, record in enumerate(records) if record)
    return [message for message in found if message.content]


def _record(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the plug-in's record of a payload, {} for its state, None if it is not the plug-in's."""
    if isinstance(item.get("blob"), str):
        return _record_of_blob(_parse(item["blob"]))
    match item:
        case {"conversational": {"content": {"text": str(text)}}}:
            return _session_message(text)
    return None


def _record_of_blob(value: Any) -> dict[str, Any] | None:
    match value:
        case {"_type": "agent_state"} | {"session_id": _, "session_type": _} | {"agent_id": _, "state": _}:
            return {}
        case {"_type": "message", "data": [str(text), str()]} | [str(text), str()]:
            return _session_message(text)
    return None


def _session_message(text: str) -> dict[str, Any] | None:
    value = _parse(text) if text.lstrip().startswith("{") else None
    match value:
        case {"message": {"role": _, "content": _}, "message_id": _}:
            return value
    return None


def _plugin_message(record: dict[str, Any], place: str) -> Message:
    kept = record.get("redact_message") or record["message"]
    if not isinstance(kept, dict):
        raise MalformedBlob("expected a message", place)
    role, blocks = kept.get("role"), kept.get("content")
    if role not in ("user", "assistant") or not isinstance(blocks, list):
        raise MalformedBlob("expected a message of the user or the assistant", place)
    if not all(isinstance(block, dict) for block in blocks):
        raise MalformedBlob("expected content blocks", place)
    created = record.get("created_at")
    try:
        seconds = datetime.fromisoformat(created).timestamp() if isinstance(created, str) else 0.0
    except ValueError:
        raise MalformedBlob("`created_at` is not a time", place) from None
    return Message(role, tuple(_plain(block) for block in blocks), Metadata(created=seconds))


def _plain(value: Any) -> Any:
    """Return `value` with its bytes as base64 text."""
    match value:
        case {"__bytes_encoded__": True, "data": str(data)}:
            return data
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
