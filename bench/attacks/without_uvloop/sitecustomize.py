"""Hides uvloop from a process that has this folder in its PYTHONPATH: the gateway then runs on asyncio's own loop."""

import sys

sys.modules["uvloop"] = None  # type: ignore[assignment]
