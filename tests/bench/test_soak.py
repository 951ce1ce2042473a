"""The soak, for a moment: the mix is answered rightly, and its verdict can be a bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.soak import DESCRIPTORS, MEMORY, Sample, rise, verdict
from tests.docs.pages import ROOT


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads memory and CPU times from Linux's /proc")
@pytest.mark.parametrize("more", [[], ["--tls"]], ids=["plain", "tls"])
def test_a_short_soak_finds_no_wrong_answer(more: list[str]) -> None:
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.05", "--least", "600", "--every", "0.4"]
    command += ["--rate", "200", *more]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert done.returncode == bool(report["faults"])
    assert sum(report["asked"].values()) >= 600
    assert {"GET 100 KB", "bulk", "execute text", "execute image", "streamed"} <= set(report["asked"])
    assert report["seen"]["whole"] > 300
    assert all(one["memory"] > 1e6 and one["descriptors"] > 3 for one in report["samples"])


def _samples(memory: float, descriptors: float) -> list[Sample]:
    """A steep start, then a rise of so much over the last half."""
    early = [Sample(second, second * 10_000_000, second, 0, 0.1) for second in range(10)]
    half = range(10)
    late = [Sample(10 + i, int(1e8 + memory * i / 9), round(40 + descriptors * i / 9), 0, 0.1) for i in half]
    return early + late


def test_a_line_through_points_rises_by_what_they_rise() -> None:
    assert rise([(0, 5), (1, 7), (2, 9)]) == pytest.approx(4)
    assert rise([(0, 1), (1, 3), (2, 1)]) == pytest.approx(0)
    assert rise([(3, 1)]) == 0


@pytest.mark.parametrize(
    ("samples", "wrong", "faults"),
    [
        (_samples(0, 0), 0, []),
        (_samples(MEMORY / 2, DESCRIPTORS / 2), 0, []),
        (_samples(-9 * MEMORY, -30), 0, []),
        (_samples(MEMORY * 1.5, 0), 0, ["memory rose"]),
        (_samples(0, DESCRIPTORS * 2), 0, ["descriptors rose"]),
        (_samples(0, 0), 2, ["2 wrong answers"]),
    ],
)
def test_only_what_rises_in_the_last_half_or_is_wrong_is_a_fault(
    samples: list[Sample], wrong: int, faults: list[str]
) -> None:
    assert verdict(samples, wrong)[1] == faults
