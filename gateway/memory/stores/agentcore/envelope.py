"""Versioned envelopes: structured data in the blobs of AgentCore events, as Camunda's connectors store them.

A blob is JSON text: ``{"blobType":"camunda.toolCalls","version":1,"toolCalls":[…]}``. Facts:
docs/internals/agentcore-mapping.md.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import Struct

from gateway.memory.store import UnreadableSession

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
    """An envelope's `version` is later than `VERSION`, or none."""


class UnknownContentType(UnreadableEvent):
    """A content object's `type` is not known."""


class UnknownMessageType(UnreadableEvent):
    """Nothing in the event says who sent the message, or its parts contradict each other."""


class Envelope(Struct, frozen=True):
    """What a blob holds. properties: of `METADATA` only."""

    type: BlobType
    data: Any
    properties: dict[str, Any] = {}


def wrap(kind: BlobType, data: Any, properties: dict[str, Any] | None = None) -> dict[str, str]:
    """Return a payload item whose blob is the envelope of `data`."""
    envelope = {"blobType": str(kind), "version": VERSION, _KEYS[kind]: data}
    return {"blob": to_json(envelope if properties is None else {**envelope, "properties": properties})}


def unwrap(blob: Any, place: str) -> Envelope:
    """Return what `blob` holds: JSON text, or the data. An array is tool calls, as the first connectors store them.

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
    if isinstance(version, bool) or version not in (0, 1, "0", "1"):
        raise UnknownBlobVersion(f"version {str(version)[:100]} of {kind}; only {VERSION} is known", f"{place}.version")
    if _KEYS[kind] not in value:
        raise MalformedBlob(f"`{_KEYS[kind]}` is missing", place)
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise MalformedBlob("expected an object", f"{place}.properties")
    return Envelope(kind, _checked(kind, value[_KEYS[kind]], f"{place}.{_KEYS[kind]}"), properties)


def to_json(value: Any) -> str:
    """Return `value` as JSON text in the form of Camunda's: compact, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedBlob("the text of the blob is not JSON", place) from None


def _checked(kind: BlobType, data: Any, place: str) -> Any:
    """Return the data of an envelope. One object, or null, may stand for a list, as Camunda's connectors read it."""
    if kind not in _LISTS:
        if not isinstance(data, dict):
            raise MalformedBlob("expected an object", place)
        return data
    items = [data] if isinstance(data, dict) else data or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MalformedBlob("expected an array of objects", place)
    return items
