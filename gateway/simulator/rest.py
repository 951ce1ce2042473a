"""The REST API as a table of methods, paths and handlers, without a network.

`respond` is a generator, like the runs of agents: it yields the calls of models, and a `Pause` (sent None) where other
requests may run. Of a streamed run it also yields the events, the first of which is empty. It returns a `Response`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from gateway.simulator import handlers
from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import Answer, RestFailure, no_handler, wrong_method
from gateway.simulator.handlers import Handler, Pause, Request
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.settings import SWITCH
from gateway.simulator.streams import Piece

PREFIX = "/_plugins/_ml/"
_COMMON = frozenset({"pretty", "human", "error_trace", "filter_path", "format"})
_MEDIA_TYPES = frozenset({"application/json", "application/yaml", "application/smile", "application/cbor"})


@dataclass(frozen=True)
class Response:
    """The response. body: JSON, or None for an empty body."""

    status: int
    body: Any


Step = LlmRequest | Pause | Piece | str
Serve = Generator[Step, LlmReply | None, Response]


def respond(core: ClusterCore, request: Request) -> Serve:
    """Answer one request as the cluster would."""
    try:
        body = yield from _dispatch(core, request)
    except Answer as answer:
        return Response(answer.status, None if request.method == "HEAD" else answer.body)
    only = request.query.get("filter_path")
    return Response(200, _filtered(body, only) if only else body)


def _dispatch(core: ClusterCore, request: Request) -> Generator[Step, LlmReply | None, Any]:
    if request.method == "OPTIONS":
        return None
    allowed: list[str] = []
    path = request.path.rstrip("/") or "/"
    for method, pattern, query, handler in _routes(core.modern):
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if method != request.method:
            allowed.append(method)
            continue
        _check(core, request, query)
        result = handler(core, request, _decode(match.group(1)) if match.groups() else "")
        return (yield from result) if isinstance(result, Generator) else result
    if allowed:
        raise wrong_method(request.method, request.path, ", ".join(allowed))
    raise no_handler(request.method, request.path)


def _decode(segment: str) -> str:
    """Decode as `RestUtils.decodeComponent`: Latin-1 if nothing is escaped, otherwise UTF-8, including raw bytes."""
    raw = segment.encode("utf-8", "surrogateescape")
    return unquote_to_bytes(raw).decode("utf-8", "replace") if b"%" in raw else raw.decode("latin-1")


def _check(core: ClusterCore, request: Request, query: frozenset[str]) -> None:
    unknown = [name for name in request.query if name not in _COMMON | query]
    if unknown:
        named = f"request [{request.path}] contains unrecognized parameter: [{unknown[0]}]"
        raise RestFailure(400, "illegal_argument_exception", named)
    media_type = request.headers.get("content-type", "")
    if request.body and media_type.partition(";")[0].strip().lower() not in _MEDIA_TYPES:
        raise Answer(406, {"error": f"Content-Type header [{media_type}] is not supported", "status": 406})
    if "/agents" in request.path and not core.settings.is_on(SWITCH):
        reason = f'Agent Framework is currently disabled. To enable it, update the setting "{SWITCH}" to true.'
        raise RestFailure(500, "illegal_state_exception", reason)


def _filtered(body: Any, only: str) -> Any:
    """Return the parts of `body` that match `filter_path`, without those that match one of its paths with a `-`."""
    paths = only.split(",")
    included = [path.split(".") for path in paths if not path.startswith("-")]
    excluded = [path[1:].split(".") for path in paths if path.startswith("-")]
    if included:
        body = _filter(body, included) or {}
    return _without(body, excluded) if excluded else body


def _filter(node: Any, paths: list[list[str]]) -> Any:
    if isinstance(node, list):
        return [found for found in (_filter(item, paths) for item in node) if found not in (None, {}, [])]
    if not isinstance(node, dict):
        return None
    result = {}
    for name, value in node.items():
        deeper = [rest for path in paths for rest in _following(path, name)]
        if any(not path for path in deeper):
            result[name] = value
        elif deeper:
            found = _filter(value, deeper)
            if found not in (None, {}, []):
                result[name] = found
    return result


def _without(node: Any, paths: list[list[str]]) -> Any:
    """Return `node` without what matches one of the paths, and without objects that become empty."""
    if isinstance(node, list):
        return [_without(item, paths) for item in node]
    if not isinstance(node, dict):
        return node
    result = {}
    for name, value in node.items():
        deeper = [rest for path in paths for rest in _following(path, name)]
        if any(not path for path in deeper):
            continue
        left = _without(value, deeper) if deeper else value
        if left not in ({}, []) or left == value:
            result[name] = left
    return result


def _following(path: list[str], name: str) -> list[list[str]]:
    """Return the rest of a path below a key called `name`; nothing if it does not match."""
    if path[0] == "**":
        return [path, *(_following(path[1:], name) if path[1:] else [[]])]
    pattern = re.escape(path[0]).replace(r"\*", ".*")
    return [path[1:]] if re.fullmatch(pattern, name) else []


# The table: method, path, its query parameters, handler. The only group in a path is an id.

Row = tuple[str, "re.Pattern[str]", frozenset[str], Handler]


def _row(method: str, path: str, handler: Handler, *query: str) -> Row:
    pattern = re.escape(path if path.startswith("/") else PREFIX + path).replace(r"\{id\}", "([^/]+)")
    return method, re.compile(pattern), frozenset(query), handler


_BOTH: list[Row] = [
    _row("GET", "/", handlers.root),
    _row("GET", "/_cluster/health", handlers.health),
    _row("GET", "/_cluster/settings", handlers.get_settings, "flat_settings", "include_defaults"),
    _row("PUT", "/_cluster/settings", handlers.put_settings, "flat_settings"),
    _row("POST", "connectors/_create", lambda core, request, _: core.resources.create_connector(request.json(core))),
    *(
        _row(method, f"{kind}s/_search", handlers.search(kind))
        for method in ("GET", "POST")
        for kind in ("connector", "model", "model_group", "agent")
    ),
    _row("GET", "connectors/{id}", lambda core, _, id: core.resources.connector(id)),
    _row("PUT", "connectors/{id}", lambda core, request, id: core.resources.update_connector(id, request.json(core))),
    _row("DELETE", "connectors/{id}", lambda core, _, id: core.resources.delete_connector(id)),
    _row("POST", "models/_register", handlers.register_model, "deploy"),
    _row("POST", "model_groups/_register", handlers.register_group),
    _row("GET", "model_groups/{id}", lambda core, _, id: core.resources.group(id)),
    _row("DELETE", "model_groups/{id}", lambda core, _, id: core.resources.delete_group(id)),
    _row("GET", "models/{id}", lambda core, _, id: core.resources.model(id)),
    _row("GET", "profile/models/{id}", lambda core, _, id: core.resources.profile(id)),
    _row("PUT", "models/{id}", lambda core, request, id: core.resources.update_model(id, request.json(core))),
    _row("DELETE", "models/{id}", lambda core, _, id: core.resources.delete_model(id)),
    _row("POST", "models/{id}/_deploy", lambda core, _, id: core.resources.deploy_model(id)),
    _row("POST", "models/{id}/_undeploy", handlers.undeploy),
    _row("POST", "models/_undeploy", handlers.undeploy),
    _row("POST", "models/{id}/_predict", handlers.predict),
    _row("POST", "_execute/{id}", handlers.execute_algorithm),
    _row("POST", "agents/_register", lambda core, request, _: core.register_agent(request.json(core))),
    _row("GET", "agents/{id}", lambda core, _, id: core.resources.agent(id)),
    _row("DELETE", "agents/{id}", lambda core, _, id: core.resources.delete_agent(id)),
    _row("POST", "memory", handlers.create_memory),
    _row("GET", "memory", handlers.memories, "max_results", "next_token"),
    _row("GET", "memory/message/{id}/traces", handlers.traces, "max_results", "next_token"),
    _row("GET", "memory/message/{id}", lambda core, _, id: core.memory.message(id).document(core.modern)),
    _row("POST", "memory/{id}/_search", handlers.search_memory),
    _row("GET", "memory/{id}/_search", handlers.search_memory),
    _row("POST", "memory/{id}/messages", handlers.add_message),
    _row("GET", "memory/{id}/messages", handlers.messages, "max_results", "next_token"),
    _row("GET", "memory/{id}", lambda core, _, id: core.memory.get(id).document()),
    _row("PUT", "memory/{id}", handlers.update_memory),
    _row("DELETE", "memory/{id}", handlers.delete_memory),
]
_CLASSIC = [*_BOTH, _row("POST", "agents/{id}/_execute", handlers.execute)]
_MODERN = [
    *_BOTH,
    _row("PUT", "agents/{id}", lambda core, request, id: core.resources.update_agent(id, request.json(core))),
    _row("POST", "agents/{id}/_execute", handlers.execute, "async"),
    _row("POST", "agents/{id}/_execute/stream", handlers.execute_stream),
]


def _routes(modern: bool) -> list[Row]:
    return _MODERN if modern else _CLASSIC
