"""What a run tries of all: every N-th case of a test with many, a share of counts. The longest tests start first."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.conftest import examples, share

pytest_plugins = ["pytester"]
OPTIONS = ("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")

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


@pytest.mark.parametrize(("arguments", "passed"), [((), 24), (("--sample=5",), 8)])
def test_every_nth_case_of_many(pytester: pytest.Pytester, arguments: tuple[str, ...], passed: int) -> None:
    pytester.makepyfile(CASES)
    result = pytester.runpytest_inprocess("-p", "tests.sampling", *OPTIONS, *arguments)
    result.assert_outcomes(passed=passed, deselected=24 - passed)


ORDER = """
import pytest

def test_short():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.slow(10)
def test_longer():
    pass

@pytest.mark.slow(20)
def test_longest():
    pass
"""


def test_the_longest_start_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ORDER)
    result = pytester.runpytest_inprocess("-p", "tests.conftest", "--collect-only", "-q", *OPTIONS)
    names = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    assert names == ["test_longest", "test_longer", "test_short", "test_slow"]


@pytest.mark.parametrize(("profile", "expected"), [("quick", 40), ("ci", 130), ("thorough", 1000)])
def test_a_share_of_a_count(profile: str, expected: int) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert share(1000) == expected
        assert share(1) == 1
        assert examples(1000).max_examples == expected
    finally:
        settings.load_profile(before)
