"""Exchanges that pass unchanged, and whose bodies are copied for the recorder (`inspector.passthrough: bodies`)."""

from __future__ import annotations

from gateway.http1.response_heads import ResponseHead
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured, Passed
from gateway.proxy.exchange import Exchange
from gateway.proxy.memory_read import MemoryRead
from gateway.proxy.memory_search import MemorySearch


class _Copied(Exchange):
    """Copies the bodies, whatever else its other base class does with them."""

    __slots__ = ()

    def begin(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        self._begin_copies()
        self._copies[0].add(piece, complete)
        super().begin(piece, complete)

    def _begin_copies(self) -> None:
        capture = self._port.capture
        limit = capture.body_limit if capture is not None else 0
        self._copies = BodyCopy(limit), ResponseCopy(limit)

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        if not self._copies[0].complete:  # what follows belongs to a tunnel
            self._copies[0].add(piece, complete)
        super().upload(piece, complete)

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        is_tunnel = head.status == 101  # what follows does not belong to a body
        first, last = (b"", True) if is_tunnel else (piece, complete)
        self._copies[1].begin(head, self.outbound.decode, first, last)
        super().on_head(head, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self.status != 101:
            self._copies[1].add(piece, complete)
        super().on_body(piece, complete)

    def passed(self, now: float) -> Passed | None:
        """See `Exchange`."""
        return None

    def captured(self, now: float) -> Captured:
        """See `Exchange`."""
        captured = super().captured(now)
        if not hasattr(self, "_copies"):  # refused before `begin`: the first bytes of its body are not valid
            self._begin_copies()
        request, response = self._copies
        chunk_lines = self.request.fields.chunked
        captured.bodies = Bodies(request, chunk_lines, response=response if response.head is not None else None)
        return captured


class CopiedExchange(_Copied):
    """See `Exchange`."""

    __slots__ = ()


class CopiedMemoryRead(_Copied, MemoryRead):
    """See `MemoryRead`."""

    __slots__ = ()


class CopiedMemorySearch(_Copied, MemorySearch):
    """See `MemorySearch`."""

    __slots__ = ()
