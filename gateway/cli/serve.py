"""``mlc-gateway serve``: run the gateway."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gateway.app import supervisor
from gateway.app.greeting import greet
from gateway.cli.check_config import report
from gateway.cli.command import FILE, Command
from gateway.config.load import ConfigError, sources
from gateway.config.schema import Settings
from gateway.config.source import Source
from gateway.observe.logs import Logger
from gateway.proxy.acceptor import UNIX

_EXAMPLES = """\
mlc-gateway serve --upstream http://127.0.0.1:9200
mlc-gateway serve -c config/gateway.yaml --upstream https://search.example.org:9200
mlc-gateway serve --upstream http://127.0.0.1:9200 --listen 0.0.0.0:9209 --workers 4"""


@click.command("serve", cls=Command, examples=_EXAMPLES)
@click.option("-c", "--config", type=FILE, metavar="FILE", help="Settings file, YAML or TOML.")
@click.option("--upstream", metavar="URL", help="Address of the cluster; replaces upstream.url and upstream.nodes.")
@click.option("--listen", metavar="HOST:PORT", help="Where to serve the cluster's API (default: 127.0.0.1:9209).")
@click.option("--admin", metavar="HOST:PORT", help="Where to serve health and metrics (default: 127.0.0.1:9601).")
@click.option("--workers", type=int, metavar="N", help="Number of processes that share the port (default: 1).")
@click.option(
    "--http",
    type=click.Choice(["builtin", "aiohttp"]),
    help="HTTP server of the cluster's API: the gateway's own (the default), or aiohttp's.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def command(config: Path | None, **options: Any) -> int:
    """Run the gateway in front of a cluster until SIGINT or SIGTERM. SIGHUP reloads the settings.

    An option overrides the settings file and the environment.
    """
    try:
        source = Source(config, overrides(**options))
        supervisor.run_loop(supervisor.serve(source, _greeting(source)))
    except ConfigError as error:
        given = {setting: option for setting, option in _OPTIONS.items() if options[option.removeprefix("--")]}
        return report(error, given)
    except OSError as error:
        sys.stderr.write(f"The gateway can't start: {error}\n")
        return 1
    return 0


_OPTIONS = {
    "upstream.url": "--upstream",
    "listen.data_host": "--listen",
    "listen.data_port": "--listen",
    "listen.admin_host": "--admin",
    "listen.admin_port": "--admin",
    "listen.workers": "--workers",
}
"""The settings of an option, which may hold something wrong."""


def _greeting(source: Source) -> Callable[[Settings, Logger], None]:
    def say(settings: Settings, log: Logger) -> None:
        named = {name for name in sources(source.path) if name in ("upstream.url", "upstream.nodes")}
        greet(settings, bool(named or source.overrides["upstream"]), os.environ, log, sys.stderr)

    return say


def overrides(
    upstream: str | None = None,
    listen: str | None = None,
    admin: str | None = None,
    workers: int | None = None,
    log_level: str | None = None,
    http: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the options as settings, nested like the file."""
    settings: dict[str, dict[str, Any]] = {"listen": {}, "upstream": {}, "logs": {}}
    if upstream:
        settings["upstream"] |= {"url": upstream, "nodes": []}
    if log_level:
        settings["logs"]["level"] = log_level
    if workers is not None:
        settings["listen"]["workers"] = workers
    if http:
        settings["listen"]["http"] = http
    for name, address in (("data", listen), ("admin", admin)):
        if address:
            if address.startswith(UNIX):
                settings["listen"][f"{name}_host"] = address
                continue
            host, _, port = address.rpartition(":")
            settings["listen"][f"{name}_host"] = host.strip("[]") or "127.0.0.1"
            settings["listen"][f"{name}_port"] = int(port) if port.isdecimal() else port
    return settings
