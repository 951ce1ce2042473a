"""What the call model reads of templates and parameters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery.call_model import _split_at_question
from gateway.delivery.escaping import split_placeholders, unescape
from gateway.mlcommons.memory_form import show_readable
from gateway.mlcommons.template import placeholder_names

SIGNS = ["${parameters.", "question", ".toString()", "}", ":-", ":", "x", "$", " "]
texts = st.lists(st.sampled_from(SIGNS), max_size=20).map("".join)


@given(texts)
def test_the_parts_around_a_question(text: str) -> None:
    pattern = r"\$\{parameters\.question(?:\.toString\(\))?(?::-[^}]*)?\}"
    assert _split_at_question(text) == re.split(pattern, text)


@given(texts)
def test_the_names_of_placeholders(text: str) -> None:
    assert list(placeholder_names(text)) == re.findall(r"\$\{parameters\.([^}:]+)(?::-[^}]*)?\}", text)


@pytest.mark.parametrize(
    "text",
    [
        "$" * 1_000_000 + "{parameters.x}",
        "$" * 1_000_000,
        "${parameters.question:-" * 100_000,
        "${parameters.question" * 100_000 + "}",
        "${parameters.question:" * 100_000 + "}",
        "${parameters.:" * 100_000 + "}",
        "${parameters.gw_a:-" * 100_000,
        "${parameters.gw_" * 100_000,
    ],
    ids=["dollars", "only dollars", "defaults", "names", "colons", "no names", "forms", "open forms"],
)
def test_a_long_text_takes_time_proportional_to_its_length(text: str) -> None:
    """A pattern that reads on to the end of the text at each placeholder would take more than ten minutes."""
    assert len(_split_at_question(text)) <= 2
    assert len(list(placeholder_names(text))) <= 1
    is_whole = "".join(split_placeholders(text)) == text
    assert is_whole  # a comparison of long texts would take minutes to report
    is_same = show_readable(text) == text == unescape(text)
    assert is_same
