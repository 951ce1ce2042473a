"""A request's body while it is collected."""

from __future__ import annotations

import io

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
