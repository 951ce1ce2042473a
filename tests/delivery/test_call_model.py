"""What the call model reads of templates and parameters."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery.escaping import split_placeholders, unescape
from gateway.delivery.prompt_parameter import _split_at_question
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
        "${parameters.question:-" * 50_000,
        "${parameters.question" * 50_000 + "}",
        "${parameters.question:" * 50_000 + "}",
        "${parameters.:" * 50_000 + "}",
        "${parameters.gw_a:-" * 50_000,
        "${parameters.gw_" * 50_000,
    ],
)
def test_a_long_text_takes_time_proportional_to_its_length(text: str) -> None:
    started = time.process_time()
    _split_at_question(text)
    list(placeholder_names(text))
    split_placeholders(text)
    show_readable(text)
    unescape(text)
    assert time.process_time() - started < 5
