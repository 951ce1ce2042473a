"""The shape of an execute body: everything but its texts and images. Bodies of one shape are delivered in the same way.

Only the frequent forms have a shape: a text, content blocks, or messages, in the RFC's own spelling and without any
other member. Every text must be plain (`is_plain_text`): a plan does not depend on the words of such a text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.delivery.escaping import raw_text
from gateway.delivery.plan_cache import SPECIMEN_TURN, is_plain_text
from gateway.errors import GatewayError
from gateway.unified.base64text import is_valid
from gateway.unified.budget import SMALL_BODY, SMALL_TEXT, Budget, count_separators, has_few
from gateway.unified.jsonstrings import Unreadable
from gateway.unified.payloads import ExtractedBody, Payload, extract

_MOST_PARTS = 32
"""Texts and images of a body with a shape."""
_LONGEST_ROLE = 20
_MOST_BLANKS = 2

PLAIN_TEXT = "|"
"""The shape of a text without white space at its ends."""
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
    elif len(body) <= SMALL_BODY and has_few(body, b'"') and has_few(body, b"\\"):
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
    if count > min(_MOST_PARTS, budget.items // 2) or text.count(b'"') != reader.quotes:
        return None
    return ShapedBody(shape, reader.texts, reader.images)


def read_plain_text(body: bytes) -> tuple[Shape, bytes] | None:
    """Return the shape and the text of a body that is one plain text without escapes; None for any other.

    The text is as it stands in the body. This is the most frequent body of all, so it is read in few steps.
    """
    quote = _TEXT_BEGINS if body[_TEXT_BEGINS : _TEXT_BEGINS + 1] == b'"' else _TEXT_BEGINS + 1
    if body[quote : quote + 1] != b'"':
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
    if not is_plain_text(text) or (not text.isascii() and _SPECIAL.search(text) is not None):
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
        if not data or not is_valid(data):
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
        if len(self.texts) > _MOST_PARTS:
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
    return "\0" in text or (not text.isascii() and _SPECIAL.search(text) is not None)


# Specimens

# From Unicode's private use area, so that no agent's own text contains them.
_FIRST, _LAST = "\uf8f3", "\uf8f4"
_SPECIAL = re.compile("[\uf8f0-\uf8ff]")
_ESCAPED = '"\\\n'
"""What JSON escapes: the specimen of a text has it, so that one can tell how often each place is escaped."""


def _specimen_text(number: int) -> str:
    return f"{_FIRST}{number}{_ESCAPED}{_LAST}"


def _specimen_image(number: int) -> bytes:
    return base64.b64encode(f"specimen image {number:05}".encode())


def specimen_body(shape: Shape) -> bytes:
    """Return a body of `shape` with specimens as texts and images."""
    return json.dumps({"input": _Specimens().content(shape)}, ensure_ascii=False).encode()


class _Specimens:
    def __init__(self) -> None:
        self._texts = self._images = 0

    def content(self, shape: Shape) -> Any:
        if isinstance(shape, str):
            self._texts += 1
            return shape.replace("|", _specimen_text(self._texts - 1))
        if isinstance(shape[0], tuple) and len(shape[0]) == 2:
            return [{"role": role, "content": self.content(content)} for role, content in shape]
        return list(map(self._block, shape))

    def _block(self, shape: Shape) -> Any:
        if isinstance(shape, str):
            return {"type": "text", "text": self.content(shape)}
        self._images += 1
        data = _specimen_image(self._images - 1).decode()
        return {"type": "image", "source": {"type": "base64", "format": shape[0], "data": data}}


def _encoded(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


_ONCE, _TWICE = _encoded(_ESCAPED), _encoded(raw_text(_ESCAPED))
_TURN = -1
_SLOTS = {_specimen_image(number): number for number in range(_MOST_PARTS)} | {SPECIMEN_TURN.encode(): _TURN}
_SPECIMEN = re.compile(
    rb"%b([0-9]+)(?:%b|(%b))%b|%b"
    % (_FIRST.encode(), re.escape(_ONCE), re.escape(_TWICE), _LAST.encode(), b"|".join(map(re.escape, _SLOTS)))
)

_Piece = bytes | tuple[int, bool] | int
"""Bytes as they are; the number of a text, and whether it is escaped twice; the number of an image, or `_TURN`."""


class ShapedTemplate:
    """A body to send for any body of one shape: the body for the specimens, cut where they are."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        parts = {piece for piece in pieces if not isinstance(piece, bytes)}
        only_text = parts <= {(0, False), (0, True)}
        self.around_text = [piece for piece in pieces if isinstance(piece, bytes)] if only_text else []
        """What is around each place of the text, if there is only one text."""

    @classmethod
    def of(cls, sent: bytes, shaped: ShapedBody) -> ShapedTemplate | None:
        """Return the template. None if a text or image of `shaped` is missing in `sent`, or stands there changed.

        sent: what is sent for `specimen_body(shaped.shape)`.
        """
        pieces = list(_cut(sent))
        texts = {piece[0] for piece in pieces if isinstance(piece, tuple)}
        images = {piece for piece in pieces if isinstance(piece, int) and piece != _TURN}
        if texts != set(range(len(shaped.texts))) or images != set(range(len(shaped.images))):
            return None
        if any(isinstance(piece, bytes) and _SPECIAL.search(piece.decode()) for piece in pieces):
            return None
        return cls(pieces)

    def fill(self, shaped: ShapedBody, new_turn_id: Callable[[], str]) -> list[Payload]:
        """Return the body for `shaped`, in pieces. Images are not copied.

        new_turn_id: called if the body has a turn id, see `gateway.delivery.plan.plan`.
        """
        once = list(map(_encoded, shaped.texts))
        turn = new_turn_id().encode() if _TURN in self._pieces else b""
        filled: list[Payload] = []
        for piece in self._pieces:
            if isinstance(piece, bytes):
                filled.append(piece)
            elif isinstance(piece, int):
                filled.append(turn if piece == _TURN else shaped.images[piece])
            else:
                number, twice = piece
                text = once[number]
                filled.append(_encoded(raw_text(shaped.texts[number])) if twice and b"\\" in text else text)
        return [b"".join(filled)] if sum(map(len, filled)) <= SMALL_TEXT else filled


def _cut(sent: bytes) -> Iterator[_Piece]:
    done = 0
    for found in _SPECIMEN.finditer(sent):
        yield sent[done : found.start()]
        done = found.end()
        slot = _SLOTS.get(found[0])
        yield slot if slot is not None else (int(found[1]), found[2] is not None)
    yield sent[done:]
