import json
from typing import Any

import pytest
from hypothesis import given

from gateway.errors import InvalidInput
from gateway.unified.limits import ParseLimits
from tests.strategies import json_values
from tests.unified.reading import decode_object


def problems_of(body: bytes, limits: ParseLimits | None = None) -> list[dict[str, str]]:
    with pytest.raises(InvalidInput) as raised:
        decode_object(body, limits)
    return [problem.as_dict() for problem in raised.value.problems]


@given(json_values(20))
def test_strict_json_decodes_to_itself(value: Any) -> None:
    assert decode_object(json.dumps({"value": value}).encode()) == {"value": value}


LONG = b'"' + b"A" * 4000 + b'"'
MALFORMED = [
    (b"", "Expecting value at line 1, column 1"),
    (b"   ", "Expecting value at line 1, column 4"),
    (b"not json", "Expecting value at line 1, column 1"),
    (b'{"a":1', "Expecting ',' delimiter at line 1, column 7"),
    (b'{"a":1} {', "Extra data at line 1, column 9"),
    (b'{"a":01}', "Expecting ',' delimiter at line 1, column 7"),
    (b'{"a":"\x01"}', "Invalid control character at line 1, column 7"),
    (b'{\n "a": 1,\n "b" 2}', "Expecting ':' delimiter at line 3, column 6"),
    (b'{"a":' + LONG + b",\n" + b'"b":' + LONG + b" x}", "Expecting ',' delimiter at line 2, column 4008"),
    (b'{\n"a":"\xff"}', "invalid UTF-8 at line 2, column 6"),
    (b'\xef\xbb\xbf{"a":"\xff"}', "invalid UTF-8 at line 1, column 10"),
    (b'{"' + b"\xff" * 4000 + b'":1}', "invalid UTF-8 at byte 0 of the string"),
    (b'{"a":' + b"[" * 90_000, "nested too deeply to be read"),
    (b'{"a":' * 90_000, "nested too deeply to be read"),
]


@pytest.mark.parametrize(("body", "what"), MALFORMED, ids=[what for _, what in MALFORMED])
def test_malformed_json_is_refused_with_its_place(body: bytes, what: str) -> None:
    (problem,) = problems_of(body)
    assert problem["reason"] == f"The body is not valid JSON: {what}"


@pytest.mark.parametrize(
    ("body", "received"), [(b"[1]", "array"), (b"null", "null"), (b'"x"', "string"), (b"1", "number")]
)
def test_only_an_object_is_a_body(body: bytes, received: str) -> None:
    assert problems_of(body) == [
        {"reason": "The body is not a JSON object", "expected": "object", "received": received}
    ]


UNSAFE = [
    (b'{"a":1,"b":{"c":1,"c":2,"c":3}}', "b.c", "The key occurs more than once"),
    (b'{%s:1,%s:2}' % (LONG, LONG), '["' + "A" * 60 + '"… (4000 characters)]', "The key occurs more than once"),
    (b'{"a":[NaN]}', "a[0]", "NaN is not a JSON number"),
    (b'{"a":-Infinity}', "a", "-Infinity is not a JSON number"),
    (b'{"a":[0,9223372036854775808]}', "a[1]", "The integer needs more than 64 bits"),
    (b'{"a":-9223372036854775809}', "a", "The integer needs more than 64 bits"),
    (b'{"a":' + b"9" * 100_000 + b"}", "a", "The integer needs more than 64 bits"),
    (b'{"a":1e400}', "a", "The number does not fit a double"),
    (b'{"a":0.' + b"1" * 100_000 + b"}", "a", "The number does not fit a double"),
    (b'{"a":{"b":"x\\u0000"}}', "a.b", "The string holds U+0000 at character 1"),
    (b'{"a":"\\ud83d"}', "a", "The string holds the lone surrogate U+D83D at character 0"),
    (b'{"a":"\\ude00\\ud83d"}', "a", "The string holds the lone surrogate U+DE00 at character 0"),
    (b'{"\\u0000":1}', '["\\u0000"]', "The key holds U+0000 at character 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "place", "reason"), UNSAFE, ids=[f"{reason} {place[:9]}" for _, place, reason in UNSAFE]
)
def test_what_readers_differ_on_is_refused_with_its_place(body: bytes, place: str, reason: str) -> None:
    assert [(problem["field"], problem["reason"]) for problem in problems_of(body)] == [(place, reason)]


def test_every_breach_is_listed_in_order() -> None:
    body = b'{"a":NaN,"b":["\\u0000",{"c":1e999}],"a":99999999999999999999}'
    assert [problem["field"] for problem in problems_of(body)] == ["a", "a", "b[0]", "b[1].c"]


@pytest.mark.parametrize("limit", [-(2**63), 2**63 - 1])
def test_64_bits_are_enough(limit: int) -> None:
    assert decode_object(b'{"a":%d}' % limit) == {"a": limit}


def test_a_surrogate_pair_is_a_character() -> None:
    assert decode_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


def test_nesting_up_to_the_limit() -> None:
    assert decode_object(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}")
    (problem,) = problems_of(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}")
    assert problem == {
        "field": "a" + "[0]" * 99,
        "reason": "Nested more than 100 levels deep",
        "expected": "at most 100 levels",
    }


def test_separators_in_strings_are_not_values() -> None:
    few = ParseLimits(values=10)
    assert decode_object(b'{"a":"' + b"," * 100 + b'"}', few) == {"a": "," * 100}
    with pytest.raises(InvalidInput):
        decode_object(b'{"a":[' + b"1," * 10 + b"1]}", few)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert decode_object(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
