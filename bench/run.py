"""What the rewrite costs, per size of the body: ``make bench``. A table to look at; it promises nothing.

The rewrite reads, validates, maps, plans and serialises. Beside it stands `json.loads` and `json.dumps` of the same
body, which any rewriting in Python would have to do at least.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.agents.documents import read_profile
from gateway.agents.profile import AgentProfile
from gateway.execute.rewrite import Policy, rewritten
from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core
from gateway.unified.request import read_execute

SIZES = {"1 kB": 1_000, "100 kB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
SECONDS = 1.0


def _profile() -> AgentProfile:
    """The seeded flow agent whose template takes messages."""
    core = ClusterCore("2.19.0")
    agent_id = seed_core(core)["flow-a"]
    agent = core.resources.agent(agent_id)
    model_id = agent["tools"][0]["parameters"]["model_id"]
    model = core.resources.model(model_id)
    connector = core.resources.connector(model["connector_id"])
    return read_profile(agent_id, agent, {model_id: model}, {model["connector_id"]: connector}, (2, 19, 0))


def _body(size: int) -> bytes:
    data = base64.b64encode(os.urandom(size * 3 // 4)).decode()
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": data}}
    return json.dumps({"input": [{"type": "text", "text": "What is this?"}, image]}).encode()


def _median(run: Callable[[], Any]) -> float:
    """Milliseconds of one run: the median of what fits in a second, at least five."""
    run()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def main() -> None:
    profile = _profile()
    table = Table(title="milliseconds, median", title_justify="left")
    for column in ("body", "rewrite", "json.loads + json.dumps"):
        table.add_column(column, justify="right")
    for name, size in SIZES.items():
        body = _body(size)

        def rewrite(body: bytes = body) -> None:
            request = read_execute(body)
            assert request.input is not None
            rewritten(profile, request, request.input, Policy())

        def plain(body: bytes = body) -> None:
            json.dumps(json.loads(body)).encode()

        table.add_row(name, f"{_median(rewrite):.2f}", f"{_median(plain):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
