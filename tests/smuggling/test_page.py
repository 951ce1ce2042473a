"""`docs/reference/http.md` shows the tables these tests run on."""

from __future__ import annotations

import re

import pytest

from tests.smuggling.answers import ANSWERS, Answer
from tests.smuggling.page import PAGE, written
from tests.smuggling.table import ROWS, Row

pytestmark = pytest.mark.check


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == written(), "python -m tests.smuggling.page"


@pytest.mark.parametrize("rows", [ROWS, ANSWERS], ids=["requests", "answers"])
def test_rows_have_names_of_their_own_and_clauses(rows: list[Row] | list[Answer]) -> None:
    names = [(row.phase, row.id) for row in rows]
    assert len(names) == len(set(names)) >= 60
    assert all(re.fullmatch(r"(RFC \d{4}, )?\d+(\.\d+)*", row.clause) for row in rows)
