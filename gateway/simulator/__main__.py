"""``python -m gateway.simulator``: a simulated cluster to try things against."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys

from gateway.simulator.core import VERSIONS
from gateway.simulator.fixtures import seed
from gateway.simulator.server import Simulator


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gateway.simulator",
        description="A simulated OpenSearch ML Commons cluster with model endpoints, on loopback.",
    )
    parser.add_argument("--version", choices=VERSIONS, default=VERSIONS[0], help="the cluster's version (%(default)s)")
    parser.add_argument("--port", type=int, default=9200, help="the cluster's port, 0 for any (%(default)s)")
    parser.add_argument("--llm-port", type=int, default=0, help="the models' port (any)")
    parser.add_argument("--lenient", action="store_true", help="models take any body instead of checking it")
    parser.add_argument("--seed", action="store_true", help="register the usual connectors, models and agents")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    simulator = Simulator(arguments.version, not arguments.lenient, arguments.port, arguments.llm_port)
    async with simulator:
        _say(f"ML Commons {arguments.version} at {simulator.url}, its models at {simulator.llm_url}")
        _say(f"what the models received: {simulator.url}/received")
        if arguments.seed:
            _say(json.dumps(await seed(simulator.url, whole=True), indent=2))
        await asyncio.Event().wait()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(_arguments()))


if __name__ == "__main__":
    main()
