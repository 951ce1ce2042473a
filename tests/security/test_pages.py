"""The settings and paths in the pages on security and scaling exist."""

from __future__ import annotations

import re

import pytest

from gateway.config.describe import rows
from tests.docs.pages import ROOT, page

pytestmark = pytest.mark.check

SECTIONS = {row[0].partition(".")[0] for row in rows()}


@pytest.mark.parametrize("name", ["operate/threat-model.md", "operate/scale-out.md"])
def test_settings_named_exist(name: str) -> None:
    settings = {row[0] for row in rows()}
    parents = {setting.rpartition(".")[0] for setting in settings}
    named = {word for word in re.findall(r"`([a-z]+(?:\.[a-z0-9_]+)+)", page(name)) if word.split(".")[0] in SECTIONS}
    assert len(named) > 5
    assert named <= settings | parents


def test_tests_named_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page("operate/threat-model.md"))
    assert named
    assert all((ROOT / one).exists() for one in named)
