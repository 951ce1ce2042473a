"""Changes the weights of a route in the settings file, and has the gateways run with them; or goes back a step.

The order makes it safe to be killed at any point: the step is written into the history, then the settings file is
replaced, then the gateways reload, then the step is marked as done. The same command run again finds what is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from gateway.config.edit import set_weights
from gateway.config.load import digest_of
from gateway.config.schema import AgentRoute, Settings
from gateway.migrate.gateways import AdminPort, Reply, hint_at_token
from gateway.migrate.reading import beginning_with
from gateway.migrate.route_figures import Reading, read_page
from gateway.migrate.settings_file import SettingsFile
from gateway.migrate.shift_history import History, Weights, make_step, same

UPSTREAM = "upstream"
"""The name of the cluster of `upstream`, which `clusters` does not hold."""
_DECIMALS = 6


class ShiftError(Exception):
    """The weights can't be changed so. The message says why, and what to do."""


class Change(NamedTuple):
    """A change of weights. text: the settings file with it. is_new: the file does not have it yet."""

    route: AgentRoute
    kind: Literal["to", "back"]
    before: Weights
    after: Weights
    text: str
    is_new: bool


class Result(NamedTuple):
    """What became of a change. undone: a gateway refused it, so everything is as before. backup: None: no new file."""

    gateways: Sequence[Reloaded]
    undone: bool
    backup: Path | None

    @property
    def is_done(self) -> bool:
        """All gateways run with it."""
        return not self.undone and all(one.status == "runs" for one in self.gateways)


class NoRoute(ShiftError):
    """No agent with this id, or with an id that begins so, has a route."""


def find_route(settings: Settings, agent: str) -> AgentRoute:
    """Return the route of an agent. agent: its id, or the beginning of it.

    Raises:
        NoRoute: it has none. ShiftError: several agents with a route have such an id.
    """
    routes = {one.agent: one for one in settings.agents.routes}
    if found := _starting(agent, routes):
        return routes[found]
    if new := settings.agents.aliases.get(agent):
        raise ShiftError(
            f"agents.aliases sends all requests of {agent} to {new}. Replace this entry by a route in agents.routes, "
            f"whose targets are {agent} and {new}"
        )
    known = ", ".join(routes)
    hint = f", only of {known}" if known else ": `mlc-gateway move` adds one"
    raise NoRoute(f"agents.routes has no route of {agent}{hint}")


def find_target(route: AgentRoute, name: str) -> str:
    """Return the agent of a target. name: its id, the beginning of it, or its cluster, if no other target is there.

    Raises:
        ShiftError: the route has no such target, or several.
    """
    targets = {target.agent: target.cluster or UPSTREAM for target in route.targets}
    if found := _starting(name, targets):
        return found
    there = [agent for agent, cluster in targets.items() if cluster == name]
    if len(there) == 1:
        return there[0]
    if there:
        raise ShiftError(f"{len(there)} targets of this route are on {name}: name one by its id: {', '.join(there)}")
    known = ", ".join(f"{agent} on {cluster}" for agent, cluster in targets.items())
    raise ShiftError(f"{name} is no target of this route, which has {known}")


def _starting(start: str, ids: Iterable[str]) -> str:
    """Return the id that is `start`, or the only one that begins so; "" if there is none.

    Raises:
        ShiftError: several begin so.
    """
    found = [start] if start in ids else beginning_with(start, ids)
    if len(found) > 1:
        raise ShiftError(f"{len(found)} ids begin with {start}: give more of one: {', '.join(found)}")
    return found[0] if found else ""


def weights_of(route: AgentRoute) -> dict[str, float]:
    """Return the weight of each target by its agent."""
    return {target.agent: target.weight for target in route.targets}


def shares_of(weights: Weights) -> dict[str, float]:
    """Return the share of each target of the new conversations, from 0 to 1."""
    total = sum(weights.values())
    return {agent: weight / total if total else 0.0 for agent, weight in weights.items()}


def give(weights: Weights, agent: str, percent: float) -> dict[str, float]:
    """Return weights that give a target `percent` of 100. The others share the rest in proportion to their weights.

    Raises:
        ShiftError: it is open who gets the rest.
    """
    others = {name: weight for name, weight in weights.items() if name != agent}
    total, rest = sum(others.values()), 100 - percent
    if not total and rest:
        if not others:
            raise ShiftError(f"{agent} is the only target of this route, and gets all new conversations")
        if len(others) > 1:
            raise ShiftError(
                f"{agent} has all new conversations, and it is open which target gets the rest "
                f"({', '.join(others)}): give one of them a share instead"
            )
        others, total = dict.fromkeys(others, 1.0), 1.0
    return {
        name: round(percent if name == agent else rest * others[name] / total if total else 0.0, _DECIMALS)
        for name in weights
    }


def plan_to(file: SettingsFile, route: AgentRoute, name: str, percent: float) -> Change:
    """Return the change that gives a target of the route `percent` of the new conversations. name: see `find_target`.

    Raises:
        ShiftError, EditError, ConfigError: it can't be made.
    """
    before = weights_of(route)
    return _change(file, route, "to", before, give(before, find_target(route, name), percent))


def plan_back(file: SettingsFile, route: AgentRoute, history: History) -> Change:
    """Return the change that leads to the weights of the step before, or the one that was begun and not finished.

    Raises:
        ShiftError, EditError, ConfigError: it can't be made.
    """
    weights, last = weights_of(route), history.last(route.agent)
    if last is not None and last.kind == "back" and not last.done:
        return Change(route, "back", last.before, weights, file.text, False)
    before = history.before(route.agent)
    if before is None:
        raise ShiftError(f"the history of the route of {route.agent} has no step before, see --history")
    if gone := [agent for agent, weight in before.items() if weight and agent not in weights]:
        raise ShiftError(f"the step before had {', '.join(gone)}, which is no target of the route any more: use --to")
    return _change(file, route, "back", weights, {agent: before.get(agent, 0.0) for agent in weights})


def _change(
    file: SettingsFile, route: AgentRoute, kind: Literal["to", "back"], before: Weights, after: Weights
) -> Change:
    if same(before, after):
        return Change(route, kind, before, after, file.text, False)
    text = set_weights(file.text, route.agent, after)
    file.check(text)
    return Change(route, kind, before, after, text, True)


def carry_out(
    change: Change, file: SettingsFile, history: History, ports: Mapping[str, AdminPort], patience: float
) -> Result:
    """Make a change, or finish it. If a gateway refuses the new settings, take it back.

    ports: the gateways by their addresses. patience: seconds to wait until the file has reached them.

    Raises:
        EditError, HistoryError, GatewayFailed: the file is as it was before.
    """
    agent, backup, old = change.route.agent, None, file.text
    if change.is_new:
        readings = {url: one.processes for url, one in read_all(ports, agent).items()}
        history.add(make_step(agent, change.kind, change.before, change.after, readings))
        backup = file.replace(change.text)
    gateways = reload_all(list(ports.values()), digest_of(file.text.encode()), patience)
    last = history.last(agent)
    is_pending = last is not None and not last.done
    if any(one.status == "refused" for one in gateways) and is_pending:
        if not change.is_new and last is not None:
            old = set_weights(file.text, agent, last.before)
        for path in (backup, file.replace(old)):
            if path is not None:
                path.unlink()
        history.undo(agent)
        reload_all([port for port in ports.values() if _ran(port, gateways)], digest_of(old.encode()), patience)
        return Result(gateways, True, None)
    if all(one.status == "runs" for one in gateways):
        history.finish(agent)
    return Result(gateways, False, backup)


def _ran(port: AdminPort, gateways: Sequence[Reloaded]) -> bool:
    return any(one.gateway == port.name and one.status == "runs" for one in gateways)


def read_all(ports: Mapping[str, AdminPort], route: str) -> dict[str, Reading]:
    """Return what each gateway's metrics say about a route.

    Raises:
        GatewayFailed: one can't be read.
    """
    if not ports:
        return {}
    with ThreadPoolExecutor(len(ports)) as pool:
        pages = pool.map(lambda port: port.read("/metrics"), ports.values())
        return {url: read_page(page, route) for url, page in zip(ports, pages, strict=True)}


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


def reload_all(ports: Sequence[AdminPort], digest: str, patience: float) -> list[Reloaded]:
    """Reload gateways that do not run with the settings file of this SHA-256 yet, and wait until they do.

    The file may take a while to reach a gateway. patience: seconds to wait for that.
    """
    if not ports:
        return []
    deadline = time.monotonic() + patience
    with ThreadPoolExecutor(len(ports)) as pool:
        return list(pool.map(lambda port: _reload(port, digest, deadline), ports))


def _reload(port: AdminPort, digest: str, deadline: float) -> Reloaded:
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
        if reply.status in (401, 403) or time.monotonic() >= deadline:
            return _late(port, digest, reply)
        time.sleep(_PAUSE)


def _late(port: AdminPort, digest: str, reply: Reply) -> Reloaded:
    document = reply.document
    if "running" not in document:
        return Reloaded(port.name, "failed", (reply.problem + hint_at_token(reply.status),))
    if document.get("file") != digest:
        reason = "its settings file is another one, or has not arrived there yet"
        return Reloaded(port.name, "waits", (reason,))
    workers = document.get("workers", "not all")
    return Reloaded(port.name, "failed", (f"{workers} of its workers run with the new settings",))
