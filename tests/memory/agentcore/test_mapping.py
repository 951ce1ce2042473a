"""Messages become the events that the mapping describes, and come back from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.memory.store import TooLargeForStore, Unstorable
from gateway.memory.stores.agentcore.mapping import LONGEST_TEXT, Payload, from_payload, to_payload
from tests.memory.agentcore.payloads import (
    CALL,
    DOCUMENT,
    IMAGE,
    JSON_RESULT,
    RESULT,
    STORED_JSON_RESULT,
    STORED_RESULT,
    USE,
    calls,
    marked,
    metadata,
    results,
    spoken,
    wrapped,
)
from tests.memory.agentcore.service_model import input_problems

ROUND_TRIPS: dict[str, tuple[Message, list[Payload], str]] = {
    "text of the user": (Message("user", ({"text": "Hello"},)), [spoken("USER", "Hello")], "USER"),
    "text of the assistant": (Message("assistant", ({"text": "Hi"},)), [spoken("ASSISTANT", "Hi")], "ASSISTANT"),
    "several texts": (
        Message("user", ({"text": "a"}, {"text": "b"})),
        [spoken("USER", "a"), spoken("USER", "b")],
        "USER",
    ),
    "text between media": (
        Message("user", ({"text": "a"}, IMAGE, {"text": "b"}, DOCUMENT)),
        [spoken("USER", "a"), wrapped(IMAGE), spoken("USER", "b"), wrapped(DOCUMENT)],
        "USER",
    ),
    "image alone, of the assistant": (Message("assistant", (IMAGE,)), [wrapped(IMAGE)], "ASSISTANT"),
    "empty text": (Message("user", ({"text": ""},)), [wrapped({"text": ""})], "USER"),
    "text with other members": (
        Message("assistant", ({"text": "a", "citations": []},)),
        [wrapped({"text": "a", "citations": []})],
        "ASSISTANT",
    ),
    "nothing": (Message("assistant", ()), [], "ASSISTANT"),
    "text and tool call": (
        Message("assistant", ({"text": "I look."}, USE)),
        [spoken("ASSISTANT", "I look."), calls(CALL)],
        "ASSISTANT",
    ),
    "tool call of the user": (Message("user", (USE,)), [wrapped(USE)], "USER"),
    "tool call with more": (
        Message("assistant", ({"toolUse": {**USE["toolUse"], "reasoningSignature": "x"}},)),
        [calls({**CALL, "properties": {"reasoningSignature": "x"}})],
        "ASSISTANT",
    ),
    "tool call whose input is no object": (
        Message("assistant", ({"toolUse": {**USE["toolUse"], "input": "cats"}},)),
        [wrapped({"toolUse": {**USE["toolUse"], "input": "cats"}})],
        "ASSISTANT",
    ),
    "unfinished tool call": (
        Message("assistant", ({"toolUse": {"name": "search"}},)),
        [wrapped({"toolUse": {"name": "search"}})],
        "ASSISTANT",
    ),
    "tool result": (Message("user", (RESULT,)), [spoken("TOOL", "3 cats"), results(STORED_RESULT)], "TOOL"),
    "tool results": (
        Message("user", (RESULT, JSON_RESULT)),
        [spoken("TOOL", '3 cats\n{"cats":3}'), results(STORED_RESULT, STORED_JSON_RESULT)],
        "TOOL",
    ),
    "tool result without text": (
        Message("user", ({"toolResult": {"toolUseId": "1", "status": "error", "content": []}},)),
        [results({"id": "1", "content": [], "status": "error"})],
        "TOOL",
    ),
    "tool result of blanks and null": (
        Message("user", ({"toolResult": {"toolUseId": "1", "content": [{"text": " "}, {"json": None}]}},)),
        [results({"id": "1", "content": [marked({"text": " "}), marked({"json": None})]})],
        "TOOL",
    ),
    "tool result with a member that Camunda has for itself": (
        Message("user", ({"toolResult": {"toolUseId": "1", "name": "x", "content": []}},)),
        [results({"id": "1", "content": [], "properties": {"name": "x"}})],
        "TOOL",
    ),
    "tool result and a question": (
        Message("user", (RESULT, {"text": "And dogs?"})),
        [spoken("TOOL", "3 cats"), results(STORED_RESULT), spoken("USER", "And dogs?")],
        "TOOL",
    ),
    "reasoning": (
        Message("assistant", ({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}, USE)),
        [wrapped({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}), calls(CALL)],
        "ASSISTANT",
    ),
}
"""A message, its payload without metadata, and its role."""


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_message_and_its_event(name: str) -> None:
    message, items, role = ROUND_TRIPS[name]
    payload = to_payload(message)
    assert payload == [*items, metadata({}, role=role)]
    assert_accepted(payload)
    assert from_payload(payload) == [message]


def assert_accepted(payload: list[Payload]) -> None:
    parameters = {
        "memoryId": "memory-abcdefghij",
        "actorId": "actor",
        "sessionId": "session",
        "eventTimestamp": 1,
        "payload": payload,
    }
    assert input_problems("CreateEvent", parameters) == []


def test_tool_results_name_their_tools_where_these_are_known() -> None:
    payload = to_payload(Message("user", (RESULT, JSON_RESULT)), tools={"1": "search"})
    assert payload[1] == results({"id": "1", "name": "search", **STORED_RESULT}, STORED_JSON_RESULT)
    assert from_payload(payload) == [Message("user", (RESULT, JSON_RESULT))]


# The loss TOOLS_ORDER


def test_results_come_first_and_calls_last() -> None:
    mixed = Message("user", ({"text": "a"}, RESULT))
    assert from_payload(to_payload(mixed)) == [Message("user", (RESULT, {"text": "a"}))]
    mixed = Message("assistant", (USE, {"text": "a"}))
    assert from_payload(to_payload(mixed)) == [Message("assistant", ({"text": "a"}, USE))]


# Metadata

FULL = Metadata(
    created=1_750_000_000.25,
    input_type="text",
    agent_id="a_1",
    provider="bedrock/converse",
    model="anthropic.claude-v1:0",
    usage=Usage(10, 20, 30),
    failed=True,
    after=2,
    extra={"userId": "u1", "tokens": 150, "nothing": None, "seq": 1, "mlc.created": "x", "": {}},
)
OWN = {
    "mlc.created": 1_750_000_000.25,
    "mlc.input_type": "text",
    "mlc.agent_id": "a_1",
    "mlc.provider": "bedrock/converse",
    "mlc.usage": {"input": 10, "output": 20, "total": 30},
    "mlc.failed": True,
    "mlc.after": 2,
}


def with_extra(known: Metadata, **extra: Any) -> Metadata:
    return Metadata(**{name: getattr(known, name) for name in Metadata.__struct_fields__} | {"extra": extra})


def last_blob(payload: list[Payload]) -> Any:
    return json.loads(payload[-1]["blob"])


def test_metadata_are_those_of_camunda_and_properties_of_the_gateway() -> None:
    payload = to_payload(Message("assistant", ({"text": "a"},), FULL))
    assert last_blob(payload) == {
        "blobType": "camunda.messageMetadata",
        "version": 1,
        "metadata": FULL.extra,
        "properties": {"role": "ASSISTANT", "camunda.modelId": "anthropic.claude-v1:0", **OWN},
    }
    [message] = from_payload(payload, {"seq": "0", "mlc.turn": "1/x", "mlc.turn_id": "t"})
    assert message.metadata == FULL


def test_model_of_a_message_of_the_user_is_no_property_of_camunda() -> None:
    payload = to_payload(Message("user", (IMAGE,), Metadata(model="m")))
    assert last_blob(payload)["properties"] == {"role": "USER", "mlc.model": "m"}
    assert from_payload(payload) == [Message("user", (IMAGE,), Metadata(model="m"))]


@pytest.mark.parametrize(
    "extra",
    [
        {"camunda": {"userName": "Alice"}, "userId": "u1"},
        {"camunda": {"role": "TOOL"}},
        {"camunda": {"mlc.failed": "x"}},
        {"camunda": {}},
        {"camunda": "x"},
    ],
    ids=str,
)
def test_properties_that_only_camunda_knows_come_back(extra: dict[str, Any]) -> None:
    message = Message("user", (IMAGE,), with_extra(Metadata(), **extra))
    payload = to_payload(message)
    assert last_blob(payload)["properties"]["role"] == "USER"
    assert from_payload(payload) == [message]


# Limits


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
def test_long_texts_are_stored_in_parts(text: str, parts: int) -> None:
    message = Message("user", ({"text": "before"}, {"text": text}, {"text": text}, IMAGE, {"text": "after"}))
    payload = to_payload(message)
    assert sum("conversational" in item for item in payload) == 2 + 2 * parts
    assert_accepted(payload)
    assert from_payload(payload) == [message]


def test_long_text_of_tools_is_stored_in_parts() -> None:
    block = {"toolResult": {"toolUseId": "1", "content": [{"text": "x" * (LONGEST_TEXT + 1)}]}}
    payload = to_payload(Message("user", (block,)))
    assert [item["conversational"]["role"] for item in payload[:2]] == ["TOOL", "TOOL"]
    assert_accepted(payload)
    assert from_payload(payload) == [Message("user", (block,))]


def test_message_of_more_parts_than_an_event_has_is_refused() -> None:
    assert_accepted(to_payload(Message("user", ({"text": "a"},) * 99)))
    with pytest.raises(TooLargeForStore, match=r"messages\[0\] has 101 parts"):
        to_payload(Message("user", ({"text": "a"},) * 100), "messages[0]")


@pytest.mark.parametrize(
    "block", [{"text": "\ud800"}, {"json": float("nan")}, {"image": {"source": {"bytes": b"raw"}}}], ids=str
)
def test_what_json_does_not_hold_is_refused(block: Block) -> None:
    with pytest.raises(Unstorable) as caught:
        to_payload(Message("user", ({"text": "a"}, block)), "messages[1]")
    assert caught.value.place == "messages[1].content[1]"
