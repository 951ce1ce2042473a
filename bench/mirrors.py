"""``make bench-mirrors``: what copies of runs on another cluster cost the clients whose runs are copied.

Two gateways with the same route, one of which copies each run (`agents.routes[].mirror`), take the same requests at a
fixed rate, in turns. Clusters and load run on one core, the gateways on another. Exits with 1 if the bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.open_loop import Schedule, run
from bench.process import Process, free_port
from gateway.simulator.fixtures import seed

MUST = 1.02
"""Median time of an answer with copies, to that without."""


def _start(stack: ExitStack, name: str, port: int, *command: str) -> Process:
    process = Process(name, [sys.executable, "-m", *command], port)
    stack.callback(process.stop)
    process.wait_until_up()
    return process


def _seeded(url: str, agent: str) -> str:
    """Register the usual agents on a simulator, and return the id of one."""
    return asyncio.run(seed(url))[agent]


def _settings(old: str, new: str, new_url: str, port: int, copies: bool) -> dict[str, object]:
    targets = [{"agent": old, "weight": 1}, {"agent": new, "cluster": "new", "callers": "trusted"}]
    route: dict[str, object] = {"agent": old, "targets": targets}
    if copies:
        route["mirror"] = {"agent": new, "tools": "none", "most_at_a_time": 16}
    listen = {"data_port": port, "admin_port": 0}
    return {"listen": listen, "clusters": {"new": {"url": new_url}}, "agents": {"routes": [route]}}


def measure(rounds: int, rate: float, seconds: float) -> tuple[list[float], list[float]]:
    """Return the median seconds of each round without and with copies."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls, agents = [], []
        for version, agent in (("2.19.0", "flow-b"), ("3.8.0", "flow-openai_upgraded")):
            port = free_port()
            process = _start(stack, version, port, "gateway.simulator", "--version", version, "--port", str(port))
            process.pin({cores[-1]})
            urls.append(f"http://127.0.0.1:{port}")
            agents.append(_seeded(urls[-1], agent))
        ports = []
        for copies in (False, True):
            file = folder / f"copies-{copies}.json"
            ports.append(free_port())
            file.write_text(json.dumps(_settings(*agents, urls[1], ports[-1], copies)))
            command = ("gateway", "serve", "-c", str(file), "--upstream", urls[0])
            gateway = _start(stack, f"copies: {copies}", ports[-1], *command)
            gateway.pin({cores[0]})
        os.sched_setaffinity(0, {cores[-1]})
        body = json.dumps({"input": "x" * 1000}).encode()
        line = f"POST /_plugins/_ml/agents/{agents[0]}/_execute HTTP/1.1"
        head = f"{line}\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for times, port in zip(found, ports, strict=True):
                [outcome] = run(Schedule(port, head.encode() + body, rate, seconds, connections=8))
                if outcome.unanswered:
                    raise RuntimeError("requests were not answered")
                times.append(outcome.p50)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round (%(default)s)")
    arguments = parser.parse_args()
    without, copied = measure(arguments.rounds, arguments.rate, arguments.seconds)
    ratios = [one / other for one, other in zip(copied, without, strict=True)]
    ratio = statistics.median(ratios)
    print(f"median answer: {statistics.median(without) * 1e3:.2f} ms without copies, ", end="")
    print(f"{statistics.median(copied) * 1e3:.2f} ms with; ratio {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"at most {MUST}: {'met' if ratio <= MUST else 'missed'}")
    return 0 if ratio <= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
