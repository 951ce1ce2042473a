"""Exchanges that pass unchanged, and whose bodies are copied for the recorder (`inspector.passthrough: bodies`)."""

from __future__ import annotations

from gateway.http1.response_heads import ResponseHead
from gateway.proxy.body_copy import BodyCopy, ResponseCopy
from gateway.proxy.capture import Bodies, Captured
from gateway.proxy.exchange import Exchange
from gateway.proxy.memory_read import MemoryRead, MemorySearch


class _Copied(Exchange):
    """Copies the bodies, whatever else its other base class does with them."""

    __slots__ = ()

    def begin(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        self._request_copy = BodyCopy(self._limit)
        self._request_copy.add(piece, complete)
        self._response_copy = None
        super().begin(piece, complete)

    @property
    def _limit(self) -> int:
        capture = self._port.capture
        return capture.body_limit if capture is not None else 0

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
        if not self._request_copy.complete:  # what follows belongs to a tunnel
            self._request_copy.add(piece, complete)
        super().upload(piece, complete)

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        is_tunnel = head.status == 101  # what follows does not belong to a body
        first, last = (b"", True) if is_tunnel else (piece, complete)
        self._response_copy = ResponseCopy(self._limit, head, self.outbound.decode, first, last)
        super().on_head(head, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self.status != 101:
            assert self._response_copy is not None
            self._response_copy.add(piece, complete)
        super().on_body(piece, complete)

    @property
    def held(self) -> int:  # type: ignore[override]
        """See `Capturable`."""
        copies = getattr(self, "_request_copy", None), getattr(self, "_response_copy", None)
        return sum(copy.held for copy in copies if copy is not None)

    def captured(self, ended: float) -> Captured:
        """See `Exchange`."""
        if not hasattr(self, "_request_copy"):  # refused before `begin`: the first bytes of its body are not valid
            return self._captured(ended, Bodies(BodyCopy(self._limit), self.request.fields.chunked))
        bodies = Bodies(self._request_copy, self.request.fields.chunked, response=self._response_copy)
        return self._captured(ended, bodies)


class CopiedExchange(_Copied):
    """See `Exchange`."""

    __slots__ = ()


class CopiedMemoryRead(_Copied, MemoryRead):
    """See `MemoryRead`."""

    __slots__ = ()


class CopiedMemorySearch(_Copied, MemorySearch):
    """See `MemorySearch`."""

    __slots__ = ()
