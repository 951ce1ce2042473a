"""The audit's output for a report of pip-audit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.security.audit import verdict

FINE: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
BAD = {
    "name": "c",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3"]}, {"id": "GHSA-2", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("packages", "lines", "status"),
    [
        ([FINE, SKIPPED], ["audit: 1 of 2 packages audited, no known vulnerability."], 0),
        ([SKIPPED], ["audit: the index has no advisories for any of 1 packages; nothing was audited."], 0),
        ([FINE, BAD], ["audit: c 2: PYSEC-1, fixed in 2.1, 3", "audit: c 2: GHSA-2, fixed in -"], 1),
    ],
)
def test_verdict(packages: list[dict[str, Any]], lines: list[str], status: int) -> None:
    assert verdict({"dependencies": packages}) == (lines, status)
