"""Runs a sample of the large tables: ``-p tests.sampling --sample N`` keeps every N-th case of a test with many.

CI runs such a sample of the slow tests and of those on a real cluster; ``make test-thorough`` runs them whole. The
cases are the same each time, so that what passed passes again. Counts within a test: `tests.conftest.share`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

MANY = 12
"""Cases from which on a test is sampled."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, default=1, metavar="N", help="run every N-th case of tests with many cases")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = config.getoption("--sample")
    if every == 1:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item for group in cases.values() if len(group) >= MANY for index, item in enumerate(group) if index % every
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
