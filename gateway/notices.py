"""Notices about a delivery. ``docs/reference/limitations.md`` explains the code of each."""

from __future__ import annotations

import msgspec

HEADER = "X-MLC-Gateway-Notice"
"""The response header with the codes of a request's notices."""


class Notice(msgspec.Struct, frozen=True):
    """A change that is reported to the client: its short code (``SYSTEM_FOLDED``), its place and one sentence."""

    code: str
    reason: str
    place: str = ""
