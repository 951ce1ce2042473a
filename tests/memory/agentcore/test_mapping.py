"""Messages become the events that the mapping describes, and come back from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.memory.store import TooLargeForStore, Unstorable
from gateway.memory.stores.agentcore.mapping import LONGEST_TEXT, Event, MappingForm, from_event, to_event
from tests.memory.agentcore.payloads import (
    CALL,
    DOCUMENT,
    IMAGE,
    JSON_RESULT,
    MARK,
    RESULT,
    STORED_JSON_RESULT,
    STORED_RESULT,
    USE,
    calls,
    content,
    metadata,
    results,
    spoken,
    wrapped,
)
from tests.memory.agentcore.service_model import input_problems

ROUND_TRIPS: dict[str, tuple[Message, list[dict[str, Any]], str]] = {
    "text of the user": (Message("user", ({"text": "Hello"},)), [spoken("USER", "Hello")], ""),
    "text of the assistant": (Message("assistant", ({"text": "Hi"},)), [spoken("ASSISTANT", "Hi")], ""),
    "several texts": (
        Message("user", ({"text": "a"}, {"text": "b"})),
        [spoken("USER", "a"), spoken("USER", "b")],
        "",
    ),
    "text between media": (
        Message("user", ({"text": "a"}, IMAGE, {"text": "b"}, DOCUMENT)),
        [
            spoken("USER", "a"),
            wrapped(IMAGE),
            spoken("USER", "b"),
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
        [spoken("ASSISTANT", "I look."), calls(CALL)],
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
    "tool result": (Message("user", (RESULT,)), [spoken("TOOL", "3 cats"), results(STORED_RESULT)], ""),
    "tool results": (
        Message("user", (RESULT, JSON_RESULT)),
        [spoken("TOOL", '3 cats\n{"cats":3}'), results(STORED_RESULT, STORED_JSON_RESULT)],
        "",
    ),
    "tool result without text": (
        Message("user", ({"toolResult": {"toolUseId": "1", "status": "error", "content": []}},)),
        [results({"id": "1", "content": [], "properties": {"status": "error", "contentFormat": "strands"}})],
        "",
    ),
    "tool result and a question": (
        Message("user", (RESULT, {"text": "And dogs?"})),
        [spoken("TOOL", "3 cats"), results(STORED_RESULT), spoken("USER", "And dogs?")],
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
    assert event == Event([spoken("USER", "a")], STRINGS)
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
    assert event == Event([spoken("USER", "a"), metadata({name: kept})], {"fits": "yes"})
    assert_accepted(event)
    [message] = from_event(event.payload, event.metadata)
    assert message.metadata.extra == {"fits": "yes", name: kept}


def test_older_metadata_beyond_the_greatest_number_are_in_an_envelope() -> None:
    message = Message("user", (IMAGE,), with_extra(FULL, **{f"key{n}": str(n) for n in range(20)}))
    event = to_event(message, room=12)
    assert len(event.metadata) == 12
    assert event.metadata["mlc.role"] == "user"
    assert from_event(event.payload, {**event.metadata, "seq": "3", "mlc.turn": "1/x"}) == [message]


@pytest.mark.parametrize("form", ["metadata", "envelope"])
@pytest.mark.parametrize("name", ["", "seq", "mlc.created", "mlc."])
def test_reserved_names_of_metadata_are_refused(name: str, form: MappingForm) -> None:
    with pytest.raises(Unstorable, match="reserved") as caught:
        to_event(Message("user", (), with_extra(Metadata(), **{name: "x"})), form, "messages[2]")
    assert caught.value.place == "messages[2].metadata.extra"


# Limits


@pytest.mark.parametrize("form", ["metadata", "envelope"])
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
def test_long_texts_are_stored_in_parts(text: str, parts: int, form: MappingForm) -> None:
    message = Message("user", ({"text": "before"}, {"text": text}, {"text": text}, IMAGE, {"text": "after"}))
    event = to_event(message, form)
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
