"""A simulated cluster with an agent for each type of tool that calls a model, a connector or another agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.execute.rewrite import Rewrite, RewriteOptions, rewrite_input
from gateway.execute.rewriter import new_turn_id
from gateway.simulator.core import Executed
from gateway.simulator.llm import answer_any, openai
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.unified.request import read_execute
from tests.delivery.simulated_cluster import LLM_URL, SimulatedCluster

FILTER = {"response_filter": "$.choices[0].message.content"}
CHAT = '{"messages":[{"role":"system","content":"${parameters.system_prompt:-}"},{"role":"user","content":"%s"}]}'
PLANNING = CHAT % "${parameters.user_prompt}"
PROMPT = CHAT % "${parameters.prompt}"
SERVICE = '{"q":"${parameters.prompt}","x":"${parameters.extra:-none}","m":${parameters.messages:-[]}}'
EMBEDDING = '{"input":"${parameters.input}"}'
CALLING = (
    '{"messages":[{"role":"system","content":"${parameters.system_prompt}"},${parameters._chat_history:-}'
    '{"role":"user","content":"${parameters.prompt}"}${parameters._interactions:-}]${parameters.tool_configs:-}}'
)
NAMED = '{"prompt":"Read ${parameters.question}"}'
ASKED = "Own: ${parameters.question}"
OWN_MESSAGES = '[{"role":"user","content":"Said: ${parameters.question}"}]'
SCHEMA = {"attributes": {"input_schema": '{"type":"object"}', "strict": "false"}}


class ToolCluster(SimulatedCluster):
    """Flows, and on 3.x conversational agents whose LLM calls the tool first."""

    def seed(self) -> None:
        """Register them all."""
        for body in self._bodies():
            self.register(body)

    def connector(self, request_body: str, action: str) -> dict[str, Any]:
        """Return the body of a connector."""
        made = {"action_type": action, "method": "POST", "url": f"{LLM_URL}/v1/chat/completions"}
        connector = {"name": "c", "version": "1", "protocol": "http", "credential": {"key": "k"}, "parameters": FILTER}
        return {**connector, "actions": [{**made, "request_body": request_body}]}

    def template(self, request_body: str, **connector: Any) -> str:
        """Return the id of a new model."""
        made = {**self.connector(request_body, "PREDICT"), **connector}
        model = {"name": f"m{len(self.core.resources.models)}", "function_name": "remote", "connector": made}
        model_id: str = self.core.resources.register_model(model, True)["model_id"]
        return model_id

    def service(self) -> str:
        """Return the id of a new connector for a ConnectorTool."""
        connector_id: str = self.core.resources.create_connector(self.connector(SERVICE, "EXECUTE"))["connector_id"]
        return connector_id

    def _bodies(self) -> Iterator[dict[str, Any]]:
        asking = {"model_id": self.template(PROMPT), "prompt": "Asked: ${parameters.question}"}
        llm = {"type": "MLModelTool", "name": "llm", "parameters": asking}
        tools: dict[str, Mapping[str, Any]] = {
            "ConnectorTool": {"connector_id": self.service(), "prompt": ASKED},
            "PPLTool": {"model_id": self.template(PROMPT)},
            "CreateAlertTool": {"model_id": self.template(PROMPT)},
            "RAGTool": {"inference_model_id": self.template(PROMPT)},
            "VectorDBTool": {"model_id": self.template(EMBEDDING), "input": "${parameters.question}"},
            "NeuralSparseSearchTool": {"model_id": self.template(EMBEDDING), "input": "Find ${parameters.question}"},
        }
        if self.core.modern:
            tools["QueryPlanningTool"] = {"model_id": self.template(PLANNING)}
            yield _flow("input", {"type": "MLModelTool", "parameters": {**asking, "input": NAMED}})
        for type_, parameters in tools.items():
            tool = {"type": type_, "parameters": dict(parameters)}
            yield _flow(type_, tool)
            yield _flow(f"{type_}, llm", tool, llm)
            if "input" not in parameters:
                yield _flow(f"{type_} with input", {**tool, "parameters": {**parameters, "input": NAMED}})
            if self.core.modern:
                yield self._calling(type_, tool)
        whole = {"model_id": self.template('{"messages":${parameters.messages}}')}
        yield _flow("ConnectorTool, messages", _service(self.service()), {**llm, "parameters": whole})
        chat = {"model_id": self.template('{"messages":${parameters.messages:-[]}}'), "messages": OWN_MESSAGES}
        yield _flow("ConnectorTool, own messages", _service(self.service()), {**llm, "parameters": chat})
        if self.core.modern:
            own = {"query_planner_user_prompt": "Plan ${parameters.question}", "query_planner_system_prompt": "Plan."}
            parameters = {**tools["QueryPlanningTool"], **own}
            yield _flow("QueryPlanningTool, own prompts", {"type": "QueryPlanningTool", "parameters": parameters})

    def _calling(self, name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": f"conversational, {name}",
            "type": "conversational",
            "app_type": "rag",
            "memory": {"type": "conversation_index"},
            "parameters": {"_llm_interface": "openai/v1/chat/completions"},
            "llm": {
                "model_id": self.template(CALLING, parameters={}),
                "parameters": {"prompt": "${parameters.question}", "system_prompt": "Be brief.", "max_iteration": "5"},
            },
            "tools": [{**tool, "name": "helper", **SCHEMA}],
        }

    def run(self, name: str, value: Any) -> tuple[Rewrite, Executed]:
        """Send `value` through the gateway to an agent; its LLM calls the tool first.

        Raises:
            UndeliverableContent: the gateway refuses it.
        """
        request = read_execute(json.dumps({"input": value, "parameters": {"index_name": "books"}}).encode())
        assert request.input is not None
        made = rewrite_input(self.profile(name), request, request.input, RewriteOptions(), new_turn_id())
        assert made.body is not None
        self.core.llm = _calls_the_tool
        return made, self.core.execute(self.agents[name], b"".join(made.body))


def _service(connector_id: str) -> dict[str, Any]:
    return {"type": "ConnectorTool", "name": "service", "parameters": {"connector_id": connector_id, "prompt": ASKED}}


def _flow(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": "flow", "tools": list(tools)}


def _calls_the_tool(request: LlmRequest) -> LlmReply:
    body = json.loads(request.body)
    if not isinstance(body, dict) or not body.get("tools"):
        return answer_any(request)
    is_called = any(turn.get("role") == "tool" for turn in body["messages"])
    called = {"question": "a book", "index_name": "books"}
    answer = openai.answer("Done.") if is_called else openai.tool_call("", "helper", called, "call-1")
    return LlmReply(200, json.dumps(answer))
