"""Document names for Bedrock: a few kinds of characters, at most 200, unique over the whole request [I]."""

from __future__ import annotations

import re

from gateway.providers.findings import Findings
from gateway.unified.formats import ALIASES, FORMATS
from gateway.unified.model import Media

MAX_LENGTH = 200
_EXTENSION = re.compile(rf"\.(?:{'|'.join([*FORMATS['document'], *ALIASES])})\Z", re.IGNORECASE)
_DISALLOWED = re.compile(r"[^a-zA-Z0-9()\[\]-]+")


class DocumentNames:
    """Names the documents of one request, in their order."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._taken: set[str] = set()
        self._copies: dict[str, int] = {}
        self._count = 0

    def name(self, block: Media) -> str:
        """Return the name of the next document; note a given name that had to change."""
        self._count += 1
        given = _EXTENSION.sub("", block.name or "")
        wanted = _DISALLOWED.sub(" ", given).strip()[:MAX_LENGTH].rstrip() or f"document-{self._count}"
        name = self._unique(wanted)
        self._taken.add(name)
        if block.name and name != given:
            self._findings.note("DOCUMENT_RENAMED", block.at, f"The document {block.name!r} is sent as {name!r}")
        return name

    def _unique(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            copy = self._copies[wanted] = self._copies.get(wanted, 1) + 1
            suffix = f"-{copy}"
            name = wanted[: MAX_LENGTH - len(suffix)] + suffix
        return name
