"""How a client's connection ends: it lingers until the client has received the last response, or it is reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

from gateway.upstream.deadlines import NO_DEADLINE, deadline_in

LINGER = 2.0
"""Seconds that a client has to receive the last response, while its input is discarded. Closing at once would reset the
connection, and the client could lose the response (RFC 9112, 9.6)."""

_RESET = struct.pack("ii", 1, 0)


class LingeringClose:
    """Closes a connection after the client has received the last response; see `LINGER`. Methods return a deadline.

    send: `timeouts.send`. The loop's TLS transports have no half-close. With TLS, the connection stays open for that
    time only if the client may still be sending.
    """

    __slots__ = ("_received_at", "_send", "_transport", "_unsent")

    def __init__(self, transport: asyncio.Transport, send: float) -> None:
        self._transport = transport
        self._send = send
        self._received_at = 0.0
        self._unsent = 0

    def start(self, unread: bool, ended: bool) -> float:
        """End the output. unread: the client may still be sending. ended: it has ended its half of the connection.

        asyncio's loop does not report that end again, so there is nothing to wait for once all has been written.
        """
        if ended and not self._transport.get_write_buffer_size():
            self._transport.close()
            return NO_DEADLINE
        if self._transport.can_write_eof():
            self._transport.write_eof()
        elif not unread:
            self._transport.close()
            return deadline_in(self._send)
        self._transport.resume_reading()
        self._received_at = time.monotonic()
        return self.await_receipt()

    def await_receipt(self) -> float:
        """Return the deadline for the client to receive the rest of the response and to close."""
        self._unsent = self._transport.get_write_buffer_size()
        return deadline_in(min(LINGER, self._send or LINGER))

    def expire(self) -> float:
        """Handle the deadline: wait on if the client still receives; else close or cut the connection."""
        unsent = self._transport.get_write_buffer_size()
        if self._transport.is_closing():
            self._transport.abort()
            return NO_DEADLINE
        if unsent < self._unsent:
            self._received_at = time.monotonic()
        elif not unsent:
            self._transport.close()
            return deadline_in(LINGER)
        elif self._send and time.monotonic() - self._received_at >= self._send:
            self._transport.abort()
            return NO_DEADLINE
        return self.await_receipt()


def reset(transport: asyncio.Transport) -> None:
    """Reset the connection in the middle of a response, so that the client does not take it for complete.

    An orderly close would end the body for an HTTP/1.0 client (RFC 9112, 6.3).
    """
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
