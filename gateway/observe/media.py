"""Media in recorded bodies: base64 is replaced by type, length and hash of its bytes, in any JSON and at any depth.

The base64 is found in the text itself, so that the same medium is found in what a client sent, in a string of JSON that
the gateway made of it, and in what the cluster answered. No call of C code gets more than a window of it, because such
a call blocks the event loop.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Callable, Iterator

import pybase64

Data = bytes | memoryview
Keep = Callable[[str, str, bytes], None]
"""Keeps a medium: its SHA-256 as 64 hexadecimal digits, its type, its bytes."""

_SHORTEST = 64
"""Characters of base64 that can be a medium: with a data URL before it, or the signature of a known type."""
_ANY = 1024
"""Characters of base64 that are a medium of any type."""
_WINDOW = 64 * 1024
_HASHED = 1024 * 1024
"""Bytes that are hashed at a time. `hashlib` releases Python's lock each time, and the event loop keeps it for 1 ms."""
_BACKSLASH = ord("\\")
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


Known = list[tuple[Data, bytes]]
"""Large media of an exchange: their base64 as it stood, and their size and hash as they are shown."""


def shorten_media(data: Data, before: bytes = b"", keep: Keep | None = None, known: Known | None = None) -> bytes:
    """Return a body with ``[MEDIA type=… length=… sha256=…]`` in place of each medium.

    before: what precedes `data`, at least the last 300 bytes of it. keep: called with each medium. known: media of
    other bodies of the exchange, which are not decoded again; gets those of this one.
    """
    known = [] if known is None else known
    out: list[bytes] = []
    done = 0
    whole = _find_whole(data, known)
    runs = ((0, len(whole[0])),) if whole is not None else _runs(data) if _may_hold_media(data) else ()
    for start, end in runs:
        preceding = bytes(data[max(0, start - _BEFORE) : start])
        url = _URL.search(before[-_BEFORE:] + preceding if start < _BEFORE else preceding)
        kind = _type_of(data, start)
        if url is None and not kind and end - start < _ANY:
            continue
        named = url[1].replace(b"\\", b"").decode("ascii") if url is not None else ""
        kind = named or kind or "application/octet-stream"
        measured = whole[1] if whole is not None else _measure(data, start, end, kind, keep, known)
        out += (bytes(data[done:start]), b"[MEDIA type=%b %b]" % (kind.encode("ascii"), measured))
        padding = _PADDING.match(data, end)
        done = end if padding is None else padding.end()
    return b"".join((*out, bytes(data[done:]))) if out else bytes(data)


def _find_whole(data: Data, known: Known) -> tuple[Data, bytes] | None:
    """Return the known medium that `data` consists of, apart from padding. The client's are sent on as such pieces."""
    if isinstance(data, memoryview):
        for run, measured in known:
            size = len(run)
            if 0 <= len(data) - size <= 2 and bytes(data[size:]) in (b"", b"=", b"==") and _equal(run, data[:size]):
                return run, measured
    return None


def _may_hold_media(data: Data) -> bool:
    """Return False for a short body without the names that come before media."""
    return len(data) > _SHORT or isinstance(data, memoryview) or b"data" in data or b"bytes" in data


def _runs(data: Data) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of base64, without its padding."""
    position, size = 0, len(data)
    while position < size:
        window = min(position + _WINDOW, size)
        pattern = _ESCAPED_RUN if b"\\/" in bytes(data[position:window]) else _RUN
        match = pattern.search(data, position, window)
        if match is not None:
            end = _end_of_run(data, match.end())
            yield _after_escape(data, match.start()), end
            position = end + 1
        elif window == size:
            return
        else:
            position = window - _OVERLAP  # a run may have begun before the end of the window


def _after_escape(data: Data, start: int) -> int:
    """Return the start of a run whose first letter may belong to an escape, such as that of a line break."""
    if start and data[start - 1] == _BACKSLASH:
        escape = _OTHER_ESCAPE.match(data, start - 1)
        return start if escape is None else escape.end()
    return start


def _end_of_run(data: Data, end: int) -> int:
    """Return the end of a run that reaches to `end` at least."""
    while True:
        while _is_base64(bytes(data[end : end + _WINDOW])):
            end += _WINDOW
        more = _MORE.match(data, end, min(end + _WINDOW, len(data)))
        assert more is not None
        if more.end() == end:
            joint = _JOINT.match(data, end)
            if joint is None:
                return end
            end = joint.end()
        else:
            end = more.end()


def _is_base64(window: bytes) -> bool:
    """Return True if all of a whole window is base64, without padding. Ten times as fast as a regular expression."""
    if len(window) < _WINDOW:
        return False
    try:
        return len(pybase64.b64decode(window, validate=True)) == _WINDOW // 4 * 3
    except ValueError:
        return False


def _type_of(data: Data, start: int) -> str:
    """Return the media type that the first bytes show; "" for none."""
    first = binascii.a2b_base64(_clean(data[start : start + 64])[:32])
    return next((name for at, sign, name in _SIGNATURES if first.startswith(sign, at)), "")


def _measure(data: Data, start: int, end: int, kind: str, keep: Keep | None, known: Known) -> bytes:
    """Return length and hash of a medium."""
    run = memoryview(data)[start:end]
    for other, measured in known:
        if len(other) == len(run) and _equal(other, run):
            return measured
    digest = hashlib.sha256()
    decoded = bytearray()
    length = 0
    for piece in _decoded(data, start, end):
        decoded += piece
        length += len(piece)
        if len(decoded) >= _HASHED and keep is None:
            digest.update(decoded)
            decoded.clear()
    digest.update(decoded)
    if keep is not None:
        keep(digest.hexdigest(), kind, bytes(decoded))
    measured = b"length=%d sha256=%b" % (length, digest.hexdigest().encode("ascii"))
    if len(run) > _WINDOW:
        known.append((run, measured))
    return measured


def _equal(one: Data, other: Data) -> bool:
    """Compare two texts of one length, window by window."""
    return all(bytes(one[at : at + _WINDOW]) == bytes(other[at : at + _WINDOW]) for at in range(0, len(one), _WINDOW))


def _decoded(data: Data, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a run of base64 in pieces. Line breaks and escapes in it are skipped."""
    if end - start <= _WINDOW or _has_joints(data, start, end):
        data = _clean(data[start:end])
        start, end = 0, len(data)
    for position in range(start, end, _WINDOW):
        piece = bytes(data[position : min(position + _WINDOW, end)])
        if len(piece) == _WINDOW:
            yield pybase64.b64decode(piece, validate=True)
            continue
        if len(piece) % 4 == 1:
            piece = piece[:-1]  # of a text that was cut
        yield binascii.a2b_base64(piece + b"=" * (-len(piece) % 4))


def _clean(run: Data) -> bytes:
    """Return a run of base64 without line breaks and escapes."""
    return _FOREIGN.sub(b"", _ESCAPE.sub(b"", run))


def _has_joints(data: Data, start: int, end: int) -> bool:
    windows = (bytes(data[at : min(at + _WINDOW, end)]) for at in range(start, end, _WINDOW))
    return any(b"\\" in window or b"\n" in window or b"\r" in window for window in windows)
