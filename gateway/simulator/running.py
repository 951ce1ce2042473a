"""What the agents of the simulated cluster use of it while they run."""

from __future__ import annotations

from typing import Protocol

from gateway.simulator.memory import MemoryStore
from gateway.simulator.predict import Run
from gateway.simulator.render import Parameters


class RunningCluster(Protocol):
    """The simulated cluster.

    modern: it is of 3.x. unified: of 3.5 or later. tool_outputs: the output of each type of tool.
    """

    memory: MemoryStore
    tool_outputs: dict[str, str]

    @property
    def modern(self) -> bool:
        """True for 3.x."""

    @property
    def unified(self) -> bool:
        """True for 3.5 and later."""

    def predict(self, model_id: str | None, parameters: Parameters) -> Run:
        """Call a model and return the data map of its answer."""

    def execute_connector(self, connector_id: str | None, parameters: Parameters) -> Run:
        """Call a connector's execute action and return the data map of its answer."""

    def run_agent(self, agent_id: str, parameters: Parameters) -> Run:
        """Run another agent and return the tensors of its answer."""
