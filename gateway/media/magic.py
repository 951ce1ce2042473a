"""Whether what was fetched is the format that the client named: by its content type, and by its first bytes.

The signatures are those of the formats' own specifications (WHATWG MIME Sniffing, section 6, lists most of them).
They tell formats apart; they don't prove that a file is sound.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.media.unfetchable import Unfetchable
from gateway.unified.formats import FORMATS, MIME_ALIASES
from gateway.unified.model import MediaKind

_Fits = Callable[[bytes], bool]

_HEAD = 4096
_GENERIC = ("", "application/octet-stream", "binary/octet-stream")
"""Types that say nothing, as object stores give them; they do where the bytes tell the format."""

# Format → content types other than that of `FORMATS` that servers send for it.
_ALSO: dict[str, tuple[str, ...]] = {
    "aac": ("audio/aacp", "audio/x-aac"),
    "flac": ("application/x-flac",),
    "m4a": ("video/mp4",),
    "mka": ("audio/webm",),
    "mov": ("video/mp4",),
    "ogg": ("application/ogg", "video/ogg"),
    "opus": ("audio/ogg", "application/ogg"),
    "webm": ("video/webm", "audio/webm"),
    "x-aac": ("audio/aac", "audio/aacp"),
}
_TEXT = frozenset({"csv", "html", "txt", "md"})


def _starts(*signatures: bytes) -> _Fits:
    return lambda head: head.startswith(signatures)


def _riff(form: bytes) -> _Fits:
    return lambda head: head.startswith(b"RIFF") and head[8:12] == form


def _iso(*brands: bytes) -> _Fits:
    """Match ISO base media files, whose first box is `ftyp`. brands: prefixes of the brand; any brand if empty."""
    return lambda head: head[4:8] == b"ftyp" and head[8:12].startswith(brands or (b"",))


def _matroska(*types: bytes) -> _Fits:
    return lambda head: head.startswith(b"\x1a\x45\xdf\xa3") and any(kind in head[:64] for kind in types)


def _quicktime(head: bytes) -> bool:
    return _iso(b"qt")(head) or head[4:8] in (b"moov", b"mdat", b"wide", b"free", b"skip")


def _mpeg_audio(head: bytes) -> bool:
    """Match an ID3 tag, or a frame: eleven sync bits, and a layer other than the reserved 0 (which AAC uses)."""
    return head.startswith(b"ID3") or (head[:1] == b"\xff" and head[1:2] >= b"\xe0" and head[1] & 0x06 != 0)


def _adts(head: bytes) -> bool:
    return head.startswith(b"ID3") or (head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xF6 == 0xF0)


_ole = _starts(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
_zip = _starts(b"PK\x03\x04")
_mpeg_video = _starts(b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")
_mp4 = _iso()
_any_matroska = _matroska(b"matroska", b"webm")

_MAGIC: dict[MediaKind, dict[str, _Fits]] = {
    "image": {
        "png": _starts(b"\x89PNG\r\n\x1a\n"),
        "jpeg": _starts(b"\xff\xd8\xff"),
        "gif": _starts(b"GIF87a", b"GIF89a"),
        "webp": _riff(b"WEBP"),
    },
    "document": {
        "pdf": lambda head: b"%PDF-" in head[:1024],
        "doc": _ole,
        "xls": _ole,
        "docx": _zip,
        "xlsx": _zip,
    },
    "video": {
        "mkv": _matroska(b"matroska"),
        "mov": _quicktime,
        "mp4": _mp4,
        "webm": _matroska(b"webm"),
        "flv": _starts(b"FLV\x01"),
        "mpeg": _mpeg_video,
        "mpg": _mpeg_video,
        "wmv": _starts(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
        "three_gp": _iso(b"3g"),
    },
    "audio": {
        "mp3": _mpeg_audio,
        "mpeg": _mpeg_audio,
        "mpga": _mpeg_audio,
        "opus": lambda head: head.startswith(b"OggS") and b"OpusHead" in head[:256],
        "ogg": _starts(b"OggS"),
        "wav": _riff(b"WAVE"),
        "aac": _adts,
        "x-aac": _adts,
        "flac": _starts(b"fLaC"),
        "mp4": _mp4,
        "m4a": _mp4,
        "mkv": _any_matroska,
        "mka": _any_matroska,
        "webm": _matroska(b"webm"),
    },
}


def check(kind: MediaKind, fmt: str, content_type: str, data: bytes | bytearray) -> None:
    """Check that the response has the block's format.

    content_type: the response's header, "" for none. Raw audio (`pcm`) has no signature, so only its type is checked.

    Raises:
        Unfetchable: the type or the bytes are those of another format, or there are no bytes.
    """
    if not data:
        raise Unfetchable("the response is empty", fmt)
    media_type = content_type.partition(";")[0].strip().lower()
    if fmt in _TEXT:
        _check_text(fmt, media_type, data)
        return
    fits = _MAGIC[kind].get(fmt)
    wanted = FORMATS[kind][fmt]
    if MIME_ALIASES.get(media_type, media_type) not in (wanted, *_ALSO.get(fmt, ())) and (
        fits is None or media_type not in _GENERIC
    ):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    if fits is not None and not fits(bytes(data[:_HEAD])):
        raise Unfetchable("the response's content does not match the block's format", fmt, bytes(data[:8]).hex(" "))


def _check_text(fmt: str, media_type: str, data: bytes | bytearray) -> None:
    wanted = "text/*"
    if not MIME_ALIASES.get(media_type, media_type).startswith("text/"):
        raise Unfetchable(
            "the response's content type does not match the block's format", wanted, media_type[:80] or "none"
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfetchable(
            f"the response's content is not UTF-8 text: byte {error.start} is invalid", "UTF-8 text", fmt
        ) from None
