"""Versioned envelopes: structured data in the blobs of AgentCore events.

``{"blobType": "camunda.toolCalls", "version": 1, "toolCalls": […]}``. The forms are those of Camunda's connectors
(docs/internals/agentcore-mapping.md).
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from gateway.memory.model import Metadata, Usage
from gateway.memory.store import UnreadableSession, Unstorable

PREFIX = "mlc."
SEQ = "seq"
MOST_ENTRIES = 15
_LONGEST_KEY = 128
_LONGEST_VALUE = 256
_ALLOWED = re.compile(r"[a-zA-Z0-9\s._:/=+@-]*", re.ASCII)
_COUNTS = ("input", "output", "total")


def to_json(metadata: Metadata, place: str) -> dict[str, Any]:
    """Return `metadata` as one object: the values that are known, and `extra`.

    Raises:
        Unstorable: `extra` has a name that is reserved.
    """
    values = {PREFIX + name: value for name, value in msgspec.to_builtins(metadata).items() if name != "extra"}
    if metadata.usage is not None:
        values[PREFIX + "usage"] = msgspec.to_builtins(metadata.usage)
    for name in metadata.extra:
        if not name or name == SEQ or name.startswith(PREFIX):
            raise Unstorable(
                f"the AgentCore store can't keep metadata named {name[:100]!r}: the name is empty or reserved",
                f"{place}.metadata.extra",
            )
    return {**values, **metadata.extra}


def to_strings(metadata: Metadata, place: str) -> dict[str, str]:
    """Return `metadata` as strings: texts as they are, other values as JSON; null is left out.

    The usage is ``input=10 output=20``, as the characters of JSON's objects are not allowed.
    """
    values = to_json(metadata, place)
    if metadata.usage is not None:
        counts = ((name, getattr(metadata.usage, name)) for name in _COUNTS)
        values[PREFIX + "usage"] = " ".join(f"{name}={count}" for name, count in counts if count is not None)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in values.items()
        if value is not None
    }


def split(strings: dict[str, str], room: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the first `room` entries that the service takes as metadata, and all others."""
    fitting: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in strings.items():
        fits = len(fitting) < room and is_allowed(name, value)
        (fitting if fits else others)[name] = value
    return fitting, others


def is_allowed(name: str, value: str) -> bool:
    """Return True if the service takes this entry as metadata."""
    return (
        0 < len(name) <= _LONGEST_KEY
        and len(value) <= _LONGEST_VALUE
        and bool(_ALLOWED.fullmatch(name) and _ALLOWED.fullmatch(value))
    )


def from_values(values: dict[str, Any], place: str) -> Metadata:
    """Return the metadata of an event's or an envelope's values. Entries that are not of a message are left out.

    Raises:
        MalformedBlob: a value of the gateway's own has a wrong form.
    """
    known = {name: values[PREFIX + name] for name in Metadata.__struct_fields__ if PREFIX + name in values}
    extra = {name: value for name, value in values.items() if name != SEQ and not name.startswith(PREFIX)}
    try:
        if isinstance(known.get("usage"), str):
            known["usage"] = Usage(**{name: int(count) for name, count in _pairs(known["usage"])})
        if isinstance(known.get("failed"), str):
            known["failed"] = {"true": True, "false": False}[known["failed"]]
        return msgspec.convert({**known, "extra": extra}, Metadata, strict=False)
    except (msgspec.ValidationError, ValueError, TypeError, KeyError) as error:
        raise MalformedBlob(f"metadata of an unknown form: {error}", place) from None


def _pairs(text: str) -> list[list[str]]:
    return [part.split("=") for part in text.split()]


VERSION = 1


class BlobType(StrEnum):
    """What an envelope holds."""

    CONTENT = "camunda.messageContent"
    TOOL_CALLS = "camunda.toolCalls"
    TOOL_RESULTS = "camunda.toolCallResults"
    METADATA = "camunda.messageMetadata"


_KEYS = {
    BlobType.CONTENT: "content",
    BlobType.TOOL_CALLS: "toolCalls",
    BlobType.TOOL_RESULTS: "results",
    BlobType.METADATA: "metadata",
}
_LISTS = {BlobType.TOOL_CALLS, BlobType.TOOL_RESULTS}


class UnreadableEvent(UnreadableSession):
    """An event is not what any of the known writers stores. place: where in the event (``payload[1].blob``)."""

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place


class MalformedBlob(UnreadableEvent):
    """A blob is not an envelope, or what it holds has a wrong form."""


class UnknownBlobType(UnreadableEvent):
    """An envelope's `blobType` is none of `BlobType`."""


class UnknownBlobVersion(UnreadableEvent):
    """An envelope's `version` is not `VERSION`."""


class UnknownContentType(UnreadableEvent):
    """A content object's `type` is not known."""


class UnknownMessageType(UnreadableEvent):
    """Nothing in the event says who sent the message, or its parts contradict each other."""


class Envelope(Struct, frozen=True):
    """What a blob holds. properties: of `METADATA` only."""

    type: BlobType
    data: Any
    properties: dict[str, Any] = {}


def wrap(kind: BlobType, data: Any, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the envelope of `data` as a JSON object."""
    envelope = {"blobType": str(kind), "version": VERSION, _KEYS[kind]: data}
    return envelope if properties is None else {**envelope, "properties": properties}


def unwrap(blob: Any, place: str) -> Envelope:
    """Return what `blob` holds: JSON data, or its text. An array is tool calls, as older connectors store them.

    Raises:
        MalformedBlob, UnknownBlobType, UnknownBlobVersion: it is not an envelope that is known.
    """
    value = _parse(blob, place) if isinstance(blob, str) else blob
    if isinstance(value, list):
        return Envelope(BlobType.TOOL_CALLS, _checked(BlobType.TOOL_CALLS, value, place))
    if not isinstance(value, dict) or not isinstance(value.get("blobType"), str):
        raise MalformedBlob("expected an object with `blobType`, or an array of tool calls", place)
    try:
        kind = BlobType(value["blobType"])
    except ValueError:
        raise UnknownBlobType(f"unknown blobType {value['blobType'][:100]!r}", f"{place}.blobType") from None
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise UnknownBlobVersion(f"version {str(version)[:100]} of {kind}; only {VERSION} is known", f"{place}.version")
    if _KEYS[kind] not in value:
        raise MalformedBlob(f"`{_KEYS[kind]}` is missing", place)
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise MalformedBlob("expected an object", f"{place}.properties")
    return Envelope(kind, _checked(kind, value[_KEYS[kind]], f"{place}.{_KEYS[kind]}"), properties)


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedBlob("the text of the blob is not JSON", place) from None


def _checked(kind: BlobType, data: Any, place: str) -> Any:
    if kind not in _LISTS:
        if not isinstance(data, dict):
            raise MalformedBlob("expected an object", place)
        return data
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise MalformedBlob("expected an array of objects", place)
    return data
