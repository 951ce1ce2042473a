"""A search in a memory container, which is answered by the gateway if it is for a session of its own.

Only a small body of a known length is looked at, and only after all of it has arrived. Any other search passes byte for
byte, as does a body that asks for anything else.
"""

from __future__ import annotations

import asyncio

from multidict import CIMultiDictProxy

from gateway.errors import GatewayError
from gateway.http1.request_heads import Request
from gateway.http1.response_heads import ResponseHead
from gateway.memory.rest_search import LARGEST_BODY, find_session_id
from gateway.ports import ExecuteCall
from gateway.proxy.exchange import Exchange, ExchangePort
from gateway.proxy.execution import decode_fields
from gateway.proxy.interfaces import Client
from gateway.proxy.memory_read import MemoryRead
from gateway.proxy.routes import Route


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

    def start(self) -> None:
        """See `Exchange`."""
        if self.outbound.complete:
            self._look()
        else:
            self.client.resume_reading()  # it was paused if the request had to wait

    def upload(self, piece: bytes, complete: bool) -> None:
        """See `Exchange`."""
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
            headers=CIMultiDictProxy(decode_fields(self.request.fields)),
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

    def abandon(self) -> None:
        """See `Exchange`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().abandon()

    def on_head(self, head: ResponseHead, piece: bytes, complete: bool) -> None:
        """See `RequestOwner`."""
        if self._shows:
            super().on_head(head, piece, complete)
        else:
            Exchange.on_head(self, head, piece, complete)
