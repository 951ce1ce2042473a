"""What ``serve`` says first: the cluster, whether it answers, and what may not be meant so.

For people it is lines of text, and the cluster is asked before the ports open. In a JSON log there are only warnings,
and nothing waits for the cluster: whether it answers is what the readiness page shows. That an address has the wrong
scheme is logged when a thread has found it out.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from threading import Thread
from typing import TextIO

import msgspec

from gateway import __version__
from gateway.agents.lookup import read_version
from gateway.config.problems import ConfigError
from gateway.config.schema import Settings
from gateway.config.variables import suspicious_variables
from gateway.errors import GatewayError
from gateway.observe.connect_errors import describe_connect_error, name_wrong_scheme
from gateway.observe.logs import Logger, configure, is_console
from gateway.upstream.client import Upstream

_PATIENCE = 3.0
"""Seconds to wait for the cluster's answer."""


class Sighting(msgspec.Struct, frozen=True):
    """What was seen of the cluster. state: in a few words. help: what to do, "" if all is well."""

    state: str
    help: str = ""


def greet(settings: Settings, is_named: bool, environ: Mapping[str, str], log: Logger, stream: TextIO) -> None:
    """Print or log what a person who starts the gateway should know. Blocks for a few seconds at most.

    is_named: the settings name the cluster; otherwise it is the default.
    """
    address = _address(settings)
    reason = "nothing names the cluster, so the default address is used"
    advice = "name it with --upstream URL, upstream.url in the settings file, or GATEWAY__UPSTREAM__URL"
    if not is_console(settings.logs.format, stream):
        if not is_named:
            log.warning("default cluster", address=address, setting="upstream.url", reason=f"{reason}; {advice}")
        for warning in suspicious_variables(environ):
            log.warning("variable ignored", reason=warning)
        Thread(target=_warn_of_schemes, args=(settings, log), name="greeting", daemon=True).start()
        return
    seen = asyncio.run(look(settings))
    arrow = "→" if (stream.encoding or "").lower().startswith("utf") else "->"
    print(f"mlc-gateway {__version__} {arrow} {address} ({seen.state})", file=stream)
    notes = [seen.help] if seen.help else []
    if not is_named:
        notes.append(f"{reason.capitalize()}: {advice}.")
    notes += [f"{warning}." if not warning.endswith("?") else warning for warning in suspicious_variables(environ)]
    for note in notes:
        print(f"Warning: {note}", file=stream)
    stream.flush()


def _warn_of_schemes(settings: Settings, log: Logger) -> None:
    for url in settings.upstream.nodes or [settings.upstream.url]:
        if wrong := name_wrong_scheme(url):
            log.warning("wrong scheme", address=url.rstrip("/"), setting=_setting(settings), reason=wrong)


def _setting(settings: Settings) -> str:
    return "upstream.nodes" if settings.upstream.nodes else "upstream.url"


async def look(settings: Settings) -> Sighting:
    """Ask the cluster for its version, as a client of the gateway would."""
    upstream = Upstream(settings.upstream, settings.limits, configure("error", "json", sys.stderr))
    try:
        await upstream.start()
        async with asyncio.timeout(_PATIENCE):
            answer = await upstream.exchange("GET", "/", {})
    except TimeoutError:
        return await _unreachable(settings, f"no answer within {_PATIENCE:g} s")
    except ConfigError as error:
        return Sighting("not reachable", str(error))
    except GatewayError as error:
        cause = error.__cause__
        reason = describe_connect_error(cause) if isinstance(cause, OSError) else _phrase(error.reason)
        return await _unreachable(settings, reason)
    finally:
        await upstream.close()
    if answer.status in (401, 403):
        who = "for credentials" if settings.upstream.auth.mode == "pass" else "for other credentials than upstream.auth"
        return Sighting(f"reachable, asks {who}")
    try:
        version = read_version(msgspec.json.decode(answer.body)) if answer.status == 200 else None
    except msgspec.DecodeError:
        version = None
    if version is not None:
        return Sighting(f"OpenSearch {'.'.join(map(str, version))}, reachable")
    if wrong := await asyncio.to_thread(name_wrong_scheme, _first(settings)):
        return Sighting("not reachable", wrong)
    state = f"answers with {answer.status}, but not as OpenSearch does"
    return Sighting(state, "Check the address. Whatever is there gets all requests.")


async def _unreachable(settings: Settings, reason: str) -> Sighting:
    wrong = await asyncio.to_thread(name_wrong_scheme, _first(settings))
    help = wrong or "Requests fail with 502 until it answers. Check upstream.url, and that the cluster runs."
    return Sighting(f"not reachable: {reason}", help)


def _phrase(reason: str) -> str:
    return reason[:1].lower() + reason[1:].rstrip(".")


def _first(settings: Settings) -> str:
    return (settings.upstream.nodes or [settings.upstream.url])[0]


def _address(settings: Settings) -> str:
    more = len(settings.upstream.nodes) - 1
    return _first(settings).rstrip("/") + (f" and {more} more {'node' if more == 1 else 'nodes'}" if more > 0 else "")
