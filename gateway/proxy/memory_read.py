"""A read of an agent's memory, whose answer is shown as the turns were written.

Where the gateway had to store a question in a form of its own (`gateway.mlcommons.memory_form`), the client sees the
text. An answer without such a form passes byte for byte, and so does one that is too large to hold or has very many.
"""

from __future__ import annotations

from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import ResponseHead
from gateway.mlcommons.memory_form import show_original_json
from gateway.notices import HEADER
from gateway.ports import Answer
from gateway.proxy import content_coding
from gateway.proxy.exchange import Exchange, ExchangePort
from gateway.proxy.interfaces import Client
from gateway.proxy.relayed_head import head_with_length
from gateway.proxy.routes import Route

MOST = 1 << 20
"""Largest answer that is changed, in bytes."""
_CODE = "MEMORY_SHOWN_READABLE"


class MemoryRead(Exchange):
    """An exchange that holds a small answer back until it is complete."""

    __slots__ = ("_added", "_held", "_held_head", "_held_size")

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route) -> None:
        super().__init__(port, client, request, route)
        self._held_head: ResponseHead | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._added: dict[str, str] = {}

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if head.status == 200 and (head.length or 0) <= MOST and self.request.method != b"HEAD":
            self._held_head = head
            self._hold(head, piece, complete)
        else:
            super().on_head(head, piece, complete)

    def on_body(self, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self._held_head is not None:
            self._hold(self._held_head, piece, complete)
        else:
            super().on_body(piece, complete)

    def added_lines(self) -> bytes:
        """See `Exchange`."""
        return encode_fields(self._added)

    def _hold(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        self._held.append(piece)
        self._held_size += len(piece)
        if not complete and self._held_size <= MOST:
            return
        body = b"".join(self._held)
        self._held.clear()
        self._held_head = None
        if complete:
            content = content_coding.response_content(head, body, self.outbound.decode, MOST)
            shown = show_original_json(content)
            if shown != content:
                self._port.log.noticed(_CODE)
                self._added = {HEADER: _CODE} if self._port.notice_header else {}
                self.answer = Answer(head.status, self._added, shown)
                head, body = head_with_length(head, len(shown)), shown
        super().on_head(head, body, complete)
