"""``mlc-gateway demo``: a whole world on this machine, with something to see."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack

from gateway.demo.bodies import bodies
from gateway.demo.client import Outcome, run_exchange
from gateway.demo.environment import CONNECTORS, Deployment, deploy
from gateway.demo.show import JsonLines, Terminal

NAME = "demo"
HELP = "Start simulated clusters with a gateway before each, and show what reaches the LLMs; exit 1 when any is lost."
EXAMPLES = """  mlc-gateway demo
  mlc-gateway demo --once
  mlc-gateway demo --once --json | jq -r .outcome"""

_PORT = 9209


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--once", action="store_true", help="end after the tables instead of running on")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"the first gateway's port, the others follow; 0 takes free ones ({_PORT}; 0 with --once)",
    )


def run(args: argparse.Namespace) -> int:
    """Show it all; 0 when everything arrived or was refused as it must be, 1 when anything was lost or can't start."""
    show = JsonLines() if args.json else Terminal()
    first = args.port if args.port is not None else 0 if args.once else _PORT
    try:
        return asyncio.run(_demo(show, first, args.once))
    except OSError as error:
        sys.stderr.write(f"The demo can't start: {error}; --port takes another port, --port 0 any free one.\n")
        return 1


async def _demo(show: JsonLines | Terminal, first: int, once: bool) -> int:
    outcomes: list[Outcome] = []
    async with AsyncExitStack() as stack:
        places: list[Deployment] = []
        for number, version in enumerate(CONNECTORS):
            with show.starting(f"Starting OpenSearch {version} (simulated), its models, its agents and a gateway …"):
                places.append(await stack.enter_async_context(deploy(version, first + number if first else 0)))
        for at in places:
            for name, body in bodies().items():
                with show.starting(f"Asking the agents of {at.version}: {name} …"):
                    told = [await run_exchange(at, agent, name, body) for agent in at.agents]
                show.outcomes(told)
                outcomes += told
        show.end(outcomes)
        if not once:
            show.left_running(places)
            await _interrupted()
    return 1 if any(one.outcome == "lost" for one in outcomes) else 0


async def _interrupted() -> None:
    """Returns at SIGINT or SIGTERM."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, told.set)
    await told.wait()
