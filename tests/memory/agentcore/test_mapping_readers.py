"""Events of every known writer become messages; others are refused with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.model import Message, Metadata
from gateway.memory.stores.agentcore.envelope import (
    MalformedBlob,
    UnknownBlobType,
    UnknownBlobVersion,
    UnknownContentType,
    UnknownMessageType,
    UnreadableEvent,
)
from gateway.memory.stores.agentcore.mapping import from_event, to_event
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
from tests.memory.conversations import nested

# Events of other writers

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
    "document of Camunda": (
        [spoken("USER", "a"), content({"type": "document", "document": {"id": "d"}, "metadata": {}})],
        {},
        [Message("user", ({"text": "a"}, {"text": '{"id":"d"}'}))],
    ),
    "object of Camunda": (
        [spoken("USER", "a"), content({"type": "object", "content": {"b": 1}})],
        {},
        [Message("user", ({"text": "a"}, {"text": '{"b":1}'}))],
    ),
    "image of Camunda": (
        [spoken("USER", "a"), content({"type": "blob", "blob": "iVBORw0KGgo=", "mimeType": "image/png"})],
        {},
        [Message("user", ({"text": "a"}, IMAGE))],
    ),
    "reasoning of Camunda": (
        [
            spoken("ASSISTANT", "a"),
            content({"type": "reasoning", "text": "Hm.", "signature": "s", "redacted": False}),
        ],
        {},
        [
            Message(
                "assistant",
                ({"text": "a"}, {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}),
            )
        ],
    ),
    "name and role of Camunda": (
        [wrapped(IMAGE), metadata({"userId": {"id": 1}}, name="Alice", role="user")],
        {"seq": "0"},
        [Message("user", (IMAGE,), Metadata(extra={"userId": {"id": 1}, "name": "Alice"}))],
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
    assert from_event(payload, values) == expected


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
    "unknown media type": (
        [content({"type": "blob", "blob": "AA==", "mimeType": "font/woff"})],
        {},
        UnknownContentType,
        "payload[0].blob.content.mimeType",
    ),
    "content without text": ([content({"type": "text"})], {}, MalformedBlob, "payload[0].blob.content.text"),
    "call without a name": ([calls({"id": "1"})], {}, MalformedBlob, "payload[0].blob.toolCalls[0]"),
    "role OTHER": ([spoken("OTHER", "a")], {}, UnknownMessageType, "payload[0].conversational.role"),
    "image without a role": ([wrapped(IMAGE)], {}, UnknownMessageType, "payload"),
    "two roles": ([spoken("USER", "a"), spoken("ASSISTANT", "b")], {}, UnknownMessageType, "payload"),
    "unknown role": ([wrapped(IMAGE)], {"mlc.role": "system"}, UnknownMessageType, "metadata"),
    "other payload": ([{"json": {"content": {}}}], {}, UnknownMessageType, "payload[0]"),
    "part of no text": (
        [wrapped(IMAGE), spoken("USER", "a")],
        {"mlc.joined": "2"},
        MalformedBlob,
        "payload[1]",
    ),
    "parts that are no number": (
        [spoken("USER", "a")],
        {"mlc.joined": "x"},
        MalformedBlob,
        "metadata.mlc.joined",
    ),
    "time that is none": ([spoken("USER", "a")], {"mlc.created": "now"}, MalformedBlob, "metadata"),
    "usage that is none": ([spoken("USER", "a")], {"mlc.usage": "much"}, MalformedBlob, "metadata"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_events_are_refused_with_their_place(name: str) -> None:
    payload, values, error, place = UNREADABLE[name]
    with pytest.raises(UnreadableEvent) as caught:
        from_event(payload, values)
    assert (type(caught.value), caught.value.place) == (error, place)


def test_content_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(MalformedBlob, match="nested too deeply"):
        from_event([spoken("USER", "a"), content({"type": "object", "object": nested()})])


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
    assert from_event(payload, values) == expected


def test_text_of_our_own_that_looks_like_the_plugins_is_a_text() -> None:
    text = record("assistant", {"text": "a"})
    for form, values in (("metadata", {"seq": "0"}), ("envelope", {})):
        event = to_event(Message("user", ({"text": text},)), form)  # type: ignore[arg-type]
        assert from_event(event.payload, {**event.metadata, **values}) == [Message("user", ({"text": text},))]


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
        from_event([spoken("USER", text)])


def test_text_that_only_begins_like_a_record_is_a_text() -> None:
    text = '{"message":' + "[" * 200_000
    assert from_event([spoken("USER", text)]) == [Message("user", ({"text": text},))]
