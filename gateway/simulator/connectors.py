"""Connectors: registers, changes, shows and removes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator import documents
from gateway.simulator.errors import Json, RestFailure
from gateway.simulator.memory import new_id
from gateway.simulator.models import Models
from gateway.simulator.settings import MCP_SWITCH
from gateway.simulator.store import without_credential


class Connectors(Models):
    """The connectors of a cluster, and the models that use them."""

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
        return without_credential(self._find(self.connectors, "connector", connector_id))

    def update_connector(self, connector_id: str, body: Mapping[str, Any]) -> Json:
        """Change a connector that no loaded model uses. The credential does not change."""
        self._check_words(body, "Model connector name", "Model connector description")
        document = self._find(self.connectors, "connector", connector_id)
        loaded = self.deployments.loaded(self.clock())
        users = self._found_by("model", {"match": {"connector_id": connector_id}}, loaded)
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
