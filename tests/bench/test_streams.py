"""The benchmark of streams runs from end to end; what it measures is not judged here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

QUICK = ["--rounds", "1", "--streams", "3", "--frames", "4", "--pause", "0.02", "--many", "10", "--hold", "0.2"]


@pytest.mark.slow(60)
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="reads CPU times from Linux's /proc")
def test_a_run_fills_the_tables() -> None:
    command = [sys.executable, "-m", "bench.streams", *QUICK, "--only", "OpenAI,AG-UI,direct"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert completed.returncode in (0, 1), completed.stdout + completed.stderr
    rows = dict(re.findall(r"^\| (.+?) \| (.*?) \|$", completed.stdout, re.MULTILINE))
    assert rows["tokens lost"] == "0 | 0 | 0"
    assert re.fullmatch(r"[\d.]+ ms \| [\d.]+ ms \| [\d.]+ ms", rows["first token, p50"])
    assert re.fullmatch(r"-?[\d.]+ KB \| -?[\d.]+ KB \| ", rows["memory a stream, 10 open"])
    assert re.fullmatch(r"[\d.]+ s \| [\d.]+ s", rows["start"])
    off, on = rows["imported modules"].split(" | ")
    assert int(off) < int(on)
