"""Tells by the first bytes of inline media whether they clearly are another format than the client named.

Only signatures that no other kind of file begins with count. Bytes that are not recognised pass as the format that
was named: the provider judges them. So do texts (csv, html, md, txt), which have no signature. Formats of one container
(mp4 and mov, mkv and webm, docx and xlsx) count as one format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pybase64

from gateway.unified.formats import is_text
from gateway.unified.model import Base64, Media, MediaKind
from gateway.unified.payloads import Payload
from gateway.unified.validate import Problems

_HEAD = 64  # base64 characters that are decoded; a multiple of 4

# A pattern of the first bytes, and the formats by kind that begin so.
_SIGNATURES: list[tuple[bytes, dict[MediaKind, tuple[str, ...]]]] = [
    (rb"\x89PNG\r\n\x1a\n", {"image": ("png",)}),
    (rb"\xff\xd8\xff", {"image": ("jpeg",)}),
    (rb"GIF8[79]a", {"image": ("gif",)}),
    (rb"RIFF.{4}WEBP", {"image": ("webp",)}),
    (rb"%PDF-", {"document": ("pdf",)}),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", {"document": ("doc", "xls")}),
    (rb"PK\x03\x04", {"document": ("docx", "xlsx")}),
    (rb"(?i:\s*<(?:!doctype html|html)[\s>])", {"document": ("html",)}),
    (rb".{4}ftyp", {"video": ("mp4", "mov", "three_gp"), "audio": ("m4a", "mp4")}),
    (rb"\x1a\x45\xdf\xa3", {"video": ("mkv", "webm"), "audio": ("mka", "mkv", "webm")}),
    (rb"FLV\x01", {"video": ("flv",)}),
    (rb"\x00\x00\x01[\xba\xb3]", {"video": ("mpeg", "mpg")}),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", {"video": ("wmv",)}),
    (rb"RIFF.{4}WAVE", {"audio": ("wav",)}),
    (rb"OggS", {"audio": ("ogg", "opus")}),
    (rb"fLaC", {"audio": ("flac",)}),
]
_COMPILED = [(re.compile(pattern, re.DOTALL), found) for pattern, found in _SIGNATURES]


def other_formats(kind: MediaKind, fmt: str, data: Payload) -> dict[MediaKind, tuple[str, ...]]:
    """Return the formats, by kind, that base64 `data` clearly has instead of `fmt`; {} if it may be `fmt`."""
    if kind == "document" and is_text(fmt):
        return {}
    head = pybase64.b64decode(bytes(data[:_HEAD]))
    found = next((formats for pattern, formats in _COMPILED if pattern.match(head)), {})
    return {} if fmt in found.get(kind, ()) else found


def check_formats(media: Iterable[Media], problems: Problems) -> None:
    """Add a problem for each inline medium whose bytes clearly are another format than the one named."""
    for block in media:
        if not isinstance(block.source, Base64):
            continue
        found = other_formats(block.kind, block.format, block.source.data)
        if not found:
            continue
        kind = block.kind if block.kind in found else next(iter(found))
        names = " or ".join(found[kind])
        help = f"Name the format that the bytes have: {names}."
        if kind != block.kind:
            article = "an" if kind in ("image", "audio") else "a"
            help = f"Send the bytes in {article} {kind} block of format {names}, or convert them."
        problems.add(
            block.at,
            f"The bytes of the {block.kind} are not the format that is named",
            f"bytes of format {block.format}",
            f"bytes of format {names}",
            help,
        )
