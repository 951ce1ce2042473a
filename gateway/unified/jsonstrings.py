"""JSON strings as bytes: finds their end, unescapes and decodes them, without blocking other threads for long."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import msgspec

WINDOW = 64 * 1024
"""Bytes that a regular expression gets at a time."""
_STRIDE = 4 << 20
"""Bytes that are searched or copied at a time."""
_STRETCH = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_HEX = rb"[0-9a-fA-F]"
_ESCAPES = re.compile(
    # A pair of escaped surrogates is one character, and half of one is none.
    rb'[^"\\]*+(?:\\(?:u(?:[dD][89abAB]%b{2}\\u%b{4}|(?![dD][89abAB])%b{4})|[^u])[^"\\]*+)*' % (_HEX, _HEX, _HEX)
)
"""Text that can be decoded by itself: it does not end within an escape."""
_PIECE = 256 * 1024
"""Bytes that are decoded at a time."""
_QUOTE = ord('"')


class Unreadable(ValueError):
    """An extracted string is not text: it has invalid UTF-8, or a raw control character, which JSON forbids."""


def end_of_escaped(body: bytes | bytearray, position: int) -> int:
    """Return the end of a string that has no unescaped quote before `position`; -1 if it has none."""
    while position < len(body):
        stretch = _STRETCH.match(body, position, position + WINDOW)
        assert stretch is not None
        if stretch.end() < len(body) and body[stretch.end()] == _QUOTE:
            return stretch.end()
        if stretch.end() == position:  # a backslash is the last byte
            break
        position = stretch.end()
    return -1


def find(data: bytes | bytearray, what: bytes, start: int = 0, end: int | None = None) -> int:
    """Search as `bytes.find`, in strides between which other threads can run."""
    end = len(data) if end is None else end
    for begin in range(start, end, _STRIDE):
        found = data.find(what, begin, min(begin + _STRIDE + len(what) - 1, end))
        if found >= 0:
            return found
    return -1


def unescape(blob: memoryview) -> bytes:
    """Return the text of a string with escapes, in UTF-8.

    Raises:
        Unreadable: it is not valid JSON text, or not valid UTF-8 after unescaping.
    """
    out = io.BytesIO()
    position = done = 0
    while position < len(blob):
        stretch = _ESCAPES.match(blob, position, position + WINDOW)
        assert stretch is not None
        end = stretch.end() if stretch.end() > position else position + 12  # enough to show what is wrong there
        piece = bytes(blob[position:end])
        if end < len(blob):
            piece = piece[: len(piece) - _cut_character(piece)]
        if not piece:
            raise Unreadable(f"invalid UTF-8 at byte {position} of the string")
        text = _decode_escapes(piece, position, done)
        if stretch.end() == position:
            raise Unreadable(f"Invalid escape at character {done} of the string")
        out.write(text.encode())
        done += len(text)
        position += len(piece)
    return out.getvalue()


def _decode_escapes(piece: bytes, position: int, characters: int) -> str:
    """Return the text of a part of a string. position, characters: bytes and characters before it.

    Raises:
        Unreadable: as `unescape`.
    """
    try:
        text: str = json.loads(f'"{piece.decode()}"')
    except UnicodeDecodeError as error:
        raise Unreadable(f"invalid UTF-8 at byte {position + error.start} of the string") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"{error.msg.removesuffix(' at')} at character {characters} of the string") from None
    unsafe = _UNSAFE.search(text)
    if unsafe:
        name = "U+0000" if unsafe[0] == "\x00" else f"the lone surrogate U+{ord(unsafe[0]):04X}"
        raise Unreadable(f"{name} at character {characters + unsafe.start()} of the string")
    return text


def _cut_character(piece: bytes) -> int:
    """Return how many bytes at the end of `piece` are the start of an incomplete character."""
    for length in range(1, min(4, len(piece))):
        byte = piece[-length]
        if byte >= 0xC0:
            return length if length < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            break
    return 0


def decode_pieces(data: bytes | memoryview, as_written: bool) -> Iterator[str]:
    """Yield the text in `data`, in pieces. as_written: it is the raw JSON, where control characters are errors.

    data: without escapes.
    """
    position = characters = 0
    while position < len(data):
        piece = bytes(data[position : position + _PIECE])
        if position + _PIECE < len(data):
            piece = piece[: len(piece) - _cut_character(piece)]
        try:
            text: str = msgspec.json.decode(b'"%b"' % piece) if as_written else piece.decode()
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _fault(piece, position, characters) from None
        yield text
        characters += len(text)
        position += len(piece)


def _fault(piece: bytes, position: int, characters: int) -> Unreadable:
    """Return what is wrong with a part of a string. position, characters: bytes and characters before it."""
    try:
        control = _CONTROL.search(piece.decode())
    except UnicodeDecodeError as error:
        return Unreadable(f"invalid UTF-8 at byte {position + error.start} of the string")
    assert control is not None
    return Unreadable(f"unescaped control character at character {characters + control.start()} of the string")
