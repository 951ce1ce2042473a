"""The form of a question in memory: what later turns read of it, and what was written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mlcommons.memory_form import (
    MOST_FORMS,
    as_default,
    memory_form,
    show_original,
    show_original_json,
    show_readable,
)

TEXTS = st.text() | st.text('{}\uff5b\uff5d\u2060$:-a\n"\\')


@given(TEXTS)
def test_what_was_written_can_be_told_from_what_is_stored(text: str) -> None:
    stored = memory_form("gw_1", text)
    assert show_original(stored) == text
    assert show_readable(stored) == as_default(text)
    assert not set("{}") & set(as_default(text))


@given(st.text('ab $:-\uff0c\n"\\'))
def test_a_text_without_braces_is_read_as_it_was_written(text: str) -> None:
    assert show_readable(memory_form("gw_1", text)) == text


@given(st.lists(TEXTS, min_size=1))
def test_texts_in_a_json_document(texts: list[str]) -> None:
    held = [memory_form(f"gw_{number}", text) for number, text in enumerate(texts)]
    document = json.dumps({"messages": held}, ensure_ascii=False).encode(errors="surrogatepass")
    shown = show_original_json(document).decode(errors="surrogatepass")
    assert json.loads(shown) == {"messages": texts}


def test_bytes_around_the_form_are_not_changed() -> None:
    document = b'\xff{"a": "\xef\xbd\x9b", "b": "x$${parameters.gw_1:-\xfe\xef\xbd\x9b\\"}y"}'
    assert show_original_json(document) == b'\xff{"a": "\xef\xbd\x9b", "b": "x\xfe{\\"y"}'


@given(st.lists(st.text('"\\\\{}a') | st.just("${parameters.gw_1:-") | TEXTS, min_size=1).map("".join))
def test_a_form_ends_in_the_string_in_which_it_begins(text: str) -> None:
    document = json.dumps([text, {"b": text}], ensure_ascii=False).encode(errors="surrogatepass")
    shown = json.loads(show_original_json(document).decode(errors="surrogatepass"))
    assert shown == [show_original(text), {"b": show_original(text)}]


@pytest.mark.parametrize(("count", "shown"), [(MOST_FORMS, b"x"), (MOST_FORMS + 1, b"${parameters.gw_1:-x}")])
def test_a_document_with_very_many_forms_is_left_as_it_is(count: int, shown: bytes) -> None:
    """To change them all at once would hold up other clients."""
    assert show_original_json(b"${parameters.gw_1:-x}" * count) == shown * count


def test_what_an_earlier_version_stored_is_read() -> None:
    """It did not mark the user's own characters."""
    assert show_original("${parameters.gw_1:-a \u2060 \uff5bb\uff5d}") == "a \u2060 {b}"
