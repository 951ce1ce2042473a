"""The table of signatures: each format matches its own files and no others."""

from __future__ import annotations

import pytest

from gateway.media.fetch import Unfetchable, check
from gateway.unified.formats import FORMATS
from gateway.unified.model import MEDIA_KINDS, MediaKind

OLE = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(8)
ZIP = b"PK\x03\x04" + bytes(8)
MPEG = b"\x00\x00\x01\xba\x44"
MP3 = b"\xff\xfb\x90\x00"
AAC = b"\xff\xf1\x50\x80"
MATROSKA = bytes.fromhex("1a45dfa3") + b"\x9f\x42\x82\x88matroska"
WEBM = bytes.fromhex("1a45dfa3") + b"\x9f\x42\x82\x84webm"
MP4 = b"\x00\x00\x00\x18ftypisom"
M4A = b"\x00\x00\x00\x18ftypM4A "

# The first bytes of files written by common tools.
STARTS: dict[MediaKind, dict[str, bytes]] = {
    "image": {
        "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
        "gif": b"GIF89a\x01\x00",
        "webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
    },
    "document": {
        "pdf": b"%PDF-1.7\n",
        "csv": b"a,b\n1,2\n",
        "doc": OLE,
        "docx": ZIP,
        "xls": OLE,
        "xlsx": ZIP,
        "html": b"<!doctype html>",
        "txt": "naïve".encode(),
        "md": b"# Title",
    },
    "video": {
        "mkv": MATROSKA,
        "mov": b"\x00\x00\x00\x14ftypqt  ",
        "mp4": MP4,
        "webm": WEBM,
        "flv": b"FLV\x01\x05",
        "mpeg": MPEG,
        "mpg": MPEG,
        "wmv": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
        "three_gp": b"\x00\x00\x00\x18ftyp3gp5",
    },
    "audio": {
        "mp3": b"ID3\x04\x00",
        "opus": b"OggS\x00\x02" + bytes(22) + b"OpusHead",
        "wav": b"RIFF\x24\x00\x00\x00WAVEfmt ",
        "aac": AAC,
        "flac": b"fLaC\x00",
        "mp4": MP4,
        "ogg": b"OggS\x00\x02" + bytes(22) + b"\x01vorbis",
        "mkv": MATROSKA,
        "mka": MATROSKA,
        "x-aac": AAC,
        "m4a": M4A,
        "mpeg": MP3,
        "mpga": MP3,
        "pcm": b"\x00\x01\x02\x03",
        "webm": WEBM,
    },
}
ALL = [(kind, fmt) for kind in MEDIA_KINDS for fmt in FORMATS[kind]]
TEXT = ("csv", "html", "txt", "md")
SIGNED = [(kind, fmt) for kind, fmt in ALL if fmt not in (*TEXT, "pcm")]

# Formats that share a signature: containers of one family, and formats that differ only in their content.
FAMILIES = [
    {"doc", "xls"},
    {"docx", "xlsx"},
    {"mp4", "m4a", "three_gp", "mov"},
    {"mkv", "mka", "webm"},
    {"mp3", "mpeg", "mpga", "mpg", "aac", "x-aac"},
    {"ogg", "opus"},
]


def fits(kind: MediaKind, fmt: str, content_type: str, data: bytes) -> bool:
    try:
        check(kind, fmt, content_type, data)
    except Unfetchable:
        return False
    return True


@pytest.mark.parametrize(("kind", "fmt"), ALL)
def test_every_format_takes_its_own_type_and_start(kind: MediaKind, fmt: str) -> None:
    check(kind, fmt, FORMATS[kind][fmt], STARTS[kind][fmt])
    check(kind, fmt, f"{FORMATS[kind][fmt].upper()} ; charset=utf-8", bytearray(STARTS[kind][fmt]))


@pytest.mark.parametrize(("kind", "fmt"), SIGNED)
def test_a_signed_format_takes_the_type_that_says_nothing(kind: MediaKind, fmt: str) -> None:
    for content_type in ("", "application/octet-stream", "binary/octet-stream"):
        check(kind, fmt, content_type, STARTS[kind][fmt])
        assert not fits(kind, fmt, content_type, b"<html><body>not found</body></html>")


@pytest.mark.parametrize(("kind", "fmt"), SIGNED)
def test_no_format_takes_the_start_of_another_family(kind: MediaKind, fmt: str) -> None:
    family = next((one for one in FAMILIES if fmt in one), {fmt})
    taken = {
        other
        for starts in STARTS.values()
        for other, start in starts.items()
        if fits(kind, fmt, FORMATS[kind][fmt], start)
    }
    assert fmt in taken
    assert taken <= family


@pytest.mark.parametrize("content_type", ["text/html", "image/svg+xml", "application/json", "multipart/mixed"])
def test_no_format_but_text_takes_another_type(content_type: str) -> None:
    takes = {fmt for kind, fmt in ALL if fits(kind, fmt, content_type, STARTS[kind][fmt])}
    assert takes == ({*TEXT} if content_type.startswith("text/") else set())


@pytest.mark.parametrize("fmt", TEXT)
def test_text_is_utf_8_and_says_so_by_a_text_type(fmt: str) -> None:
    check("document", fmt, "text/plain; charset=utf-8", "señor".encode())
    for content_type, data in (
        ("text/plain", "señor".encode("latin-1")),
        ("", b"a"),
        ("application/octet-stream", b"a"),
        ("application/pdf", b"a"),
    ):
        assert not fits("document", fmt, content_type, data)


def test_nothing_is_no_medium() -> None:
    assert [fmt for kind, fmt in ALL if fits(kind, fmt, FORMATS[kind][fmt], b"")] == []


def test_raw_audio_goes_by_its_type_alone() -> None:
    assert not fits("audio", "pcm", "", b"\x00\x01")
    assert not fits("audio", "pcm", "application/octet-stream", b"\x00\x01")


@pytest.mark.parametrize(("kind", "fmt"), ALL)
def test_a_start_cut_short_is_refused_not_crashed_on(kind: MediaKind, fmt: str) -> None:
    for length in range(1, 4):
        fits(kind, fmt, FORMATS[kind][fmt], STARTS[kind][fmt][:length])
