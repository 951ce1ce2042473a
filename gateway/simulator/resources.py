"""Connectors, models and agents: registers, changes, shows and removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from gateway.simulator import documents, model_groups
from gateway.simulator.documents import refused
from gateway.simulator.errors import Json, RestFailure, not_found
from gateway.simulator.fields import Document
from gateway.simulator.interface_check import default_interface
from gateway.simulator.memory import new_id
from gateway.simulator.model_groups import MAX_TASKS, GroupRead
from gateway.simulator.name_rules import check_words
from gateway.simulator.query import matcher
from gateway.simulator.settings import MCP_SWITCH, SAFE_DELETE, Settings

NODE = "node-1-of-the-simulator"
INDEX = {
    "agent": ".plugins-ml-agent",
    "model": ".plugins-ml-model",
    "connector": ".plugins-ml-connector",
    "model_group": model_groups.INDEX_NAME,
}
_IN_MESSAGE = 10


class _Write(NamedTuple):
    """A recent write that `_search` may not find yet. before: the document it finds instead, None for none."""

    time: float
    kind: str
    id: str
    before: Document | None


class Resources:
    """The documents of a cluster, by id.

    ``_search`` finds a write after `refresh_seconds`, GET at once. A model registered with ``deploy=true`` is deployed
    after `deploy_seconds` (recorded: 3.x first shows it as registered). `clock` is the time for both.
    """

    def __init__(self, modern: bool, settings: Settings | None = None, refresh_seconds: float = 0.0) -> None:
        self.modern = modern
        self.settings = settings or Settings(modern)
        self.refresh_seconds = refresh_seconds
        self.deploy_seconds = 0.0
        self.clock: Callable[[], float] = time.monotonic
        self.connectors: dict[str, Json] = {}
        self.models: dict[str, Json] = {}
        self.agents: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self._registering = 0
        self._fresh: list[_Write] = []
        self._written_so_far = dict.fromkeys(INDEX, 0)
        self._numbers: dict[tuple[str, str], int] = {}

    # For `_search`

    def searchable(self, kind: str) -> dict[str, Document]:
        """Return the documents of a kind as ``_search`` finds them now, by id: without credentials."""
        seen = {name: self._document(kind, name) for name in self._all_of(kind)}
        horizon = self.clock() - self.refresh_seconds
        self._fresh = [write for write in self._fresh if write.time > horizon]
        for write in reversed(self._fresh):
            if write.kind == kind and write.before is not None:
                seen[write.id] = write.before
            elif write.kind == kind:
                seen.pop(write.id, None)
        return deepcopy(seen)

    def current(self, kind: str) -> dict[str, Json]:
        """Return the documents of a kind as GET shows them now, by id."""
        return {name: self._shown(kind, name) for name in self._all_of(kind)}

    def _all_of(self, kind: str) -> dict[str, Json]:
        found = {"connector": self.connectors, "model": self.models, "agent": self.agents, "model_group": self.groups}
        return found[kind]

    def _shown(self, kind: str, name: str) -> Json:
        shown = {"connector": self.connector, "model": self.model, "agent": self.agent, "model_group": self.group}
        return shown[kind](name)

    def _writing(self, kind: str, name: str) -> None:
        """Record that a document is about to change."""
        if self.refresh_seconds > 0:
            before = deepcopy(self._document(kind, name)) if name in self._all_of(kind) else None
            self._fresh.append(_Write(self.clock(), kind, name, before))
        self._count_write(kind, name)

    def _count_write(self, kind: str, name: str) -> None:
        """Give the document the next sequence number of its index."""
        self._numbers[kind, name] = self._written_so_far[kind]
        self._written_so_far[kind] += 1

    def _document(self, kind: str, name: str) -> Document:
        if (kind, name) not in self._numbers:  # added without the API
            self._count_write(kind, name)
        return Document(kind, name, self._shown(kind, name), self._numbers[kind, name])

    def _found_by(self, kind: str, query: Json) -> list[str]:
        """Return the ids that a search of the cluster's own finds. It has the same delay as any search."""
        wanted = matcher(query)
        return [found.id for found in self.searchable(kind).values() if wanted(found)][:_IN_MESSAGE]

    def _check_words(self, body: Mapping[str, Any], name: str, description: str) -> None:
        if self.modern:
            check_words(body, name, description)

    # Connectors

    def create_connector(self, body: Mapping[str, Any]) -> Json:
        """Register a connector. Return ``{"connector_id": …}``.

        Raises:
            RestFailure: as `documents.check_connector`, and 400 for a URL that is not an http(s) address.
        """
        documents.check_connector(body, self.modern, self.settings.is_on(MCP_SWITCH))
        self._check_words(body, "Model connector name", "Model connector description")
        document = documents.connector_document(body, self.modern)
        connector_id = new_id()
        self._writing("connector", connector_id)
        stamp = self.millis()
        self.connectors[connector_id] = {**document, "created_time": stamp, "last_updated_time": stamp}
        return {"connector_id": connector_id}

    def connector(self, connector_id: str) -> Json:
        """Return the connector as GET shows it, without its credential."""
        return _without_credential(self._find(self.connectors, "connector", connector_id))

    def update_connector(self, connector_id: str, body: Mapping[str, Any]) -> Json:
        """Change a connector that no deployed model uses. The credential does not change."""
        self._check_words(body, "Model connector name", "Model connector description")
        document = self._find(self.connectors, "connector", connector_id)
        using = self._found_by("model", {"match": {"connector_id": connector_id}})
        users = [name for name in using if name in self.models and self.is_deployed(name)]
        if users:
            named = f"{len(users)} models are still using this connector, please undeploy the models first: "
            raise RestFailure(400, "status_exception", f"{named}[{', '.join(users)}]")
        self._writing("connector", connector_id)
        documents.change_connector(document, body, self.modern)
        document["last_updated_time"] = self.millis()
        return self._written("connector", connector_id, "updated")

    def delete_connector(self, connector_id: str) -> Json:
        """Remove a connector that no model uses. A missing one is "not_found", with 200."""
        users = self._found_by("model", {"match": {"connector_id": connector_id}})
        if users:
            named = f"{len(users)} models are still using this connector, please delete or update the models first: "
            raise RestFailure(409, "status_exception", f"{named}[{', '.join(users)}]")
        return self._delete("connector", connector_id)

    # Models

    def register_model(self, body: Mapping[str, Any], deploy: bool) -> Json:
        """Register a remote model with a connector of its own or a standalone one, while no other is registered."""
        read = self.begin_model(body)
        try:
            return self.finish_model(body, deploy, read)
        finally:
            self.end_model()

    def begin_model(self, body: Mapping[str, Any]) -> GroupRead:
        """Check a model's registration and read its group. Call `end_model` when it is over."""
        if body.get("name") is None:
            raise refused("model name is null")
        self._check_words(body, "Model name", "Model description")
        if body.get("connector_id") is not None:
            if body["connector_id"] not in self.connectors:
                raise RestFailure(404, "status_exception", f"Failed to find connector:{body['connector_id']}")
        elif body.get("connector") is None:
            raise refused("You must provide connector content when creating a remote model without a connector id!")
        group_id = body.get("model_group_id") or self._group_called(body["name"])
        if group_id and group_id not in self.groups:
            raise model_groups.no_group(group_id)
        if self._registering == MAX_TASKS:
            if not group_id:
                self._add_group(body)
            raise model_groups.too_many_tasks()
        self._registering += 1
        return GroupRead(group_id, self._numbers["model_group", group_id] if group_id else 0)

    def end_model(self) -> None:
        """End what `begin_model` began."""
        self._registering -= 1

    def finish_model(self, body: Mapping[str, Any], deploy: bool, read: GroupRead) -> Json:
        """Write the group's next version and the model.

        Raises:
            Answer: 409 (2.19: 500) if the group has changed since it was read.
        """
        group_id = read.id or self._add_group(body)
        if group_id not in self.groups:
            raise model_groups.no_group(group_id)
        number = self._numbers["model_group", group_id]
        if read.id and number != read.number:
            raise model_groups.version_conflict(read, number, self.modern)
        self._writing("model_group", group_id)
        version = self.groups[group_id]["latest_version"] + 1
        stamp = self.millis()
        self.groups[group_id] |= {"latest_version": version, "last_updated_time": stamp}
        model_id = new_id()
        model: Json = {
            "name": body["name"],
            "model_group_id": group_id,
            "algorithm": "REMOTE",
            "model_version": str(version),
            "created_time": stamp,
            "last_updated_time": stamp,
            _STATE: _State(deploys_at=self.clock() + self.deploy_seconds if deploy else None),
        }
        copied = ("description", "connector_id", "interface")
        model |= {name: body[name] for name in copied if body.get(name) is not None}
        if "connector" in body:
            model["connector"] = documents.connector_document(body["connector"], self.modern)
        connector = model.get("connector") or self.connectors[model["connector_id"]]
        interface = default_interface(connector)
        if interface is not None:
            model.setdefault("interface", interface)
        self._writing("model", model_id)
        self.models[model_id] = model
        return {"task_id": new_id(), "status": "CREATED", "model_id": model_id}

    def model(self, model_id: str) -> Json:
        """Return the model as GET shows it."""
        document = self._find(self.models, "model", model_id)
        shown = {name: value for name, value in document.items() if name != _STATE}
        shown |= self._shown_state(model_id, document)
        if "connector" in document:
            shown["connector"] = _without_credential(document["connector"])
        return {**shown, "is_hidden": False}

    def _shown_state(self, model_id: str, document: Json) -> Json:
        state: _State = document[_STATE]
        deployed = self.is_deployed(model_id)
        if not deployed and not state.undeployed:
            return {"model_state": "REGISTERED"}
        workers = int(deployed)
        shown: Json = {
            "model_state": "DEPLOYED" if deployed else "UNDEPLOYED",
            "last_deployed_time": document["last_updated_time"],
            "auto_redeploy_retry_times": 0,
            "planning_worker_node_count": workers,
            "current_worker_node_count": workers,
            "deploy_to_all_nodes": True,
        }
        return {**shown, "planning_worker_nodes": [NODE]} if deployed else shown

    def is_deployed(self, model_id: str) -> bool:
        """Return True if the model is deployed by now."""
        due = self.models[model_id][_STATE].deploys_at
        return due is not None and due <= self.clock()

    def update_model(self, model_id: str, body: Mapping[str, Any]) -> Json:
        """Change a model, deployed or not: its connector's parameters are merged, its actions replaced.

        As on a real 3.6.0, it is not checked that a `connector_id` exists.
        """
        self._check_words(body, "Model Name", "Model Description")
        if body.get("connector") is not None and body.get("connector_id") is not None:
            reason = "Model cannot have both stand-alone connector and internal connector. "
            raise RestFailure(400, "status_exception", f"{reason}Please check your update input body.")
        if model_id not in self.models:
            reason = f"Failed to find model to update with the provided model id: {model_id}"
            raise RestFailure(404, "status_exception", reason)
        model = self.models[model_id]
        if body.get("connector_id") and "connector_id" not in model:
            raise RestFailure(400, "status_exception", _NO_CONNECTOR_ID)
        if body.get("connector") is not None and "connector" not in model:
            raise self._no_inner_connector()
        self._writing("model", model_id)
        if body.get("connector") is not None:
            documents.change_connector(model["connector"], body["connector"], self.modern)
        changed = {name: body[name] for name in ("name", "description", "connector_id", "interface") if name in body}
        model.update(changed, last_updated_time=self.millis(), model_id=model_id)
        return self._written("model", model_id, "updated")

    def _no_inner_connector(self) -> RestFailure:
        if self.modern:
            return RestFailure(400, "status_exception", _NO_INNER_CONNECTOR)
        return RestFailure(500, "null_pointer_exception", _NULL_INNER_CONNECTOR)

    def deploy_model(self, model_id: str) -> Json:
        """Deploy a model."""
        self._require_model(model_id)
        self._writing("model", model_id)
        self.models[model_id][_STATE] = _State(deploys_at=self.clock())
        return {"task_id": new_id(), "task_type": "DEPLOY_MODEL", "status": "COMPLETED"}

    def undeploy_models(self, model_ids: list[str] | None) -> Json:
        """Undeploy models. The next use of a model deploys it again. A model that no node runs is "not_found"."""
        if not model_ids:
            raise refused("Must set specific model ids to undeploy")
        if len(model_ids) == 1:
            self._require_model(model_ids[0])
        return {NODE: {"stats": {model_id: self._undeploy(model_id) for model_id in model_ids}}}

    def _undeploy(self, model_id: str) -> str:
        if model_id not in self.models or not self.is_deployed(model_id):
            return "not_found"
        self._writing("model", model_id)
        self.models[model_id][_STATE] = _State(undeployed=True)
        return "undeployed"

    def _require_model(self, model_id: str) -> None:
        if model_id not in self.models:
            raise RestFailure(404, "status_exception", "Failed to find model")

    def delete_model(self, model_id: str) -> Json:
        """Remove a model that is not deployed and, with the setting on, that no agent's tool uses."""
        self._require_model(model_id)
        if self.is_deployed(model_id):
            raise RestFailure(400, "status_exception", _STILL_DEPLOYED)
        if self.settings.is_on(SAFE_DELETE):
            users = self._found_by("agent", {"term": {"tools.parameters.model_id": model_id}})
            if users:
                named = f"{len(users)} agents are still using this model, please delete or update the agents first, "
                raise RestFailure(409, "status_exception", f"{named}all visible agents are: [{', '.join(users)}]")
        return self._delete("model", model_id)

    # Model groups

    def check_group(self, body: Mapping[str, Any]) -> None:
        """Check the registration of a model group."""
        if body.get("name") is None:
            raise refused("model group name is null")
        self._check_words(body, "Model group name", "Model group description")
        if taken := self._group_called(body["name"]):
            raise model_groups.name_taken(taken)

    def register_group(self, body: Mapping[str, Any]) -> Json:
        """Register an empty model group. Return ``{"model_group_id": …}``."""
        return {"model_group_id": self._add_group(body), "status": "CREATED"}

    def group(self, group_id: str) -> Json:
        """Return the model group as GET shows it."""
        if group_id not in self.groups:
            raise model_groups.no_group(group_id)
        return self.groups[group_id]

    def delete_group(self, group_id: str) -> Json:
        """Remove a model group that has no models. A missing one is "not_found", with 200."""
        if self._found_by("model", {"term": {"model_group_id": group_id}}):
            raise model_groups.has_models()
        return self._delete("model_group", group_id)

    def _group_called(self, name: str) -> str:
        """Return the id of the group with a name, as a search finds it; "" if there is none."""
        found = self.searchable("model_group").values()
        return next((document.id for document in found if document.source["name"] == name), "")

    def _add_group(self, body: Mapping[str, Any]) -> str:
        group_id = new_id()
        self._writing("model_group", group_id)
        self.groups[group_id] = model_groups.group_document(body, self.millis())
        return group_id

    # Agents

    def register_agent(self, body: Mapping[str, Any]) -> Json:
        """Register an agent, and the executor of a planner. Return ``{"agent_id": …}``.

        Raises:
            RestFailure: as `documents.check_agent`.
        """
        documents.check_agent(body, self.modern, self.settings.is_on(MCP_SWITCH))
        document = documents.agent_document(body, self.modern)
        planner = document["type"].lower() == "plan_execute_and_reflect"
        if planner and "executor_agent_id" not in document["parameters"]:
            document["parameters"]["executor_agent_id"] = self._add_agent(documents.executor_of(deepcopy(document)))
        return {"agent_id": self._add_agent(document)}

    def _add_agent(self, document: Json) -> str:
        agent_id = new_id()
        self._writing("agent", agent_id)
        stamp = self.millis()
        self.agents[agent_id] = {**document, "created_time": stamp, "last_updated_time": stamp, "is_hidden": False}
        return agent_id

    def agent(self, agent_id: str) -> Json:
        """Return the agent as GET shows it."""
        return self._find(self.agents, "agent", agent_id)

    def update_agent(self, agent_id: str, body: Mapping[str, Any]) -> Json:
        """Change an agent (3.x)."""
        if agent_id not in self.agents:
            raise RestFailure(404, "status_exception", f"Failed to get agent with ID {agent_id}")
        changed = deepcopy(self.agents[agent_id])
        documents.change_agent(changed, body, self.modern)
        self._writing("agent", agent_id)
        self.agents[agent_id] = {**changed, "last_updated_time": self.millis()}
        return self._written("agent", agent_id, "updated")

    def delete_agent(self, agent_id: str) -> Json:
        """Remove an agent."""
        if agent_id not in self.agents:
            reason = "Fail to find ml agent" if self.agents else "Failed to get agent index"
            raise RestFailure(404, "status_exception", reason)
        return self._delete("agent", agent_id)

    # All of them

    def millis(self) -> int:
        """Return the time as documents carry it."""
        return time.time_ns() // 1_000_000

    def _find(self, found: dict[str, Json], what: str, given: str) -> Json:
        if given not in found:
            raise not_found(what, given)
        return found[given]

    def _delete(self, kind: str, name: str) -> Json:
        self._writing(kind, name)
        known = self._all_of(kind).pop(name, None) is not None
        return {**self._written(kind, name, "deleted" if known else "not_found"), "forced_refresh": True}

    def _written(self, kind: str, name: str, result: str) -> Json:
        shards = {"total": 1, "successful": 1, "failed": 0}
        ids = {"_index": INDEX[kind], "_id": name, "_version": 2, "_primary_term": 1}
        ids["_seq_no"] = self._numbers[kind, name]
        refreshed = {"forced_refresh": True} if self.modern else {}
        return {**ids, "result": result, **refreshed, "_shards": shards}


class _State(NamedTuple):
    """State of a model's deployment: the time from which it is deployed, and if it was undeployed."""

    deploys_at: float | None = None
    undeployed: bool = False


_STATE = "(state)"


def _without_credential(document: Json) -> Json:
    return {name: value for name, value in document.items() if name != "credential"}


_STILL_DEPLOYED = "Model cannot be deleted in deploying or deployed state. Try undeploy model first then delete"
_NO_CONNECTOR_ID = "This remote does not have a connector_id field, maybe it uses an internal connector."
_NO_INNER_CONNECTOR = (
    "Cannot update connector settings for this model. The model was created with a connector_id and does not have an "
    "inline connector."
)
_NULL_INNER_CONNECTOR = (
    'Cannot invoke "org.opensearch.ml.common.connector.Connector.update('
    'org.opensearch.ml.common.transport.connector.MLCreateConnectorInput, java.util.function.BiFunction)" because '
    '"<local12>" is null'
)
