"""Messages become the events that the mapping describes, and events of every known writer become messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.agentcore_envelope import (
    MalformedBlob,
    UnknownBlobType,
    UnknownBlobVersion,
    UnknownContentType,
    UnknownMessageType,
    UnreadableEvent,
)
from gateway.memory.agentcore_mapping import LONGEST_TEXT, Event, Generation, from_event, to_event
from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.memory.store import TooLargeForStore, Unstorable
from tests.memory.agentcore.service_model import input_problems

IMAGE: Block = {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}
DOCUMENT: Block = {"document": {"format": "pdf", "name": "Report", "source": {"bytes": "JVBERg=="}}}
USE: Block = {"toolUse": {"toolUseId": "1", "name": "search", "input": {"query": "cats", "most": None}}}
RESULT: Block = {"toolResult": {"toolUseId": "1", "status": "success", "content": [{"text": "3 cats"}]}}
JSON_RESULT: Block = {"toolResult": {"toolUseId": "2", "content": [{"json": {"cats": 3}}, IMAGE]}}
MARK = {"format": "strands"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"conversational": {"role": role, "content": {"text": text}}}


def content(value: dict[str, Any]) -> dict[str, Any]:
    return {"blob": {"blobType": "camunda.messageContent", "version": 1, "content": value}}


def wrapped(block: Block) -> dict[str, Any]:
    return content({"type": "object", "object": block, "metadata": MARK})


def calls(*data: dict[str, Any]) -> dict[str, Any]:
    return {"blob": {"blobType": "camunda.toolCalls", "version": 1, "toolCalls": list(data)}}


def results(*data: dict[str, Any]) -> dict[str, Any]:
    return {"blob": {"blobType": "camunda.toolCallResults", "version": 1, "results": list(data)}}


def metadata(data: dict[str, Any], **properties: Any) -> dict[str, Any]:
    envelope = {"blobType": "camunda.messageMetadata", "version": 1, "metadata": data}
    return {"blob": {**envelope, "properties": properties} if properties else envelope}


CALL = {"id": "1", "name": "search", "arguments": {"query": "cats", "most": None}}
STORED_RESULT = {"id": "1", "content": "3 cats", "properties": {"status": "success"}}
STORED_JSON_RESULT = {
    "id": "2",
    "content": [{"json": {"cats": 3}}, IMAGE],
    "properties": {"contentFormat": "strands"},
}

ROUND_TRIPS: dict[str, tuple[Message, list[dict[str, Any]], str]] = {
    "text of the user": (Message("user", ({"text": "Hello"},)), [said("USER", "Hello")], ""),
    "text of the assistant": (Message("assistant", ({"text": "Hi"},)), [said("ASSISTANT", "Hi")], ""),
    "several texts": (
        Message("user", ({"text": "a"}, {"text": "b"})),
        [said("USER", "a"), said("USER", "b")],
        "",
    ),
    "text between media": (
        Message("user", ({"text": "a"}, IMAGE, {"text": "b"}, DOCUMENT)),
        [
            said("USER", "a"),
            wrapped(IMAGE),
            said("USER", "b"),
            content({"type": "document", "document": DOCUMENT["document"], "metadata": MARK}),
        ],
        "",
    ),
    "image alone, of the user": (Message("user", (IMAGE,)), [wrapped(IMAGE)], "user"),
    "image alone, of the assistant": (Message("assistant", (IMAGE,)), [wrapped(IMAGE)], "assistant"),
    "empty text": (Message("user", ({"text": ""},)), [content({"type": "text", "text": ""})], "user"),
    "text with other members": (
        Message("assistant", ({"text": "a", "citations": []},)),
        [wrapped({"text": "a", "citations": []})],
        "assistant",
    ),
    "nothing": (Message("assistant", ()), [], "assistant"),
    "text and tool call": (
        Message("assistant", ({"text": "I look."}, USE)),
        [said("ASSISTANT", "I look."), calls(CALL)],
        "",
    ),
    "tool call alone": (Message("assistant", (USE,)), [calls(CALL)], ""),
    "tool call of the user": (Message("user", (USE,)), [calls(CALL)], "user"),
    "tool call with more": (
        Message("assistant", ({"toolUse": {**USE["toolUse"], "reasoningSignature": "x"}},)),
        [calls({**CALL, "properties": {"reasoningSignature": "x"}})],
        "",
    ),
    "unfinished tool call": (
        Message("assistant", ({"toolUse": {"name": "search"}},)),
        [wrapped({"toolUse": {"name": "search"}})],
        "assistant",
    ),
    "tool result": (Message("user", (RESULT,)), [said("TOOL", "3 cats"), results(STORED_RESULT)], ""),
    "tool results": (
        Message("user", (RESULT, JSON_RESULT)),
        [said("TOOL", '3 cats\n{"cats":3}'), results(STORED_RESULT, STORED_JSON_RESULT)],
        "",
    ),
    "tool result without text": (
        Message("user", ({"toolResult": {"toolUseId": "1", "status": "error", "content": []}},)),
        [results({"id": "1", "content": [], "properties": {"status": "error", "contentFormat": "strands"}})],
        "",
    ),
    "tool result and a question": (
        Message("user", (RESULT, {"text": "And dogs?"})),
        [said("TOOL", "3 cats"), results(STORED_RESULT), said("USER", "And dogs?")],
        "",
    ),
    "reasoning": (
        Message("assistant", ({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}, USE)),
        [wrapped({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}), calls(CALL)],
        "",
    ),
}
"""A message, its payloads without metadata, and the role that must be stored beside them."""


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_message_in_the_older_generation(name: str) -> None:
    message, payload, role = ROUND_TRIPS[name]
    event = to_event(message, "metadata")
    assert event == Event(payload, {"mlc.role": role} if role else {})
    assert_accepted(event)
    assert from_event(event.payload, event.metadata) == [message]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_message_in_the_newer_generation(name: str) -> None:
    message, payload, role = ROUND_TRIPS[name]
    event = to_event(message, "envelope")
    assert event == Event([*payload, metadata({}, **({"role": role} if role else {}))], {})
    assert_accepted(event)
    assert from_event(event.payload, event.metadata) == [message]


def assert_accepted(event: Event) -> None:
    parameters = {
        "memoryId": "memory-abcdefghij",
        "actorId": "actor",
        "sessionId": "session",
        "eventTimestamp": 1,
        "payload": event.payload,
        "metadata": {name: {"stringValue": value} for name, value in event.metadata.items()},
    }
    assert input_problems("CreateEvent", parameters) == []


def test_tool_results_name_their_tools_where_these_are_known() -> None:
    event = to_event(Message("user", (RESULT, JSON_RESULT)), tools={"1": "search"})
    assert event.payload[1] == results({**STORED_RESULT, "name": "search"}, STORED_JSON_RESULT)
    assert from_event(event.payload) == [Message("user", (RESULT, JSON_RESULT))]


# The loss TOOLS_ORDER


def test_results_come_first_and_calls_last() -> None:
    message = Message("user", (USE, {"text": "a"}, RESULT))
    event = to_event(message)
    assert from_event(event.payload, event.metadata) == [Message("user", (RESULT, {"text": "a"}, USE))]


# Metadata

FULL = Metadata(
    created=1_750_000_000.25,
    input_type="text",
    agent_id="a_1",
    provider="bedrock/converse",
    model="anthropic.claude-v1:0",
    usage=Usage(10, 20, 30),
    failed=True,
    extra={"userId": "u1", "tokens": 150, "nothing": None},
)
STRINGS = {
    "mlc.created": "1750000000.25",
    "mlc.input_type": "text",
    "mlc.agent_id": "a_1",
    "mlc.provider": "bedrock/converse",
    "mlc.model": "anthropic.claude-v1:0",
    "mlc.usage": "input=10 output=20 total=30",
    "mlc.failed": "true",
    "userId": "u1",
    "tokens": "150",
}


def with_extra(known: Metadata, **extra: Any) -> Metadata:
    return Metadata(**{name: getattr(known, name) for name in Metadata.__struct_fields__} | {"extra": extra})


def test_older_metadata_are_strings_without_nulls() -> None:
    event = to_event(Message("user", ({"text": "a"},), FULL))
    assert event == Event([said("USER", "a")], STRINGS)
    assert_accepted(event)
    [message] = from_event(event.payload, event.metadata)
    assert message.metadata == with_extra(FULL, userId="u1", tokens="150")


def test_newer_metadata_keep_their_types() -> None:
    event = to_event(Message("user", ({"text": "a"},), FULL), "envelope")
    assert event.metadata == {}
    assert event.payload[-1] == metadata(
        {
            **STRINGS,
            "mlc.created": 1_750_000_000.25,
            "mlc.usage": {"input": 10, "output": 20, "total": 30},
            "mlc.failed": True,
            "tokens": 150,
            "nothing": None,
        }
    )
    [message] = from_event(event.payload, event.metadata)
    assert message.metadata == FULL


def test_name_of_the_user_is_a_property_in_the_newer_generation() -> None:
    message = Message("user", (IMAGE,), with_extra(Metadata(), name="Alice", userId="u1"))
    event = to_event(message, "envelope")
    assert event.payload[-1] == metadata({"userId": "u1"}, name="Alice", role="user")
    assert from_event(event.payload, event.metadata) == [message]
    tool = Message("assistant", (USE,), with_extra(Metadata(), name="search"))
    assert to_event(tool, "envelope").payload[-1] == metadata({"name": "search"})


@pytest.mark.parametrize(
    "extra",
    [{"config": {"temp": 0.7}}, {"name": "Ä"}, {"long": "x" * 257}, {"k" * 129: "x"}, {"ключ": "x"}],
    ids=["JSON", "character", "long value", "long key", "character in the key"],
)
def test_older_metadata_that_the_service_refuses_are_strings_in_an_envelope(extra: dict[str, Any]) -> None:
    [(name, value)] = extra.items()
    kept = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    event = to_event(Message("user", ({"text": "a"},), with_extra(Metadata(), fits="yes", **extra)))
    assert event == Event([said("USER", "a"), metadata({name: kept})], {"fits": "yes"})
    assert_accepted(event)
    [message] = from_event(event.payload, event.metadata)
    assert message.metadata.extra == {"fits": "yes", name: kept}


def test_older_metadata_beyond_the_greatest_number_are_in_an_envelope() -> None:
    message = Message("user", (IMAGE,), with_extra(FULL, **{f"key{n}": str(n) for n in range(20)}))
    event = to_event(message, room=12)
    assert len(event.metadata) == 12
    assert event.metadata["mlc.role"] == "user"
    assert from_event(event.payload, {**event.metadata, "seq": "3", "mlc.turn": "1/x"}) == [message]


@pytest.mark.parametrize("generation", ["metadata", "envelope"])
@pytest.mark.parametrize("name", ["", "seq", "mlc.created", "mlc."])
def test_reserved_names_of_metadata_are_refused(name: str, generation: Generation) -> None:
    with pytest.raises(Unstorable, match="reserved") as caught:
        to_event(Message("user", (), with_extra(Metadata(), **{name: "x"})), generation, "messages[2]")
    assert caught.value.place == "messages[2].metadata.extra"


# Limits


@pytest.mark.parametrize("generation", ["metadata", "envelope"])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a" * LONGEST_TEXT, 1),
        ("a" * (LONGEST_TEXT + 1), 2),
        ("ü" * (3 * LONGEST_TEXT), 3),
        ("🙂" * (LONGEST_TEXT // 2), 1),
        ("a" + "🙂" * (LONGEST_TEXT // 2), 2),
    ],
    ids=["longest", "one more", "three times", "longest of two units", "one more of two units"],
)
def test_long_texts_are_stored_in_parts(text: str, parts: int, generation: Generation) -> None:
    message = Message("user", ({"text": "before"}, {"text": text}, {"text": text}, IMAGE, {"text": "after"}))
    event = to_event(message, generation)
    assert sum("conversational" in item for item in event.payload) == 2 + 2 * parts
    assert_accepted(event)
    assert from_event(event.payload, event.metadata) == [message]


def test_long_text_of_tools_is_stored_in_parts() -> None:
    block = {"toolResult": {"toolUseId": "1", "content": [{"text": "x" * (LONGEST_TEXT + 1)}]}}
    event = to_event(Message("user", (block,)))
    assert [item["conversational"]["role"] for item in event.payload[:2]] == ["TOOL", "TOOL"]
    assert_accepted(event)
    assert from_event(event.payload, event.metadata) == [Message("user", (block,))]


def test_message_of_more_parts_than_an_event_has_is_refused() -> None:
    assert_accepted(to_event(Message("user", ({"text": "a"},) * 100)))
    with pytest.raises(TooLargeForStore, match=r"messages\[0\] has 101 parts"):
        to_event(Message("user", ({"text": "a"},) * 100), "envelope", "messages[0]")


@pytest.mark.parametrize(
    "block", [{"text": "\ud800"}, {"json": float("nan")}, {"image": {"source": {"bytes": b"raw"}}}], ids=str
)
def test_what_json_does_not_hold_is_refused(block: Block) -> None:
    with pytest.raises(Unstorable) as caught:
        to_event(Message("user", ({"text": "a"}, block)), "metadata", "messages[1]")
    assert caught.value.place == "messages[1].content[1]"


# Events of other writers

FOREIGN: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[Message]]] = {
    "calls in an array": (
        [said("ASSISTANT", "I look."), {"blob": [CALL]}],
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
        [said("TOOL", "3 cats")],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "", "content": [{"text": "3 cats"}]}},))],
    ),
    "the blob counts, not the tool text": (
        [said("TOOL", "other"), results({"id": "1", "name": "search", "content": "3 cats"})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": [{"text": "3 cats"}]}},))],
    ),
    "result that is an object": (
        [results({"id": "1", "name": "search", "content": {"cats": 3}, "properties": {"status": "error"}})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "status": "error", "content": [{"json": {"cats": 3}}]}},))],
    ),
    "result without content": (
        [results({"id": "1", "content": None})],
        {},
        [Message("user", ({"toolResult": {"toolUseId": "1", "content": []}},))],
    ),
    "texts only": (
        [said("USER", "a"), said("USER", "b")],
        {"userId": "u1", "seq": "0"},
        [Message("user", ({"text": "a"}, {"text": "b"}), Metadata(extra={"userId": "u1"}))],
    ),
    "document of Camunda": (
        [said("USER", "a"), content({"type": "document", "document": {"id": "d"}, "metadata": {}})],
        {},
        [Message("user", ({"text": "a"}, {"text": '{"id":"d"}'}))],
    ),
    "object of Camunda": (
        [said("USER", "a"), content({"type": "object", "content": {"b": 1}})],
        {},
        [Message("user", ({"text": "a"}, {"text": '{"b":1}'}))],
    ),
    "image of Camunda": (
        [said("USER", "a"), content({"type": "blob", "blob": "iVBORw0KGgo=", "mimeType": "image/png"})],
        {},
        [Message("user", ({"text": "a"}, IMAGE))],
    ),
    "reasoning of Camunda": (
        [said("ASSISTANT", "a"), content({"type": "reasoning", "text": "Hm.", "signature": "s", "redacted": False})],
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
        [said("USER", "a"), {"blob": {"blobType": "x", "version": 1}}],
        {},
        UnknownBlobType,
        "payload[1].blob.blobType",
    ),
    "malformed blob": ([said("USER", "a"), {"blob": "text"}], {}, MalformedBlob, "payload[1].blob"),
    "unknown content": ([content({"type": "x"})], {}, UnknownContentType, "payload[0].blob.content.type"),
    "unknown media type": (
        [content({"type": "blob", "blob": "AA==", "mimeType": "font/woff"})],
        {},
        UnknownContentType,
        "payload[0].blob.content.mimeType",
    ),
    "content without text": ([content({"type": "text"})], {}, MalformedBlob, "payload[0].blob.content.text"),
    "call without a name": ([calls({"id": "1"})], {}, MalformedBlob, "payload[0].blob.toolCalls[0]"),
    "role OTHER": ([said("OTHER", "a")], {}, UnknownMessageType, "payload[0].conversational.role"),
    "image without a role": ([wrapped(IMAGE)], {}, UnknownMessageType, "payload"),
    "two roles": ([said("USER", "a"), said("ASSISTANT", "b")], {}, UnknownMessageType, "payload"),
    "unknown role": ([wrapped(IMAGE)], {"mlc.role": "system"}, UnknownMessageType, "metadata"),
    "other payload": ([{"json": {"content": {}}}], {}, UnknownMessageType, "payload[0]"),
    "part of no text": (
        [wrapped(IMAGE), said("USER", "a")],
        {"mlc.joined": "2"},
        MalformedBlob,
        "payload[1]",
    ),
    "parts that are no number": ([said("USER", "a")], {"mlc.joined": "x"}, MalformedBlob, "metadata.mlc.joined"),
    "time that is none": ([said("USER", "a")], {"mlc.created": "now"}, MalformedBlob, "metadata"),
    "usage that is none": ([said("USER", "a")], {"mlc.usage": "much"}, MalformedBlob, "metadata"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_events_are_refused_with_their_place(name: str) -> None:
    payload, values, error, place = UNREADABLE[name]
    with pytest.raises(UnreadableEvent) as caught:
        from_event(payload, values)
    assert (type(caught.value), caught.value.place) == (error, place)


# The plug-in of AWS for Strands


def record(role: str, *blocks: Any, **more: Any) -> str:
    message = {"role": role, "content": list(blocks)}
    return json.dumps({"message": message, "message_id": 0, "created_at": "2026-01-02T03:04:05+00:00", **more})


AT = Metadata(created=1_767_323_045.0)
BYTES = {"image": {"format": "png", "source": {"bytes": {"__bytes_encoded__": True, "data": "iVBORw0KGgo="}}}}

PLUGIN: dict[str, tuple[list[dict[str, Any]], dict[str, str], list[Message]]] = {
    "text": ([said("USER", record("user", {"text": "a"}))], {}, [Message("user", ({"text": "a"},), AT)]),
    "bytes": ([said("USER", record("user", BYTES))], {}, [Message("user", (IMAGE,), AT)]),
    "several messages": (
        [said("ASSISTANT", record("assistant", USE)), said("USER", record("user", RESULT))],
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
            said(
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
    for generation, values in (("metadata", {"seq": "0"}), ("envelope", {})):
        event = to_event(Message("user", ({"text": text},)), generation)  # type: ignore[arg-type]
        assert from_event(event.payload, {**event.metadata, **values}) == [Message("user", ({"text": text},))]


def test_malformed_record_of_the_plugin_is_refused() -> None:
    with pytest.raises(MalformedBlob):
        from_event([said("USER", record("system", {"text": "a"}))])
