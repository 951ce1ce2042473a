"""Inline media: bytes that clearly are another format than the one named are refused, wherever the block stands."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.unified.formats import FORMATS, is_text, other_formats
from gateway.unified.model import MEDIA_KINDS, MediaKind
from gateway.unified.request import read_execute
from tests.media.test_magic import STARTS

NAMED = [(kind, fmt) for kind in MEDIA_KINDS for fmt in FORMATS[kind]]
REAL = [(kind, fmt) for kind in STARTS for fmt in STARTS[kind] if not (kind == "document" and is_text(fmt))]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


URL = f"data:image/png;base64,{encoded(STARTS['image']['jpeg'])}"


def block(kind: str, fmt: str, data: bytes) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "format": fmt, "data": encoded(data)}}


def problems(given: Any) -> list[Any]:
    try:
        read_execute(json.dumps({"input": given}).encode())
    except InvalidInput as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(("kind", "fmt"), NAMED)
def test_bytes_of_the_named_format_pass(kind: MediaKind, fmt: str) -> None:
    assert problems([block(kind, fmt, STARTS[kind].get(fmt, b"\x01\x02"))]) == []


@given(st.sampled_from(NAMED), st.sampled_from(REAL), st.binary(max_size=200))
def test_a_refusal_names_a_format_with_which_the_bytes_pass(
    named: tuple[MediaKind, str], real: tuple[MediaKind, str], rest: bytes
) -> None:
    data = STARTS[real[0]][real[1]] + rest
    found = other_formats(*named, encoded(data).encode())
    assert named not in found.items()
    assert len(problems([block(*named, data)])) == bool(found)
    for kind, formats in found.items():
        for fmt in formats:
            assert problems([block(kind, fmt, data)]) == []


@given(st.sampled_from(REAL), st.sampled_from([fmt for fmt in NAMED if fmt[0] == "image"]), st.binary(max_size=99))
def test_an_image_is_never_another_known_format(
    real: tuple[MediaKind, str], named: tuple[MediaKind, str], rest: bytes
) -> None:
    weak = real[0] == "audio" and real[1] in ("mp3", "mpeg", "mpga", "aac", "x-aac", "pcm")  # no signature of their own
    refused = bool(other_formats(*named, encoded(STARTS[real[0]][real[1]] + rest).encode()))
    assert refused == (real != named and not weak)


@given(st.sampled_from(NAMED), st.binary(min_size=1, max_size=99).map(lambda rest: b"no media " + rest))
def test_bytes_that_are_not_recognised_pass(named: tuple[MediaKind, str], data: bytes) -> None:
    assert problems([block(*named, data)]) == []


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><p>404", b"\n <html lang=en>"])
@pytest.mark.parametrize("named", [("image", "png"), ("document", "pdf"), ("video", "mp4")])
def test_a_web_page_is_no_medium(page: bytes, named: tuple[str, str]) -> None:
    (problem,) = problems([block(*named, page)])
    assert (problem.place, problem.expected, problem.received, problem.help) == (
        "input[0]",
        f"bytes of format {named[1]}",
        "bytes of format html",
        "Name the format that the bytes have: html."
        if named[0] == "document"
        else "Send the bytes in a document block of format html, or convert them.",
    )


@pytest.mark.parametrize(
    "part",
    [
        {"image": {"format": "png", "source": {"bytes": encoded(STARTS["image"]["jpeg"])}}},
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image", "source": {"type": "base64", "data": URL}},
        {"toolResult": {"toolUseId": "t", "content": [block("image", "png", STARTS["image"]["jpeg"])]}},
    ],
    ids=["converse", "image_url", "data URL", "tool result"],
)  # fmt: skip
def test_each_spelling_is_checked(part: dict[str, Any]) -> None:
    calls = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "n", "input": {}}}]}
    (problem,) = problems([{"role": "user", "content": "a"}, calls, {"role": "user", "content": [part]}])
    assert problem.place.startswith("input[2].content[0]")
    assert problem.received == "bytes of format jpeg"


def test_only_the_first_bytes_are_decoded() -> None:
    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            assert isinstance(key, slice)
            assert key.stop is not None
            assert key.stop <= 100
            return super().__getitem__(key)

    assert other_formats("image", "png", Counted(encoded(STARTS["image"]["gif"] + bytes(10_000)).encode()))
