"""``mlc-gateway serve``: run the gateway, and say first which cluster it is for, and what may not be meant so.

For people that is lines of text, and the cluster is asked before the ports open. In a JSON log there are only warnings,
and nothing waits for the cluster: whether it answers is what the readiness page shows. That an address has the wrong
scheme is logged when a thread has found it out.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import click
import msgspec

from gateway import __version__
from gateway.agents.lookup import read_version
from gateway.app import supervisor
from gateway.cli.check_config import report
from gateway.cli.command import FILE, Command
from gateway.config.load import ConfigError, Source, sources
from gateway.config.schema import Settings
from gateway.config.variables import suspicious_variables
from gateway.errors import GatewayError
from gateway.observe.connect_errors import describe_connect_error, name_wrong_scheme
from gateway.observe.logs import Logger, configure, is_console
from gateway.proxy.acceptor import UNIX
from gateway.upstream.client import Upstream

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
    stopped = Event()
    try:
        source = Source(config, overrides(**options))
        supervisor.run_loop(supervisor.serve(source, _greeting(source, stopped)))
    except ConfigError as error:
        given = {setting: option for setting, option in _OPTIONS.items() if options[option.removeprefix("--")]}
        return report(error, given)
    except OSError as error:
        sys.stderr.write(f"The gateway can't start: {error}\n")
        return 1
    finally:
        stopped.set()
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


def _greeting(source: Source, stopped: Event) -> Callable[[Settings, Logger], None]:
    def say(settings: Settings, log: Logger) -> None:
        named = {name for name in sources(source.path) if name in ("upstream.url", "upstream.nodes")}
        _greet(settings, bool(named or source.overrides["upstream"]), log, stopped)

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


_PATIENCE = 3.0
"""Seconds to wait for the cluster's answer."""


class _Sighting(msgspec.Struct, frozen=True):
    """What was seen of the cluster. state: in a few words. help: what to do, "" if all is well."""

    state: str
    help: str = ""


def _greet(settings: Settings, is_named: bool, log: Logger, stopped: Event) -> None:
    """Print or log what a person who starts the gateway should know. Blocks for a few seconds at most.

    is_named: the settings name the cluster; otherwise it is the default. stopped: set when the gateway has stopped.
    """
    address = _address(settings)
    reason = "nothing names the cluster, so the default address is used"
    advice = "name it with --upstream URL, upstream.url in the settings file, or GATEWAY__UPSTREAM__URL"
    if not is_console(settings.logs.format, sys.stderr):
        if not is_named:
            log.warning("default cluster", address=address, setting="upstream.url", reason=f"{reason}; {advice}")
        for warning in suspicious_variables(os.environ):
            log.warning("variable ignored", reason=warning)
        # The process waits for it to end: a thread in OpenSSL, whose locks are freed then, would crash it.
        Thread(target=_warn_of_schemes, args=(settings, log, stopped), name="greeting").start()
        return
    seen = asyncio.run(_look(settings))
    arrow = "→" if (sys.stderr.encoding or "").lower().startswith("utf") else "->"
    sys.stderr.write(f"mlc-gateway {__version__} {arrow} {address} ({seen.state})\n")
    notes = [seen.help] if seen.help else []
    if not is_named:
        notes.append(f"{reason.capitalize()}: {advice}.")
    notes += [f"{warning}." if not warning.endswith("?") else warning for warning in suspicious_variables(os.environ)]
    for note in notes:
        sys.stderr.write(f"Warning: {note}\n")
    sys.stderr.flush()


def _warn_of_schemes(settings: Settings, log: Logger, stopped: Event) -> None:
    setting = "upstream.nodes" if settings.upstream.nodes else "upstream.url"
    for url in settings.upstream.nodes or [settings.upstream.url]:
        if stopped.is_set():
            return
        if wrong := name_wrong_scheme(url):
            log.warning("wrong scheme", address=url.rstrip("/"), setting=setting, reason=wrong)


async def _look(settings: Settings) -> _Sighting:
    """Ask the cluster for its version, as a client of the gateway would."""
    upstream = Upstream(settings.upstream, settings.limits, configure("error", "json", sys.stderr))
    try:
        await upstream.start()
        async with asyncio.timeout(_PATIENCE):
            answer = await upstream.exchange("GET", "/", {})
    except TimeoutError:
        return await _unreachable(settings, f"no answer within {_PATIENCE:g} s")
    except ConfigError as error:
        return _Sighting("not reachable", str(error))
    except GatewayError as error:
        cause = error.__cause__
        reason = describe_connect_error(cause) if isinstance(cause, OSError) else _phrase(error.reason)
        return await _unreachable(settings, reason)
    finally:
        await upstream.close()
    if answer.status in (401, 403):
        who = "for credentials" if settings.upstream.auth.mode == "pass" else "for other credentials than upstream.auth"
        return _Sighting(f"reachable, asks {who}")
    try:
        version = read_version(msgspec.json.decode(answer.body)) if answer.status == 200 else None
    except msgspec.DecodeError:
        version = None
    if version is not None:
        return _Sighting(f"OpenSearch {'.'.join(map(str, version))}, reachable")
    if wrong := await asyncio.to_thread(name_wrong_scheme, _first(settings)):
        return _Sighting("not reachable", wrong)
    state = f"answers with {answer.status}, but not as OpenSearch does"
    return _Sighting(state, "Check the address. Whatever is there gets all requests.")


async def _unreachable(settings: Settings, reason: str) -> _Sighting:
    wrong = await asyncio.to_thread(name_wrong_scheme, _first(settings))
    help = wrong or "Requests fail with 502 until it answers. Check upstream.url, and that the cluster runs."
    return _Sighting(f"not reachable: {reason}", help)


def _phrase(reason: str) -> str:
    return reason[:1].lower() + reason[1:].rstrip(".")


def _first(settings: Settings) -> str:
    return (settings.upstream.nodes or [settings.upstream.url])[0]


def _address(settings: Settings) -> str:
    more = len(settings.upstream.nodes) - 1
    return _first(settings).rstrip("/") + (f" and {more} more {'node' if more == 1 else 'nodes'}" if more > 0 else "")
