"""Recorded requests are read with what stands for their media, and those of one shape are known by it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gateway.migrate.recorded import Options, RecordedRun, read_run
from gateway.observe.media import shorten_media

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"picture" * 300).decode()


def _read(body: Any) -> RecordedRun:
    return read_run("id", shorten_media(json.dumps(body).encode()), False, Options())


@pytest.mark.parametrize("before", ["", "data:image/png;base64,"], ids=["base64", "data URL"])
@pytest.mark.parametrize("parted", [PNG, f"{PNG[:2]} {PNG[2:]}", f"{PNG[:1500]} {PNG[1500:]}"])
def test_a_hash_is_read_with_what_is_left_around_it(before: str, parted: str) -> None:
    source = {"type": "base64", "format": "png", "data": before + parted}
    run = _read({"input": [{"type": "text", "text": "?"}, {"type": "image", "source": source}]})
    assert run.reason is None
    assert run.request.input is not None
    assert len(list(run.request.input.media)) == 1


def _turns(*texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": [{"type": "text", "text": text}]} for at, text in enumerate(texts)]


def _question(text: str, **parameters: str) -> dict[str, Any]:
    return {"parameters": {"question": text, **parameters}}


SAME_SHAPE: list[tuple[Any, Any]] = [
    ({"input": "Hello"}, {"input": 'Say "hi"\n\\ twice, ä 漢'}),
    ({"input": _turns("a", "b", "c")}, {"input": _turns("Hello", "Hi", "Where is it?")}),
    (_question("Hello"), _question('Say "hi"')),
    (_question("Hello", memory_id="1"), _question("Hi", memory_id="2")),
]
OTHER_SHAPE: list[tuple[Any, Any]] = [
    ({"input": "Hello"}, {"input": " Hello"}),
    ({"input": "Hello"}, {"input": [{"type": "text", "text": "Hello"}]}),
    ({"input": _turns("a")}, {"input": _turns("a", "b", "c")}),
    (_question("Hello"), _question("Hello", prompt="x")),
    (_question("Hello"), _question("Hello ")),
    (_question("Hello"), {"input": "Hello"}),
]
NO_SHAPE = [
    {"input": "${parameters.x}"},
    {"input": "{a:1}"},
    _question("[1]"),
    _question("12"),
    _question("true"),
    _question(" "),
    {"parameters": {"prompt": "x"}},
    {"input": "Hello", "tools": [{"name": "count", "description": "Counts."}]},
]


def _shape(body: Any) -> Any:
    shaped = _read(body).shaped
    return None if shaped is None else shaped.shape


@pytest.mark.parametrize(("one", "other"), SAME_SHAPE)
def test_requests_that_differ_in_their_words_have_one_shape(one: Any, other: Any) -> None:
    assert _shape(one) is not None
    assert _shape(one) == _shape(other)


@pytest.mark.parametrize(("one", "other"), OTHER_SHAPE)
def test_all_else_belongs_to_the_shape(one: Any, other: Any) -> None:
    assert None not in (_shape(one), _shape(other))
    assert _shape(one) != _shape(other)


@pytest.mark.parametrize("body", NO_SHAPE)
def test_a_text_that_a_template_may_read_has_no_shape(body: Any) -> None:
    assert _shape(body) is None
