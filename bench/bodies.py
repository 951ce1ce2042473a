"""Bodies of `_execute`, as the benchmarks send them."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

WORDS = "Where did my order of last week go, and when will it be here? "


def _text(size: int) -> str:
    return (WORDS * (size // len(WORDS) + 1))[:size]


def _body(value: Any, **more: Any) -> bytes:
    return json.dumps({"input": value, **more}).encode()


def _medium(kind: str, form: str, size: int) -> dict[str, Any]:
    """A medium of `size` bytes of base64."""
    data = base64.b64encode(os.urandom(size * 3 // 4)).decode()
    return {"type": kind, "source": {"type": "base64", "format": form, "data": data}}


def text_body(size: int) -> bytes:
    """One text; a body of `size` bytes."""
    return _body(_text(size - len(_body(""))))


def special_body(size: int) -> bytes:
    """One text with what templates interpret; a body of about `size` bytes."""
    return _body(("pays ${amount} {or} $5: " + _text(size))[:size])


def parameters_body(size: int) -> bytes:
    """One text of about `size` bytes, with parameters of the client's own."""
    return _body(_text(size), parameters={"verbose": "true", "note": _text(200)})


def image_body(size: int) -> bytes:
    """A text and an image of `size` bytes of base64."""
    return _body([{"type": "text", "text": "What is this?"}, _medium("image", "png", size)])


def document_body(size: int) -> bytes:
    """A text and a document of `size` bytes of base64."""
    return _body([{"type": "text", "text": "What is this?"}, _medium("document", "pdf", size)])


def turns_body(turns: int, size: int = 300) -> bytes:
    """A conversation of an odd number of turns of text, each of `size` characters: the user ends it."""
    roles = ("user", "assistant")
    return _body(
        [
            {"role": roles[n % 2], "content": [{"type": "text", "text": _text(size)}]}
            for n in range(turns - 1 + turns % 2)
        ]
    )
