"""The page of the first five minutes shows what happens; the first page of the documentation knows five settings."""

from __future__ import annotations

import re

import pytest

from gateway.config.describe import rows
from tests.docs.first_minutes import PAGE, render
from tests.docs.pages import page

pytestmark = pytest.mark.check


def test_the_first_five_minutes_are_as_the_page_says() -> None:
    assert PAGE.read_text() == render()


def test_how_to_install_is_as_in_the_readme() -> None:
    """The transcript does not install anything."""
    for line in ("python3 -m venv .venv && . .venv/bin/activate", "pip install"):
        assert line in PAGE.read_text()
        assert line in page("README.md")


def test_the_quickstart_knows_five_settings() -> None:
    _, _, section = page("start/quickstart.md").partition("## Five settings\n")
    known = {path for path, *_ in rows()}
    named = re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE)
    assert len(named) == 5
    assert set(named) <= known
    others = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", page("start/quickstart.md"))) & known
    assert others <= set(named)
