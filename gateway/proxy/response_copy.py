"""A copy of a response, collected while the response is sent on."""

from __future__ import annotations

from gateway.http1.bodies import Chunked
from gateway.http1.response_heads import ResponseHead
from gateway.proxy import content_coding
from gateway.unified.budget import SMALL_TEXT


class ResponseCopy:
    """A response as it came from the cluster. limit: most bytes of its body that are kept.

    head: None until it has arrived. pieces: of the body; empty if it is larger than `limit`. size: bytes of the body
    so far. complete: the body is whole. decoded: it came without chunk lines.
    """

    __slots__ = ("complete", "decoded", "head", "limit", "pieces", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head: ResponseHead | None = None
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = self.decoded = False

    def begin(self, head: ResponseHead, decoded: bool) -> None:
        """Begin with a response. One that came before, and was not sent on, is dropped."""
        self.head = head
        self.pieces.clear()
        self.size = 0
        self.complete = False
        self.decoded = decoded or not head.chunked

    def add(self, piece: bytes, complete: bool) -> None:
        """Add a piece of the body. complete: it is the last one."""
        self.size += len(piece)
        if self.size <= self.limit:
            self.pieces.append(piece)
        else:
            self.pieces.clear()
        self.complete = complete

    @property
    def is_whole(self) -> bool:
        """The whole response has arrived, and its body is not larger than `limit`."""
        return self.complete and self.size <= self.limit

    @property
    def is_small(self) -> bool:
        """`content` takes so little time that other clients of the event loop can wait for it."""
        head = self.head
        if head is None or not self.is_whole:
            return True
        return self.decoded and self.size <= SMALL_TEXT and not content_coding.response_codings(head)

    def body(self) -> bytes:
        """Return the body in its content coding. It may take long: the chunk lines are removed here."""
        body = b"".join(self.pieces)
        return body if self.decoded else Chunked(decode=True).feed(body)

    def content(self) -> bytes:
        """Return the body without its content coding; b"" if it is not whole, or can't be decoded. It may take long."""
        if self.head is None or not self.is_whole:
            return b""
        return content_coding.whole_content(self.head, self.body(), self.limit)
