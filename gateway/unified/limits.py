"""Limits for the work that one body may cause. Every reader of a client's body takes a `ParseLimits`.

A body is read before its sender is authenticated. So the work is linear in the bytes received, and the reader stops at
the first limit that is exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.schema import Limits
from gateway.errors import BodyTooLarge, InvalidInput, Problem

TOO_MANY_VALUES, TOO_MANY_ITEMS = "TOO_MANY_VALUES", "TOO_MANY_ITEMS"
"""Codes of ``docs/reference/limitations.md``."""

_DEFAULT = Limits()

SMALL_BODY = 1024 * 1024
"""Bytes up to which a body is read on the event loop, if little of it is JSON: most of it is one image, say."""
SMALL_TEXT = 64 * 1024
"""Bytes of text up to which a request is planned on the event loop."""
_SMALL_COUNT = 1000
_COSTLY = b',[{"\\'
"""What makes JSON costly to read: values, strings and escapes."""


class ParseLimits(NamedTuple):
    """The limits for one body.

    decompressed: bytes once decompressed. text: bytes of JSON without inline media. values: commas and opening
    brackets outside strings, and placeholders in texts, because each of them has to be escaped. items: messages,
    content blocks, tool calls. depth: levels of nesting, with the outermost. problems: reading stops if there are
    more.
    """

    decompressed: int = _DEFAULT.decompressed
    text: int = _DEFAULT.text
    values: int = _DEFAULT.values
    items: int = _DEFAULT.input_items
    depth: int = _DEFAULT.nesting
    problems: int = 100

    @classmethod
    def from_limits(cls, limits: Limits) -> ParseLimits:
        """Return the limits in the settings."""
        return cls(limits.decompressed, limits.text, limits.values, limits.input_items, limits.nesting)


PLACEHOLDER = "${parameters."
"""Start of a placeholder in a connector's template."""


def is_small(body: bytes) -> bool:
    """Return whether reading `body` takes so little time that other clients of the event loop can wait for it.

    That is some 3 ms at most; an image of 1 MB takes 0.2 ms.
    """
    if len(body) <= _SMALL_COUNT:
        return True
    if len(body) <= SMALL_TEXT:
        return len(body) - len(body.translate(None, _COSTLY)) <= _SMALL_COUNT
    return len(body) <= SMALL_BODY and _has_few_signs(body)


def _has_few_signs(body: bytes) -> bool:
    """Return True if few signs of `_COSTLY` occur in `body`, without a copy of it."""
    count = 0
    for sign in _COSTLY:
        position = -1
        while (position := body.find(sign, position + 1)) >= 0:
            count += 1
            if count > _SMALL_COUNT:
                return False
    return True


def count_separators(text: bytes, start: int, end: int) -> int:
    """Count commas and opening brackets, including those in strings."""
    return text.count(b",", start, end) + text.count(b"[", start, end) + text.count(b"{", start, end)


def too_much_text(limit: int) -> BodyTooLarge:
    """Return the error for a body with more than `limits.text` bytes beside its inline media."""
    place = Problem("", "The body has too much text", f"at most {limit} bytes beside inline media", help=_raise("text"))
    return BodyTooLarge(f"The request's body is too large: it has more than {limit} bytes of text.", [place])


def too_many_values(limit: int, place: str = "") -> InvalidInput:
    """Return the error for a body with more than `limits.values` JSON values."""
    return _refusal(
        place,
        f"The JSON has more than {limit} values and placeholders",
        f"at most {limit}",
        "",
        TOO_MANY_VALUES,
        "values",
    )


def too_many_items(limit: int, count: int, place: str) -> InvalidInput:
    """Return the error for an `input` with more than `limits.input_items` items. count: the number found."""
    reason = f"The input has more than {limit} messages, content blocks and tool calls"
    return _refusal(place, reason, f"at most {limit}", f"at least {count}", TOO_MANY_ITEMS, "input_items")


def _refusal(place: str, reason: str, expected: str, received: str, code: str, setting: str) -> InvalidInput:
    error = InvalidInput.of([Problem(place, reason, expected, received, code, _raise(setting))])
    assert isinstance(error, InvalidInput)
    return error


def _raise(setting: str) -> str:
    return f"Send less, or raise the gateway's setting limits.{setting}."
