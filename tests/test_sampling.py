"""A sample of large tables: every N-th case of a test with many cases, and all of the others."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.parametrize("case", range(20))
def test_many(case):
    pass

@pytest.mark.parametrize("case", range(3))
def test_few(case):
    pass

def test_one():
    pass
"""


@pytest.mark.parametrize(("arguments", "passed"), [((), 24), (("--sample=1",), 24), (("--sample=5",), 8)])
def test_every_nth_case_of_many(pytester: pytest.Pytester, arguments: tuple[str, ...], passed: int) -> None:
    pytester.makepyfile(CASES)
    settings = ("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")
    result = pytester.runpytest_inprocess("-p", "tests.sampling", *settings, *arguments)
    result.assert_outcomes(passed=passed, deselected=24 - passed)
