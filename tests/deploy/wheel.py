"""Build the wheel, the same bytes each time: ``python -m tests.deploy.wheel dist``.

The wheel is built from a copy of the tracked files alone, so that neither a file that git ignores nor an earlier build
gets into it. All files have one mode, whatever the checkout and the shell have, and the time of the last commit
(`SOURCE_DATE_EPOCH`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT

_PARTS = ("gateway", "pyproject.toml", "README.md", "LICENSE")
"""What the wheel is made of."""


def _git(*argv: str) -> str:
    return subprocess.run(["git", *argv], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def build(into: Path) -> Path:
    """Build the wheel into the folder `into`; return its path."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        tracked = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PARTS)
        for name in filter(None, tracked.split("\0")):
            copy = source / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():  # not removed since the last commit
                shutil.copyfile(ROOT / name, copy)
                copy.chmod(0o644)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        command += ["--wheel-dir", str(into), str(source)]
        subprocess.run(command, check=True, env=environ, cwd=folder, umask=0o022)
    [wheel] = into.glob("*.whl")
    return wheel


def check_metadata(wheel: Path) -> None:
    """Check the metadata as an index does that takes the wheel. Raise AssertionError if it would refuse it."""
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    """Build the wheel twice, compare, check the metadata, and put it into the folder that is named."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        wheel, other = build(Path(one)), build(Path(two))
        if wheel.read_bytes() != other.read_bytes():
            sys.exit("Two builds differ.")
        check_metadata(wheel)
        folder = ROOT / sys.argv[1]
        folder.mkdir(exist_ok=True)
        shutil.copyfile(wheel, folder / wheel.name)
    digest = hashlib.sha256((folder / wheel.name).read_bytes()).hexdigest()
    sys.stdout.write(f"{digest}  {sys.argv[1]}/{wheel.name}\n")


if __name__ == "__main__":
    main()
