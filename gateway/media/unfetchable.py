"""Why a medium is not fetched."""

from __future__ import annotations


class Unfetchable(Exception):
    """A URL that is not fetched, or whose answer is not used.

    reason: one sentence, without the URL's path and query, which may hold secrets. expected, received: what was
    wanted and what came. help: what to do about it.
    """

    def __init__(self, reason: str, expected: str = "", received: str = "", help: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.received = received
        self.help = help
