"""From the unified input to stored messages and back: nothing is lost, whatever the spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.memory.conversion import as_input, convert
from gateway.memory.model import Message, Metadata
from gateway.unified.model import AgentInput
from gateway.unified.request import read_execute
from tests.delivery.cases import CASES
from tests.memory.conversations import MESSAGES

INPUTS = {name: case.input for name, case in CASES.items()}
METADATA = Metadata(created=1.0, input_type="messages")
LARGE = "QUJD" * 2000


def read(value: Any) -> AgentInput:
    found = read_execute(json.dumps({"input": value}).encode()).input
    assert found is not None
    return found


def stored(value: Any, **roles: str) -> list[Message]:
    return [new.message for new in convert(read(value), METADATA, roles, "t").messages]


@pytest.mark.parametrize("name", INPUTS)
def test_what_is_stored_reads_as_what_was_sent(name: str) -> None:
    messages = stored(INPUTS[name])
    again = stored([item for message in messages for item in as_input(message)])
    assert again == messages
    assert all(message.metadata == METADATA for message in messages)


@pytest.mark.parametrize("name", sorted(MESSAGES.keys() - {"empty text"}))
def test_every_stored_message_can_be_read(name: str) -> None:
    (message,) = stored(as_input(MESSAGES[name]))
    expected = [block for block in MESSAGES[name].content if "toolResult" not in block]
    assert [block for block in message.content if "toolResult" not in block] == expected


def test_a_large_payload_is_stored_whole() -> None:
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": LARGE}}
    (message,) = stored([image])
    assert message.content == ({"image": {"format": "png", "source": {"bytes": LARGE}}},)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "url", "format": "png", "data": "https://a.example/b"}, {"url": "https://a.example/b"}),
        ({"type": "url", "format": "png", "data": "gs://a/b"}, {"url": "gs://a/b"}),
        (
            {"type": "s3", "format": "png", "data": "s3://a/b", "bucketOwner": "123456789012"},
            {"s3Location": {"uri": "s3://a/b", "bucketOwner": "123456789012"}},
        ),
    ],
)
def test_media_by_reference(block: Any, expected: Any) -> None:
    (message,) = stored([{"type": "image", "source": block}])
    assert message.content == ({"image": {"format": "png", "source": expected}},)
    assert stored(as_input(message)) == [message]


@pytest.mark.parametrize(
    "source",
    [
        {"url": "https://a.example/render?id=7"},
        {"url": "gs://a/b"},
        {"url": "s3://a/b"},
        {"url": "s3://a/b", "bucketOwner": "123456789012"},
    ],
)
def test_media_by_reference_without_a_format(source: Any) -> None:
    (message,) = stored([{"type": "image", "source": {"type": "url", **source}}])
    assert message.content == ({"image": {"source": source}},)
    assert stored(as_input(message)) == [message]


def test_system_text_is_apart_and_roles_are_as_delivered() -> None:
    turns = [("system", "Be brief."), ("reviewer", "Short."), ("Boss", "More."), ("developer", "Now."), ("user", "?")]
    value = [{"role": role, "content": text} for role, text in turns]
    found = convert(read(value), METADATA, {"boss": "assistant"}, "t")
    assert found.system == "Be brief.\n\nNow."
    assert found.system_indexes == (0, 3)
    assert [(new.index, new.message.role, new.message.content[0]["text"]) for new in found.messages] == [
        (1, "user", "[reviewer]: Short."),
        (2, "assistant", "More."),
        (4, "user", "?"),
    ]


def test_calls_without_an_id_get_one() -> None:
    use = {"toolUse": {"name": "f", "input": {}}}
    (message,) = stored([{"role": "assistant", "content": [use, use]}])
    ids = [block["toolUse"]["toolUseId"] for block in message.content]
    assert all(ids)
    assert ids[0] != ids[1]
