"""Bodies that the cluster accepts but are not strict JSON: forwarded without `input`, refused with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.unified.request import RequestKind, read_execute

LEGACY = {
    "a comment": b'{"parameters":{} // asked by the portal\n}',
    "text after the document": b'{"parameters":{}} x',
    "an escaped quote": b'{"a":"\\"\\n"} x',
    "NaN": b'{"parameters":{"a":NaN}}',
    "a malformed value": b'{"parameters":}',
    "a document that does not end": b'{"parameters":{}',
    "invalid UTF-8 in a value": b'{"parameters":{"a":"\xff"}}',
    "surrogates in UTF-8": b'{"parameters":{"a":"\xed\xa0\xbd\xed\xb8\x80"}}',
    "a byte order mark": b'\xef\xbb\xbf{"parameters":{}} x',
    "another case": b'{"Input":"a"} x',
    "no object": b"[1] x",
    "nothing": b"",
}

REFUSED = {
    "a comment before": b'/**/{"input":"a"}',
    "a comment before the colon": b'{"input"/**/:"a"}',
    "text after the document": b'{"input":"a"} x',
    "an escaped name": b'{"\\u0069nput":"a"} x',
    "an escape in upper case": b'{"\\u006Eo":1,"\\u0069\\u006Eput":"a"}//',
    "an overlong name of two bytes": b'{"\xc1\xa9nput":"a"}',
    "an overlong name of three bytes": b'{"i\xe0\x81\xaeput":"a"}',
    "an overlong name of four bytes": b'{"inpu\xf0\x80\x81\xb4":"a"}',
    "an input twice": b'{"input":"a","input":"b"} x',
    "a member that is cut off": b'{"input":',
    "the word as a value": b'{"a":"input"} x',
    **{coding: '{"input":"a"}'.encode(coding) for coding in ("utf-16", "utf-16-le", "utf-32-le", "utf-32-be")},
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


NAMES = st.sampled_from(["input", "Input", "parameters", "a", 'in"put', "\\input"])
VALUES = st.recursive(
    NAMES | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8
)
GAPS = st.sampled_from(["", " ", "\n", '/*"*/', "//}\n", "/* x */", "/**/ "])


@given(st.dictionaries(NAMES, VALUES), st.data(), st.sampled_from([" x", "}", '"a":1', "//", "/*"]))
def test_no_input_passes_wherever_comments_stand(members: dict[str, Any], data: st.DataObject, after: str) -> None:
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

    with pytest.raises(InvalidInput):
        read_execute((written({**members, "input": "a"}) + after + "x").encode())
