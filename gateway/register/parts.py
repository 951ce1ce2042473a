"""The documents that belong to an agent: finds them by the gateway's tag, and removes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from gateway.agents.lookup import document_path
from gateway.errors import GatewayError, Problem
from gateway.register.calls import LOST, Calls, Reply
from gateway.register.documents import METADATA_PARAMETER, REGISTRATION_PARAMETER, TAG

ML = "/_plugins/_ml"
LEFT_BEHIND = "LEFT_BEHIND"
_BY_HAND = "Remove it with "

_EXECUTOR = "CONVERSATIONAL"
"""Type, in this spelling, of the agent that the cluster makes for a planner's steps. It has the planner's parameters,
including the tag (source, 3.0.0.0 to 3.6.0.0). The gateway registers types in lower case."""

_USES = ("llm.model_id", "tools.parameters.model_id", "tools.config.model_id", "parameters.model_id")
"""Members of an agent that name a model (docs/evidence/facts.md, "Rendering, in detail")."""
_MCP_CONNECTORS = "mcp_connectors"
"""The agent's parameter that names its MCP connectors, in a JSON text (source, 3.0.0.0 to 3.6.0.0)."""

_TRIES = 3
"""How often an idempotent call is sent if its response is lost."""
_PAUSE = 0.05
_MOST = 200
"""Documents in one search. Each attempt of a registration makes a few with one tag, and few agents use MCP."""


class Made(msgspec.Struct, frozen=True):
    """A document that was made. kind: connectors, model_groups, models or agents."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind.removesuffix('s').replace('_', ' ')} {self.id}"

    @property
    def removal(self) -> list[tuple[str, str]]:
        """Method and path of the calls that remove it: a model is undeployed first."""
        undeploy = [("POST", document_path(self.kind, self.id, "/_undeploy"))] if self.kind == "models" else []
        return [*undeploy, ("DELETE", document_path(self.kind, self.id))]

    @property
    def by_hand(self) -> str:
        """The calls that remove it, as text for an administrator."""
        return ", ".join(f"{method} {path}" for method, path in self.removal)


class Found(msgspec.Struct, frozen=True):
    """A document found by a search. order: sort key by the time of writing."""

    made: Made
    source: Mapping[str, Any]
    order: tuple[int, int, str]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its parameters."""
        return self.source.get("parameters") or {}

    @property
    def is_executor(self) -> bool:
        """True if the cluster made it for a planner."""
        return self.made.kind == "agents" and self.source.get("type") == _EXECUTOR


def query_of(kind: str, tag: str) -> dict[str, Any]:
    """Return the search body that finds the documents with a tag."""
    if kind == "agents":
        return {"query": {"term": {f"parameters.{REGISTRATION_PARAMETER}": tag}}, "size": _MOST}
    return {"query": {"match": {"description": tag}}, "size": _MOST}


async def tagged(calls: Calls, kind: str, tag: str) -> list[Found]:
    """Search for the documents of `kind` with `tag`, including executors, in the order of writing.

    Raises:
        SearchRefused: the caller may not search. UpstreamUnavailable, UpstreamTimeout: there was no response.
    """
    found = await searched(calls, kind, query_of(kind, tag))

    def carries(one: Found) -> bool:
        if kind == "agents":
            return one.parameters.get(REGISTRATION_PARAMETER) == tag
        return str(one.source.get("description") or "").endswith(f"{TAG} {tag}")

    return sorted(filter(carries, found), key=lambda one: one.order)


class SearchRefused(Exception):
    """The cluster refused a search. reply: its response."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.reason)
        self.reply = reply


async def searched(calls: Calls, kind: str, query: Mapping[str, Any]) -> list[Found]:
    """Search the documents of `kind`.

    Raises:
        SearchRefused: the caller may not search. UpstreamUnavailable, UpstreamTimeout: there was no response.
    """
    reply = await calls("POST", f"{ML}/{kind}/_search", query, seconds=calls.visible_within)
    if reply.status == 404:  # nothing of this kind was ever made
        return []
    if not reply.good or reply.document is None:
        raise SearchRefused(reply)
    hits = (reply.document.get("hits") or {}).get("hits") or ()
    return [_read_hit(kind, hit) for hit in hits]


def _read_hit(kind: str, hit: Mapping[str, Any]) -> Found:
    source = hit.get("_source") or {}
    # The sequence number is the order in which the index wrote them. The clocks of two nodes may differ.
    order = (int(hit.get("_seq_no") or 0), int(source.get("created_time") or 0), str(hit["_id"]))
    return Found(Made(kind, str(hit["_id"])), source, order)


class Metadata(msgspec.Struct, frozen=True):
    """The gateway's notes in an agent that it made; empty for any other agent."""

    model_id: str = ""
    mcp_connector_ids: tuple[str, ...] = ()

    @property
    def parts(self) -> list[Made]:
        """The documents that were made for the agent, in the order of removal."""
        models = [Made("models", self.model_id)] if self.model_id else []
        return models + [Made("connectors", id) for id in self.mcp_connector_ids]


def metadata_of(agent: Mapping[str, Any]) -> Metadata:
    """Read the gateway's notes in an agent's parameters. Notes in another format are ignored."""
    try:
        noted = json.loads((agent.get("parameters") or {}).get(METADATA_PARAMETER) or "{}")
        connectors = tuple(str(id) for id in noted.get("mcp_connector_ids") or ())
        model_id = noted.get("model_id") or ""
        if noted.get("model") and not model_id:  # the cluster made it itself
            model_id = (agent.get("llm") or {}).get("model_id") or ""
        return Metadata(str(model_id), connectors)
    except (ValueError, TypeError, AttributeError):
        return Metadata()


async def users_of(calls: Calls, made: Made, but: Collection[str] = ()) -> list[str] | None:
    """Return the agents that use a model or MCP connector, or the models in a group; None if they can't be found out.

    but: ids that don't count.
    """
    if made.kind == "agents":
        return []
    search = {"models": _model_users, "model_groups": _models_in, "connectors": _connector_users}[made.kind]
    try:
        found = await search(calls, made.id)
    except (SearchRefused, *LOST):
        return None
    return None if found is None else [one.made.id for one in found if one.made.id not in but]


async def _model_users(calls: Calls, id: str) -> list[Found]:
    clauses = [{"term": {field: id}} for field in _USES]
    return await searched(calls, "agents", {"query": {"bool": {"should": clauses}}, "size": 20})


async def _models_in(calls: Calls, group_id: str) -> list[Found]:
    query = {"query": {"term": {"model_group_id": group_id}}, "_source": ["name"], "size": _MOST}
    return await searched(calls, "models", query)


async def _connector_users(calls: Calls, id: str) -> list[Found] | None:
    """Return the agents that use an MCP connector; None if too many have MCP connectors for one search.

    A query can't search for the id, because it is inside a JSON text.
    """
    field = f"parameters.{_MCP_CONNECTORS}"
    found = await searched(calls, "agents", {"query": {"exists": {"field": field}}, "_source": [field], "size": _MOST})
    return None if len(found) == _MOST else [one for one in found if id in str(one.parameters.get(_MCP_CONNECTORS))]


async def parts_of(calls: Calls, agent: Mapping[str, Any]) -> list[Made]:
    """Return the documents that were made for an agent, in the order of removal."""
    parameters = agent.get("parameters") or {}
    executor_id = parameters.get("executor_agent_id")
    tag = parameters.get(REGISTRATION_PARAMETER)
    executors = []
    if tag and executor_id:
        document = await _read(calls, Made("agents", executor_id))
        if (document.get("parameters") or {}).get(REGISTRATION_PARAMETER) == tag:  # else it is the client's own
            executors.append(Made("agents", executor_id))
    parts = metadata_of(agent).parts
    models = [part for part in parts if part.kind == "models"]
    groups = [group for model in models for group in await _group_of(calls, model)]
    return [*executors, *models, *groups, *(part for part in parts if part not in models)]


async def _group_of(calls: Calls, model: Made) -> list[Made]:
    """Return the model's group if it was made with the model: by the gateway, or by the cluster under the same name."""
    shown = await _read(calls, model)
    group_id = str(shown.get("model_group_id") or "")
    group = Made("model_groups", group_id)
    found = await _read(calls, group) if group_id else {}
    is_own = TAG in str(found.get("description")) or found.get("name") == shown.get("name")
    return [group] if found and is_own else []


async def _read(calls: Calls, made: Made) -> Mapping[str, Any]:
    """Return a document; empty if it can't be read."""
    reply = await retry_call(calls, "GET", document_path(made.kind, made.id))
    return (reply.document if isinstance(reply, Reply) and reply.good else None) or {}


async def remove(calls: Calls, made: Iterable[Made]) -> list[Problem]:
    """Remove documents in order. Return a problem for each that remains, with the calls that would remove it.

    A model group in which other models are stays, which is no problem.
    """
    problems: list[Problem] = []
    gone, failed = set[str](), set[str]()
    for one in made:
        users = await users_of(calls, one, gone) if one.kind == "model_groups" else []
        if users and failed.isdisjoint(users):
            continue
        reason = f"model {users[0]} is in it" if users else await _remove_one(calls, one)
        (failed if reason else gone).add(one.id)
        if reason:
            text = f"{one} is left behind: {reason}"
            problems.append(Problem("", text, code=LEFT_BEHIND, help=_BY_HAND + one.by_hand, repeats=reason))
    return problems


async def _remove_one(calls: Calls, made: Made) -> str:
    """Remove a document. Return "" or the reason why it remains."""
    why = ""
    *before, (method, path) = made.removal

    async def look() -> str | None:
        """Try to remove it; None to try again.

        A model may still be deployed, or still be found in its group; or the cluster is overloaded.
        """
        nonlocal why
        for undeploy in before:
            await retry_call(calls, *undeploy)
        reply = await retry_call(calls, method, path)
        if isinstance(reply, Reply):
            why = "" if reply.good or reply.status == 404 else reply.reason
            again = reply.status == 429 or (made.kind, reply.status) in (("models", 400), ("model_groups", 409))
            return None if again else why
        why = reply.reason
        return why

    await calls.until(look)
    return why


async def retry_call(calls: Calls, method: str, path: str) -> Reply | GatewayError:
    """Send an idempotent call, several times if needed. Return its response, or the error if there was none."""
    for _ in range(_TRIES - 1):
        try:
            return await calls(method, path)
        except LOST:
            await asyncio.sleep(_PAUSE)
    try:
        return await calls(method, path)
    except LOST as lost:
        return lost


def left_text(problems: Iterable[Problem]) -> str:
    """Return the problems of `remove` as a header's value."""
    return header_text(
        "left behind; by hand: " + ", ".join(problem.help.removeprefix(_BY_HAND) for problem in problems)
    )


def header_text(text: str) -> str:
    """Return a text as a header's value. The ids in it may contain any character."""
    return text.encode("ascii", "backslashreplace").decode().replace("\r", " ").replace("\n", " ")
