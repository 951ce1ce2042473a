"""The documentation's pages, and the code blocks in them that are files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GATEWAY = ROOT / "gateway"
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name if name.isupper() or name[0].isupper() else DOCS / name).read_text()


def files_of(name: str) -> dict[str, str]:
    """File name → content of each block that is marked as a file."""
    return dict(_FILE.findall(page(name)))
