"""The targets of moved agents in a settings file: added with weight 0, or taken out again. Pure but for the file.

Only a person, or `mlc-gateway shift`, gives a target a weight. So an edit here never changes who answers a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.config.edit import EditError, put_route, put_target, remove_route, remove_target, replace_alias
from gateway.config.routes import AgentRoute, RouteTarget
from gateway.config.schema import Settings
from gateway.migrate.display import next_shift
from gateway.migrate.settings_file import SettingsFile, locked

PLANNED = "planned-by-move"
"""Stands for the id of a copy that is not made yet."""
_ALL = 100.0


class RouteEdit(msgspec.Struct, frozen=True):
    """What was, or would be, changed in a settings file. routes: moved agent → its route, as it is after the edit.

    backup: of the file before, None if it was not changed.
    """

    path: Path
    diff: str
    routes: Mapping[str, AgentRoute]
    backup: Path | None = None


def add_targets(path: Path, cluster: str, new_ids: Mapping[str, str], write: bool) -> RouteEdit:
    """Add a target with weight 0 for each moved agent to its route, which is made if there is none.

    cluster: the name of the new one. new_ids: agent → its copy; `PLANNED` if there is none yet. write: False to only
    see whether the file can be edited, and how.

    Raises:
        EditError: the file can't be edited. ConfigError: it holds something wrong, now or after the edit.
    """
    with locked(path):
        file = SettingsFile.read(path)
        text, routes = file.text, dict[str, str]()
        for old, new in new_ids.items():
            text, routes[old] = _with_target(text, file.settings, old, RouteTarget(new, cluster, 0.0))
        return _apply(file, text, routes, write)


def remove_targets(path: Path, cluster: str, new_ids: Mapping[str, str], write: bool) -> RouteEdit:
    """Take the targets of moved agents out of their routes. A route that then leads to its own agent alone goes, too.

    Raises:
        EditError: one of them has a weight, or the file can't be edited. ConfigError: as `add_targets`.
    """
    with locked(path):
        file = SettingsFile.read(path)
        text, routes = file.text, dict[str, str]()
        for old, new in new_ids.items():
            for route in file.settings.agents.routes:
                target = next((one for one in route.targets if (one.agent, one.cluster) == (new, cluster)), None)
                if target is None:
                    continue
                if target.weight:
                    back = next_shift(path, route.agent, old, 100)
                    raise EditError(f"{new} answers a share of the requests for {route.agent}: first run `{back}`")
                text, routes[old] = _without_target(text, route, new), route.agent
        return _apply(file, text, routes, write)


def _apply(file: SettingsFile, text: str, routes: Mapping[str, str], write: bool) -> RouteEdit:
    settings = file.settings if text == file.text else file.check(text)
    by_id = {route.agent: route for route in settings.agents.routes}
    edited = {agent: by_id[id] for agent, id in routes.items() if id in by_id}
    if text == file.text:
        return RouteEdit(file.path, "", edited)
    return RouteEdit(file.path, file.diff(text), edited, file.replace(text) if write else None)


def _with_target(text: str, settings: Settings, agent: str, target: RouteTarget) -> tuple[str, str]:
    """Return the text with a target for `agent`, and the id of the route that has it."""
    routes = settings.agents.routes
    own = next((route for route in routes if route.agent == agent), None)
    own = own or next((route for route in routes if any(_is(one, agent) for one in route.targets)), None)
    if own is not None:
        has_it = any((one.agent, one.cluster) == (target.agent, target.cluster) for one in own.targets)
        return (text if has_it else put_target(text, own.agent, target)), own.agent
    alias = settings.agents.aliases.get(agent)
    route = AgentRoute(agent, [RouteTarget(alias or agent, weight=_ALL), target])
    return (replace_alias(text, route) if alias else put_route(text, route)), agent


def _is(target: RouteTarget, agent: str) -> bool:
    return target.agent == agent and not target.cluster


def _without_target(text: str, route: AgentRoute, agent: str) -> str:
    rest = [one for one in route.targets if one.agent != agent]
    if len(rest) == 1 and _is(rest[0], route.agent):
        return remove_route(text, route.agent)
    return remove_target(text, route.agent, agent)
