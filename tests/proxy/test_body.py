"""Decompression: right for every coding, in bounded steps, and off the event loop where much comes out."""

from __future__ import annotations

import asyncio
import gzip
import os
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BodyTooLarge, GatewayError, InvalidInput, UnsupportedEncoding
from gateway.proxy import content_coding as bodies

MEGABYTE = 1 << 20
LIMIT = 100 * MEGABYTE


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(1, 500), st.integers(1, 500))
def test_members_are_joined_whatever_the_steps(members: list[bytes], step_in: int, step_out: int) -> None:
    packed = b"".join(map(gzip.compress, members))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_IN", step_in)
        patch.setattr(bodies, "_OUT", step_out)
        assert bodies.decompress_whole(packed, ["gzip"], LIMIT) == b"".join(members)
        if packed:
            with pytest.raises(InvalidInput):
                bodies.decompress_whole(packed[:-1], ["gzip"], LIMIT)
            with pytest.raises(InvalidInput):
                bodies.decompress_whole(packed + b"x", ["gzip"], LIMIT)


@pytest.mark.parametrize("pack", [zlib.compress, raw_deflate])
def test_deflate_is_read_with_its_wrapping_and_without(pack: Any) -> None:
    data = os.urandom(100_000) + bytes(3 * MEGABYTE)
    assert bodies.decompress_whole(pack(data), ["deflate"], LIMIT) == data
    for wrong in (pack(data)[:-5], pack(data) + b"x"):
        with pytest.raises(InvalidInput):
            bodies.decompress_whole(wrong, ["deflate"], LIMIT)


def test_codings_are_undone_from_the_last_to_the_first() -> None:
    packed = gzip.compress(zlib.compress(b"text"))
    assert bodies.decompress_whole(packed, ["deflate, identity", "GZIP"], LIMIT) == b"text"
    for codings in (["br"], ["gzip"] * 5):
        with pytest.raises(UnsupportedEncoding):
            bodies.decompress_whole(packed, codings, LIMIT)


@pytest.mark.parametrize("size", [10, 5 * MEGABYTE])
def test_the_limit_is_exact(size: int) -> None:
    packed = gzip.compress(bytes(size))
    assert len(bodies.decompress_whole(packed, ["gzip"], size)) == size
    with pytest.raises(BodyTooLarge):
        bodies.decompress_whole(packed, ["gzip"], size - 1)
    with pytest.raises(BodyTooLarge):
        bodies.decompress_whole(gzip.compress(b"a") * 2, ["gzip"], 1)


def test_a_bomb_needs_no_more_memory_than_the_limit_allows() -> None:
    bomb = gzip.compress(bytes(50 * MEGABYTE))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        bodies.decompress_whole(bomb, ["gzip"], 2 * MEGABYTE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * MEGABYTE


def test_every_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int]] = []
    original = zlib.decompressobj

    class Watched:
        def __init__(self, **settings: int) -> None:
            self._inner = original(**settings)

        def decompress(self, piece: bytes, most: int) -> bytes:
            unpacked = self._inner.decompress(piece, most)
            steps.append((len(piece), len(unpacked)))
            return unpacked

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    members = 1000
    packed = gzip.compress(b"") * members + gzip.compress(bytes(20 * MEGABYTE))
    bodies.decompress_whole(packed, ["gzip"], LIMIT)
    assert max(size for size, _ in steps) <= 16 * 1024
    assert max(size for _, size in steps) <= MEGABYTE
    assert len(steps) <= members + 60


def test_the_number_of_members_is_bounded() -> None:
    packed = gzip.compress(b"") * 10_000
    assert bodies.decompress_whole(packed, ["gzip"], LIMIT) == b""
    with pytest.raises(InvalidInput):
        bodies.decompress_whole(packed + gzip.compress(b""), ["gzip"], LIMIT)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the bodies that were decompressed off the loop."""
    sizes: list[int] = []

    async def run(function: Any, body: bytes, *args: Any) -> Any:
        sizes.append(len(body))
        return await asyncio.to_thread(function, body, *args)

    monkeypatch.setattr(bodies.READING, "run", run)
    return sizes


NOISE = os.urandom(30_000)
CASES = {
    "small": (gzip.compress(NOISE), False),
    "a bomb": (gzip.compress(bytes(65_537)), True),
    "large": (gzip.compress(os.urandom(70_000)), True),
    "many members": (gzip.compress(b"") * 17, True),
}


@pytest.mark.parametrize(("packed", "moves"), CASES.values(), ids=CASES)
async def test_what_moves_off_the_loop(moved: list[int], packed: bytes, moves: bool) -> None:
    assert await bodies.decompress(packed, ["gzip"], LIMIT) == gzip.decompress(packed)
    assert moved == ([len(packed)] if moves else [])


async def test_what_is_not_compressed_goes_as_it_is(moved: list[int]) -> None:
    body = bytes(200_000)
    assert await bodies.decompress(body, ["identity"], LIMIT) is body
    assert await bodies.decompress(body, [], 1) is body
    assert await bodies.decompress(b"", ["gzip"], 1) == b""
    with pytest.raises(UnsupportedEncoding):
        await bodies.decompress(body, ["br"], LIMIT)
    assert not moved


async def test_the_limit_counts_for_a_small_body_too(moved: list[int]) -> None:
    with pytest.raises(BodyTooLarge):
        await bodies.decompress(gzip.compress(bytes(1000)), ["gzip"], 999)


def test_an_error_answer_with_too_many_members_is_left_alone() -> None:
    packed = gzip.compress(b"") * 17
    with pytest.raises(GatewayError):
        bodies.decompress_small(packed, ["gzip"], 64 * 1024)
