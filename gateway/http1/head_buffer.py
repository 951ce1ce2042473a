"""Collects the bytes of a head until its empty line, within the limits. Used for requests and for responses.

An incomplete head is checked as it grows, so that a peer cannot send without end what will never be a valid head.
"""

from __future__ import annotations

from gateway.http1.fields import find_control
from gateway.http1.rules import HeadLimits, Malformed

_END = b"\r\n\r\n"


def split_head(data: bytes, limits: HeadLimits) -> tuple[bytes, bytes] | None:
    """Return the head with its empty line, and the bytes after it, as `HeadBuffer.feed` does for a whole head.

    None if a buffer is needed: the head is incomplete, or an empty line is before it.

    Raises:
        Malformed: the head is too large.
    """
    end = data.find(_END) + 4
    if end < 4 or data.startswith(b"\r\n"):
        return None
    if end > limits.head:
        raise Malformed("head-size")
    return data[:end], data[end:]


class HeadBuffer:
    """The bytes of one head; see the subclasses for what requests and responses add."""

    __slots__ = ("_part",)
    _skips_empty_line = False

    def __init__(self) -> None:
        self._part: bytearray | None = None
        """None: nothing of a head has arrived."""

    def feed(self, data: bytes, limits: HeadLimits) -> tuple[bytes, bytes] | None:
        """Add `data`. Return the head with its empty line, and the bytes after it; None if it is incomplete.

        Raises:
            Malformed: the head is too large, or what has arrived cannot become a valid head.
        """
        part = self._part
        if part is None:
            if data.startswith(b"\r\n") and self._skips_empty_line:
                data = data[2:]
            end = data.find(_END) + 4
            if end < 4:
                part = self._part = bytearray(data)
                self._check(part, 0, limits)
                return None
        else:
            checked = max(len(part) - 3, 0)
            part += data
            if self._skips_empty_line and part.startswith(b"\r\n"):
                del part[:2]
            end = part.find(_END, checked) + 4
            if end < 4:
                self._check(part, checked, limits)
                return None
            data, self._part = bytes(part), None
        if end > limits.head:
            raise Malformed("head-size")
        return data[:end], data[end:]

    def _check(self, part: bytearray, checked: int, limits: HeadLimits) -> None:
        """Check an incomplete head. checked: the bytes before it, save the last one, were checked before."""
        raise NotImplementedError


class RequestHeadBuffer(HeadBuffer):
    """Skips an empty line before the head (RFC 9112, 2.2); some old clients send one after a body."""

    __slots__ = ()
    _skips_empty_line = True

    def _check(self, part: bytearray, checked: int, limits: HeadLimits) -> None:
        if fault := find_control(part, max(checked - 1, 0)):
            raise Malformed(fault)
        if len(part) > limits.line and part.find(b"\r\n") < 0:
            raise Malformed("target-size")
        if len(part) > limits.head:
            raise Malformed("head-size")


class ResponseHeadBuffer(HeadBuffer):
    """Refuses at once what does not begin with an HTTP/1 version."""

    __slots__ = ()

    def _check(self, part: bytearray, checked: int, limits: HeadLimits) -> None:
        if not part.startswith(b"HTTP/1."[: len(part)]):
            raise Malformed("status-line")
        if len(part) > limits.head:
            raise Malformed("head-size")
        if fault := find_control(part, max(checked - 1, 0)):
            raise Malformed(fault)
