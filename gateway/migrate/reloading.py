"""Has running gateways reload their settings, and waits until each says that it runs with a certain file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

from gateway.migrate.gateways import AdminPort, Reply, hint_at_token
from gateway.migrate.writer import Clock

_PATH = "/reload"
_PAUSE = 0.5
"""Seconds between two looks."""
_SECONDS = 40.0
"""Seconds for one reload: its workers may take 30."""
_WITHOUT_RELOADS = (404, 405)
"""Statuses of a gateway whose admin port can't reload."""


class Reloaded(NamedTuple):
    """What became of a gateway. problems: why it does not run with the settings.

    status: `runs` with them; `refused` them; `waits`: the file that it reads has others; `failed`: it can't be reached
    or can't reload.
    """

    gateway: str
    status: Literal["runs", "refused", "waits", "failed"]
    problems: tuple[str, ...] = ()


def reload_all(ports: Sequence[AdminPort], digest: str, patience: float, clock: Clock = time) -> list[Reloaded]:
    """Reload gateways that do not run with the settings file of this SHA-256 yet, and wait until they do.

    The file may take a while to reach a gateway. patience: seconds to wait for that.
    """
    if not ports:
        return []
    deadline = clock.monotonic() + patience
    with ThreadPoolExecutor(len(ports)) as pool:
        return list(pool.map(lambda port: _reload(port, digest, deadline, clock), ports))


def _reload(port: AdminPort, digest: str, deadline: float, clock: Clock) -> Reloaded:
    while True:
        reply = port.send("GET", _PATH)
        if reply.status in _WITHOUT_RELOADS:
            reason = "it can't reload over its admin port: send it SIGHUP"
            return Reloaded(port.name, "failed", (reason,))
        if reply.document.get("running") != digest and reply.document.get("file") == digest:
            reply = port.send("POST", _PATH, seconds=_SECONDS)
            if reply.document.get("status") == "refused" and reply.document.get("file") == digest:
                return Reloaded(port.name, "refused", tuple(map(str, reply.document.get("problems", ()))))
        if reply.document.get("running") == digest:
            return Reloaded(port.name, "runs")
        if reply.status in (401, 403) or clock.monotonic() >= deadline:
            return _late(port, digest, reply)
        clock.sleep(_PAUSE)


def _late(port: AdminPort, digest: str, reply: Reply) -> Reloaded:
    document = reply.document
    if "running" not in document:
        return Reloaded(port.name, "failed", (reply.problem + hint_at_token(reply.status),))
    if document.get("file") != digest:
        reason = "its settings file is another one, or has not arrived there yet"
        return Reloaded(port.name, "waits", (reason,))
    workers = document.get("workers", "not all")
    return Reloaded(port.name, "failed", (f"{workers} of its workers run with the new settings",))
