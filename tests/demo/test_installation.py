"""`make` shows how far the installation is, and all that pip said if it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.check

PIP = """#!/bin/sh
case "$*" in
*requirements-dev.lock*)
    echo "Collecting one==1"
    echo "  Using cached one-1.whl"
    echo "Requirement already satisfied: two==2"
    %s
    echo "Installing collected packages: one" ;;
*) echo "Obtaining file:///here" ;;
esac
"""


def install(folder: Path, then: str = ":") -> subprocess.CompletedProcess[bytes]:
    """Run `make` with a Python whose pip only says what pip says."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "requirements-dev.lock").write_text("one==1 \\\n    --hash=sha256:0\ntwo==2\n# comment==3\n")
    python = folder / "python"
    python.write_text(PIP % then)
    python.chmod(0o755)
    (folder / "venv").mkdir()
    command = ["make", "VENV=venv", f"PY={python}", "venv/.installed"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=folder, env=outside, capture_output=True, timeout=60)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_it_counts_packages(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        b"Installing 2 locked packages into venv, once:\n"
        b"\r  1 of 2 read\r  2 of 2 read, installing ... done\n"
        b"\r  1 of 1 read done\n"
    )
    assert (tmp_path / "venv" / ".installed").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_a_failure_shows_all_that_pip_said(tmp_path: Path) -> None:
    done = install(tmp_path, "echo 'ERROR: no such package'; exit 1")
    assert done.returncode == 2
    assert (
        b"Collecting one==1\n  Using cached one-1.whl\nRequirement already satisfied: two==2\nERROR: no such"
        in done.stdout
    )
    assert not (tmp_path / "venv" / ".installed").exists()
