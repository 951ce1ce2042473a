"""What the blobs of AgentCore events hold, as Camunda's connectors store it: versioned envelopes, and what is in them.

A blob is JSON text: ``{"blobType":"camunda.toolCalls","version":1,"toolCalls":[…]}``. Facts:
docs/internals/agentcore-mapping.md.

A content object has a `type`. A block that is neither a text nor a tool's JSON is wrapped whole, and marked:
``{"type": "object", "content": {"image": {…}}, "metadata": {"format": "strands"}}``. A content object of Camunda that
no block can hold is kept as it is in a block of its own: ``{"camunda": {"type": "document", …}}``
(`gateway.memory.stores.agentcore.foreign` makes blocks of these).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from gateway.memory.model import Block
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


FOREIGN = "camunda"
"""The member of a block that holds a content object of Camunda's."""
_MARK = {"format": "strands"}
_CALL = frozenset({"id", "name", "arguments", "properties"})
_RESULT = frozenset({"id", "name", "content", "properties"})
_VALUES: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "document": ("document",),
    "object": ("content", "object"),
    "reasoning": ("payload", "text"),
    "provider": ("payload",),
    "blob": ("blob",),
}
"""Types of content objects, and the members one of which holds the value: that of today first, then older ones."""


def text_of(block: Block) -> str | None:
    """Return the text of a block that is nothing but text; None for any other."""
    text = block.get("text")
    return text if isinstance(text, str) and len(block) == 1 else None


def content_from(block: Block, of_tool: bool = False) -> dict[str, Any]:
    """Return `block` as a content object. of_tool: it is a part of a tool's result.

    A blank text is wrapped: Camunda has no content object for one.
    """
    match block:
        case {"text": str(text)} if len(block) == 1 and text.strip():
            return {"type": "text", "text": text}
        case {"json": value} if len(block) == 1 and of_tool and value is not None:
            return {"type": "object", "content": value}
        case {"camunda": dict(content)} if len(block) == 1 and content.get("type") in _VALUES:
            return content
    return {"type": "object", "content": block, "metadata": _MARK}


def block_from(content: dict[str, Any], place: str, of_tool: bool = False) -> Block:
    """Return a content object as a block.

    Raises:
        MalformedBlob, UnknownContentType: it is not one that is known.
    """
    kind = content.get("type")
    members = _VALUES.get(kind) if isinstance(kind, str) else None
    if members is None:
        raise UnknownContentType(f"unknown content type {str(kind)[:100]!r}", f"{place}.type")
    if value_of(content) is None:
        raise MalformedBlob(f"`{members[0]}` is missing", place)
    match content:
        case {"type": "text", "text": text, **rest}:
            if not isinstance(text, str):
                raise MalformedBlob("expected a text", f"{place}.text")
            if not rest:
                return {"text": text}
        case {"type": "object", "content": block, "metadata": {"format": "strands"}}:
            if not isinstance(block, dict):
                raise MalformedBlob("expected a block", f"{place}.content")
            return block
        case {"type": "object", "content": value, **rest} if of_tool and not rest:
            return {"json": value}
    return {FOREIGN: content}


def value_of(content: dict[str, Any]) -> Any:
    """Return what a content object of a known type holds; None if it holds nothing."""
    values = (content.get(member) for member in _VALUES[content["type"]])
    return next((value for value in values if value is not None), None)


def is_call(block: Block) -> bool:
    """Return True for a tool use that a tool call can hold."""
    match block:
        case {"toolUse": {"toolUseId": str(), "name": str(), "input": dict()}}:
            return len(block) == 1
    return False


def call_from(block: Block) -> dict[str, Any]:
    """Return a tool use (`is_call`) as a tool call. `properties` holds what a tool call has no place for."""
    use = block["toolUse"]
    call = {"id": use["toolUseId"], "name": use["name"], "arguments": use["input"]}
    others = {key: value for key, value in use.items() if key not in ("toolUseId", "name", "input")}
    return {**call, "properties": others} if others else call


def use_from(call: dict[str, Any], place: str) -> Block:
    """Return a tool call as a block. Older ones may have neither id nor arguments."""
    name, id_ = call.get("name"), call.get("id")
    if not isinstance(name, str) or not isinstance(id_, str | None):
        raise MalformedBlob("expected a tool call with `id` and `name`", place)
    use = {"toolUseId": id_ or "", "name": name, "input": call.get("arguments", {})}
    return {"toolUse": {**_properties(call, place, _CALL), **use}}


def is_result(block: Block) -> bool:
    """Return True for a tool result that Camunda's form can hold."""
    match block:
        case {"toolResult": {"toolUseId": str(), "content": list(parts)}}:
            return len(block) == 1 and all(isinstance(part, dict) for part in parts)
    return False


def result_from(block: Block, name: str | None) -> dict[str, Any]:
    """Return a tool result (`is_result`) in Camunda's form. name: of the tool, if known."""
    result = block["toolResult"]
    named = {"id": result["toolUseId"], **({"name": name} if name is not None else {})}
    content = [content_from(part, of_tool=True) for part in result["content"]]
    others = {key: value for key, value in result.items() if key not in ("toolUseId", "content")}
    nested = {key: value for key, value in others.items() if key in _RESULT}
    flat = {key: value for key, value in others.items() if key not in _RESULT}
    return {**named, "content": content, **flat, **({"properties": nested} if nested else {})}


def result_block(result: dict[str, Any], place: str) -> Block:
    """Return a tool result in Camunda's form as a block. Before Camunda 8.10 its `content` is any JSON."""
    id_, content = result.get("id"), result.get("content")
    if not isinstance(id_, str | None):
        raise MalformedBlob("expected a text", f"{place}.id")
    parts: list[Block]
    if content is None:
        parts = []
    elif isinstance(content, list) and all(_is_content(part) for part in content):
        parts = [block_from(part, f"{place}.content[{n}]", of_tool=True) for n, part in enumerate(content)]
    else:
        parts = [{"text": content} if isinstance(content, str) else {"json": content}]
    return {"toolResult": {**_properties(result, place, _RESULT), "toolUseId": id_ or "", "content": parts}}


def summary_of(results: list[dict[str, Any]]) -> str:
    """Return what tool results in Camunda's form say, in words: this feeds long-term memory. Without media."""
    contents = (content for result in results for content in result["content"])
    values = (value_of(content) for content in contents if content.get("metadata") != _MARK)
    shown = (value if isinstance(value, str) else to_json(value) for value in values)
    return "\n".join(text for text in shown if text.strip())


def _is_content(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _properties(value: dict[str, Any], place: str, members: frozenset[str]) -> dict[str, Any]:
    """Return the properties of a tool call or result, and members of it other than `members`."""
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise MalformedBlob("expected an object", f"{place}.properties")
    return {**{name: other for name, other in value.items() if name not in members}, **properties}
