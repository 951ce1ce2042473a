"""Media formats that at least one provider accepts: aliases, MIME types, and the first bytes of each.

The source is docs/evidence/providers.md. Formats that no provider accepts are refused here; each provider refuses the
others that it does not accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pybase64

from gateway.unified.model import Base64, Media, MediaKind
from gateway.unified.payloads import Payload
from gateway.unified.validate import Problems

# Format → MIME type, by kind. A MIME type means the first format that has it.
FORMATS: dict[MediaKind, dict[str, str]] = {
    "image": {
        "png": "image/png",
        "jpeg": "image/jpeg",
        "gif": "image/gif",
        "webp": "image/webp",
    },
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpeg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mpeg",
        "opus": "audio/opus",
        "wav": "audio/wav",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "mp4": "audio/mp4",
        "ogg": "audio/ogg",
        "mkv": "audio/x-matroska",
        "mka": "audio/x-matroska",
        "x-aac": "audio/x-aac",
        "m4a": "audio/mp4",
        "mpeg": "audio/mpeg",
        "mpga": "audio/mpeg",
        "pcm": "audio/l16",
        "webm": "audio/webm",
    },
}

ALIASES = {
    "jpg": "jpeg",
    "markdown": "md",
    "htm": "html",
    "3gp": "three_gp",
    "3gpp": "three_gp",
    "3g2": "three_gp",
}

MIME_ALIASES = {
    "image/jpg": "image/jpeg",
    "text/x-markdown": "text/markdown",
    "application/csv": "text/csv",
    "video/3gpp2": "video/3gpp",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-flac": "audio/flac",
    "audio/x-m4a": "audio/mp4",
}


def normalise(kind: MediaKind, written: str) -> str | None:
    """Return the format of a name (``JPG``) or MIME type (``image/jpeg; q=1``); None if no provider accepts it."""
    name = written.partition(";")[0].strip().lower()
    if "/" in name:
        return next((fmt for fmt, mime in FORMATS[kind].items() if mime == MIME_ALIASES.get(name, name)), None)
    name = ALIASES.get(name, name)
    return name if name in FORMATS[kind] else None


def from_path(kind: MediaKind, path: str) -> str | None:
    """Return the format of a file name's or URL path's extension; None if it is not one of `kind`."""
    _, dot, ending = path.rpartition(".")
    return normalise(kind, ending) if dot and "/" not in ending else None


def is_text(document: str) -> bool:
    """Return True if a document of this format is a text, which may be sent as one. "": a format that is not known."""
    return FORMATS["document"].get(document, "").startswith("text/")


def contradicts(kind: MediaKind, fmt: str, mime: str) -> bool:
    """Return True if the MIME type of a `data:` URL is that of another format of this kind than `fmt`."""
    other = normalise(kind, mime)
    return other is not None and FORMATS[kind][other] != FORMATS[kind][fmt]


_HEAD = 64  # base64 characters that are decoded; a multiple of 4

_OLE, _ZIP = rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", rb"PK\x03\x04"
_ISO, _MPEG_VIDEO = rb".{4}ftyp", rb"\x00\x00\x01[\xba\xb3]"
_MATROSKA, _WEBM = rb"\x1a\x45\xdf\xa3.{,52}matroska", rb"\x1a\x45\xdf\xa3.{,56}webm"
# An ID3 tag, or a frame: eleven sync bits, and a layer other than the reserved 0, which AAC uses.
_MPEG_AUDIO = rb"ID3|\xff[\xe2-\xe7\xea-\xef\xf2-\xf7\xfa-\xff]"
_ADTS = rb"ID3|\xff[\xf0\xf1\xf8\xf9]"

# The first bytes of each format, by kind: those of the formats' own specifications (WHATWG MIME Sniffing, section 6,
# lists most of them). They tell formats apart; they don't prove that a file is sound. Raw audio (pcm) has none, and of
# texts only HTML.
_SIGNATURES: dict[MediaKind, dict[str, bytes]] = {
    "image": {"png": rb"\x89PNG\r\n\x1a\n", "jpeg": rb"\xff\xd8\xff", "gif": rb"GIF8[79]a", "webp": rb"RIFF.{4}WEBP"},
    "document": {
        "pdf": rb".{,1019}%PDF-",
        "doc": _OLE,
        "xls": _OLE,
        "docx": _ZIP,
        "xlsx": _ZIP,
        "html": rb"(?i:\s*<(?:!doctype html|html)[\s>])",
    },
    "video": {
        "mkv": _MATROSKA,
        "webm": _WEBM,
        "mp4": _ISO,
        "mov": rb".{4}(?:ftypqt|moov|mdat|wide|free|skip)",
        "three_gp": rb".{4}ftyp3g",
        "flv": rb"FLV\x01",
        "mpeg": _MPEG_VIDEO,
        "mpg": _MPEG_VIDEO,
        "wmv": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
    },
    "audio": {
        "mp3": _MPEG_AUDIO,
        "mpeg": _MPEG_AUDIO,
        "mpga": _MPEG_AUDIO,
        "opus": rb"OggS.{,244}OpusHead",
        "ogg": rb"OggS",
        "wav": rb"RIFF.{4}WAVE",
        "aac": _ADTS,
        "x-aac": _ADTS,
        "flac": rb"fLaC",
        "mp4": _ISO,
        "m4a": _ISO,
        "mkv": rb"(?:%b|%b)" % (_MATROSKA, _WEBM),
        "mka": rb"(?:%b|%b)" % (_MATROSKA, _WEBM),
        "webm": _WEBM,
    },
}
_COMPILED = {
    kind: {fmt: re.compile(pattern, re.DOTALL) for fmt, pattern in formats.items()}
    for kind, formats in _SIGNATURES.items()
}
_UNCLEAR = frozenset({_MPEG_AUDIO, _ADTS, _SIGNATURES["video"]["mov"]})
"""Signatures that other files may begin with."""
_CONTAINERS = (
    ("mp4", "mov", "three_gp", "m4a"), ("mkv", "webm", "mka"), ("ogg", "opus"), ("doc", "xls"), ("docx", "xlsx")
)  # fmt: skip
_SAME = {fmt: container for container in _CONTAINERS for fmt in container}


def begins_as(kind: MediaKind, fmt: str, head: bytes) -> bool | None:
    """Return True if bytes begin as this very format does; None for a format without a signature.

    head: the first 1024 bytes.
    """
    pattern = _COMPILED[kind].get(fmt)
    return None if pattern is None else pattern.match(head) is not None


def other_formats(kind: MediaKind, fmt: str, data: Payload) -> dict[MediaKind, tuple[str, ...]]:
    """Return the formats, by kind, that base64 `data` clearly has instead of `fmt`; {} if it may be `fmt`."""
    if kind == "document" and is_text(fmt):
        return {}
    found = _clear_formats(pybase64.b64decode(bytes(data[:_HEAD])))
    return {} if fmt in found.get(kind, ()) else found


def _clear_formats(head: bytes) -> dict[MediaKind, tuple[str, ...]]:
    """Return the formats, by kind, that clearly begin so, with all formats of the same container."""
    found: dict[MediaKind, tuple[str, ...]] = {}
    for kind, formats in _COMPILED.items():
        for fmt, pattern in formats.items():
            if pattern.pattern not in _UNCLEAR and pattern.match(head):
                same = _SAME.get(fmt, tuple(other for other in formats if formats[other] == pattern))
                found[kind] = tuple(other for other in same if other in formats)
                break
    return found


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
