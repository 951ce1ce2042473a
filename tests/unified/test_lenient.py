"""Bodies that the cluster accepts but are not strict JSON: forwarded without `input`, refused with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.unified.budget import Budget
from gateway.unified.lenient import may_have_input
from gateway.unified.request import RequestKind, read_execute

BUDGET = Budget()
QUESTION = '{"parameters":{"question":"q"}}'

LEGACY = {
    "a comment before": b'/* "input": */ {"parameters":{}}',
    "a line comment": b'{"parameters":{} // "input":1\n}',
    "a line comment that a carriage return ends": b'{// "input":1\r"parameters":{}}',
    "a comment with a quote": b'{/* " */"parameters":{"question":"q"}/* " */}',
    "stars": b'{/***/"parameters":{}/**/}',
    "a slash in a string": b'{"parameters":{"question":"// /*"}} x',
    "text after the document": b'{"parameters":{}} {"input":"a"}',
    "a member after the document": b'{"parameters":{}},"input":"a"}',
    "a nested input": b'{"parameters":{"input":"a"}} x',
    "input as a value": b'{"a":"input"} x',
    "input as a value before a comment": b'{"a":"input"/*:*/} x',
    "an escaped quote": b'{"a":"\\",\\"input\\":1"} x',
    "NaN": b'{"parameters":{"a":NaN}}',
    "a malformed value": b'{"parameters":}',
    "invalid UTF-8 in a value": b'{"parameters":{"a":"\xff"}}',
    "surrogates in UTF-8": b'{"parameters":{"a":"\xed\xa0\xbd\xed\xb8\x80"}}',
    "a byte order mark": b'\xef\xbb\xbf{"parameters":{}} x',
    **{coding: QUESTION.encode(coding) for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")},
}

REFUSED = {
    "a comment before": b'/**/{"input":"a"}',
    "a comment in between": b'{"parameters":{}/**/,"input":"a"}',
    "a comment before the colon": b'{"input"/**/:"a"}',
    "a line comment before the colon": b'{"input" //x\n:"a"}',
    "white space before the colon": b'{"input"' + b" " * 100 + b':"a"} x',
    "text after the document": b'{"input":"a"} x',
    "an escaped name": b'{"\\u0069nput":"a"} x',
    "a name of escapes only": b'{"\\u0069\\u006e\\u0070\\u0075\\u0074":"a"}//',
    "an escape in upper case": b'{"\\u006Eo":1,"\\u0069\\u006Eput":"a"}//',
    "an overlong name": b'{"\xc1\xa9nput":"a"}',
    "a name with a quote in a comment before": b'{/*"*/"input":"a"}',
    "an input twice": b'{"input":"a","input":"b"} x',
    "a name that may be cut off": b'{"input"',
    "a member that is cut off": b'{"input":',
    "a comment that does not end": b'{"parameters":{}/*}',
    "a string that does not end": b'{"parameters":{},"a}',
    "a document that does not end": b'{"parameters":{}',
    "no object": b"[1] x",
    "nothing": b"",
    **{
        coding: b'{"input":"a"}'.decode().encode(coding) for coding in ("utf-16", "utf-16-le", "utf-32-le", "utf-32-be")
    },
}


@pytest.mark.parametrize("body", LEGACY.values(), ids=LEGACY)
def test_without_input_it_is_legacy(body: bytes) -> None:
    request = read_execute(body)
    assert (request.kind, request.input) == (RequestKind.LEGACY, None)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_with_an_input_that_is_not_strict_json_it_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_execute(body)
    assert raised.value.problems[0].reason


def test_the_refusal_says_what_is_wrong_where_and_what_to_do() -> None:
    with pytest.raises(InvalidInput) as raised:
        read_execute(b'{"input":"a"} // asked by the portal')
    (problem,) = raised.value.problems
    assert problem.reason == "The body is not valid JSON: Extra data at line 1, column 15"
    assert problem.help == "Send strict JSON: no comments, nothing after the object."


def test_what_costs_too_much_to_look_through_may_have_one() -> None:
    few = Budget(values=10, text=100)
    assert may_have_input(b'{"a":[' + b'"",' * 100 + b'""]} x', few)
    assert may_have_input(b'{"a":1' + b" " * 200 + b"} x", few)
    assert may_have_input(b"{/*" + b" " * 200 + b"*/} x", few)
    assert may_have_input((QUESTION * 10).encode("utf-16"), few)
    assert not may_have_input(b'{"a":"' + b"a" * 200 + b'"} x', few)


NAMES = st.sampled_from(["input", "Input", "inputs", "parameters", "a", 'in"put', "\\input"])
VALUES = st.recursive(
    NAMES | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8
)
GAPS = st.sampled_from(["", " ", "\n", '/*"*/', "//}\n", "/* input */", "/**/ "])


@given(st.dictionaries(NAMES, VALUES), st.data(), st.sampled_from([" x", "}", '"input":1', "//", "/*"]))
def test_the_input_is_found_wherever_comments_stand(members: dict[str, Any], data: st.DataObject, after: str) -> None:
    def written(value: Any) -> str:
        gap = data.draw(GAPS)
        match value:
            case dict():
                inside = ",".join(f"{gap}{written(key)}:{gap}{written(item)}{gap}" for key, item in value.items())
                return f"{{{inside}{gap}}}"
            case list():
                return f"[{gap}{','.join(map(written, value))}{gap}]"
            case str() if data.draw(st.booleans()):
                return '"' + "".join(f"\\u{ord(char):04x}" for char in value) + '"' + gap
            case _:
                return json.dumps(value) + gap

    body = (written(members) + after).encode()
    assert may_have_input(body, BUDGET) == ("input" in members)
