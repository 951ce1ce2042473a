"""Maps messages to events of AWS Bedrock AgentCore Memory, in the form of Camunda's connectors, and back. Pure.

Events of AWS's own plug-in for Strands (`AgentCoreMemorySessionManager`) are read too, and never written.

One message is one event. Texts are conversational payloads, which feed long-term memory; everything else is in blobs
(`gateway.memory.stores.agentcore.content`), the last of which says who sent the message. What the form can't hold,
its older kinds, and the limits: docs/internals/agentcore-mapping.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from gateway.memory.model import Block, Message, Metadata, Role
from gateway.memory.store import TooLargeForStore, Unstorable
from gateway.memory.stores.agentcore import content
from gateway.memory.stores.agentcore.content import (
    BlobType,
    Envelope,
    MalformedBlob,
    UnknownMessageType,
    unwrap,
    wrap,
)

Payload = dict[str, Any]

PREFIX = "mlc."
"""Names of the gateway's own values begin with it."""
SEQ = "seq"
"""Event metadata: the place of a message in its turn, as Camunda writes it."""
LONGEST_TEXT = 100_000
"""UTF-16 code units of a conversational text."""
MOST_PAYLOADS = 100

_ROLE = "role"
_MODEL = "camunda.modelId"
_JOINED = f"{PREFIX}joined"
"""Property: the payloads that continue the text of the one before, as the bits of a hexadecimal number."""
_OTHERS = "camunda"
"""In `Metadata.extra`: properties that only Camunda knows."""
_ROLES: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "TOOL": "user", "TOOL_CALL_RESULT": "user"}


def to_payload(message: Message, place: str = "message", tools: Mapping[str, str] | None = None) -> list[Payload]:
    """Return the payload of the event that holds `message`.

    place: of the message, for errors. tools: names of tools by the ids of their calls, for results.

    Raises:
        Unstorable: a text is not valid Unicode, or a number is none of JSON's.
        TooLargeForStore: the message has more parts than an event can have.
    """
    _check_json(message, place)
    results = [block for block in message.content if message.role == "user" and content.is_result(block)]
    payload: list[Payload] = []
    if results:
        stored = [content.result_from(block, (tools or {}).get(block["toolResult"]["toolUseId"])) for block in results]
        payload += [_conversational("TOOL", part) for part in _parts(content.summary_of(stored))]
        payload.append(wrap(BlobType.TOOL_RESULTS, stored))
    calls: list[dict[str, Any]] = []
    joined = 0
    for block in message.content:
        if message.role == "assistant" and content.is_call(block):
            calls.append(content.call_from(block))
        elif text := content.text_of(block):
            for number, part in enumerate(_parts(text)):
                joined |= (number > 0) << len(payload)
                payload.append(_conversational(message.role.upper(), part))
        elif not (message.role == "user" and content.is_result(block)):
            payload.append(wrap(BlobType.CONTENT, content.content_from(block)))
    if calls:
        payload.append(wrap(BlobType.TOOL_CALLS, calls))
    payload.append(_metadata_item(message, "TOOL" if results else message.role.upper(), joined))
    if len(payload) > MOST_PAYLOADS:
        raise TooLargeForStore(
            f"{place} has {len(payload):,} parts; an event of AgentCore has at most {MOST_PAYLOADS} "
            f"(a text of more than {LONGEST_TEXT:,} characters has several)"
        )
    return payload


def from_payload(payload: list[Payload], values: Mapping[str, str] | None = None) -> list[Message]:
    """Return the messages of an event of any known writer. Events that only hold a writer's state have none.

    values: the event's metadata.

    Raises:
        UnreadableEvent: no known writer stores such an event.
    """
    values = values or {}
    try:
        if not any(name == SEQ or name.startswith(PREFIX) for name in values):
            found = _plugin_messages(payload, values)
            if found is not None:
                return found
        return [_message(payload, values)] if payload else []
    except RecursionError:
        raise MalformedBlob("it is nested too deeply", "payload") from None


# Message to event


def _metadata_item(message: Message, role: str, joined: int) -> Payload:
    """Return the last blob: the message's own metadata, and properties of the connector's and the gateway's."""
    known, metadata = dict(message.metadata.extra), message.metadata
    properties: dict[str, Any] = {_ROLE: role}
    others = known.get(_OTHERS)
    if isinstance(others, dict) and others and not any(_is_own(name) for name in others):
        properties |= known.pop(_OTHERS)
    own = {name: value for name, value in msgspec.to_builtins(metadata).items() if name != "extra"}
    if message.role == "assistant" and "model" in own:
        properties[_MODEL] = own.pop("model")
    properties |= {PREFIX + name: value for name, value in own.items()}
    if joined:
        properties[_JOINED] = format(joined, "x")
    return wrap(BlobType.METADATA, known, properties)


def _is_own(name: str) -> bool:
    return name in (_ROLE, _MODEL) or name.startswith(PREFIX)


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
    """Collects what an event's payload holds. joined: see `_JOINED`."""

    def __init__(self, joined: int) -> None:
        self._joined = joined
        self._text_before = False
        self.blocks: list[Block] = []
        self.results: list[Block] | None = None
        self.calls: list[Block] = []
        self.tool_texts: list[str] = []
        self.roles: set[Role] = set()

    def add_text(self, number: int, role: str, text: str, place: str) -> None:
        if role not in _ROLES:
            raise UnknownMessageType(f"unknown role {role[:100]!r}", f"{place}.conversational.role")
        self.roles.add(_ROLES[role])
        if role == "TOOL":
            self.tool_texts.append(text)
        elif self._joined >> number & 1:
            if not self._text_before:
                raise MalformedBlob("a part of a text follows none", place)
            self.blocks[-1] = {"text": self.blocks[-1]["text"] + text}
        else:
            self.blocks.append({"text": text})
        self._text_before = role != "TOOL"

    def add_blob(self, envelope: Envelope, place: str) -> None:
        self._text_before = False
        match envelope.type:
            case BlobType.CONTENT:
                self.blocks.append(content.block_from(envelope.data, f"{place}.content"))
            case BlobType.TOOL_CALLS:
                self.roles.add("assistant")
                self.calls += [
                    content.use_from(call, f"{place}.toolCalls[{n}]") for n, call in enumerate(envelope.data)
                ]
            case BlobType.TOOL_RESULTS:
                self.roles.add("user")
                self.results = (self.results or []) + [
                    content.result_block(result, f"{place}.results[{n}]") for n, result in enumerate(envelope.data)
                ]

    def content(self) -> tuple[Block, ...]:
        """Return all blocks. Results say what they are; the text of older tool messages is a result without id."""
        results = self.results
        if results is None:
            text = "\n".join(self.tool_texts)
            results = [content.result_block({"content": text}, "payload")] if text else []
        return (*results, *self.blocks, *self.calls)


def _message(payload: list[Payload], values: Mapping[str, str]) -> Message:
    envelopes = {
        number: unwrap(item["blob"], f"payload[{number}].blob") for number, item in enumerate(payload) if "blob" in item
    }
    own = Envelope(BlobType.METADATA, {})
    for envelope in envelopes.values():
        if envelope.type is BlobType.METADATA:
            own = envelope  # the last one counts
    reading = _Reading(_joined(own.properties))
    for number, item in enumerate(payload):
        place = f"payload[{number}]"
        match item:
            case {"conversational": {"role": str(role), "content": {"text": str(text)}}}:
                reading.add_text(number, role, text, place)
            case {"blob": _}:
                reading.add_blob(envelopes[number], f"{place}.blob")
            case _:
                raise UnknownMessageType("expected a conversational text or a blob", place)
    of_event = {name: value for name, value in values.items() if name != SEQ and not name.startswith(PREFIX)}
    return Message(
        _role(own.properties, reading.roles), reading.content(), _metadata(own.properties, {**of_event, **own.data})
    )


def _joined(properties: dict[str, Any]) -> int:
    try:
        return int(properties.get(_JOINED, "0"), 16)
    except (ValueError, TypeError):
        raise MalformedBlob("expected a hexadecimal number", f"properties.{_JOINED}") from None


def _role(properties: dict[str, Any], found: set[Role]) -> Role:
    """Return who sent the message: as the properties say, or what the payload shows, which the first connectors had."""
    explicit = properties.get(_ROLE)
    if explicit is not None:
        role = _ROLES.get(explicit.upper()) if isinstance(explicit, str) else None
        if role is None:
            raise UnknownMessageType(f"unknown role {str(explicit)[:100]!r}", f"properties.{_ROLE}")
        return role
    if len(found) != 1:
        raise UnknownMessageType("nothing shows whether the user or the assistant sent it", "payload")
    return next(iter(found))


def _metadata(properties: dict[str, Any], extra: dict[str, Any]) -> Metadata:
    """Return the metadata of a message.

    Raises:
        MalformedBlob: a value of the gateway's own has a wrong form.
    """
    fields = [name for name in Metadata.__struct_fields__ if name != "extra"]
    known = {name: properties[PREFIX + name] for name in fields if PREFIX + name in properties}
    if isinstance(properties.get(_MODEL), str):
        known["model"] = properties[_MODEL]
    others = {name: value for name, value in properties.items() if not _is_own(name)}
    try:
        return msgspec.convert({**known, "extra": {**extra, **({_OTHERS: others} if others else {})}}, Metadata)
    except msgspec.ValidationError as error:
        raise MalformedBlob(f"metadata of an unknown form: {error}", "properties") from None


_STATE = {"session", "agent"}
"""Lower-case values of the event metadata `stateType` of events that hold the plug-in's own state."""


# Events of the plug-in


def _plugin_messages(payload: list[dict[str, Any]], values: Mapping[str, str]) -> list[Message] | None:
    """Return the messages of an event of the plug-in; None for an event of another writer. values: its metadata.

    A payload holds a message as the JSON of Strands' `SessionMessage`, in a conversational text, or, if it is long, in
    a blob. Other events hold the plug-in's own state.

    Raises:
        MalformedBlob: the event is the plug-in's, but not in a form that is known.
    """
    if values.get("stateType", "").lower() in _STATE:
        return []
    records = [_plugin_record(item) for item in payload]
    if not records or any(record is None for record in records):
        return None
    found = (_plugin_message(record, f"payload[{number}]") for number, record in enumerate(records) if record)
    return [message for message in found if message.content]


def _plugin_record(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the plug-in's record of a payload, {} for its state, None if it is not the plug-in's."""
    if isinstance(item.get("blob"), str):
        return _plugin_record_of_blob(_parse(item["blob"]))
    match item:
        case {"conversational": {"content": {"text": str(text)}}}:
            return _session_message(text)
    return None


def _plugin_record_of_blob(value: Any) -> dict[str, Any] | None:
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
    return Message(role, tuple(_with_base64(block) for block in blocks), Metadata(created=seconds))


def _with_base64(value: Any) -> Any:
    """Return `value` with its bytes as base64 text."""
    match value:
        case {"__bytes_encoded__": True, "data": str(data)}:
            return data
        case dict():
            return {key: _with_base64(inner) for key, inner in value.items()}
        case list():
            return [_with_base64(inner) for inner in value]
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
