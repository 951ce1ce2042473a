"""The connectors, models and agents of a cluster."""

from __future__ import annotations

from gateway.simulator.agents import Agents
from gateway.simulator.connectors import Connectors
from gateway.simulator.errors import Json


class Resources(Connectors, Agents):
    """The documents of a cluster, by id, and the operations on them."""

    def _shown(self, kind: str, name: str) -> Json:
        shown = {"connector": self.connector, "model": self.model, "model_group": self.group, "agent": self.agent}
        return shown[kind](name)
