"""Bodies that are collected: to be read, or copied while they are sent on."""

from __future__ import annotations

import io

from gateway.http1.bodies import Chunked
from gateway.http1.response_heads import ResponseHead
from gateway.http1.rules import Malformed
from gateway.proxy import content_coding
from gateway.unified.limits import SMALL_TEXT

HELD_ANSWER = 16 * 1024 * 1024
"""Largest response, in bytes, that is held for the use case to finish, and copied for the recorder."""


class BodyCopy:
    """A body as it came. limit: most bytes that are kept; the rest is only counted.

    pieces: what is kept. size: bytes of the whole body so far. complete: its end has arrived.
    """

    __slots__ = ("complete", "limit", "pieces", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = False

    def add(self, piece: bytes, complete: bool) -> None:
        """Add a piece. complete: it is the last one."""
        left = self.limit - self.size
        self.size += len(piece)
        if left > 0 and piece:
            self.pieces.append(piece if len(piece) <= left else piece[:left])
        self.complete = complete

    @property
    def held(self) -> int:
        """Bytes that are kept."""
        return min(self.size, self.limit)

    @property
    def is_whole(self) -> bool:
        """The whole body has arrived, and has been kept."""
        return self.complete and self.size <= self.limit


class ResponseCopy(BodyCopy):
    """A response as it came from the cluster: its head, and its body from the first piece on.

    decoded: without chunk lines; True if it came with them removed.
    """

    __slots__ = ("decoded", "head")

    def __init__(self, limit: int, head: ResponseHead, decoded: bool, piece: bytes, complete: bool) -> None:
        self.limit = limit  # not by `super()`: every run
        self.head = head
        self.decoded = decoded or not head.chunked
        size = self.size = len(piece)
        self.pieces = [piece if size <= limit else piece[:limit]] if size and limit else []
        self.complete = complete

    @property
    def is_small(self) -> bool:
        """`content` takes so little time that other clients of the event loop can wait for it."""
        if not self.is_whole:
            return True
        return self.decoded and self.size <= SMALL_TEXT and not content_coding.response_codings(self.head)

    def body(self) -> bytes:
        """Return what is kept, without chunk lines and in its content coding. It may take long."""
        return without_chunk_lines(self.pieces) if not self.decoded else b"".join(self.pieces)

    def content(self) -> bytes:
        """Return the body without its content coding; b"" if it is not whole, or can't be decoded. It may take long."""
        if not self.is_whole:
            return b""
        if self.is_small and len(self.pieces) == 1:
            return self.pieces[0]
        return content_coding.whole_content(self.head, self.body(), self.limit)


def without_chunk_lines(pieces: list[bytes]) -> bytes:
    """Return the data of a chunked body, or of the beginning of one, that was found valid before."""
    reader = Chunked(decode=True)
    try:
        return b"".join([reader.feed(piece) for piece in pieces])
    except Malformed:
        return b""


_JOINED = 1 << 20
"""Bytes up to which pieces are kept and joined: one copy, where a buffer that grows piece by piece takes several."""


class BufferedBody:
    """Collects the pieces of a body. length: as announced, if it was. size: bytes of it so far."""

    __slots__ = ("_large", "_pieces", "size")

    def __init__(self, length: int | None) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        # A BytesIO becomes the body without another copy, and allocates no more than what has arrived.
        self._large = io.BytesIO() if length is not None and length > _JOINED else None

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self.size += len(piece)
        if self._large is not None:
            self._large.write(piece)
        elif self.size <= _JOINED:
            self._pieces.append(piece)
        else:
            self._large = io.BytesIO()
            self._large.writelines([*self._pieces, piece])
            self._pieces.clear()

    def value(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._pieces) if self._large is None else self._large.getvalue()
