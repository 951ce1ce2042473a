"""Agents: registers, changes, shows and removes them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from gateway.simulator import documents
from gateway.simulator.errors import Json, RestFailure
from gateway.simulator.memory import new_id
from gateway.simulator.settings import MCP_SWITCH, UNIFIED_API
from gateway.simulator.store import Store


class Agents(Store):
    """The agents of a cluster."""

    def register_agent(self, body: Mapping[str, Any]) -> Json:
        """Register an agent, and the executor of a planner. Return ``{"agent_id": …}``.

        Raises:
            RestFailure: as `documents.check_agent`.
        """
        self.check_agent(body)
        document = documents.agent_document(body, self.modern)
        planner = document["type"].lower() == "plan_execute_and_reflect"
        if planner and "executor_agent_id" not in document["parameters"]:
            document["parameters"]["executor_agent_id"] = self._add_agent(documents.executor_of(deepcopy(document)))
        return {"agent_id": self._add_agent(document)}

    def check_agent(self, body: Mapping[str, Any]) -> None:
        """Check the registration of an agent.

        Raises:
            RestFailure: as `documents.check_agent`.
        """
        unified = UNIFIED_API in self.settings.defaults
        documents.check_agent(body, self.modern, unified, self.settings.is_on(MCP_SWITCH))

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
