"""A read of an agent's memory, whose answer is shown as the turns were written.

Where the gateway had to store a question in a form of its own (`gateway.mlcommons.memory_form`), the client sees the
text. An answer without such a form passes byte for byte, and so does one that is too large to hold or has very many.
"""

from __future__ import annotations

import asyncio

from typing_extensions import override

from gateway.codes import NOTICE_HEADER
from gateway.errors import GatewayError
from gateway.http1.fields import encode_fields
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import ResponseHead
from gateway.memory.rest import LARGEST_BODY, find_session_id
from gateway.mlcommons.memory_form import show_original_json
from gateway.ports import Answer, ExecuteCall
from gateway.proxy import content_coding
from gateway.proxy.exchange import Exchange, ExchangePort, head_with_length
from gateway.proxy.interfaces import Client
from gateway.proxy.routes import Route
from gateway.proxy.run import decode_fields

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

    @override
    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        if head.status == 200 and (head.length or 0) <= MOST and self.request.method != b"HEAD":
            self._held_head = head
            self._hold(head, piece, complete)
        else:
            super().on_head(head, piece, complete)

    @override
    def on_body(self, piece: bytes, complete: bool) -> None:
        if self._held_head is not None:
            self._hold(self._held_head, piece, complete)
        else:
            super().on_body(piece, complete)

    @override
    def added_lines(self) -> bytes:
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
                self._added = {NOTICE_HEADER: _CODE} if self._port.notice_header else {}
                self.answer = Answer(head.status, self._added, shown)
                head, body = head_with_length(head, len(shown)), shown
        super().on_head(head, body, complete)


def is_small_search(request: Request, route: Route) -> bool:
    """Return True for a search whose body can be looked at before it is sent."""
    length = request.fields.length
    return route.kind == "search" and length is not None and 0 < length <= LARGEST_BODY and not request.fields.expects


class MemorySearch(MemoryRead):
    """An exchange that waits for the body, and asks the use case if that is a search for a session of the gateway.

    shows: the cluster's answer is shown readable, as `MemoryRead` does.
    """

    __slots__ = ("_looked", "_shows", "_task")

    def __init__(self, port: ExchangePort, client: Client, request: Request, route: Route, shows: bool) -> None:
        super().__init__(port, client, request, route)
        self._shows = shows
        self._looked = False
        self._task: asyncio.Task[None] | None = None

    @override
    def start(self) -> None:
        if self.outbound.complete:
            self._look()
        else:
            self.client.resume_reading()  # it was paused if the request had to wait

    @override
    def upload(self, piece: bytes, complete: bool) -> None:
        if self._looked:
            super().upload(piece, complete)
            return
        self.outbound.complete = complete
        self._hold_back(piece)
        if complete and (self.ticket is None or self.ticket.admitted):
            self._look()

    def _look(self) -> None:
        self._looked = True
        body = b"".join(self._pending)
        session_id = find_session_id(body)
        if session_id is None:
            super().start()
        else:
            self._task = asyncio.get_running_loop().create_task(self._answer(session_id, body))

    async def _answer(self, session_id: str, body: bytes) -> None:
        call = ExecuteCall(
            agent_id="",
            method=self.request.method.decode("ascii"),
            raw_target=self.request.target.decode("utf-8", "surrogateescape"),
            headers=decode_fields(self.request.fields),
            body=body,
            request_id=self.request_id,
            streaming=False,
        )
        try:
            try:
                answer = await self._port.dispatcher.show_session("search", session_id, call)
            finally:
                self._task = None
            self.reply(answer)
        except GatewayError as error:
            self.refuse(error)
        except Exception:
            self.break_off()

    @override
    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    @override
    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        if self._shows:
            super().on_head(head, piece, complete)
        else:
            Exchange.on_head(self, head, piece, complete)
