"""``mlc-gateway demo``: simulated clusters with a gateway in front of each."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from tempfile import TemporaryDirectory

import click

from gateway.cli.command import Command
from gateway.demo.bodies import bodies
from gateway.demo.client import Outcome, run_exchange
from gateway.demo.environment import CONNECTORS, Deployment, deploy
from gateway.demo.show import Everything, JsonLines, Show, Summary

_EXAMPLES = """\
mlc-gateway demo
mlc-gateway demo --once --all
mlc-gateway demo --once --json | jq -r '.outcome // .sum'"""

_PORT = 9209


@click.command("demo", cls=Command, examples=_EXAMPLES)
@click.option("--once", is_flag=True, help="Exit after the tables instead of running on.")
@click.option("--all", "everything", is_flag=True, help="Print every input, before and after, and more to try.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--port",
    type=click.IntRange(0, 65536 - len(CONNECTORS)),
    metavar="N",
    help=f"Port of the first gateway; the others use the next ports. 0: free ports (default: {_PORT}; 0 with --once).",
)
def command(once: bool, everything: bool, as_json: bool, port: int | None) -> int:
    """Start simulated clusters, each with a gateway, and show what reaches the LLMs."""
    show = JsonLines() if as_json else Everything() if everything else Summary()
    first = port if port is not None else 0 if once else _PORT
    try:
        return asyncio.run(_demo(show, first, once))
    except BrokenPipeError:
        raise  # click ends the command
    except OSError as error:
        sys.stderr.write(f"The demo can't start: {error}; choose another port with --port, or any with --port 0.\n")
        return 1


async def _demo(show: Show, first: int, once: bool) -> int:
    outcomes: list[Outcome] = []
    async with AsyncExitStack() as stack:
        places: list[Deployment] = []
        records = "" if once else stack.enter_context(TemporaryDirectory(prefix="mlc-gateway-demo-"))
        for number, version in enumerate(CONNECTORS):
            with show.starting(f"Starting OpenSearch {version} (simulated), its models, its agents and a gateway …"):
                places.append(await stack.enter_async_context(deploy(version, first + number if first else 0, records)))
        for at in places:
            for name, body in bodies().items():
                with show.starting(f"Calling the agents of {at.version}: {name} …"):
                    answers = [await run_exchange(at, agent, name, body) for agent in at.agents]
                show.outcomes(answers)
                outcomes += answers
        show.end(outcomes)
        if not once:
            ended = _signal_received()
            show.left_running(places)
            await ended.wait()
    return 1 if any(one.outcome == "lost" for one in outcomes) else 0


def _signal_received() -> asyncio.Event:
    """Return the event of a SIGINT or SIGTERM, from now on."""
    received = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, received.set)
    return received
