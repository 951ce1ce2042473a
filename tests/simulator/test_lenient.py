"""Texts that count as JSON: recorded probes, and properties of any JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.lenient import is_json

RAW = [
    "{a:1}",
    "{a=1}",
    "[1,]",
    "[1;2]",
    "[NaN]",
    "['x']",
    ' {"a":1}',
    "\n[1]",
    '["a\tb"]',
    "[hello]",
    "[]",
    "{}",
    "[,1]",
    "{'a':{b:['c']}}",
    '["\\u00e9\\n\\/"]',
    '  {"a":1}  ',
]
ESCAPED = [
    "{",
    "[1 2]",
    "[1],[2]",
    "[1]//c",
    "\ufeff[1]",
    "\xa0[1]",
    "\0[1]",
    '{"a":1,"a":2}',
    "{a:1,a:2}",
    '{"a":1} is this json?',
    '{"a":1}\u200b',
    '"hello"',
    "42",
    "",
    "   ",
    "[1}",
    "{a}",
    "{a:1,}",
    "[a:1]",
    '["a',
    '["\\x"]',
    '["\\u12g4"]',
    "['a\nb']",
    '{"role":"user"},{"role":"assistant"},',
    '[image_1]#"},{"image":{}},{"text":"',
    "hello",
]


@pytest.mark.parametrize("text", RAW)
def test_goes_in_raw(text: str) -> None:
    assert is_json(text)


@pytest.mark.parametrize("text", ESCAPED)
def test_is_escaped(text: str) -> None:
    assert not is_json(text)


def test_depth_is_limited_on_3x_only() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    assert is_json(nested(600))
    assert is_json(nested(20_000))
    assert is_json(nested(255), 255)
    assert not is_json(nested(256), 255)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(values) | st.dictionaries(st.text(), values), st.sampled_from([None, 1, 2]))
def test_any_json_object_or_array_counts(value: object, indent: int | None) -> None:
    assert is_json(json.dumps(value, indent=indent))
    assert is_json(json.dumps(value, ensure_ascii=False))


@given(st.text(alphabet="{}[]:,;='\"\\ab1 \n"))
def test_never_fails_and_only_brackets_count(text: str) -> None:
    if is_json(text):
        assert text.strip()[0] + text.strip()[-1] in ("{}", "[]")
