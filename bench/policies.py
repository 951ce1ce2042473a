"""``python -m bench.policies``: CPU time of a run with a budget or a guardrail.

Measured as `bench.capture` measures recording: the gateway's process alone, in turns with one without policies.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.capture import Rounds
from bench.process import Process, allow_many_files, free_port

_ROUNDS, _SECONDS = 5, 0.7


async def allow(request: web.Request) -> web.Response:
    """Allow what a guardrail is asked about."""
    await request.read()
    return web.json_response({"verdict": "allow"})


def measure(policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a row for each policy and request."""
    print("| policy | request | CPU without | with |\n|---|---|---|---|")
    for name, policy in policies.items():
        with tempfile.TemporaryDirectory() as folder:
            rounds = Rounds(Path(folder), _SECONDS, {"policy": policy})
            rounds.run(_ROUNDS)
        for load, ratios in rounds.ratios.items():
            off, ratio = statistics.median(rounds.micros[load]), statistics.median(ratios)
            print(f"| {name} | {load} | {off:.0f} µs | {off * ratio:.0f} µs ({ratio:.2f}) |", flush=True)


def main() -> None:
    """Measure and print."""
    allow_many_files()
    port = free_port()
    guardrail = Process("guardrail", [sys.executable, "-m", "bench.policies", str(port)], port)
    try:
        guardrail.wait_until_up()
        check = {"name": "check", "url": f"http://127.0.0.1:{port}/"}
        measure(
            {
                "usage": {"usage": True},
                "budget": {"budgets": [{"tokens": 10**15}]},
                "guardrail": {"guardrails": [check]},
            }
        )
    finally:
        guardrail.stop()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_post("/", allow)
        web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
