"""Limits for reading a body: where each one stops it, and that nothing large is built before."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from gateway.errors import BodyTooLarge, GatewayError, InvalidInput
from gateway.unified import decode
from gateway.unified.limits import SMALL_BODY, ParseLimits, is_small
from gateway.unified.model import Base64, Media, Text
from gateway.unified.payloads import ExtractedBody
from gateway.unified.request import RequestKind, read_execute
from gateway.unified.validate import Reading
from tests.conftest import mostly_slow

FEW = ParseLimits(text=1000, values=100, items=10, problems=5)
TEXT = {"type": "text", "text": "a"}


def refused(body: bytes, limits: ParseLimits | None = None) -> GatewayError:
    with pytest.raises(GatewayError) as raised:
        read_execute(body, limits)
    return raised.value


def codes(error: GatewayError) -> list[str]:
    return [problem.code for problem in error.problems]


@pytest.mark.parametrize(
    "unit",
    mostly_slow(["1", '""', "{}", "[]", "null", "NaN", '{"type":"image","source":{"type":"base64","data":"AAAA"}}'], 3),
)
def test_too_many_values_are_not_even_parsed(unit: str) -> None:
    body = f'{{"input":[{",".join([unit] * 101_000)}]}}'.encode()
    tracemalloc.start()
    error = refused(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert codes(error) == ["TOO_MANY_VALUES"]
    assert peak < 10_000_000


def test_separators_in_strings_do_not_count() -> None:
    sent_input = [{"text": ",[{" * 1000}, {"text": '\\,"' * 1000}, {"text": '"' + "," * 200}]
    request = read_execute(json.dumps({"input": sent_input}).encode(), ParseLimits(values=20))
    assert request.input is not None
    assert [block.text for block in request.input.messages[0].content if isinstance(block, Text)] == [
        part["text"] for part in sent_input
    ]
    assert codes(refused(json.dumps({"input": [*sent_input, *[TEXT] * 20]}).encode(), ParseLimits(values=20))) == [
        "TOO_MANY_VALUES"
    ]


@pytest.mark.parametrize("body", [
    {"input": "${parameters.x}" * 21},
    {"input": [{"type": "text", "text": "${parameters.x}"}] * 3 + [{"type": "text", "text": "${parameters.x}" * 18}]},
    {"input": "a", "parameters": {"prompt": "${parameters.x}" * 21}},
    {"input": "a", "parameters": {"prompt": ["${parameters.x}" * 21]}},
])  # fmt: skip
def test_placeholders_count_as_values(body: dict[str, Any]) -> None:
    assert codes(refused(json.dumps(body).encode(), ParseLimits(values=20))) == ["TOO_MANY_VALUES"]
    read_execute(json.dumps(body).encode(), ParseLimits(values=30))


def test_the_items_of_an_input_are_counted_before_any_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_sort", lambda item: pytest.fail("an item was read"))
    error = refused(b'{"input":[' + b"1," * 10 + b"1]}", FEW)
    assert codes(error) == ["TOO_MANY_ITEMS"]
    assert error.problems[0].received == "at least 11"


def test_each_item_is_looked_at_once() -> None:
    class Items(list[Any]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return super().__iter__()

    items = Items([1] * 9_000)
    reading = Reading(ExtractedBody(b"", {}, limits=ParseLimits(problems=9_000)))
    decode.read_input(reading, items)
    assert len(reading.problems) == 9_000
    assert items.passes == 2  # for their sorts, and to be read


@pytest.mark.parametrize("count", [100, 1000])
def test_the_sorts_of_all_items_are_not_looked_through_for_each(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    looks = 0

    def counted(items: Iterable[Any]) -> bool:
        nonlocal looks
        for item in items:
            looks += 1
            if item:
                return True
        return False

    monkeypatch.setattr(decode, "any", counted, raising=False)
    decode.read_input(Reading(ExtractedBody(b"", {}, limits=ParseLimits(problems=count))), [1] * count)
    assert looks <= count


ITEMS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}] * 11,
    "content blocks of one message": [{"role": "user", "content": [TEXT] * 10}],
    "content blocks of many messages": [{"role": "user", "content": [TEXT] * 3}] * 3,
    "tool calls": [
        {"role": "assistant", "toolCalls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}] * 10},
    ],
    "content of a tool result": [{"toolResult": {"toolUseId": "1", "content": [{"text": "a"}] * 10}}],
}


@pytest.mark.parametrize("sent_input", ITEMS.values(), ids=ITEMS)
def test_items_on_every_level_count_together(sent_input: Any) -> None:
    assert codes(refused(json.dumps({"input": sent_input}).encode(), FEW)) == ["TOO_MANY_ITEMS"]


def test_reading_stops_at_the_first_problem_that_would_not_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def read_block(*args: Any) -> None:
        nonlocal read
        read += 1
        return original(*args)

    original = decode.read_block
    monkeypatch.setattr(decode, "read_block", read_block)
    error = refused(json.dumps({"input": [{"type": "text"}] * 10}).encode(), FEW)
    assert read == 6
    assert [problem.place for problem in error.problems] == [f"input[{index}].text" for index in range(6)]
    assert error.problems[-1].reason == "Too many problems: the rest of the input was not checked"


def test_problems_of_strict_json_stop_reading_too() -> None:
    error = refused(b'{"input":"a","parameters":{"a":[' + b"NaN," * 50 + b"1]}}", FEW)
    assert len(error.problems) == 6


def test_the_arguments_of_tool_calls_share_the_values() -> None:
    def body(values: int) -> bytes:
        call = {"id": "1", "function": {"name": "f", "arguments": json.dumps({"a": [1] * values})}}
        return json.dumps({"input": [{"role": "assistant", "toolCalls": [call] * 5}]}).encode()

    assert read_execute(body(4), FEW).input
    error = refused(body(25), FEW)
    assert codes(error) == ["TOO_MANY_VALUES"]
    assert error.problems[0].place == "input[0].toolCalls[3].function.arguments"


@pytest.mark.parametrize(
    "body",
    [
        b'{"input":"' + b"a" * 3000 + b'"}',
        b'{"input":"' + b"\\n" * 1500 + b'"}',
        b'{"input":[{"text":"' + b"a" * 2500 + b'"}]}',
        b'{"input":' + b" " * 3000 + b'"a"}',
        b'{"input":"a","parameters":{"a":"' + b"a" * 3000 + b'"}}',
        b'{"input":"a","' + b"a" * 3000 + b'":1}',
        b'{"input":[' + b'"a",' * 500 + b'"a"]}',
        b'{"input":' + b"9" * 3000 + b"}",
        b'{"input":"' + b"a" * 200_000,
    ],
)
def test_too_much_text_is_a_413(body: bytes) -> None:
    assert isinstance(refused(body, FEW._replace(values=10_000)), BodyTooLarge)


@pytest.mark.parametrize("slash", ["/", "\\/"])
@pytest.mark.parametrize("line", ["", "\\r\\n"])
def test_inline_media_are_no_text_however_they_are_written(slash: str, line: str) -> None:
    data = base64.b64encode(bytes(range(256)) * 1200).decode()
    lines = [data[start : start + 76] for start in range(0, len(data), 76)] if line else [data]
    written = line.join(lines).replace("/", slash)
    body = '{"input":[{"type":"image","source":{"type":"base64","format":"png","data":"' + written + '"}}]}'
    request = read_execute(body.encode(), FEW)
    assert request.input is not None
    (block,) = request.input.messages[0].content
    assert isinstance(block, Media)
    assert isinstance(block.source, Base64)
    assert bytes(block.source.data) == data.encode()


def test_a_legacy_body_over_the_budget_is_forwarded_where_the_word_input_is_not_in_it() -> None:
    request = read_execute(b'{"parameters":{"a":[' + b"1," * 200 + b"1]}}", FEW)
    assert (request.kind, request.parameters) == (RequestKind.LEGACY, {})
    assert codes(refused(b'{"parameters":{"a":[' + b'"",' * 200 + b'1]},"input":"a"}', FEW)) == ["TOO_MANY_VALUES"]
    assert codes(refused(b'{"parameters":{"a":["input",' + b'"",' * 201 + b"1]}}", FEW)) == ["TOO_MANY_VALUES"]


def test_a_legacy_text_is_not_limited() -> None:
    request = read_execute(b'{"parameters":{"question":"' + b"a" * 5000 + b'"}}', FEW)
    assert (request.kind, request.has_question) == (RequestKind.LEGACY, False)


@pytest.mark.parametrize(
    ("body", "small"),
    [
        (b'{"input":"hello"}', True),
        (b'{"input":"' + b"a" * 60_000 + b'"}', True),
        (b'{"input":"' + b"a" * 1_000_000 + b'"}', True),
        (b" " * (SMALL_BODY + 1), False),
        *((sign * 1001 + b"a" * size, False) for sign in (b",", b"[", b"{", b'"', b"\\") for size in (60_000, 900_000)),
        (b"," * 990 + b"a" * 900_000, True),
        (b'{"a":[' + b"1," * 1001 + b"1]}", False),
    ],
)
def test_small_is_a_matter_of_bytes_values_strings_and_escapes(body: bytes, small: bool) -> None:
    assert is_small(body) is small


def test_a_refusal_names_the_setting() -> None:
    for body, setting in (
        (b'{"input":[' + b"1," * 200 + b"1]}", "limits.values"),
        (b'{"input":[' + b"1," * 20 + b"1]}", "limits.input_items"),
        (b'{"input":"' + b"a" * 2000 + b'"}', "limits.text"),
    ):
        error = refused(body, FEW)
        assert setting in error.body()["error"]["help"]
        assert isinstance(error, InvalidInput | BodyTooLarge)
