"""Media in recorded bodies: the same bytes have the same hash, however they are written."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe import media
from gateway.observe.media import shorten_media
from tests.conftest import examples

PNG = b"\x89PNG\r\n\x1a\n"
MEDIA = st.binary(min_size=60, max_size=400).map(lambda rest: PNG + rest) | st.binary(min_size=800, max_size=1500)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["base64,", "data:image/png;base64,", "A" * 90]
)


def word(data: bytes, kind: str) -> str:
    return f"[MEDIA type={kind} length={len(data)} sha256={hashlib.sha256(data).hexdigest()}]"


def kind_of(data: bytes) -> str:
    return "image/png" if data.startswith(PNG) else "application/octet-stream"


def write(value: Any, form: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    match form:
        case "slashes":
            return text.replace("/", "\\/")
        case "html":
            return text.replace("=", "\\u003d")
        case "nested":
            return json.dumps({"parameters": {"messages": text}})
        case "nested twice":
            return json.dumps(json.dumps({"a": text.replace("=", "\\u003d").replace("/", "\\/")}))
    return text


@examples(600)
@given(
    st.lists(st.tuples(TEXTS, MEDIA), min_size=1, max_size=3),
    st.sampled_from(["", "slashes", "html", "nested", "nested twice"]),
    st.booleans(),
)
def test_media_are_replaced_whole_and_nothing_else(blocks: list[tuple[str, bytes]], form: str, by_url: bool) -> None:
    def document(words: list[str]) -> list[Any]:
        texts = [text for text, _ in blocks]
        return [[text, {"data": one}] for text, one in zip(texts, words, strict=True)]

    kinds = ["image/x.y" if by_url else kind_of(data) for _, data in blocks]
    start = "data:image/x.y;base64," if by_url else ""
    encoded = [start + base64.b64encode(data).decode() for _, data in blocks]
    short = [start + word(data, kind) for (_, data), kind in zip(blocks, kinds, strict=True)]
    kept: dict[str, tuple[str, bytes]] = {}
    body = write(document(encoded), form).encode()
    shown = shorten_media(body, keep=lambda digest, kind, data: kept.__setitem__(digest, (kind, data)))
    value = json.loads(shown)
    if form == "nested":
        value = json.loads(value["parameters"]["messages"])
    elif form == "nested twice":
        value = json.loads(json.loads(value)["a"])
    assert value == document(short)
    assert set(kept.values()) == {(kind, data) for (_, data), kind in zip(blocks, kinds, strict=True)}


@pytest.mark.parametrize("size", [10, 63, 64, 65, 5000, 65_536, 200_000, 1_000_000])
def test_the_windows_do_not_matter(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    data = PNG + bytes(range(256)) * (size // 256 + 1)
    body = b'{"a": "' + b"word " * 3000 + b'", "b": "' + base64.b64encode(data[:size]) + b'"}'
    whole = shorten_media(body)
    monkeypatch.setattr(media, "_WINDOW", 4096)
    monkeypatch.setattr(media, "_WINDOWS", (4096, 512))
    monkeypatch.setattr(media, "_AT_ONCE", 10_000)
    assert shorten_media(body) == whole
    assert (word(data[:size], "image/png").encode() in whole) is (size >= 48)


def test_lines_of_base64_are_one_medium() -> None:
    data = PNG + bytes(range(256)) * 10
    for joint in ("\n", "\r\n", "\\n", "\\r\\n"):
        lines = joint.join(base64.encodebytes(data).decode().split())
        assert shorten_media(f'{{"data": "{lines}"}}'.encode()).decode() == f'{{"data": "{word(data, "image/png")}"}}'


def test_a_piece_of_a_body_has_the_type_before_it() -> None:
    data = bytes(range(256)) * 10
    piece = memoryview(base64.b64encode(data))
    shown = shorten_media(piece, b'{"url": "data:audio/x;base64,')
    assert shown.decode() == word(data, "audio/x")


@pytest.mark.parametrize("text", ["prose without spaces: " + "x" * 60, "A" * 900, "0123456789abcdef" * 8])
def test_words_are_no_media(text: str) -> None:
    body = json.dumps({"data": text}).encode()
    assert shorten_media(body) == body


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        (b"\x00\x00\x00\x18ftypmp42", "video/mp4"),
        (b"OggS", "audio/ogg"),
    ],
)
def test_types_are_told_by_the_first_bytes(start: bytes, kind: str) -> None:
    data = start + bytes(100)
    assert word(data, kind).encode() in shorten_media(b'{"bytes": "%b"}' % base64.b64encode(data))


@pytest.mark.parametrize("over", range(-51, 52, 3))
def test_sizes_near_those_of_the_windows(over: int) -> None:
    data = (PNG + bytes(range(256)) * 1000)[: 2 * 49_152 + over]
    body = b'{"data": "%b", "and": "A="}' % base64.b64encode(data)
    assert shorten_media(body).decode() == f'{{"data": "{word(data, "image/png")}", "and": "A="}}'


def test_a_medium_that_is_known_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = PNG + bytes(range(256)) * 1000
    encoded = base64.b64encode(data)
    other = base64.b64encode(data[:-1] + b"x")
    known: media.Known = []
    first = shorten_media(b'{"data": "%b"}' % encoded, known=known)
    decoded: list[int] = []
    decode = media._decoded
    monkeypatch.setattr(media, "_decoded", lambda *place: [decoded.append(1), *decode(*place)][1:])
    assert shorten_media(b'{"data": "%b"}' % encoded, known=known) == first
    assert decoded == []
    assert word(data[:-1] + b"x", "image/png").encode() in shorten_media(b'{"data": "%b"}' % other, known=known)
    assert decoded == [1]


@pytest.mark.parametrize("size", [60_000, 60_001, 60_002])
def test_a_known_medium_that_is_a_piece_is_not_searched_again(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    data = (PNG + bytes(range(256)) * 300)[:size]
    body = b'{"data": "%b"}' % base64.b64encode(data)
    piece = memoryview(body)[10:-2]
    known: media.Known = []
    shorten_media(body, known=known)
    before = b'"url": "data:image/gif;base64,'
    for preceding in (b"", before):
        expected = shorten_media(piece, preceding)
        other = shorten_media(bytes(piece[:-3]) + b"AAA", preceding)
        assert shorten_media(memoryview(bytes(piece[:-3]) + b"AAA"), preceding, known=known) == other != expected
        with monkeypatch.context() as patch:
            patch.setattr(media, "_find_run", None)
            assert shorten_media(piece, preceding, known=known) == expected
    assert word(data, "image/gif").encode() == shorten_media(piece, before)
