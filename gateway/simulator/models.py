"""Models: registers, changes, deploys, shows and removes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator import documents
from gateway.simulator.deployments import Deployments, Loaded
from gateway.simulator.documents import refused
from gateway.simulator.errors import ExecuteFailure, Json, NoAnswer, RestFailure
from gateway.simulator.interface_check import default_interface
from gateway.simulator.memory import new_id
from gateway.simulator.model_groups import GroupRead, ModelGroups
from gateway.simulator.settings import AUTO_DEPLOY, SAFE_DELETE, Settings
from gateway.simulator.store import NODE, without_credential


class Models(ModelGroups):
    """The models of a cluster, and their groups.

    A model registered with ``deploy=true`` is deployed after `deploy_seconds` (recorded: 3.x first shows it as
    registered).
    """

    def __init__(self, modern: bool, settings: Settings | None = None, refresh_seconds: float = 0.0) -> None:
        super().__init__(modern, settings, refresh_seconds)
        self.deploy_seconds = 0.0
        self.deployments = Deployments(self._stored)

    def _stored(self, model_id: str) -> tuple[Json, Json] | None:
        """Return a model and its connector; None if one of them is missing."""
        model = self.models.get(model_id)
        connector = model and (model.get("connector") or self.connectors.get(model.get("connector_id", "")))
        return (model, connector) if model and connector else None

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
        return self._read_group(body)

    def finish_model(self, body: Mapping[str, Any], deploy: bool, read: GroupRead) -> Json:
        """Add the model to its group.

        Raises:
            Answer: see `_next_version`.
        """
        group_id, version = self._next_version(body, read)
        model_id = new_id()
        stamp = self.millis()
        model: Json = {
            "name": body["name"],
            "model_group_id": group_id,
            "algorithm": "REMOTE",
            "model_version": str(version),
            "created_time": stamp,
            "last_updated_time": stamp,
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
        self.deployments.add(model_id, self.clock() + self.deploy_seconds if deploy else None)
        return {"task_id": new_id(), "status": "CREATED", "model_id": model_id}

    def model(self, model_id: str) -> Json:
        """Return the model as GET shows it."""
        document = self._find(self.models, "model", model_id)
        shown = {**document, **self.deployments.shown(model_id, self.clock(), document["last_updated_time"])}
        if "connector" in document:
            shown["connector"] = without_credential(document["connector"])
        return {**shown, "is_hidden": False}

    def profile(self, model_id: str) -> Json:
        """Return the answer of GET ``profile/models/{id}``: empty unless the model is loaded."""
        return self.deployments.profile(model_id, self.clock())

    def is_deployed(self, model_id: str) -> bool:
        """Return True if the model's document says DEPLOYED."""
        return self.deployments.is_deployed(model_id, self.clock())

    def use(self, model_id: str) -> Loaded:
        """Return the model for a call, loaded if need be.

        Raises:
            ExecuteFailure: 404, there is no such model or connector.
            NoAnswer: it is not loaded, and models are not deployed automatically.
        """
        found = self.deployments.use(model_id, self.clock(), self.settings.is_on(AUTO_DEPLOY))
        if found is not None:
            return found
        if self._stored(model_id) is not None:
            raise NoAnswer
        what = "connector" if model_id in self.models else "model"
        raise ExecuteFailure(404, "OpenSearchStatusException", f"Failed to find {what}")

    def update_model(self, model_id: str, body: Mapping[str, Any]) -> Json:
        """Change a model: its connector's parameters are merged, its actions replaced.

        It takes effect at once if the document says DEPLOYED, otherwise when the model is loaded again.
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
        self.deployments.changed(model_id, self.clock())
        return self._written("model", model_id, "updated")

    def _no_inner_connector(self) -> RestFailure:
        if self.modern:
            return RestFailure(400, "status_exception", _NO_INNER_CONNECTOR)
        return RestFailure(500, "null_pointer_exception", _NULL_INNER_CONNECTOR)

    def deploy_model(self, model_id: str) -> Json:
        """Deploy a model. One that is loaded is not loaded again."""
        self._require_model(model_id)
        self._writing("model", model_id)
        self.deployments.deploy(model_id, self.clock())
        self._refresh("model")
        return {"task_id": new_id(), "task_type": "DEPLOY_MODEL", "status": "COMPLETED"}

    def undeploy_models(self, model_ids: list[str] | None) -> Json:
        """Undeploy models. The next use of a model loads it again. A model that no node runs is "not_found".

        The index is refreshed if a document changes (31_deploy_states_remedies, swap_auto_deployed).
        """
        if not model_ids:
            raise refused("Must set specific model ids to undeploy")
        if len(model_ids) == 1:
            self._require_model(model_ids[0])
        return {NODE: {"stats": {model_id: self._undeploy(model_id) for model_id in model_ids}}}

    def _undeploy(self, model_id: str) -> str:
        if model_id not in self.models or not self.deployments.undeploy(model_id, self.clock()):
            return "not_found"
        self._writing("model", model_id)
        self._refresh("model")
        return "undeployed"

    def _require_model(self, model_id: str) -> None:
        if model_id not in self.models:
            raise RestFailure(404, "status_exception", "Failed to find model")

    def delete_model(self, model_id: str) -> Json:
        """Remove a model that is not deployed and, with the setting on, that no agent's tool uses.

        One that was loaded by its use goes on answering (32, delete_auto_deployed).
        """
        self._require_model(model_id)
        if self.is_deployed(model_id):
            raise RestFailure(400, "status_exception", _STILL_DEPLOYED)
        if self.settings.is_on(SAFE_DELETE):
            users = self._found_by("agent", {"term": {"tools.parameters.model_id": model_id}})
            if users:
                named = f"{len(users)} agents are still using this model, please delete or update the agents first, "
                raise RestFailure(409, "status_exception", f"{named}all visible agents are: [{', '.join(users)}]")
        self.deployments.forget(model_id)
        return self._delete("model", model_id)


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
