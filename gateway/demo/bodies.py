"""The bodies that the demo's client sends, with a real picture, document and film."""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import Any

Body = dict[str, Any]


def bodies() -> dict[str, Body]:
    """Return the execute bodies of the demo by name."""
    picture, document, film = (
        _media("image", "visitors.png"),
        _media("document", "hours.pdf"),
        _media("video", "clock.mp4"),
    )
    return {
        "text": {
            "input": "Which day has the most visitors? A price such as $5 or ${parameters.x} must arrive as it is."
        },
        "image": {"input": [_text("Which bar of this chart is the highest?"), picture]},
        "document": {"input": [_text("When is the reading room open on Saturday?"), document]},
        "video": {"input": [_text("What does the clock in this film show?"), film]},
        "conversation": {
            "input": [
                _turn("user", _text("Here is a chart of our visitors."), picture),
                _turn("assistant", _text("I see four bars; the last one is red.")),
                _turn("user", _text("And these are our opening hours."), document),
                _turn("assistant", _text("Thank you, I have read them.")),
                _turn("user", _text("The bars are Wednesday to Saturday.")),
                _turn("assistant", _text("So the red one is Saturday.")),
                _turn("user", _text("How long are we open on the day with the most visitors?")),
            ]
        },
    }


def _text(text: str) -> Body:
    return {"type": "text", "text": text}


def _turn(role: str, *content: Body) -> Body:
    return {"role": role, "content": list(content)}


def _media(kind: str, file: str) -> Body:
    stem, _, format = file.partition(".")
    data = base64.b64encode((files(__package__) / "assets" / file).read_bytes()).decode()
    block: Body = {"type": kind, "source": {"type": "base64", "format": format, "data": data}}
    return {**block, "name": stem} if kind == "document" else block
