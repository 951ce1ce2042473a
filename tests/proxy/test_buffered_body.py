"""A body is what its pieces are, whatever length was announced."""

from __future__ import annotations

import pytest

from gateway.proxy.capture import BufferedBody

MEGABYTE = 1 << 20


@pytest.mark.parametrize("size", [0, 3, MEGABYTE - 1, MEGABYTE, MEGABYTE + 1, 3 * MEGABYTE])
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_body_is_its_pieces(size: int, is_announced: bool) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    pieces = [body[start : min(start + 100_000, size)] for start in range(0, size, 100_000)]
    read = BufferedBody(size if is_announced else None)
    for number, piece in enumerate(pieces, 1):
        read.write(piece)
        assert read.size == len(b"".join(pieces[:number]))
    assert read.value() == body[:size]
