"""Connectors, models and agents: registering, changing and showing them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import Json, RestFailure, not_found
from gateway.simulator.interface_check import default_interface
from gateway.simulator.interfaces import INTERFACES
from gateway.simulator.memory import new_id
from gateway.simulator.values import to_parameters

NODE = "node-1-of-the-simulator"
_CLASSIC_TYPES = ("flow", "conversational", "conversational_flow")
_MODERN_TYPES = (*_CLASSIC_TYPES, "plan_execute_and_reflect")
_WITH_LLM = ("conversational", "plan_execute_and_reflect")


def _millis() -> int:
    return time.time_ns() // 1_000_000


def _refused(reason: str) -> RestFailure:
    return RestFailure(400, "illegal_argument_exception", reason)


class Resources:
    """The documents of a cluster, by id."""

    def __init__(self, modern: bool) -> None:
        self.modern = modern
        self.connectors: dict[str, Json] = {}
        self.models: dict[str, Json] = {}
        self.agents: dict[str, Json] = {}
        self._groups: dict[str, list[str]] = {}

    def all_of(self, kind: str) -> dict[str, Json]:
        """Every connector, model or agent."""
        return {"connector": self.connectors, "model": self.models, "agent": self.agents}[kind]

    # Connectors

    def create_connector(self, body: Mapping[str, Any]) -> Json:
        """Registers a connector; ``{"connector_id": …}``.

        Raises:
            RestFailure: 400 for a URL that is no http(s) address.
        """
        connector_id = new_id()
        stamp = _millis()
        self.connectors[connector_id] = {**self._connector(body), "created_time": stamp, "last_updated_time": stamp}
        return {"connector_id": connector_id}

    def _connector(self, body: Mapping[str, Any]) -> Json:
        document: Json = {name: body[name] for name in ("name", "description", "protocol") if name in body}
        document["version"] = str(body.get("version", "1"))
        if body.get("parameters") is not None:
            document["parameters"] = to_parameters(body["parameters"], self.modern)
        document["actions"] = [_action(action) for action in body.get("actions") or ()]
        for name in ("credential", "client_config"):
            if body.get(name):
                document[name] = dict(body[name])
        return document

    def connector(self, connector_id: str) -> Json:
        """The connector as GET shows it: its credential never."""
        document = self._find(self.connectors, "connector", connector_id)
        return {name: value for name, value in document.items() if name != "credential"}

    def update_connector(self, connector_id: str, body: Mapping[str, Any]) -> Json:
        """Changes a connector no deployed model uses; its credential is kept."""
        document = self._find(self.connectors, "connector", connector_id)
        users = [
            model_id
            for model_id, model in self.models.items()
            if model.get("connector_id") == connector_id and model["deployed"]
        ]
        if users:
            named = f"{len(users)} models are still using this connector, please undeploy the models first: "
            raise RestFailure(400, "status_exception", f"{named}[{', '.join(users)}]")
        self._change_connector(document, body)
        return _written(".plugins-ml-connector", connector_id, "updated")

    def _change_connector(self, document: Json, body: Mapping[str, Any]) -> None:
        parameters = {**document.get("parameters", {}), **to_parameters(body.get("parameters") or {}, self.modern)}
        changed = {name: body[name] for name in ("name", "description", "credential", "client_config") if name in body}
        document.update(changed, last_updated_time=_millis())
        if parameters:
            document["parameters"] = parameters
        if "actions" in body:
            document["actions"] = [_action(action) for action in body["actions"]]

    def delete_connector(self, connector_id: str) -> Json:
        """Removes a connector."""
        self._find(self.connectors, "connector", connector_id)
        del self.connectors[connector_id]
        return _written(".plugins-ml-connector", connector_id, "deleted")

    # Models

    def register_model(self, body: Mapping[str, Any], deploy: bool) -> Json:
        """Registers a remote model with a connector of its own or a standalone one."""
        if body.get("connector_id") is not None:
            self._find(self.connectors, "connector", body["connector_id"])
        elif body.get("connector") is None:
            raise _refused("You must provide connector content when creating a remote model without a connector id!")
        model_id = new_id()
        versions = self._groups.setdefault(body["name"], [new_id()])
        versions.append(model_id)
        stamp = _millis()
        model: Json = {
            "name": body["name"],
            "model_group_id": body.get("model_group_id") or versions[0],
            "algorithm": "REMOTE",
            "model_version": str(len(versions) - 1),
            "created_time": stamp,
            "last_updated_time": stamp,
            # From 3.0 a model deploys in the background: it shows as registered until it is used.
            "deployed": deploy and not self.modern,
            "state": "REGISTERED",
        }
        kept = ("description", "connector_id", "interface")
        model |= {name: body[name] for name in kept if body.get(name) is not None}
        if "connector" in body:
            model["connector"] = self._connector(body["connector"])
        connector = model.get("connector") or self.connectors[model["connector_id"]]
        interface = default_interface(connector)
        if interface is not None:
            model.setdefault("interface", interface)
        self.models[model_id] = model
        return {"task_id": new_id(), "status": "CREATED", "model_id": model_id}

    def model(self, model_id: str) -> Json:
        """The model as GET shows it."""
        document = self._find(self.models, "model", model_id)
        shown = {name: value for name, value in document.items() if name not in ("deployed", "state", "connector")}
        if document["deployed"]:
            shown |= {
                "model_state": "DEPLOYED",
                "last_deployed_time": document["last_updated_time"],
                "auto_redeploy_retry_times": 0,
                "planning_worker_node_count": 1,
                "current_worker_node_count": 1,
                "planning_worker_nodes": [NODE],
                "deploy_to_all_nodes": True,
            }
        else:
            shown["model_state"] = document["state"]
        if "connector" in document:
            inner = document["connector"]
            shown["connector"] = {name: value for name, value in inner.items() if name != "credential"}
        return {**shown, "is_hidden": False}

    def update_model(self, model_id: str, body: Mapping[str, Any]) -> Json:
        """Changes a model, deployed or not."""
        if model_id not in self.models:
            reason = f"Failed to find model to update with the provided model id: {model_id}"
            raise RestFailure(404, "status_exception", reason)
        model = self.models[model_id]
        if "connector" in body:
            if "connector" not in model:
                raise RestFailure(500, "null_pointer_exception", _NO_INNER_CONNECTOR)
            inner = model["connector"]
            self._change_connector(inner, body["connector"])
            inner.pop("last_updated_time", None)
        if "connector_id" in body:
            self._find(self.connectors, "connector", body["connector_id"])
        changed = {name: body[name] for name in ("name", "description", "connector_id", "interface") if name in body}
        model.update(changed, last_updated_time=_millis(), model_id=model_id)
        return _written(".plugins-ml-model", model_id, "updated")

    def deploy_model(self, model_id: str) -> Json:
        """Deploys a model."""
        self._find(self.models, "model", model_id)["deployed"] = True
        return {"task_id": new_id(), "task_type": "DEPLOY_MODEL", "status": "COMPLETED"}

    def undeploy_model(self, model_id: str) -> Json:
        """Undeploys a model; its next use deploys it again."""
        model = self._find(self.models, "model", model_id)
        model.update(deployed=False, state="UNDEPLOYED")
        return {NODE: {"stats": {model_id: "undeployed"}}}

    def delete_model(self, model_id: str) -> Json:
        """Removes a model."""
        self._find(self.models, "model", model_id)
        del self.models[model_id]
        return {**_written(".plugins-ml-model", model_id, "deleted"), "forced_refresh": True}

    # Agents

    def register_agent(self, body: Mapping[str, Any]) -> Json:
        """Registers an agent; ``{"agent_id": …}``.

        Raises:
            RestFailure: 400 for a type or an interface the version doesn't know, or a missing model.
        """
        kind = str(body.get("type", ""))
        if kind.lower() not in (_MODERN_TYPES if self.modern else _CLASSIC_TYPES):
            raise _refused(f"{kind} is not a valid Agent Type")
        document = self._agent(body)
        if kind.lower() in _WITH_LLM and "llm" not in document:
            raise _refused(f"We need model information for the {kind.lower()} agent type")
        interface = (document.get("parameters") or {}).get("_llm_interface")
        if self.modern and interface is not None and interface not in INTERFACES:
            raise _refused(f"Invalid _llm_interface: {interface}")
        names = [tool.get("name") or tool["type"] for tool in document.get("tools", ())]
        doubles = [name for position, name in enumerate(names) if name in names[:position]]
        if doubles:
            raise _refused(f"Duplicate tool defined: {doubles[0]}")
        if kind.lower() == "plan_execute_and_reflect" and "executor_agent_id" not in document.get("parameters", {}):
            executor = self.register_agent({**body, "type": "conversational", "name": f"{body['name']} (executor)"})
            document.setdefault("parameters", {})["executor_agent_id"] = executor["agent_id"]
        agent_id = new_id()
        stamp = _millis()
        self.agents[agent_id] = {**document, "created_time": stamp, "last_updated_time": stamp, "is_hidden": False}
        return {"agent_id": agent_id}

    def _agent(self, body: Mapping[str, Any]) -> Json:
        kept = ("name", "type", "description", "app_type", "memory")
        document: Json = {name: body[name] for name in kept if body.get(name) is not None}
        if body.get("llm") is not None:
            document["llm"] = {"model_id": body["llm"].get("model_id")}
            if body["llm"].get("parameters") is not None:
                document["llm"]["parameters"] = to_parameters(body["llm"]["parameters"], self.modern)
        if body.get("parameters") is not None:
            document["parameters"] = to_parameters(body["parameters"], self.modern)
        if body.get("tools"):
            document["tools"] = [self._tool(tool) for tool in body["tools"]]
        return document

    def _tool(self, body: Mapping[str, Any]) -> Json:
        tool: Json = {name: body[name] for name in ("type", "name", "description") if body.get(name) is not None}
        for name in ("parameters", "config", "attributes"):
            if body.get(name) is not None:
                tool[name] = to_parameters(body[name], self.modern)
        return {**tool, "include_output_in_agent_response": bool(body.get("include_output_in_agent_response", False))}

    def agent(self, agent_id: str) -> Json:
        """The agent as GET shows it."""
        return self._find(self.agents, "agent", agent_id)

    def update_agent(self, agent_id: str, body: Mapping[str, Any]) -> Json:
        """Changes an agent (3.x)."""
        self._find(self.agents, "agent", agent_id).update(self._agent(body), last_updated_time=_millis())
        return _written(".plugins-ml-agent", agent_id, "updated")

    def delete_agent(self, agent_id: str) -> Json:
        """Removes an agent."""
        self._find(self.agents, "agent", agent_id)
        del self.agents[agent_id]
        return {**_written(".plugins-ml-agent", agent_id, "deleted"), "forced_refresh": True}

    def _find(self, documents: dict[str, Json], what: str, given: str) -> Json:
        if given not in documents:
            raise not_found(what, given)
        return documents[given]


_NO_INNER_CONNECTOR = (
    'Cannot invoke "org.opensearch.ml.common.connector.Connector.update('
    'org.opensearch.ml.common.transport.connector.MLCreateConnectorInput, java.util.function.BiFunction)" because '
    '"<local12>" is null'
)


def _action(body: Mapping[str, Any]) -> Json:
    if not str(body.get("url", "")).startswith(("http://", "https://")):
        named = "Connector URL is not matching the trusted connector endpoint regex, URL is: "
        raise _refused(f"{named}{body.get('url')}")
    return {**body, "action_type": str(body["action_type"]).upper()}


def _written(index: str, document_id: str, result: str) -> Json:
    return {
        "_index": index,
        "_id": document_id,
        "_version": 2,
        "result": result,
        "_shards": {"total": 1, "successful": 1, "failed": 0},
        "_seq_no": 1,
        "_primary_term": 1,
    }
