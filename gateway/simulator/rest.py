"""The REST API as a table: method and path to what is done, without a network.

`respond` is a generator like the runs it starts: it yields the calls of models, and returns a `Response`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from gateway.simulator.core import ClusterCore, parse_object
from gateway.simulator.errors import Answer, Json, RestFailure, no_handler, wrong_method
from gateway.simulator.memory import Message, new_id, page
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.values import to_parameters

PREFIX = "/_plugins/_ml/"
_COMMON = frozenset({"pretty", "human", "error_trace", "filter_path", "format"})
_MEDIA_TYPES = frozenset({"application/json", "application/yaml", "application/smile", "application/cbor"})
_SWITCH = "plugins.ml_commons.agent_framework_enabled"
_KNOWN_SETTINGS = frozenset(
    {
        _SWITCH,
        "plugins.ml_commons.remote_inference.enabled",
        "plugins.ml_commons.memory_feature_enabled",
        "plugins.ml_commons.only_run_on_ml_node",
        "plugins.ml_commons.connector.private_ip_enabled",
        "plugins.ml_commons.connector_access_control_enabled",
        "plugins.ml_commons.trusted_connector_endpoints_regex",
    }
)


@dataclass(frozen=True)
class Request:
    """One request; `target` is path and query as they came."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, undecoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The query parameters."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def json(self) -> Json:
        """The body as an object; an absent one is refused."""
        return parse_object(self.body)


@dataclass(frozen=True)
class Response:
    """The answer; `body` is JSON, or None for an empty one."""

    status: int
    body: Any


Serve = Generator[LlmRequest, LlmReply, Response]
Handler = Callable[[ClusterCore, Request, str], Any]


def respond(core: ClusterCore, request: Request) -> Serve:
    """Answers one request as the cluster would."""
    try:
        body = yield from _dispatch(core, request)
    except Answer as answer:
        return Response(answer.status, None if request.method == "HEAD" else answer.body)
    only = request.query.get("filter_path")
    return Response(200, _filtered(body, only) if only else body)


def _dispatch(core: ClusterCore, request: Request) -> Generator[LlmRequest, LlmReply, Any]:
    if request.method == "OPTIONS":
        return None
    allowed: list[str] = []
    for method, pattern, query, handler in _routes(core.modern):
        match = pattern.fullmatch(request.path)
        if match is None:
            continue
        if method != request.method:
            allowed.append(method)
            continue
        _check(core, request, query)
        result = handler(core, request, unquote(match.group(1)) if match.groups() else "")
        return (yield from result) if isinstance(result, Generator) else result
    if allowed:
        raise wrong_method(request.method, request.path, ", ".join(allowed))
    raise no_handler(request.method, request.path)


def _check(core: ClusterCore, request: Request, query: frozenset[str]) -> None:
    unknown = [name for name in request.query if name not in _COMMON | query]
    if unknown:
        named = f"request [{request.path}] contains unrecognized parameter: [{unknown[0]}]"
        raise RestFailure(400, "illegal_argument_exception", named)
    media_type = request.headers.get("content-type", "")
    if request.body and media_type.partition(";")[0].strip().lower() not in _MEDIA_TYPES:
        raise Answer(406, {"error": f"Content-Type header [{media_type}] is not supported", "status": 406})
    if "/agents" in request.path and core.settings.get(_SWITCH) == "false":
        reason = f'Agent Framework is currently disabled. To enable it, update the setting "{_SWITCH}" to true.'
        raise RestFailure(500, "illegal_state_exception", reason)


def _filtered(body: Any, only: str) -> Any:
    """The parts of `body` that `filter_path` names."""
    paths = [path.split(".") for path in only.split(",")]
    return _kept(body, paths) or {}


def _kept(node: Any, paths: list[list[str]]) -> Any:
    if isinstance(node, list):
        return [kept for kept in (_kept(item, paths) for item in node) if kept not in (None, {}, [])]
    if not isinstance(node, dict):
        return None
    result = {}
    for name, value in node.items():
        deeper = [path[1:] for path in paths if path and path[0] in (name, "*", "**")]
        if any(not path for path in deeper):
            result[name] = value
        elif deeper:
            kept = _kept(value, deeper)
            if kept not in (None, {}, []):
                result[name] = kept
    return result


# The root and the settings


def _root(core: ClusterCore, request: Request, _: str) -> Json:
    version = {"distribution": "opensearch", "number": core.version, "build_type": "simulated", "build_snapshot": False}
    tagline = "The OpenSearch Project: https://opensearch.org/"
    return {"name": "simulator", "cluster_name": "simulated", "version": version, "tagline": tagline}


def _health(core: ClusterCore, request: Request, _: str) -> Json:
    return {"cluster_name": "simulated", "status": "green", "timed_out": False, "number_of_nodes": 1}


def _put_settings(core: ClusterCore, request: Request, _: str) -> Json:
    body = request.json()
    for scope in ("persistent", "transient"):
        for name, value in (body.get(scope) or {}).items():
            if name not in _KNOWN_SETTINGS:
                raise RestFailure(400, "settings_exception", f"{scope} setting [{name}], not recognized")
            core.settings[name] = None if value is None else str(value).lower()
    shown: dict[str, Any] = {"acknowledged": True, "persistent": {}, "transient": {}}
    for scope in ("persistent", "transient"):
        for name, value in (body.get(scope) or {}).items():
            if value is not None:
                _nest(shown[scope], name.split("."), str(value).lower())
    return shown


def _nest(node: dict[str, Any], names: list[str], value: str) -> None:
    for name in names[:-1]:
        node = node.setdefault(name, {})
    node[names[-1]] = value


# Running


def _execute(core: ClusterCore, request: Request, agent_id: str) -> Generator[LlmRequest, LlmReply, Any]:
    result = yield from core.execution(agent_id, request.body)
    if request.query.get("async") == "true":
        # The task's end is not simulated: the run is over before this is answered.
        tensors = result["inference_results"][0]["output"]
        ids = {tensor["name"]: tensor["result"] for tensor in tensors if "result" in tensor}
        return {"task_id": new_id(), "status": "RUNNING", "response": ids}
    return result


def _execute_stream(core: ClusterCore, request: Request, agent_id: str) -> Json:
    uri = f"unable to serve uri [{request.path}] and method [{request.method}]"
    raise RestFailure(500, "illegal_state_exception", f"The engine does not support HTTP streaming, {uri}")


def _predict(core: ClusterCore, request: Request, model_id: str) -> Generator[LlmRequest, LlmReply, Any]:
    parameters = to_parameters(request.json().get("parameters") or {}, core.modern)
    answer = yield from core.predict(model_id, parameters)
    return {"inference_results": [{"output": [{"name": "response", "dataAsMap": answer}], "status_code": 200}]}


# Searching


def _search(index: str, documents: Callable[[ClusterCore], dict[str, Json]]) -> Handler:
    def search(core: ClusterCore, request: Request, _: str) -> Json:
        body = request.json() if request.body else {}
        found = documents(core)
        wanted = ((body.get("query") or {}).get("ids") or {}).get("values")
        if wanted is not None:
            found = {name: found[name] for name in wanted if name in found}
        hits = [_hit(index, name, found[name]) for name in list(found)[: body.get("size", 10)]]
        return _search_answer(hits, len(found))

    return search


def _hit(index: str, name: str, source: Json) -> Json:
    hidden = ("credential", "deployed", "state")
    shown = {key: value for key, value in source.items() if key not in hidden}
    ids = {"_index": index, "_id": name, "_version": 1, "_seq_no": 1, "_primary_term": 1, "_score": 1.0}
    return {**ids, "_source": shown}


def _search_answer(hits: list[Json], total: int) -> Json:
    return {
        "took": 1,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": {"value": total, "relation": "eq"}, "max_score": 1.0 if hits else None, "hits": hits},
    }


# Memory


def _create_memory(core: ClusterCore, request: Request, _: str) -> Json:
    body = request.json() if request.body else {}
    return {"memory_id": core.memory.create(body.get("name"), body.get("additional_info")).memory_id}


def _memories(core: ClusterCore, request: Request, _: str) -> Json:
    found, following = page(core.memory.newest(), request.query)
    return _paged("memories", [memory.document() for memory in found], following)


def _update_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    memory = core.memory.get(memory_id)
    body = request.json()
    memory.name = body.get("name", memory.name)
    memory.additional_info = body.get("additional_info", memory.additional_info)
    shards = {"total": 1, "successful": 1, "failed": 0}
    ids = {"_index": ".plugins-ml-memory-meta", "_id": memory_id, "_version": 2, "_seq_no": 1, "_primary_term": 1}
    return {**ids, "result": "updated", "forced_refresh": True, "_shards": shards}


def _delete_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    core.memory.delete(memory_id)
    return {"success": True}


def _add_message(core: ClusterCore, request: Request, memory_id: str) -> Json:
    memory, body = core.memory.get(memory_id), request.json()
    names = ("input", "response", "origin", "prompt_template", "additional_info")
    message = Message(memory_id, **{name: body.get(name) for name in names})
    return {"message_id": core.memory.add(memory, message).message_id}


def _messages(core: ClusterCore, request: Request, memory_id: str) -> Json:
    found, following = page(list(core.memory.get(memory_id).messages.values()), request.query)
    return _paged("messages", [message.document(core.modern) for message in found], following)


def _traces(core: ClusterCore, request: Request, message_id: str) -> Json:
    found, following = page(core.memory.traces_of(message_id), request.query)
    return _paged("traces", [message.document(core.modern) for message in found], following)


def _paged(name: str, documents: list[Json], following: int | None) -> Json:
    return {name: documents} if following is None else {name: documents, "next_token": following}


def _search_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    memory = core.memory.get(memory_id)
    documents = {**memory.messages, **memory.traces}
    hits = [_hit(".plugins-ml-memory-message", name, message.document(True)) for name, message in documents.items()]
    return _search_answer(hits[:10], len(hits))


# The table: method, path, query parameters of its own, what is done. The only group of a path is an id.

Row = tuple[str, "re.Pattern[str]", frozenset[str], Handler]


def _row(method: str, path: str, handler: Handler, *query: str) -> Row:
    pattern = re.escape(path if path.startswith("/") else PREFIX + path).replace(r"\{id\}", "([^/]+)")
    return method, re.compile(pattern), frozenset(query), handler


_BOTH: list[Row] = [
    _row("GET", "/", _root),
    _row("GET", "/_cluster/health", _health),
    _row("PUT", "/_cluster/settings", _put_settings, "flat_settings"),
    _row("POST", "connectors/_create", lambda core, request, _: core.resources.create_connector(request.json())),
    *(
        _row(
            method,
            f"{kind}/_search",
            _search(f".plugins-ml-{kind[:-1]}", lambda core, k=kind: getattr(core.resources, k)),
        )
        for method in ("GET", "POST")
        for kind in ("connectors", "models", "agents")
    ),
    _row("GET", "connectors/{id}", lambda core, _, id: core.resources.connector(id)),
    _row("PUT", "connectors/{id}", lambda core, request, id: core.resources.update_connector(id, request.json())),
    _row("DELETE", "connectors/{id}", lambda core, _, id: core.resources.delete_connector(id)),
    _row(
        "POST",
        "models/_register",
        lambda core, request, _: core.resources.register_model(request.json(), request.query.get("deploy") == "true"),
        "deploy",
    ),
    _row("GET", "models/{id}", lambda core, _, id: core.resources.model(id)),
    _row("PUT", "models/{id}", lambda core, request, id: core.resources.update_model(id, request.json())),
    _row("DELETE", "models/{id}", lambda core, _, id: core.resources.delete_model(id)),
    _row("POST", "models/{id}/_deploy", lambda core, _, id: core.resources.deploy_model(id)),
    _row("POST", "models/{id}/_undeploy", lambda core, _, id: core.resources.undeploy_model(id)),
    _row("POST", "models/{id}/_predict", _predict),
    _row("POST", "agents/_register", lambda core, request, _: core.resources.register_agent(request.json())),
    _row("GET", "agents/{id}", lambda core, _, id: core.resources.agent(id)),
    _row("DELETE", "agents/{id}", lambda core, _, id: core.resources.delete_agent(id)),
    _row("POST", "memory", _create_memory),
    _row("POST", "memory/", _create_memory),
    _row("GET", "memory", _memories, "max_results", "next_token"),
    _row("GET", "memory/", _memories, "max_results", "next_token"),
    _row("GET", "memory/message/{id}/traces", _traces, "max_results", "next_token"),
    _row("GET", "memory/message/{id}", lambda core, _, id: core.memory.message(id).document(core.modern)),
    _row("POST", "memory/{id}/_search", _search_memory),
    _row("GET", "memory/{id}/_search", _search_memory),
    _row("POST", "memory/{id}/messages", _add_message),
    _row("GET", "memory/{id}/messages", _messages, "max_results", "next_token"),
    _row("GET", "memory/{id}", lambda core, _, id: core.memory.get(id).document()),
    _row("PUT", "memory/{id}", _update_memory),
    _row("DELETE", "memory/{id}", _delete_memory),
]
_CLASSIC = [*_BOTH, _row("POST", "agents/{id}/_execute", _execute)]
_MODERN = [
    *_BOTH,
    _row("PUT", "agents/{id}", lambda core, request, id: core.resources.update_agent(id, request.json())),
    _row("POST", "agents/{id}/_execute", _execute, "async"),
    _row("POST", "agents/{id}/_execute/stream", _execute_stream),
]


def _routes(modern: bool) -> list[Row]:
    return _MODERN if modern else _CLASSIC
