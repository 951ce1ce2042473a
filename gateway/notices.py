"""Short codes for what a client should know about a delivery; each is explained in ``docs/limitations.md``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """A limitation met on the way: its short code (``SYSTEM_FOLDED``), its place and one sentence."""

    code: str
    reason: str
    place: str = ""
