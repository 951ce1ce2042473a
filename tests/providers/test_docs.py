"""docs/reference/providers.md matches the code: its tables are generated, and it explains every code."""

import re
from pathlib import Path

import pytest

from gateway.providers import registry

from .doc_tables import PAGE, filled

pytestmark = pytest.mark.check

CODE = re.compile(r"(?:refuse|note|Notice)\(\s*\"([A-Z_]+)\"")
GATEWAY = Path(__file__).parents[2] / "gateway"
SOURCES = [*(GATEWAY / "providers").glob("*.py"), GATEWAY / "unified" / "roles.py"]


def test_tables_are_the_codes() -> None:
    """When this fails: `python tests/providers/doc_tables.py`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page)


def test_every_code_is_explained_and_no_other() -> None:
    used = {code for path in SOURCES for code in CODE.findall(path.read_text(encoding="utf-8"))}
    explained = set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert explained == used
    assert len(used) > 20


def test_every_provider_has_its_section() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in registry.names())
