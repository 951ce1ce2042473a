"""The error for a medium that can't be fetched."""

from __future__ import annotations


class Unfetchable(Exception):
    """A URL is not fetched, or its response is not used.

    reason: one sentence, without the URL's path and query, which may contain secrets. expected, received: as in
    `gateway.errors.Problem`. help: what to do about it.
    """

    def __init__(self, reason: str, expected: str = "", received: str = "", help: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.received = received
        self.help = help
