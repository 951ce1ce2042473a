"""Makes the copies of a move on the other cluster, or removes them. A run may be interrupted anywhere and repeated.

A file beside the backups of upgrades lists what was made there, and what was begun: it is written before and after each
call. Together with the marks of the copies it tells a later run what it finds. A document that a finished move has made
is used as it is, and no later failure removes it.

In a settings file, a moved agent gets a target with weight 0: only a person, or `mlc-gateway shift`, gives it another.
So an edit here never changes who answers a request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.agents.documents import Document, Rule
from gateway.agents.lookup import document_path
from gateway.config.edit import EditError, put_route, put_target, remove_route, remove_target, replace_alias
from gateway.config.schema import AgentRoute, RouteTarget, Settings
from gateway.migrate.backup import BackupError, write_private
from gateway.migrate.connection import Cluster, ClusterError, Connected, answer_of
from gateway.migrate.display import next_shift
from gateway.migrate.move_plan import Copy, MovePlan, Source, read_source
from gateway.migrate.reading import get_all, unified_api
from gateway.migrate.references import EXECUTOR, Named, Reference
from gateway.migrate.search import search_all
from gateway.migrate.settings_file import SettingsFile, locked
from gateway.migrate.steps import Call, Kind, connector_body, mark_of, undeploy
from gateway.migrate.upgrade import Documents
from gateway.migrate.writer import NotMade, Report, StepFailed, Writer, find_marked
from gateway.register.parts import Made

_FORMAT = 1
_KINDS: tuple[Named, ...] = ("agents", "models", "connectors", "indices", "ids")

_LEFTOVER = (
    "the cluster may have begun with its model, which it calls `Auto-generated model for …`; "
    "POST /_plugins/_ml/models/_search shows it"
)

State = Literal["begun", "made", "moved", "removed"]
Failure = (StepFailed, ClusterError, BackupError)


class Item(msgspec.Struct):
    """A copy. state: its making was begun; it was made; its move is finished; it was removed. id: "" if unknown.

    parts: kind and id of what the cluster made with a unified agent.
    """

    kind: Kind
    old: str
    tag: str
    state: State
    id: str = ""
    parts: list[tuple[Kind, str]] = []


class MoveRecord(msgspec.Struct, kw_only=True):
    """The content of the file. old, new: the identities of the clusters. items: by mark, in the order of making."""

    format: int = _FORMAT
    changed: str
    cluster: str
    old: str
    new: str
    items: dict[str, Item] = {}


class MoveJournal:
    """What was moved from one cluster to another, on disk, written at every change."""

    def __init__(self, path: Path, record: MoveRecord) -> None:
        self.path = path
        self.record = record

    @classmethod
    def open(cls, directory: Path, cluster: str, old: Connected, new: Connected) -> MoveJournal:
        """Read the file of these two clusters; an empty one if there is none. cluster: the new one's name.

        Raises:
            BackupError: it can't be read.
        """
        pair = hashlib.sha256(f"{old.identity} {new.identity}".encode()).hexdigest()[:8]
        path = directory / f"move-{cluster}-{pair}.json"
        try:
            record = msgspec.json.decode(path.read_bytes(), type=MoveRecord)
        except FileNotFoundError:
            return cls(path, MoveRecord(changed="", cluster=cluster, old=old.identity, new=new.identity))
        except OSError as error:
            raise BackupError(f"{path}: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise BackupError(f"{path} is not the file of a move: {error}") from None
        if record.format != _FORMAT:
            raise BackupError(f"{path} was written by another version of mlc-gateway: use that version")
        return cls(path, record)

    def note(self, *items: Item) -> None:
        """Write the items to the file, in place of those with the same marks.

        Raises:
            BackupError: it can't be written.
        """
        for item in items:
            self.record.items[item.tag] = item
        self.record.changed = datetime.now(UTC).isoformat(timespec="seconds")
        write_private(self.path, self.record)

    def unfinished(self) -> list[Item]:
        """Return what a move has begun or made that is not finished."""
        return [item for item in self.record.items.values() if item.state in ("begun", "made")]


class LeftBehind(Exception):
    """A move failed, and not all that it made could be removed. calls: those that remove the rest."""

    def __init__(self, message: str, calls: Sequence[Call]) -> None:
        super().__init__(message)
        self.calls = tuple(calls)


class Mover:
    """Makes the copies of a plan.

    mapped: old id → new id of what is not copied. report: gets each call before it is sent, and what happens else.
    """

    def __init__(
        self,
        cluster: Cluster,
        journal: MoveJournal,
        plan: MovePlan,
        mapped: Mapping[str, str],
        report: Report = lambda line: None,
    ) -> None:
        self._journal = journal
        self._plan = plan
        self._mapped = mapped
        self._report = report
        self._writer = Writer(cluster, report)
        self._items: dict[str, Item] = {}

    def look(self) -> list[Copy]:
        """Find the copies that exist already. Return those that are still to be made.

        Raises:
            ClusterError: the new cluster can't be read.
        """
        known = self._journal.record.items
        marks: dict[Kind, dict[str, list[str]]] = {}
        for copy in self._plan.copies:
            item = known.get(copy.tag)
            if item is not None and item.state == "begun":  # the search may lag behind its making
                found = self._writer.find(copy.tag, copy.kind)
                item = Item(copy.kind, copy.old, copy.tag, "made", found[0]) if found else None
            elif item is not None and (item.state == "removed" or not self._exists(item)):
                item = None
            if item is None:
                if copy.kind not in marks:
                    marks[copy.kind] = find_marked(self._writer.cluster, copy.kind)
                found = sorted(id_ for id_ in marks[copy.kind].get(copy.tag, ()))
                item = Item(copy.kind, copy.old, copy.tag, "moved", found[0]) if found else None
            if item is not None:
                self._items[copy.tag] = item
        return [copy for copy in self._plan.copies if copy.tag not in self._items]

    def _exists(self, item: Item) -> bool:
        status, answer = self._writer.cluster.call("GET", document_path(item.kind, item.id))
        if status not in (200, 404):
            raise ClusterError(f"{item.kind}/{item.id} can't be read ({answer_of(status, answer)})")
        return status == 200 and mark_of(item.kind, answer) == item.tag

    def new_id(self, kind: Kind, old: str) -> str:
        """Return the id of a copy; "" if it was not made."""
        item = next((item for item in self._items.values() if (item.kind, item.old) == (kind, old)), None)
        return item.id if item is not None else ""

    def is_finished(self, agent: str) -> bool:
        """Return True if a move that is finished has made the copy of an agent."""
        return any(item.state == "moved" for item in self._items.values() if (item.kind, item.old) == ("agents", agent))

    def make(self, credentials: Mapping[str, Mapping[str, str]]) -> None:
        """Make the copies that `look` has not found. credentials: by place of a copy.

        Raises:
            StepFailed: the cluster refuses one; those before it stay. ClusterError, BackupError: as `look`, `note`.
        """
        missing = [copy for copy in self._plan.copies if copy.tag not in self._items]
        for copy in self._plan.copies:
            item = self._items.get(copy.tag)
            if item is None:
                item = self._make(copy, credentials.get(copy.place, {}))
                number = missing.index(copy) + 1
                self._report(f"{number} of {len(missing)}: {copy.place} is {copy.kind}/{item.id} there")
            if copy.connector is not None and item.state == "made":
                self._complete(item, copy.connector)

    def _make(self, copy: Copy, credential: Mapping[str, str]) -> Item:
        item = Item(copy.kind, copy.old, copy.tag, "begun")
        self._items[copy.tag] = item
        self._journal.note(item)
        call = copy.call(self._new_ids(), credential)
        try:
            item.id = self._writer.make(copy.kind, call, copy.tag, credential.values())
        except StepFailed as failure:
            if copy.connector is not None:
                self._report(f"{copy.place}: {_LEFTOVER}")
            if isinstance(failure, NotMade):
                self._forget(item)
            raise
        item.state = "made"
        self._journal.note(item)
        return item

    def _complete(self, item: Item, connector: Mapping[str, Any]) -> None:
        """Give the model that the cluster made for a unified agent the connector of the old one."""
        item.parts = self._parts_of(item)
        self._journal.note(item)
        model = next(id_ for kind, id_ in item.parts if kind == "models")
        now = connector_body(self._read("models", model).get("connector") or {})
        names = ("parameters", "actions", "client_config")
        change = {name: connector[name] for name in names if connector.get(name) not in (None, now.get(name))}
        if change:
            self._writer.insist(Call("PUT", document_path("models", model), {"connector": change}))
            self._writer.insist(undeploy([model]))  # if it is loaded, it goes on with the other connector

    def _parts_of(self, item: Item) -> list[tuple[Kind, str]]:
        """Return what the cluster made with a unified agent: a planner's executor, the model and its group."""
        agent = self._read("agents", item.id)
        model = str((agent.get("llm") or {}).get("model_id") or "")
        group = str(self._read("models", model).get("model_group_id") or "")
        executor = str((agent.get("parameters") or {}).get(EXECUTOR) or "")
        parts: list[tuple[Kind, str]] = [("agents", executor), ("models", model), ("model_groups", group)]
        copies = {other.id for other in self._items.values()}
        return [(kind, id_) for kind, id_ in parts if id_ and id_ not in copies]

    def _read(self, kind: Kind, id_: str) -> dict[str, Any]:
        status, answer = self._writer.cluster.call("GET", document_path(kind, id_))
        if status != 200:
            raise ClusterError(f"{kind}/{id_} can't be read ({answer_of(status, answer)})")
        return answer

    def _new_ids(self) -> dict[tuple[str, str], str]:
        """Return kind and old id → new id of all that is known."""
        new: dict[tuple[str, str], str] = {(kind, old): id_ for old, id_ in self._mapped.items() for kind in _KINDS}
        return new | {(item.kind, item.old): item.id for item in self._items.values() if item.id}

    def finish(self) -> None:
        """Record that the move is finished: what it has made stays, whatever fails later.

        Raises:
            BackupError: see `MoveJournal.note`.
        """
        for item in self._items.values():
            item.state = "moved"
        self._journal.note(*self._items.values())

    def undo(self, finished: bool = False) -> list[str]:
        """Remove what this move has made, also in runs before that did not end; the last one first.

        finished: also what a finished move has made, unless something else uses it. Return the places of what is gone.

        Raises:
            LeftBehind: something could not be removed. ClusterError: it can't be seen what is used.
        """
        left: list[tuple[str, Call]] = []
        gone: list[str] = []
        states = ("begun", "made", "moved") if finished else ("begun", "made")
        for copy in reversed(self._plan.copies):
            item = self._items.get(copy.tag)
            if item is None or item.state not in states:
                continue
            if finished and (user := self._user_of(item)):
                self._report(f"{item.kind}/{item.id} stays: {user} uses it")
                continue
            try:
                gone += self._remove(item, copy.connector is not None)
            except Failure as error:
                rest = [(item.kind, item.id or "<id>"), *item.parts]
                left += [(str(error), Call(*call)) for place in rest for call in Made(*place).removal]
        if left:
            raise LeftBehind("; ".join(dict.fromkeys(reason for reason, _ in left)), [call for _, call in left])
        return gone

    def _user_of(self, item: Item) -> str:
        """Return an agent or model that names a document; "" if there is none."""
        cluster = self._writer.cluster
        users = (
            (kind, id_)
            for kind in ("agents", "models")
            for id_, source in search_all(cluster, kind)
            if id_ != item.id and f'"{item.id}"' in json.dumps(source).replace("\\", "")
        )
        kind, id_ = next(users, ("", ""))
        return f"{kind}/{id_}" if id_ else ""

    def _remove(self, item: Item, is_unified: bool) -> list[str]:
        """Remove a copy, and what the cluster made with it. Return the places of what is gone."""
        if not item.id:
            item.id = next(iter(self._writer.find(item.tag, item.kind)), "")
        if is_unified and item.id and not item.parts and self._exists(item):
            item.parts = self._parts_of(item)
            self._journal.note(item)
        gone = []
        for kind, id_ in [(item.kind, item.id), *item.parts]:
            if not id_ or (kind == "model_groups" and item.parts and self._is_used(id_, item.parts)):
                continue
            if why := self._writer.remove(id_, kind):
                self._report(f"{kind}/{id_} could not be removed, though nothing uses it: {why}")
            gone.append(f"{kind}/{id_}")
        self._forget(item)
        return gone

    def _is_used(self, group: str, parts: Sequence[tuple[Kind, str]]) -> bool:
        """Return True if a model group has other models than those among `parts`."""
        models = search_all(self._writer.cluster, "models", source=("model_group_id",))
        return any(source.get("model_group_id") == group and ("models", id_) not in parts for id_, source in models)

    def _forget(self, item: Item) -> None:
        self._items.pop(item.tag, None)
        self._journal.note(Item(item.kind, item.old, item.tag, "removed"))


# What is read


def read_all(cluster: Cluster, agents: Sequence[str], mapped: Mapping[str, str] | None = None) -> Source:
    """Read agents and all that they name. mapped: ids that are not followed.

    Raises:
        ClusterError: the cluster can't be reached, or answers with another error than 403 or 404.
    """

    def read(kind: Kind, ids: Sequence[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for id_, status, answer in get_all(cluster, kind, ids):
            if status not in (200, 403, 404):
                raise ClusterError(f"{kind}/{id_} can't be read ({answer_of(status, answer)})")
            if status == 200 and answer:
                found[id_] = answer
        return found

    return read_source(read, agents, lambda id_: id_ in (mapped or {}))


def documents_of(cluster: Connected, source: Source, rules: tuple[Rule, ...]) -> Documents:
    """Return what was read in the form in which profiles are read from it. rules: of the gateway's settings.

    Raises:
        ClusterError: the cluster can't be reached.
    """
    api = unified_api(cluster, cluster.version)
    return Documents(cluster.version, source.agents, source.models, source.connectors, rules, api, source.agents)


class Judged(NamedTuple):
    """A reference that stays as it is. state: the new cluster has something of this id (``same``); not even the old one
    has (``nowhere``); or only the old one, as far as can be seen (``unmapped``)."""

    reference: Reference
    state: Literal["same", "nowhere", "unmapped"]


def judge_references(kept: Sequence[Reference], old: Cluster, new: Cluster) -> list[Judged]:
    """Find out which references would break on the new cluster.

    Raises:
        ClusterError: a cluster can't be reached.
    """
    known: dict[tuple[str, str], Literal["same", "nowhere", "unmapped"]] = {}
    for reference in kept:
        if (key := reference[:2]) not in known:
            if _has(new, reference):
                known[key] = "same"
            else:
                known[key] = "nowhere" if _has(old, reference) is False else "unmapped"
    return [Judged(reference, known[reference[:2]]) for reference in kept]


def _has(cluster: Cluster, reference: Reference) -> bool | None:
    """Return True if the cluster has what a reference names, None if it does not say."""
    match reference.kind:
        case "indices":
            path = document_path("indices", reference.id).replace("/_plugins/_ml/indices/", "/_resolve/index/")
        case "ids" if reference.place.endswith("memory_container_id"):
            path = document_path("memory_containers", reference.id)
        case "ids":
            return None
        case kind:
            path = document_path(kind, reference.id)
    status, answer = cluster.call("GET", path)
    if status == 200:
        return any(map(bool, answer.values())) if reference.kind == "indices" else True
    return False if status == 404 else None


def check_counterparts(mapped: Mapping[str, str], references: Sequence[Reference], new: Cluster) -> list[str]:
    """Return what is wrong with the counterparts that the user has named. references: those to what is mapped.

    Raises:
        ClusterError: the new cluster can't be reached.
    """
    wrong = []
    named = {reference.id: reference for reference in references}
    for old, counterpart in mapped.items():
        if old not in named:
            wrong.append(f"--map {old}={counterpart}: nothing that is moved names {old}")
        elif _has(new, named[old]._replace(id=counterpart)) is False:
            wrong.append(f"--map {old}={counterpart}: the new cluster has no {counterpart} among its {named[old].kind}")
    return wrong


def group_names(cluster: Cluster) -> dict[str, str]:
    """Return the names of the cluster's model groups with their marks, "" without one.

    Raises:
        ClusterError: they can't be searched.
    """
    found = search_all(cluster, "model_groups", source=("name", "description"))
    return {str(source.get("name")): mark_of("model_groups", source) for _, source in found}


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


def remove_targets(path: Path, cluster: str, new_ids: Mapping[str, str]) -> RouteEdit:
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
        return _apply(file, text, routes, True)


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
