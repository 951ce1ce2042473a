"""The shape of an execute body: everything but its texts and images. Bodies of one shape are delivered in the same way.

Only the frequent forms have a shape: a text, content blocks, or messages, in the RFC's own spelling and without any
other member. Every text must be plain (`is_plain_text`): a plan does not depend on the words of such a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.delivery.plan_cache import is_plain_text
from gateway.errors import GatewayError
from gateway.unified.base64text import is_valid
from gateway.unified.budget import SMALL_BODY, SMALL_TEXT, Budget, count_separators, has_few
from gateway.unified.jsonstrings import Unreadable
from gateway.unified.magic import other_formats
from gateway.unified.payloads import ExtractedBody, Payload, extract

MOST_PARTS = 32
"""Texts and images of a body with a shape."""
_LONGEST_ROLE = 20
_MOST_BLANKS = 2

PLAIN_TEXT = "|"
"""The shape of a text without white space at its ends."""
MARKS = re.compile("[\uf8f0-\uf8ff]")
"""Characters that mark specimens: from Unicode's private use area, so that no agent's own text contains them."""
Shape = Any
"""A hashable description: of a text, a string (`_shape_of`); of an image, a 1-tuple with its format; of content blocks
and messages, a tuple of them; of a message, its role and content."""


class _TextBlock(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["base64"]
    format: Literal["png", "jpeg", "gif", "webp"]
    data: str


class _ImageBlock(msgspec.Struct, tag="image", forbid_unknown_fields=True):
    source: _Source


_Blocks = list[_TextBlock | _ImageBlock]


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | _Blocks


class _TextBody(msgspec.Struct, forbid_unknown_fields=True):
    input: str


class _BlocksBody(msgspec.Struct, forbid_unknown_fields=True):
    input: _Blocks


class _MessagesBody(msgspec.Struct, forbid_unknown_fields=True):
    input: list[_Message]


_TEXT = msgspec.json.Decoder(_TextBody)
_BLOCKS = msgspec.json.Decoder(_BlocksBody)
_MESSAGES = msgspec.json.Decoder(_MessagesBody)
_START = re.compile(
    rb'[ \t\r\n]*\{[ \t\r\n]*"input"[ \t\r\n]*:[ \t\r\n]*(?:(")|\[[ \t\r\n]*\{[ \t\r\n]*(?:("(?:role|content)")|"))'
)
"""The start of a body with a shape: of a text; of an array of messages, or of content blocks."""

# The quotes of each form's names and values. More of them belong to a repeated name, of which a decoder tells only the
# last.
_BODY_QUOTES, _TEXT_QUOTES, _TEXT_BLOCK_QUOTES, _IMAGE_QUOTES, _MESSAGE_QUOTES = 2, 2, 8, 18, 6


_TEXT_BEGINS = len('{"input":')


@dataclass(slots=True)
class ShapedBody:
    """A body, taken apart. texts, images: in the order of the body."""

    shape: Shape
    texts: list[str]
    images: list[Payload]


def read_shaped(body: bytes, budget: Budget) -> ShapedBody | None:
    """Return `body` by its shape; None if it has none or breaks a rule, and must be read in full."""
    if len(body) <= SMALL_TEXT:
        extracted = None
        text = body
    elif len(body) <= SMALL_BODY and has_few(body, b"\\"):
        try:
            extracted = extract(body, budget=budget._replace(text=SMALL_TEXT))
        except GatewayError:
            return None
        text = extracted.text
    else:
        return None
    if len(text) > budget.text or (len(text) > budget.values < count_separators(text, 0, len(text))):
        return None
    start = _START.match(text)
    if start is None:
        return None
    is_text, is_messages = start.groups()
    reader = _Reader(extracted)
    try:
        if is_text:
            shape = reader.text(_TEXT.decode(text).input)
        elif is_messages:
            shape = tuple(map(reader.message, _MESSAGES.decode(text).input))
        else:
            shape = reader.blocks(_BLOCKS.decode(text).input)
    except (_NoShape, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = len(reader.texts) + len(reader.images)
    if count > min(MOST_PARTS, budget.items // 2) or text.count(b'"') != reader.quotes:
        return None
    return ShapedBody(shape, reader.texts, reader.images)


def read_plain_text(body: bytes) -> tuple[Shape, bytes] | None:
    """Return the shape and the text of a body that is one plain text without escapes; None for any other.

    The text is as it stands in the body. This is the most frequent body of all, so it is read in few steps.
    """
    quote = body.find(b'"', _TEXT_BEGINS, _TEXT_BEGINS + 2)
    if quote < 0:
        return None  # most probably an array: the decoder would be slower to tell
    try:
        text = _TEXT.decode(body).input
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    raw = text.encode()
    # A body that is no longer than one name and one text has no escape in the text, and no member twice.
    is_shortest = len(body) == quote + len(raw) + len('""}')
    if not is_shortest and (body.count(b'"') != _BODY_QUOTES + _TEXT_QUOTES or b"\\" in body):
        return None
    if not is_plain_text(text) or (len(raw) != len(text) and MARKS.search(text) is not None):
        return None
    stripped = text.strip()
    if len(stripped) == len(text):
        return PLAIN_TEXT, raw
    shape = _blanks_around(text, stripped)
    return (shape, stripped.encode()) if shape else None


class _NoShape(Exception):
    """The body has no shape."""


class _Reader:
    """Collects the texts and images of one body. quotes: of all names and values that were read.

    Its methods return the shape of a part. They raise _NoShape for a text that is not plain, and for what must be read
    in full.
    """

    def __init__(self, extracted: ExtractedBody | None) -> None:
        self._extracted = extracted
        self._blobs = extracted.blobs if extracted is not None else {}
        self.texts: list[str] = []
        self.images: list[Payload] = []
        self.quotes = _BODY_QUOTES

    def message(self, message: _Message) -> Shape:
        """Read a message."""
        if not 0 < len(message.role) <= _LONGEST_ROLE or not message.role.isalpha():
            raise _NoShape
        self.quotes += _MESSAGE_QUOTES
        content = message.content
        return message.role, self.text(content) if isinstance(content, str) else self.blocks(content)

    def blocks(self, blocks: _Blocks) -> Shape:
        """Read content blocks."""
        if not blocks:
            raise _NoShape
        return tuple(map(self._block, blocks))

    def _block(self, block: _TextBlock | _ImageBlock) -> Shape:
        if isinstance(block, _TextBlock):
            self.quotes += _TEXT_BLOCK_QUOTES - _TEXT_QUOTES
            return self.text(block.text)
        source = block.source
        data: Payload = self._blobs.get(source.data) or source.data.encode()
        if not data or not is_valid(data) or other_formats("image", source.format, data):
            raise _NoShape
        self.quotes += _IMAGE_QUOTES
        self.images.append(data)
        return (source.format,)

    def text(self, text: str) -> Shape:
        """Read a text."""
        if text in self._blobs:
            assert self._extracted is not None
            try:
                text = self._extracted.restore(text)
            except (GatewayError, Unreadable):
                raise _NoShape from None
            self.quotes += _TEXT_QUOTES
        else:
            self.quotes += _TEXT_QUOTES + text.count('"')
        shape, stripped = _shape_of(text)
        self.texts.append(stripped)
        if len(self.texts) > MOST_PARTS:
            raise _NoShape
        return shape


def _shape_of(text: str) -> tuple[Shape, str]:
    """Return the shape of a text, which is the white space at its ends, and the text without that.

    The white space belongs to the shape, as some of it is not sent: "|" stands for the rest.
    """
    stripped = text.strip()
    if not stripped or not is_plain_text(text) or _is_special(text):
        raise _NoShape
    shape = PLAIN_TEXT if len(stripped) == len(text) else _blanks_around(text, stripped)
    if not shape:
        raise _NoShape
    return shape, stripped


def _blanks_around(text: str, stripped: str) -> Shape:
    """Return the shape of a text with white space at its ends; "" if it has no shape."""
    if not stripped or len(text) - len(stripped) > _MOST_BLANKS:
        return ""
    start = text.index(stripped[0])
    return f"{text[:start]}|{text[start + len(stripped) :]}"


def _is_special(text: str) -> bool:
    """Return True if `text` has a NUL, which is refused, or a character that marks specimens."""
    return "\0" in text or (not text.isascii() and MARKS.search(text) is not None)
