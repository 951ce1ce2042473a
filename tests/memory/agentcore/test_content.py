"""Envelopes are written in one form, and what is none is refused with the reason and the place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.store import UnreadableSession
from gateway.memory.stores.agentcore.content import (
    BlobType,
    Envelope,
    MalformedBlob,
    UnknownBlobType,
    UnknownBlobVersion,
    UnreadableEvent,
    unwrap,
    wrap,
)

CALLS = [{"id": "1", "name": "search", "arguments": {"query": "cats"}}]
RESULTS = [{"id": "1", "name": "search", "content": "3 cats", "properties": {}}]
CONTENT = {"type": "document", "document": {"id": "d"}, "metadata": {}}

WRITTEN: dict[str, tuple[BlobType, Any, dict[str, Any]]] = {
    "tool calls": (BlobType.TOOL_CALLS, CALLS, {"blobType": "camunda.toolCalls", "version": 1, "toolCalls": CALLS}),
    "tool results": (
        BlobType.TOOL_RESULTS,
        RESULTS,
        {"blobType": "camunda.toolCallResults", "version": 1, "results": RESULTS},
    ),
    "content": (BlobType.CONTENT, CONTENT, {"blobType": "camunda.messageContent", "version": 1, "content": CONTENT}),
    "metadata": (
        BlobType.METADATA,
        {"userId": "u1"},
        {"blobType": "camunda.messageMetadata", "version": 1, "metadata": {"userId": "u1"}},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_envelope_is_written_and_read(name: str) -> None:
    kind, data, expected = WRITTEN[name]
    assert wrap(kind, data) == {"blob": json.dumps(expected, separators=(",", ":"))}
    assert unwrap(expected, "blob") == unwrap(json.dumps(expected), "blob") == Envelope(kind, data)


def test_properties_of_metadata_are_kept() -> None:
    item = wrap(BlobType.METADATA, {}, {"userName": "Alice", "role": "USER"})
    assert json.loads(item["blob"])["properties"] == {"userName": "Alice", "role": "USER"}
    assert unwrap(item["blob"], "blob").properties == {"userName": "Alice", "role": "USER"}


@pytest.mark.parametrize("blob", [CALLS, json.dumps(CALLS), []], ids=["array", "text of an array", "empty"])
def test_raw_array_is_tool_calls(blob: Any) -> None:
    expected = json.loads(blob) if isinstance(blob, str) else blob
    assert unwrap(blob, "blob") == Envelope(BlobType.TOOL_CALLS, expected)


@pytest.mark.parametrize("version", [0, 1, "0", "1"], ids=repr)
@pytest.mark.parametrize(("data", "expected"), [(CALLS[0], CALLS), (None, []), (CALLS, CALLS)], ids=str)
def test_what_camunda_reads_as_an_envelope_is_one(version: Any, data: Any, expected: Any) -> None:
    blob = json.dumps({"blobType": "camunda.toolCalls", "version": version, "toolCalls": data})
    assert unwrap(blob, "blob") == Envelope(BlobType.TOOL_CALLS, expected)


REFUSED: dict[str, tuple[Any, type[UnreadableEvent], str]] = {
    "unknown type": ({"blobType": "camunda.audio", "version": 1, "audio": {}}, UnknownBlobType, "blob.blobType"),
    "another program's type": ({"blobType": "other", "version": 1}, UnknownBlobType, "blob.blobType"),
    "later version": (
        {"blobType": "camunda.toolCalls", "version": 2, "toolCalls": []},
        UnknownBlobVersion,
        "blob.version",
    ),
    "version that is no number": (
        {"blobType": "camunda.toolCalls", "version": "x", "toolCalls": []},
        UnknownBlobVersion,
        "blob.version",
    ),
    "version true": (
        {"blobType": "camunda.toolCalls", "version": True, "toolCalls": []},
        UnknownBlobVersion,
        "blob.version",
    ),
    "no version": ({"blobType": "camunda.toolCalls", "toolCalls": []}, UnknownBlobVersion, "blob.version"),
    "no type": ({"version": 1, "toolCalls": []}, MalformedBlob, "blob"),
    "type is no text": ({"blobType": 1, "version": 1}, MalformedBlob, "blob"),
    "no data": ({"blobType": "camunda.toolCalls", "version": 1}, MalformedBlob, "blob"),
    "data under another key": ({"blobType": "camunda.toolCallResults", "version": 1, "x": []}, MalformedBlob, "blob"),
    "calls are no array": (
        {"blobType": "camunda.toolCalls", "version": 1, "toolCalls": "search"},
        MalformedBlob,
        "blob.toolCalls",
    ),
    "a result is no object": (
        {"blobType": "camunda.toolCallResults", "version": 1, "results": ["3 cats"]},
        MalformedBlob,
        "blob.results",
    ),
    "content is no object": (
        {"blobType": "camunda.messageContent", "version": 1, "content": "text"},
        MalformedBlob,
        "blob.content",
    ),
    "metadata are null": (
        {"blobType": "camunda.messageMetadata", "version": 1, "metadata": None},
        MalformedBlob,
        "blob.metadata",
    ),
    "properties are no object": (
        {"blobType": "camunda.messageMetadata", "version": 1, "metadata": {}, "properties": ["name"]},
        MalformedBlob,
        "blob.properties",
    ),
    "array of texts": (["search"], MalformedBlob, "blob"),
    "number": (1, MalformedBlob, "blob"),
    "null": (None, MalformedBlob, "blob"),
    "text that is no JSON": ("{", MalformedBlob, "blob"),
    "text of a number": ("1", MalformedBlob, "blob"),
    "text that is nested too deeply": ("[" * 200_000, MalformedBlob, "blob"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_envelope_is_refused(name: str) -> None:
    blob, error, place = REFUSED[name]
    with pytest.raises(UnreadableSession) as caught:
        unwrap(blob, "blob")
    assert type(caught.value) is error
    assert caught.value.place == place
