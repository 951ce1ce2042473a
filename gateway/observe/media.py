"""Media in recorded bodies: base64 is replaced by type, length and hash of its bytes, in any JSON and at any depth.

The base64 is found in the text itself, so that the same medium is found in what a client sent, in a string of JSON that
the gateway made of it, and in what the cluster answered. No call of C code gets more than 1 MB of it, because such a
call blocks the event loop.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pybase64

Data = bytes | memoryview
Keep = Callable[[str, str, bytes], None]
"""Keeps a medium: its SHA-256 as 64 hexadecimal digits, its type, its bytes."""

MARK = re.compile(r"\[MEDIA type=([^\s\]]*) length=([0-9]+) sha256=([0-9a-f]{64})\]")
"""What stands for a medium in a record."""

_SHORTEST = 64
"""Characters of base64 that can be a medium: with a data URL before it, or the signature of a known type."""
_ANY = 1024
"""Characters of base64 that are a medium of any type."""
_WINDOW = 64 * 1024
_WINDOWS = (_WINDOW, 2048)
"""Characters of base64 that are decoded at a time, as long as there are as many."""
_AT_ONCE = 1024 * 1024
"""Bytes that are hashed, or compared, at a time. `hashlib` releases Python's lock each time, and waits for it again."""
_BACKSLASH = ord("\\")
_UNKNOWN = "application/octet-stream"
_OVERLAP = 8 * _SHORTEST
_RUN = re.compile(rb"[A-Za-z0-9+/]{%d}" % _SHORTEST)
_ESCAPED_RUN = re.compile(rb"(?=(?:[A-Za-z0-9+/]|\\{1,7}/){%d})(?:[A-Za-z0-9+/]++|\\{1,7}/)+" % _SHORTEST)
_MORE = re.compile(rb"[A-Za-z0-9+/]*+")
_JOINT = re.compile(rb"\\{1,7}/|(?:\\{1,7}[nr]|[\r\n]){1,4}(?=[A-Za-z0-9+/]{2})")
_OTHER_ESCAPE = re.compile(rb"\\{1,7}(?:u[0-9A-Fa-f]{4}|[^/\\])")
_PADDING = re.compile(rb"(?:=|\\{1,7}u003[dD]){0,2}")
_URL = re.compile(
    rb"data:([A-Za-z0-9][A-Za-z0-9.+-]{0,63}\\{0,7}/[A-Za-z0-9][A-Za-z0-9.+-]{0,63})(?:;[^;,\"]{1,64})*;base64,\Z"
)
_SHORT = 4096
_BEFORE = 300
"""Bytes in which the beginning of a data URL is."""
_FOREIGN = re.compile(rb"[^A-Za-z0-9+/]+")
_ESCAPE = re.compile(rb"\\+[nr]")
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"%PDF-", "application/pdf"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypqt", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/msword"),
)


class KnownMedium(NamedTuple):
    """A large medium of an exchange: `text[start:end]` is its base64. measured: its length and hash, as shown."""

    text: bytes
    start: int
    end: int
    measured: bytes

    def is_at(self, data: memoryview, at: int) -> bool:
        """Return True if `data` has the same base64 at `at`."""
        size = self.end - self.start
        if len(data) - at < size:
            return False
        return all(
            self.text.startswith(data[at + begin : at + min(begin + _AT_ONCE, size)], self.start + begin)
            for begin in range(0, size, _AT_ONCE)
        )


Known = list[KnownMedium]


def shorten_media(data: Data, before: bytes = b"", keep: Keep | None = None, known: Known | None = None) -> bytes:
    """Return a body with ``[MEDIA type=… length=… sha256=…]`` in place of each medium.

    before: what precedes `data`, at least the last 300 bytes of it. keep: called with each medium. known: media of
    other bodies of the exchange, which are not decoded again; gets those of this one.
    """
    known = [] if known is None else known
    if (measured := _measured_before(data, known)) is not None:
        return _shown(_named_type(data, 0, before) or _type_of(data, 0), measured)
    if not _may_hold_media(data):
        return bytes(data)
    out: list[bytes] = []
    done = position = 0
    while (run := _find_run(data, position)) is not None:
        start, matched = run
        named, kind = _named_type(data, start, before), _type_of(data, start)
        if not (named or kind or _decode_window(data, start, _ANY)):
            position = _end_of_run(data, matched) + 1
            if position - 1 - start < _ANY:
                continue
        end, measured = _measure(data, start, matched, named or kind, keep, known)
        out += (bytes(data[done:start]), _shown(named or kind, measured))
        padding = _PADDING.match(data, end)
        done = end if padding is None else padding.end()
        position = end + 1
    return b"".join((*out, bytes(data[done:]))) if out else bytes(data)


def _shown(kind: str, measured: bytes) -> bytes:
    return b"[MEDIA type=%b %b]" % ((kind or _UNKNOWN).encode("ascii"), measured)


def _measured_before(data: Data, known: Known) -> bytes | None:
    """Return the measures of the known medium that `data` is. The client's media are sent on as such pieces."""
    if isinstance(data, memoryview):
        for medium in known:
            if bytes(data[medium.end - medium.start :][:3]) in (b"", b"=", b"==") and medium.is_at(data, 0):
                return medium.measured
    return None


def _may_hold_media(data: Data) -> bool:
    """Return False for a short body without the names that come before media."""
    return len(data) > _SHORT or isinstance(data, memoryview) or b"data" in data or b"bytes" in data


def _find_run(data: Data, position: int) -> tuple[int, int] | None:
    """Return where the next run of base64 begins, from `position` on, and an end up to which it is known to reach."""
    size = len(data)
    while position < size:
        window = min(position + _WINDOW, size)
        text = bytes(data[position:window])
        pattern = _ESCAPED_RUN if b"\\" in text and b"\\/" in text else _RUN
        match = pattern.search(data, position, window)
        if match is not None:
            return _after_escape(data, match.start()), match.end()
        if window == size:
            return None
        position = window - _OVERLAP  # a run may have begun before the end of the window
    return None


def _after_escape(data: Data, start: int) -> int:
    """Return the start of a run whose first letter may belong to an escape, such as that of a line break."""
    if start and data[start - 1] == _BACKSLASH:
        escape = _OTHER_ESCAPE.match(data, start - 1)
        return start if escape is None else escape.end()
    return start


def _end_of_run(data: Data, end: int) -> int:
    """Return the end of a run that reaches to `end` at least, without its padding."""
    while True:
        for size in _WINDOWS:
            while _decode_window(data, end, size):
                end += size
        more = _MORE.match(data, end, min(end + _WINDOW, len(data)))
        assert more is not None
        if more.end() == end:
            joint = _JOINT.match(data, end)
            if joint is None:
                return end
            end = joint.end()
        else:
            end = more.end()


def _decode_window(data: Data, start: int, size: int) -> bytes:
    """Return the bytes of `size` characters of base64; b"" if there are fewer, or padding or anything else in between.

    This takes a tenth of the time of a regular expression.
    """
    window = memoryview(data)[start : start + size]
    if len(window) == size:
        try:
            decoded = pybase64.b64decode(window, validate=True)
        except ValueError:
            return b""
        if len(decoded) == size // 4 * 3:
            return decoded
    return b""


def _named_type(data: Data, start: int, before: bytes) -> str:
    """Return the media type of the data URL whose base64 begins at `start`; "" if it is none."""
    preceding = bytes(data[max(0, start - _BEFORE) : start])
    url = _URL.search(before[-_BEFORE:] + preceding if start < _BEFORE else preceding)
    return url[1].replace(b"\\", b"").decode("ascii") if url is not None else ""


def _type_of(data: Data, start: int) -> str:
    """Return the media type that the first bytes show; "" for none."""
    first = binascii.a2b_base64(_clean(data[start : start + 64])[:32])
    return next((name for at, sign, name in _SIGNATURES if first.startswith(sign, at)), "")


def _measure(data: Data, start: int, matched: int, kind: str, keep: Keep | None, known: Known) -> tuple[int, bytes]:
    """Return the end of a medium, without its padding, and its length and hash. matched: see `_find_run`."""
    for medium in known:
        end = start + medium.end - medium.start
        if medium.is_at(memoryview(data), start) and _end_of_run(data, end) == end:
            return end, medium.measured
    digest = hashlib.sha256()
    pieces: list[bytes] = []
    length = waiting = 0
    for piece, end in _decoded(data, start, matched):  # noqa: B007 - the last one is used
        pieces.append(piece)
        length += len(piece)
        waiting += len(piece)
        if waiting >= _AT_ONCE and keep is None:
            digest.update(b"".join(pieces))
            pieces, waiting = [], 0
    decoded = b"".join(pieces)
    digest.update(decoded)
    if keep is not None:
        keep(digest.hexdigest(), kind or _UNKNOWN, decoded)
    measured = b"length=%d sha256=%b" % (length, digest.hexdigest().encode("ascii"))
    if end - start > _WINDOW:
        known.append(_known(data, start, end, measured))
    return end, measured


def _known(data: Data, start: int, end: int, measured: bytes) -> KnownMedium:
    if isinstance(data, bytes):
        return KnownMedium(data, start, end, measured)
    return KnownMedium(bytes(data[start:end]), 0, end - start, measured)


def _decoded(data: Data, start: int, matched: int) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes of a run of base64 in pieces, each with the end of its base64. matched: see `_find_run`.

    Line breaks and escapes in it are skipped.
    """
    position = start
    for size in _WINDOWS:
        while piece := _decode_window(data, position, size):
            position += size
            yield piece, position
    end = _end_of_run(data, max(position, matched))
    rest = bytes(data[position:end])
    if any(mark in rest for mark in (b"\\", b"\n", b"\r")):
        rest = _clean(rest)
    for at in range(0, len(rest), _WINDOW):
        text = rest[at : at + _WINDOW]
        if len(text) % 4 == 1:
            text = text[:-1]  # of a text that was cut
        yield binascii.a2b_base64(text + b"=" * (-len(text) % 4)), end


def _clean(run: Data) -> bytes:
    """Return a run of base64 without line breaks and escapes."""
    return _FOREIGN.sub(b"", _ESCAPE.sub(b"", run))
