"""The cluster's templates: what a substitution makes of each template, as a table."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mlcommons.template import InfiniteLoop, escape_json, may_be_json, substitute
from gateway.simulator.lenient import is_json
from tests.strategies import hostile_text

VALUES = {
    "x": "X",
    "empty": "",
    "y": "<${parameters.x}>",
    "dollar": "$",
    "dollars": "$$",
    "open": "${parameters.",
    "half": "${parameters.x",
    "late": "$${parameters.x}",
    "loop": "${parameters.pool}",
    "pool": "${parameters.loop}",
}

TABLE = {
    "": "",
    "plain {x} ${x} $x": "plain {x} ${x} $x",
    "${parameters.x}": "X",
    "a${parameters.x}b${parameters.x}c": "aXbXc",
    "${parameters.empty}|": "|",
    "${parameters.unknown}": "${parameters.unknown}",
    "${parameters.unknown:-default}": "default",
    "${parameters.unknown:-}": "",
    "${parameters.unknown:-a:-b}": "a:-b",
    "${parameters.x:-default}": "X",
    "${parameters.empty:-default}": "",
    "${parameters.unknown:-${parameters.x}}": "${parameters.x}",  # the name ends at the first brace
    "${parameters.y}": "<X>",
    "$${parameters.x}": "${parameters.x}",
    "$$${parameters.x}": "$${parameters.x}",
    "$$$${parameters.x}": "$$${parameters.x}",
    "$${parameters.unknown}": "${parameters.unknown}",
    "$ ${parameters.x}": "$ X",
    "${parameters.x}$": "X$",
    "${parameters.late}": "${parameters.x}",
    # A `$` that ends a value escapes the placeholder after it; a value is scanned separately.
    "${parameters.dollar}${parameters.x}": "${parameters.x}",
    "${parameters.dollars}${parameters.x}": "$${parameters.x}",
    "${parameters.dollar}{parameters.x}": "${parameters.x}",
    "${parameters.dollar} ${parameters.x}": "$ X",
    "${parameters.dollar}${parameters.empty}${parameters.x}": "${parameters.empty}X",
    "${parameters.empty}${parameters.x}": "X",
    "${parameters.open}x}": "${parameters.x}",
    "${parameters.half}}": "${parameters.x}",
    "${parameters.x": "${parameters.x",
    "${parameters.}": "${parameters.}",
    "${parameters.unknown}${parameters.x}": "${parameters.unknown}X",
    "${ parameters.x}": "${ parameters.x}",
    "${parameters.x }": "${parameters.x }",
    "${credential.x}": "${credential.x}",
}


@pytest.mark.parametrize("template", TABLE)
def test_substitution(template: str) -> None:
    assert substitute(template, VALUES) == TABLE[template]


@pytest.mark.parametrize("template", ["${parameters.loop}", "a ${parameters.x} ${parameters.pool}"])
def test_a_cycle_is_an_infinite_loop(template: str) -> None:
    with pytest.raises(InfiniteLoop, match=r"loop.*pool|pool.*loop"):
        substitute(template, VALUES)


def test_a_value_that_names_itself_is_an_infinite_loop() -> None:
    with pytest.raises(InfiniteLoop, match=r"^question -> question$"):
        substitute("${parameters.question}", {"question": "say ${parameters.question}"})


def test_a_name_may_be_used_twice_without_a_cycle() -> None:
    assert substitute("${parameters.y}${parameters.y}", VALUES) == "<X><X>"


def test_the_prefix_may_be_another() -> None:
    assert substitute("${tool.x} ${parameters.x}", {"x": "X"}, "${tool.") == "X ${parameters.x}"


@given(hostile_text())
def test_escaping_gives_back_the_text(text: str) -> None:
    escaped = escape_json(text)
    assert escaped.isascii()
    assert json.loads(f'"{escaped}"') == text


def test_escaping_is_written_as_the_cluster_writes_it() -> None:
    assert escape_json('/"\\é😀\n\x01\x7f') == '\\/\\"\\\\\\u00E9\\uD83D\\uDE00\\n\\u0001\x7f'


@given(hostile_text() | st.text("{}[]()'\"a:,= \n\t", max_size=8))
def test_what_the_cluster_takes_for_json_is_never_missed(text: str) -> None:
    assert may_be_json(text) or not is_json(text)


@pytest.mark.parametrize(
    ("text", "may"), [("{", False), (" [[ {", False), ("{}", True), ("\x00[1", True), ("a{}", False)]
)
def test_what_might_be_json(text: str, may: bool) -> None:
    assert may_be_json(text) is may


def test_a_long_text_is_escaped_in_pieces_as_a_whole() -> None:
    text = 'a/"\u00e9\U0001f600' * 100_000
    assert escape_json(text) == escape_json(text[:5]) * 100_000
