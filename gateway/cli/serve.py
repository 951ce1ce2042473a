"""``mlc-gateway serve``: run the gateway."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gateway.cli.check_config import report
from gateway.config.load import ConfigError
from gateway.config.source import Source
from gateway.supervisor import processes

NAME = "serve"
HELP = "Run the gateway in front of a cluster, until SIGINT or SIGTERM; SIGHUP reads the settings again."
EXAMPLES = """  mlc-gateway serve --upstream http://127.0.0.1:9200
  mlc-gateway serve -c config/gateway.yaml --upstream https://search.example.org:9200
  mlc-gateway serve --upstream http://127.0.0.1:9200 --listen 0.0.0.0:9209 --workers 4"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; each stands over the file and the environment."""
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="settings, YAML or TOML")
    parser.add_argument("--upstream", metavar="URL", help="the cluster's address, in place of upstream.url and nodes")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to serve the cluster's API (127.0.0.1:9209)")
    parser.add_argument("--admin", metavar="HOST:PORT", help="where to serve health and metrics (127.0.0.1:9601)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that share the port (1)")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")


def run(args: argparse.Namespace) -> int:
    """Serve; 0 after a clean stop, 1 when a port can't be had, 2 when the settings are wrong."""
    try:
        processes.run_loop(processes.serve(Source(args.config, _overrides(args))))
    except ConfigError as exc:
        return report(exc)
    except OSError as exc:
        sys.stderr.write(f"The gateway can't start: {exc}\n")
        return 1
    return 0


def _overrides(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {"listen": {}, "upstream": {}, "logs": {}}
    if args.upstream:
        options["upstream"] |= {"url": args.upstream, "nodes": []}
    if args.log_level:
        options["logs"]["level"] = args.log_level
    if args.workers is not None:
        options["listen"]["workers"] = args.workers
    for name, where in (("data", args.listen), ("admin", args.admin)):
        if where:
            host, _, port = where.rpartition(":")
            options["listen"][f"{name}_host"] = host.strip("[]") or "127.0.0.1"
            options["listen"][f"{name}_port"] = int(port) if port.isdecimal() else port
    return options
