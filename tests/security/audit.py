"""``make audit``: known vulnerabilities in the locked dependencies, according to the package index.

Exits with 1 if there are any. If the index has no advisories or can't be reached, it prints one line and exits with 0,
because a check must not fail with the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 300
_AUDIT = ("-m", "pip_audit", "--requirement", "requirements-dev.lock", "--no-deps", "--disable-pip", "--format", "json",
          "--progress-spinner", "off", "--timeout", "10")  # fmt: skip


def main() -> int:
    """Run the audit, print its result and return the exit status."""
    try:
        done = subprocess.run([sys.executable, *_AUDIT], cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS)
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _say(f"audit: no advisories within {_SECONDS} s; nothing was audited.")
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return _say(f"audit: no advisories to be had ({last[0][:200]}); nothing was audited.")
    lines, status = verdict(report)
    for line in lines:
        _say(line)
    return status


def verdict(report: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the lines to print for pip-audit's report, and the exit status."""
    packages = report["dependencies"]
    audited = [package for package in packages if "skip_reason" not in package]
    found = [
        f"audit: {package['name']} {package['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or '-'}"
        for package in audited
        for one in package["vulns"]
    ]
    if found:
        return found, 1
    if not audited:
        return [f"audit: the index has no advisories for any of {len(packages)} packages; nothing was audited."], 0
    return [f"audit: {len(audited)} of {len(packages)} packages audited, no known vulnerability."], 0


def _say(line: str) -> int:
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
