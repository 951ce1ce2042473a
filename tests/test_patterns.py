"""Regular expressions mean the same in every version of Python that the gateway supports."""

from __future__ import annotations

import re
from pathlib import Path

GATEWAY = Path(__file__).parent.parent / "gateway"
_POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9%d,]+\})\+")


def _patterns(text: str) -> list[tuple[str, str]]:
    return re.findall(r"r?b?r?f?([\"'])((?:\\.|(?!\1).)*)\1", text)


def test_no_group_is_repeated_possessively() -> None:
    # Before 3.11.5, a repetition such as `(?:ab?c)*+` keeps what it has read of a repetition that fails
    # (https://github.com/python/cpython/issues/106052). Debian 12 has 3.11.2. A single class (`[^"]*+`) is sound.
    files = sorted(GATEWAY.rglob("*.py"))
    assert files
    found = [
        (str(file.relative_to(GATEWAY)), text)
        for file in files
        for _, text in _patterns(file.read_text())
        if "(?" in text and _POSSESSIVE_GROUP.search(text)
    ]
    assert found == []


def test_such_a_group_would_be_found() -> None:
    assert _POSSESSIVE_GROUP.search(r"(?:\\.[^x]*+)*+")
    assert _POSSESSIVE_GROUP.search(r"(?:%b){4,2048}+")
    assert not _POSSESSIVE_GROUP.search(r"(?:[^x]++|\\.)*")
