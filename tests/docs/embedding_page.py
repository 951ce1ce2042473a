"""Writes the table of `docs/reference/embedding.md`: ``python -m tests.docs.embedding_page``."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS
from tests.exactness.test_aiohttp import DIFFERENCES

PAGE = DOCS / "reference" / "embedding.md"
_BEGIN, _END = "<!-- differences: written by `make docs` -->", "<!-- /differences -->"


def written() -> str:
    """Return the page with its table as it should be."""
    rows = (f"| {row.topic} | {row.builtin} | {row.aiohttp} |" for row in DIFFERENCES)
    table = "\n".join((_BEGIN, "| | `builtin` | `aiohttp` |", "|---|---|---|", *rows, _END))
    pattern = f"{re.escape(_BEGIN)}.*?{re.escape(_END)}"
    return re.sub(pattern, lambda _: table, PAGE.read_text(), flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written())
