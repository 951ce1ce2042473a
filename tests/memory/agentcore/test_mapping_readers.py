"""Events of every known writer become messages; others are refused with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.model import Message, Metadata
from gateway.memory.stores.agentcore.content import (
    MalformedBlob,
    UnknownBlobType,
    UnknownBlobVersion,
    UnknownContentType,
    UnknownMessageType,
    UnreadableEvent,
)
from gateway.memory.stores.agentcore.mapping import from_payload, to_payload
from tests.memory.agentcore.payloads import (
    CALL,
    IMAGE,
    RESULT,
    USE,
    calls,
    content,
    metadata,
    results,
    spoken,
    wrapped,
)

# Events of other writers

OLD_DOCUMENT = {"type": "document", "document": {"id": "d"}, "metadata": {}}
OLD_OBJECT = {"type": "object", "object": {"b": 1}}
OLD_BLOB = {"type": "blob", "blob": "iVBORw0KGgo=", "mimeType": "image/png"}

FOREIGN: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[Message]]] = {
    "calls in an array": (
        [spoken("ASSISTANT", "I look."), {"blob": [CALL]}],
        {},
        [Message("assistant", ({"text": "I look."}, USE))],
    ),
    "calls in the text of an array": ([{"blob": json.dumps([CALL])}], {}, [Message("assistant", (USE,))]),
    "call without arguments": (
        [calls({"id": "1", "name": "now"})],
        {},
        [Message("assistant", ({"toolUse": {"toolUseId": "1", "name": "now", "input": {}}},))],
    ),
    "tool text without a blob": (
        [spoken("TOOL", "3 cats")],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "", "content": [{"text": "3 cats"}]}},))],
    ),
    "the blob counts, not the tool text": (
        [spoken("TOOL", "other"), results({"id": "1", "name": "search", "content": "3 cats"})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": [{"text": "3 cats"}]}},))],
    ),
    "result that is an object": (
        [results({"id": "1", "name": "search", "content": {"cats": 3}, "properties": {"status": "error"}})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "status": "error", "content": [{"json": {"cats": 3}}]}},))],
    ),
    "result with members of its own": (
        [results({"id": "1", "content": "x", "status": "error", "elementId": "e", "properties": {"toolUseId": "2"}})],
        {},
        [
            Message(
                "user",
                ({"toolResult": {"toolUseId": "1", "status": "error", "elementId": "e", "content": [{"text": "x"}]}},),
            )
        ],
    ),
    "call with members of its own": (
        [calls({"id": "1", "name": "now", "arguments": {}, "type": "t", "properties": {"name": "other", "input": 1}})],
        {},
        [Message("assistant", ({"toolUse": {"toolUseId": "1", "name": "now", "input": {}, "type": "t"}},))],
    ),
    "result without content": (
        [results({"id": "1", "content": None})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": []}},))],
    ),
    "texts only": (
        [spoken("USER", "a"), spoken("USER", "b")],
        {"userId": "u1", "seq": "0"},
        [Message("user", ({"text": "a"}, {"text": "b"}), Metadata(extra={"userId": "u1"}))],
    ),
    "several calls without an array": (
        [{"blob": {"blobType": "camunda.toolCalls", "version": 1, "toolCalls": CALL}}],
        {},
        [Message("assistant", (USE,))],
    ),
    "document, object and media of older connectors": (
        [spoken("USER", "a"), *(content(one) for one in (OLD_DOCUMENT, OLD_OBJECT, OLD_BLOB))],
        {},
        [Message("user", ({"text": "a"}, *({"camunda": one} for one in (OLD_DOCUMENT, OLD_OBJECT, OLD_BLOB))))],
    ),
    "text of Camunda with metadata": (
        [spoken("USER", "a"), content({"type": "text", "text": "b", "metadata": {"c": 1}})],
        {},
        [Message("user", ({"text": "a"}, {"camunda": {"type": "text", "text": "b", "metadata": {"c": 1}}}))],
    ),
    "result that is an array of no content": (
        [results({"id": "1", "content": [{"a": 1}, "b"]})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": [{"json": [{"a": 1}, "b"]}]}},))],
    ),
    "name and role of Camunda": (
        [spoken("TOOL", "a summary"), wrapped(IMAGE), metadata({"userId": {"id": 1}}, userName="Alice", role="user")],
        {"seq": "0", "userId": "other"},
        [
            Message(
                "user",
                ({"toolResult": {"toolUseId": "", "content": [{"text": "a summary"}]}}, IMAGE),
                Metadata(extra={"userId": {"id": 1}, "camunda": {"userName": "Alice"}}),
            )
        ],
    ),
    "the last metadata count": (
        [spoken("USER", "a"), metadata({"n": 1}, role="ASSISTANT"), metadata({"m": 2}, role="USER")],
        {},
        [Message("user", ({"text": "a"},), Metadata(extra={"m": 2}))],
    ),
    "role of a tool message": (
        [metadata({}, role="tool_call_result"), results({"id": "1", "content": "x"})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": [{"text": "x"}]}},))],
    ),
    "no payload": ([], {}, []),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_events_of_other_writers(name: str) -> None:
    payload, values, expected = FOREIGN[name]
    assert from_payload(payload, values) == expected


UNREADABLE: dict[str, tuple[list[dict[str, Any]], dict[str, str], type[UnreadableEvent], str]] = {
    "later version": (
        [{"blob": {"blobType": "camunda.toolCalls", "version": 2, "toolCalls": []}}],
        {},
        UnknownBlobVersion,
        "payload[0].blob.version",
    ),
    "unknown blob": (
        [spoken("USER", "a"), {"blob": {"blobType": "x", "version": 1}}],
        {},
        UnknownBlobType,
        "payload[1].blob.blobType",
    ),
    "malformed blob": ([spoken("USER", "a"), {"blob": "text"}], {}, MalformedBlob, "payload[1].blob"),
    "unknown content": ([content({"type": "x"})], {}, UnknownContentType, "payload[0].blob.content.type"),
    "content without text": ([content({"type": "text"})], {}, MalformedBlob, "payload[0].blob.content"),
    "text that is none": ([content({"type": "text", "text": 1})], {}, MalformedBlob, "payload[0].blob.content.text"),
    "call without a name": ([calls({"id": "1"})], {}, MalformedBlob, "payload[0].blob.toolCalls[0]"),
    "role OTHER": ([spoken("OTHER", "a")], {}, UnknownMessageType, "payload[0].conversational.role"),
    "image without a role": ([wrapped(IMAGE)], {}, UnknownMessageType, "payload"),
    "two roles": ([spoken("USER", "a"), spoken("ASSISTANT", "b")], {}, UnknownMessageType, "payload"),
    "unknown role": ([spoken("USER", "a"), metadata({}, role="SYSTEM")], {}, UnknownMessageType, "properties.role"),
    "other payload": ([{"json": {"content": {}}}], {}, UnknownMessageType, "payload[0]"),
    "part of no text": (
        [wrapped(IMAGE), spoken("USER", "a"), metadata({}, role="USER", **{"mlc.joined": "2"})],
        {},
        MalformedBlob,
        "payload[1]",
    ),
    "parts that are no number": (
        [spoken("USER", "a"), metadata({}, role="USER", **{"mlc.joined": "x"})],
        {},
        MalformedBlob,
        "properties.mlc.joined",
    ),
    "time that is none": (
        [spoken("USER", "a"), metadata({}, role="USER", **{"mlc.created": "now"})],
        {},
        MalformedBlob,
        "properties",
    ),
    "wrapped block that is none": (
        [content({"type": "object", "content": 1, "metadata": {"format": "strands"}})],
        {},
        MalformedBlob,
        "payload[0].blob.content.content",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_events_are_refused_with_their_place(name: str) -> None:
    payload, values, error, place = UNREADABLE[name]
    with pytest.raises(UnreadableEvent) as caught:
        from_payload(payload, values)
    assert (type(caught.value), caught.value.place) == (error, place)


def test_content_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(MalformedBlob):
        from_payload([spoken("USER", "a"), {"blob": "[" * 200_000}])


# The plug-in of AWS for Strands


def record(role: str, *blocks: Any, **more: Any) -> str:
    message = {"role": role, "content": list(blocks)}
    return json.dumps({"message": message, "message_id": 0, "created_at": "2026-01-02T03:04:05+00:00", **more})


AT = Metadata(created=1_767_323_045.0)
BYTES = {"image": {"format": "png", "source": {"bytes": {"__bytes_encoded__": True, "data": "iVBORw0KGgo="}}}}

PLUGIN: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[Message]]] = {
    "text": ([spoken("USER", record("user", {"text": "a"}))], {}, [Message("user", ({"text": "a"},), AT)]),
    "bytes": ([spoken("USER", record("user", BYTES))], {}, [Message("user", (IMAGE,), AT)]),
    "several messages": (
        [spoken("ASSISTANT", record("assistant", USE)), spoken("USER", record("user", RESULT))],
        {},
        [Message("assistant", (USE,), AT), Message("user", (RESULT,), AT)],
    ),
    "long message": (
        [{"blob": json.dumps([record("user", {"text": "a"}), "user"])}],
        {},
        [Message("user", ({"text": "a"},), AT)],
    ),
    "long message, newer form": (
        [{"blob": json.dumps({"_type": "message", "data": [record("user", {"text": "a"}), "user"]})}],
        {},
        [Message("user", ({"text": "a"},), AT)],
    ),
    "redacted": (
        [
            spoken(
                "USER",
                record("user", {"text": "a"}, redact_message={"role": "user", "content": [{"text": "[hidden]"}]}),
            )
        ],
        {},
        [Message("user", ({"text": "[hidden]"},), AT)],
    ),
    "state of an agent": ([{"blob": json.dumps({"_type": "agent_state", "x": 1})}], {}, []),
    "session": ([{"blob": json.dumps({"session_id": "s", "session_type": "AGENT"})}], {}, []),
    "agent, newer form": ([{"blob": json.dumps({"agent_id": "a"})}], {"stateType": "AGENT"}, []),
}


@pytest.mark.parametrize("name", PLUGIN)
def test_events_of_the_plugin(name: str) -> None:
    payload, values, expected = PLUGIN[name]
    assert from_payload(payload, values) == expected


def test_text_of_our_own_that_looks_like_the_plugins_is_a_text() -> None:
    message = Message("user", ({"text": record("assistant", {"text": "a"})},))
    assert from_payload(to_payload(message), {"seq": "0"}) == [message]
    assert from_payload(to_payload(message)) == [message]


@pytest.mark.parametrize(
    "text",
    [
        record("system", {"text": "a"}),
        record("user", {"text": "a"}, redact_message="b"),
        record("user", "a"),
        record("user", {"text": "a"}, created_at="today"),
    ],
    ids=["role", "redacted", "content", "time"],
)
def test_malformed_record_of_the_plugin_is_refused(text: str) -> None:
    with pytest.raises(MalformedBlob):
        from_payload([spoken("USER", text)])


def test_text_that_only_begins_like_a_record_is_a_text() -> None:
    text = '{"message":' + "[" * 200_000
    assert from_payload([spoken("USER", text)]) == [Message("user", ({"text": text},))]
