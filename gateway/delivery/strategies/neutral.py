"""Neutral texts, for a turn that must begin or end with text where the client has none."""

from __future__ import annotations

from gateway.notices import Notice

LEAD, TAIL = "(attached:)", "(end)"


def neutral_text(where: str) -> Notice:
    """Return the notice of a neutral text. where: ``first``, ``last`` or both."""
    return Notice("NEUTRAL_TEXT_ADDED", f"a neutral text block was put {where}, where this template must have text")
