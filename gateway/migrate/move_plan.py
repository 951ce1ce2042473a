"""What a move makes on the other cluster: the documents in their order, what they name, and what changes. Pure.

An agent is copied with the agents, models and connectors that it names. Each document comes after those that it names.
A copy has a mark, made of the old cluster and the old document, by which a later run finds it. Notes list what it
can't have: access rights, members that a registration does not take, characters that later versions refuse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gateway.agents.documents import Document, ForMemory, needed_connector, rule_for
from gateway.migrate.references import EXECUTOR, OWN_PREFIX, Reference, references, with_ids
from gateway.migrate.steps import (
    MOVED,
    Call,
    Kind,
    connector_body,
    credential_names,
    is_deployed,
    marker,
    without_mark,
)
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import MARKS
from gateway.observe.secrets import is_secret_header
from gateway.providers.connector import as_name, compact
from gateway.register.documents import METADATA_PARAMETER, tool_type
from gateway.register.target import MCP_PROTOCOLS, MEMORIES, Target

Place = tuple[Kind, str]
"""Kind and id of a document."""

_ML = "/_plugins/_ml/"
_ORDER: tuple[Kind, ...] = ("connectors", "model_groups", "models", "agents")
_AGENT = ("name", "type", "description", "app_type", "llm", "tools", "parameters", "memory")
_AGENT_IGNORED = {"created_time", "last_updated_time", "last_update_time", "is_hidden", "tenant_id"}
_MADE_TYPE = "CONVERSATIONAL"
"""Type, in this spelling, of the agent that a cluster makes for a planner's steps."""
_INTERFACE = "_llm_interface"
"""The parameter that a cluster adds to a unified agent."""
_MODEL = ("guardrails", "rate_limiter", "is_enabled", "deploy_setting")
_OWN_KEPT = MARKS | {METADATA_PARAMETER}
"""The gateway's own parameters that a copy has, too. The others say how the old agent came to be."""


class CanNotMove(Exception):
    """The agents can't be moved. The message says why, and what to do."""


class Source(msgspec.Struct, frozen=True):
    """Agents of a cluster and all that they name, by id. What the cluster does not have or show is left out."""

    agents: Mapping[str, Document]
    models: Mapping[str, Document]
    connectors: Mapping[str, Document]
    groups: Mapping[str, Document] = msgspec.field(default_factory=dict)

    def document(self, place: Place) -> Document | None:
        """Return a document; None if there is none."""
        kind, id_ = place
        found: Mapping[str, Document] = {
            "agents": self.agents,
            "models": self.models,
            "connectors": self.connectors,
            "model_groups": self.groups,
        }[kind]
        return found.get(id_)


class Note(NamedTuple):
    """What a copy can't have, or has differently. place: of the old document."""

    place: str
    text: str


class Copy(msgspec.Struct, frozen=True):
    """A document to make. body: with the old ids, and without a credential. credential: the names of its secrets.

    deployed: the old model is deployed by its document. connector: of a unified agent, what the connector becomes that
    the new cluster makes for it; None for any other document.
    """

    kind: Kind
    old: str
    name: str
    tag: str
    body: Mapping[str, Any]
    credential: tuple[str, ...] = ()
    deployed: bool = False
    notes: tuple[Note, ...] = ()
    connector: Mapping[str, Any] | None = None

    @property
    def place(self) -> str:
        """Kind and old id, ``connectors/ID``."""
        return f"{self.kind}/{self.old}"

    def call(self, new_ids: Mapping[tuple[str, str], str], credential: Mapping[str, str] | None = None) -> Call:
        """Return the call that makes it. new_ids: kind and old id → the new id of each document that it names."""
        body = dict(self.body)
        match self.kind:
            case "connectors":
                body |= {"credential": dict(credential)} if credential else {}
                return Call("POST", f"{_ML}connectors/_create", body)
            case "model_groups":
                return Call("POST", f"{_ML}model_groups/_register", body)
            case "models":
                body = with_ids(body, new_ids)  # type: ignore[arg-type]
                for name, kind in (("connector_id", "connectors"), ("model_group_id", "model_groups")):
                    if name in body:
                        body[name] = new_ids[kind, body[name]]
                if credential:
                    body["connector"] = {**body["connector"], "credential": dict(credential)}
                return Call("POST", f"{_ML}models/_register{'?deploy=true' if self.deployed else ''}", body)
            case "agents":
                body = with_ids(body, new_ids)  # type: ignore[arg-type]
                body["parameters"] = _with_metadata(body["parameters"], new_ids)
                if credential:
                    body["model"] = {**body["model"], "credential": dict(credential)}
                return Call("POST", f"{_ML}agents/_register", body)


class MovePlan(msgspec.Struct, frozen=True):
    """The documents to make in their order, and what they name that is not copied.

    agents: ids of those that the user named. kept: references to what stays named as it is, in each document.
    mapped: references to what has a counterpart.
    """

    agents: tuple[str, ...]
    copies: tuple[Copy, ...]
    kept: tuple[Reference, ...]
    mapped: tuple[Reference, ...] = ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of all copies."""
        return tuple(note for copy in self.copies for note in copy.notes)


def read_source(
    read: Callable[[Kind, Sequence[str]], Mapping[str, Document]],
    agents: Iterable[str],
    is_mapped: Callable[[str], bool] = lambda id_: False,
) -> Source:
    """Read agents and all that they name, each document once.

    read: returns the documents of a kind by id; what can't be read is left out. is_mapped: True for an id that has a
    counterpart on the other cluster already.
    """
    found: dict[Kind, dict[str, Document]] = {kind: {} for kind in _ORDER}
    wanted: dict[Kind, list[str]] = {"agents": list(agents)}
    asked: set[Place] = set()
    while wanted:
        following: dict[Kind, list[str]] = {}
        for kind, ids in wanted.items():
            new = [id_ for id_ in dict.fromkeys(ids) if (kind, id_) not in asked and not is_mapped(id_)]
            asked.update((kind, id_) for id_ in new)
            for id_, document in (read(kind, new) if new else {}).items():
                found[kind][id_] = document
                groups = [_group_of(id_, document)] if kind == "models" and document.get("model_group_id") else []
                for named_kind, named_id in (*groups, *_names((kind, id_), document)):
                    following.setdefault(named_kind, []).append(named_id)
        wanted = following
    return Source(found["agents"], found["models"], found["connectors"], found["model_groups"])


def _names(place: Place, document: Document) -> Iterator[Place]:
    """Yield the documents that one names and that could be copied."""
    kind, id_ = place
    if kind == "models" and is_remote(document) and (connector := needed_connector(document)):
        yield "connectors", connector
    if kind in ("agents", "models"):
        for reference in references(f"{kind}/{id_}", document):
            if reference.kind in ("agents", "models", "connectors"):
                yield reference.kind, reference.id


def _group_of(model_id: str, model: Document) -> Place:
    """Return the group of a model. One whose group is not known gets a group of its own."""
    return "model_groups", str(model.get("model_group_id") or model_id)


def is_remote(model: Document) -> bool:
    """Return True if the model is called through a connector. Any other is made of files, which can't be read."""
    return isinstance(model.get("connector"), Mapping) or bool(model.get("connector_id"))


def plan_move(
    source: Source,
    agents: Sequence[str],
    identity: str,
    version: tuple[int, ...],
    mapped: Mapping[str, str],
    group_names: Mapping[str, str] | None = None,
    unified_api: bool | None = None,
) -> MovePlan:
    """Plan the copies of agents.

    identity: of the old cluster. version: of the new one. mapped: old id → the new id of what is not to be copied.
    group_names: names of the new cluster's model groups, with their marks: two can't have the same name. unified_api:
    whether it makes unified agents; None if that is not known.

    Raises:
        CanNotMove: an agent is missing, of a kind that can't be copied, or runs itself.
    """
    planner = _Planner(source, identity, Target(version, unified_api), mapped, group_names or {})
    for agent in agents:
        if agent in mapped:
            raise CanNotMove(f"{agent} is to be moved, and --map gives it a counterpart: leave out one of them")
        planner.add(("agents", agent))
    copies = tuple(planner.copies.values())
    return MovePlan(tuple(dict.fromkeys(agents)), copies, tuple(planner.kept), tuple(planner.mapped))


class _Planner:
    def __init__(
        self,
        source: Source,
        identity: str,
        target: Target,
        mapped: Mapping[str, str],
        group_names: Mapping[str, str],
    ) -> None:
        self.copies: dict[Place, Copy] = {}
        self.kept: dict[Reference, None] = {}
        self.mapped: dict[Reference, None] = {}
        self._source = source
        self._identity = identity
        self._target = target
        self._mapped = mapped
        self._group_names = dict(group_names)
        self._open: list[Place] = []

    def add(self, place: Place) -> None:
        """Add a document after all that it names."""
        if place in self.copies:
            return
        if place in self._open:
            circle = " → ".join(f"{kind}/{id_}" for kind, id_ in (*self._open[self._open.index(place) :], place))
            raise CanNotMove(f"{circle}: these name each other, and a copy can only name what exists already")
        document = self._source.document(place)
        if document is None:
            raise CanNotMove(f"{place[0]}/{place[1]} can't be read on the old cluster")
        self._open.append(place)
        kind, id_ = place
        own = self._made_by_cluster(document) if kind == "agents" else frozenset()
        for named in _names(place, document):
            if named in own:
                continue
            if self._is_copied(named):
                self.add(named)
            elif named[1] in self._mapped:
                self.mapped[Reference(named[0], named[1], f"{kind}/{id_}")] = None  # type: ignore[arg-type]
            elif named[0] == "connectors" and kind == "models":
                reason = f"models/{id_} uses connectors/{named[1]}, which can't be read on the old cluster"
                raise CanNotMove(f"{reason}: give it a counterpart with --map {named[1]}=ID")
        if kind in ("agents", "models"):
            for reference in references(f"{kind}/{id_}", document):
                if reference.id in self._mapped:
                    self.mapped[reference] = None
                elif (reference.kind, reference.id) not in (*self.copies, *own):
                    self.kept[reference] = None
        self._open.pop()
        if kind == "models" and (group := _group_of(id_, document)) not in self.copies:
            self.copies[group] = self._group(group[1], self._source.document(group) or {"name": document.get("name")})
        make = {"agents": self._agent, "models": self._model, "connectors": self._connector}
        self.copies[place] = make[kind](id_, document)

    def _made_by_cluster(self, agent: Document) -> frozenset[Place]:
        """Return the documents that its cluster made with a unified agent, and that the new one makes again."""
        if not agent.get("model"):
            return frozenset()
        executor = str((agent.get("parameters") or {}).get(EXECUTOR) or "")
        is_own = self._source.agents.get(executor, {}).get("type") == _MADE_TYPE
        model: Place = ("models", _llm_of(agent))
        return frozenset({model, ("agents", executor)} if is_own else {model})

    def _is_copied(self, place: Place) -> bool:
        document = self._source.document(place)
        return document is not None and place[1] not in self._mapped and (place[0] != "models" or is_remote(document))

    def _tag(self, kind: Kind, id_: str) -> str:
        return mark_for(self._identity, kind, id_)

    def _described(self, document: Document, tag: str) -> str:
        return f"{as_name(without_mark(str(document.get('description') or '')))} {marker(tag)}".strip()

    def _connector(self, id_: str, document: Document) -> Copy:
        tag, place = self._tag("connectors", id_), f"connectors/{id_}"
        body = {**connector_body(document), "description": self._described(document, tag)}
        notes = [*self._renamed(place, document, body), *self._of_connector(place, document)]
        name = str(document.get("name", ""))
        return Copy("connectors", id_, name, tag, body, secrets_of(document), notes=tuple(notes))

    def _of_connector(self, place: str, document: Document) -> Iterator[Note]:
        protocol = str(document.get("protocol"))
        if protocol in MCP_PROTOCOLS and not self._target.since((3, 0)):
            raise CanNotMove(f"{place} is a connector of the protocol {protocol}, which the new cluster does not have")
        yield from _access(place, document)
        actions = document.get("actions")
        holders = [*(actions if isinstance(actions, list) else ()), document]
        for name, value in (item for holder in holders for item in (holder.get("headers") or {}).items()):
            if is_secret_header(str(name)) and "${" not in str(value):
                yield Note(place, f"its header {name} may hold a secret outside its credential: it is copied as it is")

    def _group(self, id_: str, document: Document) -> Copy:
        tag, place = self._tag("model_groups", id_), f"model_groups/{id_}"
        name = as_name(str(document.get("name") or id_))
        notes = list(_access(place, document))
        if self._group_names.get(name, tag) != tag:
            other = f"{name} (moved {tag[:8]})"
            notes.append(Note(place, f"its name is taken there: it is called {other}"))
            name = other
        self._group_names[name] = tag
        body = {"name": name, "description": self._described(document, tag)}
        return Copy("model_groups", id_, name, tag, body, notes=tuple(notes))

    def _model(self, id_: str, document: Document) -> Copy:
        tag, place = self._tag("models", id_), f"models/{id_}"
        body: dict[str, Any] = {"name": document.get("name", id_), "function_name": "remote"}
        body["description"] = self._described(document, tag)
        body |= {name: document[name] for name in _MODEL if document.get(name) is not None}
        # Empty where there is none; otherwise some models would get a schema of their old request form.
        body["interface"] = document.get("interface") or {}
        credential: tuple[str, ...] = ()
        notes = list(self._renamed(place, document, body))
        if isinstance(inner := document.get("connector"), Mapping):
            body["connector"] = connector_body(inner)
            credential = secrets_of(inner)
            notes += self._of_connector(f"{place}.connector", inner)
        else:
            body["connector_id"] = document["connector_id"]
        body["model_group_id"] = _group_of(id_, document)[1]
        deployed = is_deployed(document)
        return Copy("models", id_, str(body["name"]), tag, body, credential, deployed, tuple(notes))

    def _agent(self, id_: str, document: Document) -> Copy:
        place, type_ = f"agents/{id_}", str(document.get("type", "")).lower()
        if document.get("model") and not self._target.model_block:
            needed = "3.5 or later, with plugins.ml_commons.unified_agent_api_enabled"
            raise CanNotMove(f"{place} is a unified agent, for which the new cluster ({self._version}) needs {needed}")
        if AgentType.of(type_) is not None and not self._target.has_type(type_):
            raise CanNotMove(f"{place} has the type {type_}, which the new cluster ({self._version}) does not have")
        memory = str((document.get("memory") or {}).get("type") or "").lower()
        if memory in MEMORIES and not self._target.has_memory(memory):
            raise CanNotMove(f"{place} has the memory {memory}, which the new cluster ({self._version}) does not have")
        body = {name: document[name] for name in _AGENT if document.get(name) is not None}
        notes = [
            Note(place, f"its member {name} is not copied: a registration does not take it")
            for name in document.keys() - {*_AGENT, *_AGENT_IGNORED, "model"}
        ]
        parameters = {name: value for name, value in (body.get("parameters") or {}).items() if _is_copied(name)}
        tag = self._tag("agents", id_)
        body["parameters"] = {**parameters, MOVED: tag}
        if tools := body.get("tools"):
            body["tools"] = [self._tool(tool) for tool in tools]
            notes += [
                Note(f"{place}.tools[{index}]", f"its type {old['type']} is called {new['type']} there")
                for index, (old, new) in enumerate(zip(tools, body["tools"], strict=True))
                if old["type"] != new["type"]
            ]
        copy = Copy("agents", id_, str(document.get("name", "")), tag, body, notes=tuple(notes))
        return self._unified(copy, document) if document.get("model") else copy

    def _unified(self, copy: Copy, document: Document) -> Copy:
        """Return the copy of a unified agent, whose `model` block is not shown whole."""
        inner = self._source.models.get(_llm_of(document), {}).get("connector")
        if not isinstance(inner, Mapping):
            raise CanNotMove(f"{copy.place} names models/{_llm_of(document)}, which can't be read on the old cluster")
        made = {_INTERFACE, *(EXECUTOR for kind, _ in self._made_by_cluster(document) if kind == "agents")}
        body = {name: value for name, value in copy.body.items() if name != "llm"}
        body["parameters"] = {name: value for name, value in body["parameters"].items() if name not in made}
        body["model"] = {name: document["model"].get(name) for name in ("model_id", "model_provider")}
        if parameters := document["llm"].get("parameters"):
            body["model"]["model_parameters"] = parameters
        return replace(copy, body=body, credential=secrets_of(inner), connector=connector_body(inner))

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tool with its type's name on the new cluster, and the old one as its own name."""
        type_ = tool_type(str(tool["type"]), self._target)
        return dict(tool) if type_ == tool["type"] else {"name": tool["type"], **tool, "type": type_}

    @property
    def _version(self) -> str:
        return ".".join(map(str, self._target.version))

    def _renamed(self, place: str, document: Document, body: dict[str, Any]) -> Iterator[Note]:
        """Give `body` a name that every version takes."""
        old = str(document.get("name") or "")
        body["name"] = as_name(old)
        if body["name"] != old:
            yield Note(place, f"its name becomes {body['name']}: later versions refuse some characters")


def _llm_of(agent: Document) -> str:
    return str((agent.get("llm") or {}).get("model_id") or "")


def as_planned(plan: MovePlan, source: Source) -> Source:
    """Return what the new cluster would have, with the old ids."""
    agents = {copy.old: copy.body for copy in plan.copies if copy.kind == "agents"}
    for copy in plan.copies:
        if copy.connector is not None:  # what the cluster adds is as on the old one
            agents[copy.old] = {**source.agents[copy.old], "tools": copy.body.get("tools")}
    return Source(agents, source.models, source.connectors, source.groups)


def notes_on_rules(plan: MovePlan, new_ids: Mapping[str, str], rules: Sequence[ForMemory]) -> Iterator[Note]:
    """Yield a note for each rule of the settings (`agents.rules`) that is about an agent and not about its copy."""
    names = {copy.old: copy.name for copy in plan.copies if copy.kind == "agents"}
    for old, new in new_ids.items():
        rule = rule_for(old, names[old], rules)
        if rule is not None and rule is not rule_for(new, names[old], rules):
            place = f"agents.rules[{next(index for index, one in enumerate(rules) if one is rule)}]"
            yield Note(place, f"it is about {old} and not about its copy: the copy needs one like it")


def mark_for(identity: str, kind: Kind, id_: str) -> str:
    """Return the mark of the copy of a document. identity: of its cluster."""
    return hashlib.sha256(f"{identity}/{kind}/{id_}".encode()).hexdigest()[:32]


def secrets_of(connector: Document) -> tuple[str, ...]:
    """Return the names in a connector's credential. One of MCP without a reference to a credential has none."""
    if str(connector.get("protocol")) not in MCP_PROTOCOLS:
        return credential_names(connector)
    return credential_names({"actions": connector.get("headers")}) if "${credential." in json.dumps(connector) else ()


def _is_copied(parameter: str) -> bool:
    return not parameter.startswith(OWN_PREFIX) or parameter in _OWN_KEPT


def _access(place: str, document: Document) -> Iterator[Note]:
    """Yield a note for access rights: they name roles, or users, of the old cluster."""
    access = str(document.get("access") or "").lower()
    if access not in ("", "public") or document.get("backend_roles"):
        yield Note(place, "its access rights are not copied: there it has those that its cluster gives by default")


def _with_metadata(parameters: Mapping[str, Any], new_ids: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """Return an agent's parameters with the new ids in the gateway's notes on what was made for it."""
    written = parameters.get(METADATA_PARAMETER)
    if not isinstance(written, str):
        return dict(parameters)
    try:
        noted = json.loads(written)
        if noted.get("model_id"):
            noted["model_id"] = new_ids.get(("models", noted["model_id"]), "")
        connectors = noted.get("mcp_connector_ids") or ()
        noted["mcp_connector_ids"] = [
            new_ids["connectors", id_] for id_ in connectors if ("connectors", id_) in new_ids
        ]
    except (ValueError, TypeError, AttributeError):
        return {name: value for name, value in parameters.items() if name != METADATA_PARAMETER}
    return {**parameters, METADATA_PARAMETER: compact(noted)}
