"""V2 agents on a simulated cluster, and the gateway's rewrite before them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from gateway.errors import GatewayError
from gateway.execute.rewrite import RewriteOptions, rewrite_native
from gateway.execute.rewriter import new_turn_id
from gateway.mlcommons.profile import AgentProfile
from gateway.simulator.core import ClusterCore
from gateway.simulator.llm import LlmEndpoints, answer_any
from gateway.simulator.settings import UNIFIED_API
from gateway.simulator.unified_fixtures import MODELS
from gateway.unified.request import read_execute
from tests.delivery.simulated_cluster import LLM_URL, Pairs, Sent, SimulatedCluster

PATHS = {
    "bedrock": "/bedrock/model/claude-3-7/converse",
    "openai": "/openai/v1/chat/completions",
    "gemini": "/gemini/v1beta/models/gemini-2.5-pro:generateContent",
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "v2": {},
    "v2_tools": {"tools": [{"type": "ListIndexTool"}]},
    "v2_system": {"parameters": {"system_prompt": "You keep the library."}, "tools": [{"type": "ListIndexTool"}]},
}
MEMORY = {"type": "agentic_memory", "memory_container_id": "container"}


def register_v2(core: ClusterCore) -> dict[str, str]:
    """Register V2 agents whose models are the simulated LLM; return their ids by name."""
    agents: dict[str, str] = {}
    for kind, more in KINDS.items():
        for provider, model in MODELS.items():
            body = {"name": f"{kind}-{provider}", "type": "conversational_v2", "model": model, "memory": MEMORY}
            agent_id = core.register_agent({**body, **more})["agent_id"]
            model_id = core.resources.agent(agent_id)["llm"]["model_id"]
            action = core.resources.model(model_id)["connector"]["actions"][0]
            changed = {"connector": {"actions": [{**action, "url": LLM_URL + PATHS[provider]}]}}
            core.resources.update_model(model_id, changed)
            agents[body["name"]] = agent_id
    return agents


class V2Cluster(SimulatedCluster):
    """A cluster of V2 agents only, but for those on Gemini, whose answers it can't read."""

    def seed(self) -> None:
        """Register the agents."""
        self.core.settings.change({"persistent": {UNIFIED_API: True}})
        self.agents = {name: id_ for name, id_ in register_v2(self.core).items() if not name.endswith("gemini")}

    def _profile(self, name: str) -> AgentProfile:
        return replace(super()._profile(name), unified_api=True)

    def send(
        self,
        name: str,
        body: Mapping[str, Any],
        pairs: Pairs = (),
        policy: RewriteOptions | None = None,
        memory_id: str | None = None,
        strict: bool = True,
        streaming: bool = False,
    ) -> Sent:
        """See `SimulatedCluster.send`. What memory stores is judged by a later turn."""
        assert not streaming, "V2 agents can't stream"
        assert not pairs, "their sessions hold messages"
        parameters = dict(body.get("parameters") or {})
        if memory_id:
            parameters["memory_id"] = memory_id
        data = json.dumps({**body, **({"parameters": parameters} if parameters else {})}).encode()
        request = read_execute(data)
        assert request.input is not None
        try:
            made = rewrite_native(
                self.profile(name), request, request.input, False, new_turn_id(), policy or RewriteOptions()
            )
        except GatewayError as error:
            return Sent(request.input, None, error, None)
        self.core.llm = LlmEndpoints() if strict else answer_any
        executed = self.core.execute(self.agents[name], data if made.body is None else b"".join(made.body))
        return Sent(request.input, made, None, executed)

    def forget(self) -> None:
        """Empty all sessions."""
        self.core.sessions.clear()


@cache
def v2_cluster_of(version: str) -> V2Cluster:
    """Return the cluster of a version, created once."""
    return V2Cluster(version)
