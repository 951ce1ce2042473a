"""Writes the tables of `docs/reference/http.md` from the tables of these tests: ``python -m tests.smuggling.page``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.smuggling.answers import ANSWER_SECTIONS, ANSWERS, Answer
from tests.smuggling.table import ROWS, SECTIONS, Row

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


def written() -> str:
    """The page with its generated parts as they should be."""
    page = PAGE.read_text()
    for name, lines in {"requests": _requests(), "answers": _answers()}.items():
        begin, end = f"<!-- {name}: written by `make docs` -->", f"<!-- /{name} -->"
        part = "\n".join((begin, *lines, end))
        page = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, part=part: part, page, flags=re.DOTALL)
    return page


def _requests() -> Iterator[str]:
    yield f"{len(ROWS)} requests, each sent whole and byte by byte."
    yield from _sections(SECTIONS)


def _answers() -> Iterator[str]:
    yield f"{len(ANSWERS)} answers, each sent whole and byte by byte."
    yield from _sections(ANSWER_SECTIONS)


def _sections(sections: Mapping[str, Sequence[Row | Answer]]) -> Iterator[str]:
    for title, rows in sections.items():
        yield from ("", f"#### {title}", "", "| what is wrong | clause |", "|---|---|")
        yield from (f"| {row.id} | {row.clause} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(written())
