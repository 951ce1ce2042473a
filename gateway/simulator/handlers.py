"""The handlers of the REST table. Their third argument is the id in the path, if it has one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from gateway.simulator import search as searching
from gateway.simulator.bodies import parse_object
from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import Json, RestFailure
from gateway.simulator.memory import Message, new_id, page
from gateway.simulator.predict import LlmReply, LlmRequest, Run
from gateway.simulator.values import to_parameters


@dataclass(frozen=True)
class Request:
    """One request. target: raw path and query."""

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

    def json(self, core: ClusterCore) -> Json:
        """Return the body as an object. An empty body is refused."""
        return parse_object(self.body, core.modern)


Handler = Callable[[ClusterCore, Request, str], Any]


# The root and the settings


def root(core: ClusterCore, request: Request, _: str) -> Json:
    """Return the cluster's name, id and version."""
    version = {"distribution": "opensearch", "number": core.version, "build_type": "simulated", "build_snapshot": False}
    tagline = "The OpenSearch Project: https://opensearch.org/"
    names = {"name": "simulator", "cluster_name": "simulated", "cluster_uuid": core.uuid}
    return {**names, "version": version, "tagline": tagline}


def health(core: ClusterCore, request: Request, _: str) -> Json:
    """Return the cluster's health, which is always green."""
    return {"cluster_name": "simulated", "status": "green", "timed_out": False, "number_of_nodes": 1}


def get_settings(core: ClusterCore, request: Request, _: str) -> Json:
    """Return the settings, with defaults if requested."""
    query = request.query
    return core.settings.shown(query.get("flat_settings") == "true", query.get("include_defaults") == "true")


def put_settings(core: ClusterCore, request: Request, _: str) -> Json:
    """Change settings. Only a few are known."""
    return core.settings.change(request.json(core))


# Running


def execute(core: ClusterCore, request: Request, agent_id: str) -> Run:
    """Run an agent."""
    result = yield from core.execution(agent_id, request.body)
    if request.query.get("async") == "true":
        # Tasks are not simulated: the run ends before the response.
        tensors = result["inference_results"][0]["output"]
        ids = {tensor["name"]: tensor["result"] for tensor in tensors if "result" in tensor}
        return {"task_id": new_id(), "status": "RUNNING", "response": ids}
    return result


def execute_stream(core: ClusterCore, request: Request, agent_id: str) -> Generator[LlmRequest | str, LlmReply, None]:
    """Run an agent with an event stream, if the plugins for it are installed; yield the events, too."""
    if core.streams:
        yield from core.stream(agent_id, request.body)
        return
    uri = f"unable to serve uri [{request.path}] and method [{request.method}]"
    raise RestFailure(500, "illegal_state_exception", f"The engine does not support HTTP streaming, {uri}")


def predict(core: ClusterCore, request: Request, model_id: str) -> Run:
    """Call a model without an agent."""
    parameters = to_parameters(request.json(core).get("parameters") or {}, core.modern)
    answer = yield from core.predict(model_id, parameters)
    return {"inference_results": [{"output": [{"name": "response", "dataAsMap": answer}], "status_code": 200}]}


def execute_algorithm(core: ClusterCore, request: Request, name: str) -> Json:
    """Refuse: agents do not run this way."""
    raise RestFailure(400, "named_object_not_found_exception", f"[1:1] unknown field [{name.upper()}]")


# Registering models


@dataclass(frozen=True)
class Pause:
    """Yielded where other requests may run before this one goes on."""


def register_model(core: ClusterCore, request: Request, _: str) -> Generator[Pause, None, Any]:
    """Register a model. Other requests may run between the reading of its group and the writing."""
    body = request.json(core)
    read = core.resources.begin_model(body)
    try:
        yield Pause()
        return core.resources.finish_model(body, request.query.get("deploy") == "true", read)
    finally:
        core.resources.end_model()


def register_group(core: ClusterCore, request: Request, _: str) -> Generator[Pause, None, Any]:
    """Register a model group. Several at once may get the same name."""
    body = request.json(core)
    core.resources.check_group(body)
    yield Pause()
    return core.resources.register_group(body)


# Searching


def search(kind: str) -> Handler:
    """Search all connectors, models or agents."""

    def run(core: ClusterCore, request: Request, _: str) -> Json:
        if not request.body.strip():
            raise RestFailure(400, "parse_exception", "request body or source parameter is required")
        return searching.search(core.resources, kind, request.json(core))

    return run


def undeploy(core: ClusterCore, request: Request, model_id: str) -> Json:
    """Undeploy the model in the path, or those in the body."""
    body = request.json(core) if request.body else {}
    if body.get("node_ids"):
        raise RestFailure(400, "illegal_argument_exception", "Don't allow custom deployment plan")
    return core.resources.undeploy_models(body.get("model_ids") or ([model_id] if model_id else None))


# Memory


def create_memory(core: ClusterCore, request: Request, _: str) -> Json:
    """Create a memory."""
    body = request.json(core) if request.body else {}
    return {"memory_id": core.memory.create(body.get("name"), body.get("additional_info")).memory_id}


def memories(core: ClusterCore, request: Request, _: str) -> Json:
    """Return the memories, page by page."""
    found, following = page(core.memory.newest(), request.query)
    return _paged("memories", [memory.document() for memory in found], following)


def update_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    """Rename a memory."""
    memory = core.memory.get(memory_id)
    body = request.json(core)
    memory.name = body.get("name", memory.name)
    memory.additional_info = body.get("additional_info", memory.additional_info)
    shards = {"total": 1, "successful": 1, "failed": 0}
    ids = {"_index": ".plugins-ml-memory-meta", "_id": memory_id, "_version": 2, "_seq_no": 1, "_primary_term": 1}
    return {**ids, "result": "updated", "forced_refresh": True, "_shards": shards}


def delete_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    """Remove a memory."""
    core.memory.delete(memory_id)
    return {"success": True}


def add_message(core: ClusterCore, request: Request, memory_id: str) -> Json:
    """Add a finished turn to a memory."""
    memory, body = core.memory.get(memory_id), request.json(core)
    message = Message(memory_id, body.get("input"), body.get("response"), body.get("origin"))
    message.prompt_template, message.additional_info = body.get("prompt_template"), body.get("additional_info")
    return {"message_id": core.memory.add(memory, message).message_id}


def messages(core: ClusterCore, request: Request, memory_id: str) -> Json:
    """Return the turns of a memory, oldest first, page by page."""
    found, following = page(list(core.memory.get(memory_id).messages.values()), request.query)
    return _paged("messages", [message.document(core.modern) for message in found], following)


def traces(core: ClusterCore, request: Request, message_id: str) -> Json:
    """Return the steps of a turn, last first, page by page."""
    found, following = page(core.memory.traces_of(message_id), request.query)
    return _paged("traces", [message.document(core.modern) for message in found], following)


def _paged(name: str, documents: list[Json], following: int | None) -> Json:
    return {name: documents} if following is None else {name: documents, "next_token": following}


def search_memory(core: ClusterCore, request: Request, memory_id: str) -> Json:
    """Return all turns and steps of a memory, whatever the query."""
    memory = core.memory.get(memory_id)
    documents = {**memory.messages, **memory.traces}
    hits = [
        searching.hit(".plugins-ml-memory-message", name, message.document(True)) for name, message in documents.items()
    ]
    return searching.answer(hits[:10], len(hits))
