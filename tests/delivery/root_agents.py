"""A simulated cluster with flows that run other agents."""

from __future__ import annotations

from typing import Any

from tests.delivery.simulated_cluster import SimulatedCluster

PROMPT = "Shelf:\n${parameters.shelf:-}\nAsked: ${parameters.question}\nAnswer:"


class RootCluster(SimulatedCluster):
    """Flows that run a flow, a flow that runs one, and an agent with memory."""

    def seed(self) -> None:
        """Register them all."""
        super().seed()
        plain = "bedrock_tutorial" if self.core.modern else "d"
        asked = {"model_id": self.model(plain), "prompt": PROMPT}
        if self.core.modern:
            asked["system_prompt"] = "Be brief."
        self._flow("inner", {"type": "MLModelTool", "name": "llm", "parameters": asked})
        self._flow("root", self._runs("inner", shelf="the red one"))
        self._flow("root of root", self._runs("root"))
        conversational = next(name for name in self.agents if name.startswith("conv_own"))
        self._flow("root of chat", self._runs(conversational))

    def _flow(self, name: str, *tools: dict[str, Any]) -> None:
        self.register({"name": name, "type": "flow", "tools": list(tools)})

    def _runs(self, agent: str, **parameters: str) -> dict[str, Any]:
        return {"type": "AgentTool", "parameters": {"agent_id": self.agents[agent], **parameters}}
