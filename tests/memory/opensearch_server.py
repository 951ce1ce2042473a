"""A small OpenSearch on loopback for the tests of stores: documents, and the API of memory containers.

As a cluster, it answers reads by id with the newest write, and searches with what the last refresh has seen. It makes
no index by itself (`action.auto_create_index: false`). As ML Commons, it chooses the ids of working memories, refreshes
after each write, loses the order of keys in ``structured_data_blob`` and, before 3.6, overwrites a session that exists.
`tests/real_cluster/test_memory_stores.py` runs the same tests on a real cluster.

    async with OpenSearchServer("2.19.0") as server:
        server.faults[3] = "lost"      # the fourth request from now on
        …                              # send to server.url
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Self

from aiohttp import web

_Answer = Literal["throttled", "item throttled", "no shard", "forbidden", "too large", "text", "other"]
Fault = Literal["refused", "lost", "stall"] | _Answer
"""What happens to a request. refused: cut off, without effect; lost: done, cut off before the answer; stall: never
answered, without effect; throttled: 429; item throttled: all operations of a ``_bulk`` get 429, without effect;
no shard: the documents of an ``_mget`` have errors, as in an index that is just made; forbidden: 403; too large: 413;
text: HTML; other: JSON that is not OpenSearch's.
"""
_JSON = dict[str, Any]
_OPERATIONS = ('{"index"', '{"create"', '{"update"', '{"delete"')
_SEQUENCE = count()
_BLOCK = "cluster_block_exception"
_BLOCK_REASON = (
    "index [{}] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has "
    "read-only-allow-delete block];"
)
_CONTAINERS = "/_plugins/_ml/memory_containers"


@dataclass
class _Document:
    source: _JSON
    version: int = 1
    seq: int = 0


@dataclass
class Index:
    """Documents by id, and those that searches see."""

    documents: dict[str, _Document] = field(default_factory=dict)
    visible: dict[str, _JSON] = field(default_factory=dict)

    def refresh(self) -> None:
        self.visible = {id_: document.source for id_, document in self.documents.items()}

    def search(self, body: _JSON) -> list[tuple[str, _JSON, list[Any]]]:
        """Return id, source and sort values of the documents that a search finds."""
        assert body.get("size", 10) <= 10_000
        names = [name for sort in body.get("sort", []) for name in sort]
        directions = [-1 if direction == "desc" else 1 for sort in body.get("sort", []) for direction in sort.values()]
        found = [
            (id_, source, [source.get(name) for name in names])
            for id_, source in self.visible.items()
            if _matches(body["query"], id_, source)
        ]
        for position, direction in reversed(list(enumerate(directions))):
            found.sort(key=lambda hit: hit[2][position], reverse=direction < 0)
        if "search_after" in body:
            found = [hit for hit in found if _comes_after(hit[2], body["search_after"], directions)]
        return found[: body.get("size", 10)]


def _matches(query: _JSON, id_: str, source: _JSON) -> bool:
    [(kind, value)] = query.items()
    match kind:
        case "match_all":
            return True
        case "ids":
            return id_ in value["values"]
        case "term":
            [(path, wanted)] = value.items()
            for name in path.split("."):
                source = source.get(name, {})
            return source == wanted
        case "range":
            [(name, bounds)] = value.items()
            found = source.get(name)
            if found is None:
                return False
            return bool(found < bounds["lt"]) if "lt" in bounds else bool(found >= bounds["gte"])
        case "bool":
            return all(_matches(each, id_, source) for each in value["filter"])
    raise AssertionError(query)


def _comes_after(values: list[Any], after: list[Any], directions: list[int]) -> bool:
    for value, last, direction in zip(values, after, directions, strict=True):
        if value != last:
            return bool((value > last) == (direction > 0))
    return False


class OpenSearchServer:
    """Serves inside its `async with` block. version: of OpenSearch. agentic_memory: the setting of ML Commons.
    ml_commons: whether it is installed. security: whether the security plugin is, without which containers can't be
    searched before 3.5.

    searches_lag: searches of containers do not see new documents. blocked: all indices take no writes, because the disk
    is full (`index.blocks.read_only_allow_delete`).

    faults, holds: what happens to a request, by its number. A request with a hold sets `held`, and waits for the hold.
    alarms: set when the request with this number arrives.
    """

    def __init__(
        self,
        version: str = "3.6.0",
        agentic_memory: bool = True,
        tls: ssl.SSLContext | None = None,
        security: bool = False,
    ) -> None:
        self.version = version
        self._tls = tls
        self.agentic_memory = agentic_memory
        self.ml_commons = True
        self.security = security
        self.blocked = False
        self.searches_lag = False
        self.indices: dict[str, Index] = {}
        self.containers: dict[str, dict[str, Index]] = {}
        self.faults: dict[int, Fault] = {}
        self.holds: dict[int, asyncio.Event] = {}
        self.held = asyncio.Event()
        self.alarms: dict[int, asyncio.Event] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorizations: set[str] = set()
        self._ids = count()

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._misbehave], client_max_size=100_000_000)
        application.add_routes(
            [
                web.get("/", self._root),
                web.post("/_bulk", self._bulk),
                web.route("*", _CONTAINERS + "/{rest:.*}", self._container),
                web.put("/{index}", self._create_index),
                web.post("/{index}/{action}", self._on_index),
            ]
        )
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def switch_off(self) -> None:
        """Switch agentic memory off."""
        self.agentic_memory = False

    def counted_from_now(self) -> None:
        """Forget the requests: the next one has the number 0."""
        self.requests.clear()

    def documents(self) -> list[_JSON]:
        """Return all documents of sessions and messages."""
        indices = [
            *self.indices.values(),
            *(index for indices in self.containers.values() for index in indices.values()),
        ]
        found = [document.source for index in indices for document in index.documents.values()]
        return [source for source in found if source.get("kind") != "container"]

    @web.middleware
    async def _misbehave(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        fault = self.faults.pop(len(self.requests), None)
        hold = self.holds.get(len(self.requests))
        if alarm := self.alarms.pop(len(self.requests), None):
            alarm.set()
        self.requests.append((request.method, request.path))
        self.authorizations.add(request.headers.get("Authorization", ""))
        await request.read()
        if hold:
            self.held.set()
            await hold.wait()
        match fault:
            case "refused":
                _cut(request)
            case "stall":
                await asyncio.Event().wait()
            case "throttled":
                return _error(429, "rejected_execution_exception", "too many requests")
            case "item throttled" if request.path == "/_bulk":
                error = {"type": "rejected_execution_exception", "reason": "queue is full"}
                lines = (await request.text()).split("\n")
                operations = sum(line.startswith(_OPERATIONS) for line in lines)
                return web.json_response({"items": [{"index": {"status": 429, "error": error}}] * operations})
            case "no shard" if request.path.endswith("/_mget"):
                error = {"type": "no_shard_available_action_exception", "reason": "No shard available for [...]"}
                docs = [{"_id": id_, "error": error} for id_ in (await request.json())["ids"]]
                return web.json_response({"docs": docs})
            case "forbidden":
                return _error(403, "security_exception", "no permissions for [indices:data/read/mget]")
            case "too large":
                return web.Response(status=413)
            case "text":
                return web.Response(text="<html>a portal</html>", content_type="text/html")
            case "other":
                return web.json_response({"status": "ok"})
        response = await handler(request)
        if fault == "lost":
            _cut(request)
        return response

    async def _root(self, request: web.Request) -> web.Response:
        return web.json_response({"version": {"number": self.version, "distribution": "opensearch"}})

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.version.split("-")[0].split("."))

    async def _create_index(self, request: web.Request) -> web.Response:
        name = request.match_info["index"]
        if name in self.indices and self.blocked:
            return _blocked(name)
        if name in self.indices:
            return _error(400, "resource_already_exists_exception", f"index [{name}/uuid] already exists")
        assert (await request.json())["mappings"]["dynamic"] is False
        self.indices[name] = Index()
        return web.json_response({"acknowledged": True, "index": name})

    async def _on_index(self, request: web.Request) -> web.Response:
        index = self.indices.get(request.match_info["index"])
        if index is None:
            return _error(404, "index_not_found_exception", "no such index")
        match request.match_info["action"]:
            case "_refresh":
                index.refresh()
                return web.json_response({})
            case "_mget":
                return web.json_response({"docs": [_got(index, id_) for id_ in (await request.json())["ids"]]})
            case "_search":
                return _hits(index, await request.json())
            case "_delete_by_query":
                return _delete_by_query(index, (await request.json())["query"])
        raise AssertionError(request.path)

    async def _bulk(self, request: web.Request) -> web.Response:
        lines = iter((await request.text()).rstrip("\n").split("\n"))
        items = []
        for line in lines:
            [(operation, action)] = json.loads(line).items()
            body = None if operation == "delete" else json.loads(next(lines))
            index = self.indices.get(action["_index"])
            if index is not None and self.blocked:
                error = {"type": _BLOCK, "reason": _BLOCK_REASON.format(action["_index"])}
                items.append({operation: {"_id": action["_id"], "status": 429, "error": error}})
                continue
            status = 404 if index is None else _do(index, operation, action, body)
            type_ = "version_conflict_engine_exception" if index else "index_not_found_exception"
            failure = {"error": {"type": type_, "reason": ""}} if status >= 400 else {}
            items.append({operation: {"_id": action["_id"], "status": status, **failure}})
        return web.json_response({"items": items})

    async def _container(self, request: web.Request) -> web.Response:
        if not self.ml_commons:
            error = f"no handler found for uri [{request.path}] and method [{request.method}]"
            return web.json_response({"error": error}, status=400)
        if not self.agentic_memory:
            reason = "The Agentic Memory APIs are not enabled. To enable, please update the setting "
            return _error(403, "status_exception", reason + "plugins.ml_commons.agentic_memory_enabled")
        container, *rest = request.match_info["rest"].split("/")
        if container == "_create":
            made = f"container{next(self._ids)}"
            self.containers[made] = {"working": Index()}
            if not (await request.json())["configuration"].get("disable_session", self._numbers < (3, 5)):
                self.containers[made]["sessions"] = Index()
            return web.json_response({"memory_container_id": made, "status": "created"})
        indices = self.containers.get(container)
        if indices is None:
            return _error(404, "status_exception", "Memory container not found")
        if not rest:
            if request.method == "DELETE":
                del self.containers[container]
            return web.json_response({"name": container})
        body = json.loads(json.dumps(await request.json(), sort_keys=True)) if request.body_exists else {}
        searches = rest[-1] in ("_search", "_delete_by_query")
        if self.blocked and request.method in ("POST", "DELETE") and rest[-1] != "_search":
            return _blocked(".plugins-ml-am-memory-working")
        if searches and self._numbers < (3, 5) and not self.security:
            return _error(
                500, "null_pointer_exception", 'Cannot invoke "User.getBackendRoles()" because "user" is null'
            )
        match request.method, *rest[1:]:
            case "POST", "sessions" if "sessions" not in indices:
                return _error(500, "index_not_found_exception", "no such index [null]: index is missing")
            case ("POST",):
                id_ = f"memory-{next(self._ids)}"
                return self._remember(indices["working"], id_, body, {"working_memory_id": id_})
            case "POST", "sessions":
                exists = body["session_id"] in indices["sessions"].documents and self._numbers >= (3, 6)
                if exists:
                    return web.json_response({"session_id": body["session_id"], "status": "exists"})
                return self._remember(indices["sessions"], body["session_id"], body, {"status": "created"})
            case "POST", type_, "_search":
                return _hits(indices[type_], body)
            case "POST", type_, "_delete_by_query":
                return _delete_by_query(indices[type_], body["query"])
            case method, type_, id_:
                return _one(indices[type_], method, id_)
        raise AssertionError(request.path)

    def _remember(self, index: Index, id_: str, body: _JSON, answer: _JSON) -> web.Response:
        index.documents[id_] = _Document(body)
        if not self.searches_lag:
            index.refresh()
        return web.json_response(answer)


def _cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError


def _operations(request: web.Request) -> int:
    assert request._read_bytes is not None
    return sum(
        line.startswith((b'{"index"', b'{"create"', b'{"update"', b'{"delete"'))
        for line in request._read_bytes.splitlines()
    )


def _error(status: int, type_: str, reason: str) -> web.Response:
    error = {"type": type_, "reason": reason}
    return web.json_response({"error": {"root_cause": [error], **error}, "status": status}, status=status)


def _blocked(index: str) -> web.Response:
    return _error(429, _BLOCK, _BLOCK_REASON.format(index))


def _got(index: Index, id_: str) -> _JSON:
    document = index.documents.get(id_)
    if document is None:
        return {"_id": id_, "found": False}
    return {"_id": id_, "found": True, "_seq_no": document.seq, "_primary_term": 1, "_source": document.source}


def _hits(index: Index, body: _JSON) -> web.Response:
    hits = [{"_id": id_, "_source": source, "sort": values} for id_, source, values in index.search(body)]
    return web.json_response({"hits": {"hits": hits}})


def _delete_by_query(index: Index, query: _JSON) -> web.Response:
    deleted = [index.documents.pop(id_, None) for id_, _, _ in index.search({"query": query, "size": 10_000})]
    index.refresh()
    return web.json_response({"deleted": len(deleted)})


def _one(index: Index, method: str, id_: str) -> web.Response:
    document = index.documents.get(id_)
    if document is None:
        return _error(404, "status_exception", "Memory not found")
    if method == "DELETE":
        del index.documents[id_]
    return web.json_response(document.source)


def _do(index: Index, operation: str, action: _JSON, body: _JSON | None) -> int:
    """Do an operation of ``_bulk`` and return its status."""
    known = index.documents.get(action["_id"])
    match operation:
        case "create" if known is not None:
            return 409
        case "index" if known is not None and action.get("version", known.version) < known.version:
            return 409
        case "index" | "delete" if known is not None and action.get("if_seq_no", known.seq) != known.seq:
            return 409
        case "delete":
            index.documents.pop(action["_id"], None)
            return 200 if known else 404
        case "update" if body is not None and "script" in body:
            return _increase(index, action["_id"], body)
        case "update":
            if known is None:
                return 404
            assert body is not None
            known.source = _merged(known.source, body["doc"])
            known.seq = next(_SEQUENCE)
            return 200
    assert body is not None
    index.documents[action["_id"]] = _Document(body, action.get("version", 1), next(_SEQUENCE))
    return 201


def _increase(index: Index, id_: str, body: _JSON) -> int:
    """Do a scripted update that adds to a number, or make the document."""
    known = index.documents.get(id_)
    if known is None:
        index.documents[id_] = _Document(body["upsert"], 1, next(_SEQUENCE))
        return 201
    match = re.fullmatch(r"ctx\._source\.(\w+) \+= params\.(\w+)", body["script"]["source"])
    assert match is not None
    known.source = {**known.source, match[1]: known.source[match[1]] + body["script"]["params"][match[2]]}
    known.seq = next(_SEQUENCE)
    return 200


def _merged(old: _JSON, new: _JSON) -> _JSON:
    both = {name: _merged(old[name], new[name]) for name in old.keys() & new.keys() if isinstance(new[name], dict)}
    return old | new | both
