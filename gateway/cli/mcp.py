"""``mlc-gateway mcp``: agents as tools for a client of MCP that starts this command."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from gateway.app import load_checked, supervisor
from gateway.app.adapters import serve_standard_streams
from gateway.app.wiring import log_of
from gateway.cli.check_config import report
from gateway.cli.command import FILE, Command
from gateway.cli.serve import overrides
from gateway.config.load import ConfigError, Source
from gateway.recording.store import StoreError

AUTHORIZATION = "MLC_AUTHORIZATION"

_EXAMPLES = """\
mlc-gateway mcp -c config/gateway.yaml
MLC_AUTHORIZATION="Basic YWRtaW46YWRtaW4=" mlc-gateway mcp -c gateway.yaml --upstream https://search.example.org:9200"""


@click.command("mcp", cls=Command, examples=_EXAMPLES)
@click.option("-c", "--config", type=FILE, metavar="FILE", help="Settings file, YAML or TOML.")
@click.option("--upstream", metavar="URL", help="Address of the cluster; replaces upstream.url and upstream.nodes.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def command(config: Path | None, upstream: str | None, log_level: str | None) -> int:
    """Serve the agents of `adapters.mcp` as tools of MCP on standard input and output, until the input ends.

    No port is opened, and no running gateway is needed. MLC_AUTHORIZATION holds the `Authorization` for the cluster.
    The log is on standard error. A signal ends the command at once.
    """
    # A thread that reads standard input can't be interrupted, so an orderly end is the end of the input.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    source = Source(config, overrides(upstream=upstream, log_level=log_level))
    try:
        settings = load_checked(source.load)
        log = log_of(settings)
        authorization = os.environ.get(AUTHORIZATION, "")
        supervisor.run_loop(lambda: serve_standard_streams(settings, log, authorization))
    except ConfigError as error:
        return report(error)
    except StoreError as error:
        sys.stderr.write(f"The tools can't be served: {error}\n")
        return 2
    return 0
