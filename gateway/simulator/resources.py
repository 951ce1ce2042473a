"""The connectors, models and agents of a cluster."""

from __future__ import annotations

from gateway.simulator.agents import Agents
from gateway.simulator.connectors import Connectors
from gateway.simulator.errors import Json


class Resources(Connectors, Agents):
    """The documents of a cluster, by id, and the operations on them."""

    def _shown(self, kind: str, name: str) -> Json:
        return {"connector": self.connector, "model": self.model, "agent": self.agent}[kind](name)
