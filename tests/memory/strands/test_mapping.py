"""Messages of the gateway as Strands' records and back: nothing is lost, whatever the content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.model import Message, Metadata, Usage
from gateway.memory.stores.strands.mapping import encode_record, from_record, starts_turn, to_record
from tests.conftest import examples
from tests.memory.conversations import MESSAGES, METADATA, assistant, image, tool_result, tool_use, user

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=8,
)
BASE64 = st.sampled_from(["", "AA==", "iVBORw0KGgo="])


def media(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    source = st.fixed_dictionaries({"bytes": BASE64}) | st.fixed_dictionaries({"url": TEXT})
    return st.fixed_dictionaries({kind: st.fixed_dictionaries({"format": TEXT, "source": source})})


RESULTS = st.lists(st.fixed_dictionaries({"text": TEXT}) | media("image") | st.fixed_dictionaries({"json": JSON}))
BLOCKS = st.one_of(
    st.fixed_dictionaries({"text": TEXT}),
    *map(media, ("image", "document", "video", "audio")),
    st.builds(lambda id_, value: {"toolUse": {"toolUseId": id_, "name": "x", "input": value}}, TEXT, JSON),
    st.builds(lambda id_, content: tool_result(id_, *content), TEXT, RESULTS),
    st.builds(lambda data: {"reasoningContent": {"redactedContent": data}}, BASE64),
    st.fixed_dictionaries({"cachePoint": st.just({"type": "default"})}),
)
TOKENS = st.none() | st.integers(0, 2**40)
METADATAS = st.builds(
    Metadata,
    created=st.floats(0, 4e9),
    input_type=TEXT,
    provider=TEXT,
    model=TEXT,
    usage=st.none() | st.builds(Usage, TOKENS, TOKENS, TOKENS),
    failed=st.booleans(),
    extra=st.dictionaries(TEXT.filter(lambda name: name != "strands"), JSON, max_size=2),
)
ROLES = st.sampled_from(["user", "assistant"])
MESSAGE = st.builds(Message, ROLES, st.lists(BLOCKS, max_size=4).map(tuple), METADATAS)


@examples(500)
@given(MESSAGE)
def test_message_comes_back(message: Message) -> None:
    data = encode_record(to_record(message, 3, "turn-1"))
    assert from_record(json.loads(data)) == (message, "turn-1")
    assert data == json.dumps(json.loads(data), indent=2, ensure_ascii=False).encode()


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("metadata", METADATA)
def test_every_kind_of_message_comes_back(name: str, metadata: str) -> None:
    message = Message(MESSAGES[name].role, MESSAGES[name].content, METADATA[metadata])
    assert from_record(json.loads(encode_record(to_record(message, 0, "turn-1")))) == (message, "turn-1")


def test_bytes_are_marked_where_strands_has_bytes() -> None:
    place = {"__bytes_encoded__": True, "data": "AA=="}
    result = tool_result("1", image("AA=="), {"json": {"image": {"source": {"bytes": "AA=="}}}})
    marked = tool_result("1", image(place), {"json": {"image": {"source": {"bytes": "AA=="}}}})  # type: ignore[arg-type]
    call = tool_use("1", source={"bytes": "AA=="})
    record = to_record(user(image("AA=="), result, call), 0)
    assert record["message"]["content"] == [image(place), marked, call]  # type: ignore[arg-type]


def test_message_that_strands_redacts_later_shows_what_replaced_it() -> None:
    record = to_record(user("secret", metadata=Metadata(created=1.0, provider="p")), 0, "turn-1")
    record["redact_message"] = {"role": "user", "content": [{"text": "[hidden]"}], "tracking_id": "x"}
    message, turn_id = from_record(record)
    assert (message.content, turn_id) == (({"text": "[hidden]"},), "turn-1")
    assert (message.metadata.created, message.metadata.provider) == (1.0, "p")
    assert message.metadata.extra["strands"]["original"]["content"] == [{"text": "secret"}]
    again, turn_id = from_record(to_record(message, 0, "turn-2"))
    assert (again, turn_id) == (message, "turn-2")


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"message": None},
        {"message": []},
        {"message": {"role": "user"}},
        {"message": {"role": "system", "content": []}},
        {"message": {"role": "user", "content": "text"}},
        {"message": {"role": "user", "content": ["text"]}},
        {"message": {"role": "user", "content": [], "metadata": []}},
        {"message": {"role": "user", "content": [], "metadata": {"custom": {"gateway": {"created": "x"}}}}},
        {"message": {"role": "user", "content": [], "metadata": {"custom": {"gateway": {"turn": 5}}}}},
        {"message": {"role": "user", "content": [], "metadata": {"usage": {"inputTokens": "x"}}}},
        {"message": {"role": "user", "content": []}, "created_at": 5},
    ],
    ids=str,
)
def test_what_is_not_a_message_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it "):
        from_record(record)


@pytest.mark.parametrize(
    "created_at", ["2025-06-15T15:06:40.5+00:00", "2025-06-15T15:06:40.5Z", "2025-06-15T15:06:40.5"]
)
def test_time_without_zone_is_utc(created_at: str) -> None:
    message, _ = from_record({"message": {"role": "user", "content": []}, "created_at": created_at})
    assert message.metadata.created == 1_750_000_000.5


def test_time_that_is_none_is_not_known() -> None:
    message, _ = from_record({"message": {"role": "user", "content": []}, "created_at": "today"})
    assert message.metadata.created == 0.0


def test_new_input_of_the_user_starts_a_turn() -> None:
    assert starts_turn(user("text"))
    assert starts_turn(user(tool_result("1"), "text"))
    assert not starts_turn(user(tool_result("1"), tool_result("2")))
    assert not starts_turn(assistant("text"))
