"""More agents and templates as users have them: `python -m tests.matrix --holdout`.

They were written without a look at the delivery, from what the connector blueprints, agent tutorials and workflow
templates of OpenSearch have in common, and from the request formats of the vendors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.delivery.holdout_llms import HoldoutCore
from tests.delivery.holdout_templates import TEMPLATES
from tests.delivery.simulated_cluster import SimulatedCluster

_DATA = (
    '\n\nHuman:You analyse data. "Facts" come first.\n\n Context:\n${parameters.VectorDBTool.output}\n\n'
    "Human:${parameters.question}\n\nAssistant:"
)
_DATA_CHAT = (
    "\n\nHuman:You analyse data.\nContext:\n${parameters.VectorDBTool.output:-}\n\n${parameters.chat_history:-}\n\n"
    "Human:${parameters.question}\n\nAssistant:"
)
_VEGA = "Make a chart, e.g. {'mark': 'bar', \"x\": [1]}.\nFor ${parameters.question} over ${parameters.index:-logs}:"
_ALERTS = "Summarise the alert ${parameters.context:-};\n The question is: ${parameters.question}."
_REACT = (
    "Assistant has tools.\n${parameters.tool_descriptions}\n\n${parameters.chat_history}\n\n"
    "${parameters.prompt.format_instruction}\n\nHuman: ${parameters.question}\n\n${parameters.scratchpad}\n\n"
    "Human: follow RESPONSE FORMAT INSTRUCTIONS\n\nAssistant:"
)
_R1 = "You call one of these tools, as JSON: [${parameters._tools:-}]. Then answer."
_MEMORY = {"type": "conversation_index"}


class _Bodies:
    """Bodies of ``POST /agents/_register``. models: model id by template."""

    def __init__(self, models: Mapping[str, str], modern: bool) -> None:
        self._models = models
        self.modern = modern
        self._lister = {"type": "ListIndexTool" if modern else "CatIndexTool"}
        found = {"index": "shelves", "embedding_field": "vector", "input": "${parameters.question}"}
        self._search = {**self._lister, "name": "VectorDBTool", "parameters": found}

    def tool(self, template: str, name: str = "llm", shown: bool = False, **parameters: str) -> dict[str, Any]:
        asked = {"model_id": self._models[template], "response_filter": TEMPLATES[template].response_filter}
        tool = {"type": "MLModelTool", "name": name, "description": "A general tool to answer any question"}
        return {**tool, "include_output_in_agent_response": shown, "parameters": {**asked, **parameters}}

    def flow(self, template: str, *more: dict[str, Any], type_: str = "flow", **parameters: str) -> dict[str, Any]:
        tools = [self._search, self.tool(template, **parameters), *more]
        return {"name": f"{type_}-{template}", "type": type_, "tools": tools}

    def one(self, template: str, **parameters: str) -> dict[str, Any]:
        tools = [self.tool(template, **parameters)]
        return {"name": f"one-{template}", "type": "flow", "description": "one tool", "tools": tools}

    def chat_flow(self, template: str, *more: dict[str, Any], **parameters: str) -> dict[str, Any]:
        flow = self.flow(template, *more, type_="conversational_flow", **parameters)
        return {**flow, "app_type": "rag", "memory": _MEMORY}

    def chat(self, template: str, kind: str = "chat", memory: bool = True, **llm: str) -> dict[str, Any]:
        asked = {"max_iteration": "5", "message_history_limit": "5", "disable_trace": "true"}
        if kind == "chat":
            asked["response_filter"] = TEMPLATES[template].response_filter
        body = {
            "name": f"{kind}-{template}",
            "type": "conversational",
            "app_type": "os_chat",
            "llm": {"model_id": self._models[template], "parameters": {**asked, **llm}},
            "tools": [{**self._lister, "include_output_in_agent_response": True}, {"type": "IndexMappingTool"}],
        }
        return {**body, "memory": _MEMORY} if memory else body

    def calling(self, template: str, **llm: str) -> dict[str, Any]:
        interface = TEMPLATES[template].interface or ""
        return {**self.chat(template, "calling", **llm), "parameters": {"_llm_interface": interface}}

    def planner(self, template: str, **parameters: str) -> dict[str, Any]:
        interface = TEMPLATES[template].interface or ""
        body = self.chat(template, "planner", prompt="${parameters.question}")
        return {
            **body,
            "type": "plan_execute_and_reflect",
            "parameters": {"_llm_interface": interface, **parameters},
        }


class HoldoutCluster(SimulatedCluster):
    """A cluster with these agents only.

    Mistral and Jamba take no parts, and Ollama's own API has its images elsewhere, so that no provider has their
    format. They get plain chat.
    """

    def __init__(self, version: str) -> None:
        super().__init__(version, HoldoutCore(version))

    def seed(self) -> None:
        """Register templates and agents."""
        self.templates = TEMPLATES
        models = {name: self.model(name) for name in TEMPLATES}
        for body in _agent_bodies(self.version, models):
            self.register(body)
        for body in _root_agents(self.version, models, self.agents):
            self.register(body)


def _agent_bodies(version: str, models: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the registrations of a version's agents. models: model id by name of `TEMPLATES`."""
    modern = version.startswith("3.")
    new = _Bodies(models, modern)
    second = new.tool("nova_pretty", "Suggestions", True, user_prompt="Ask on: ${parameters.llm.output}")
    yield new.flow("nova_pretty", user_prompt=_DATA)
    yield new.one("converse_typed", user_prompt="${parameters.question}")
    yield new.one("llama_many", context="the shelves")
    yield new.chat_flow("llama_many")
    yield new.flow("mistral_documents", prompt="${parameters.question}", documents="${parameters.VectorDBTool.output}")
    yield new.flow("thinking", prompt=_DATA)
    yield new.chat("thinking", messages='[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]')
    yield new.chat_flow("chatbot", prompt=_DATA_CHAT)
    yield new.chat("chatbot")
    yield new.chat_flow("claude_35", second, prompt=_DATA_CHAT)
    yield new.one("claude_4", prompt=_ALERTS)
    yield new.one("claude_prefill", prompt=_VEGA)
    yield new.one("nova_invoke", prompt="${parameters.question}")
    yield new.one("jamba", inputs="Contract question: ${parameters.question}")
    yield new.flow("mistral_messages", prompt=_DATA)
    yield new.chat_flow("command_r", prompt=_DATA_CHAT)
    yield new.chat("llama_3", prompt=_REACT)
    yield new.flow("r1_invoke", inputs=_DATA)
    yield new.one("json_mode", prompt=_VEGA)
    yield new.chat("messages_default", prompt=_REACT)
    yield new.one("static_tools", prompt=_ALERTS)
    yield new.one("completions", prompt="${parameters.question}")
    yield new.chat_flow("azure", prompt=_DATA_CHAT)
    yield new.flow(
        "gpt_oss",
        messages='[{"role":"user","content":"Facts: ${parameters.VectorDBTool.output:-}"},'
        '{"role":"assistant","content":"Noted."},{"role":"user","content":"${parameters.question}"}]',
    )
    yield new.chat("vllm_qwen", memory=not modern)
    yield new.one("openrouter", input_text="Q: ${parameters.question}")
    yield new.chat_flow("litellm", prompt=_DATA_CHAT)
    yield new.flow("cohere_2", prompt=_DATA)
    yield new.one("cohere_1", inputs=_ALERTS)
    yield new.one("ollama_native", prompt="${parameters.question}")
    yield new.one("sagemaker", inputs="${parameters.question}")
    yield new.one("gemini_snake", prompt=_ALERTS)
    yield new.chat_flow("gemini_default", prompt=_DATA_CHAT)
    if modern:
        yield new.calling("chatbot", prompt="${parameters.question}")
        yield new.calling("own_tools", prompt="${parameters.question}", system_instruction="You are a helper.")
        yield new.calling("reasoning", user_prompt="${parameters.question}", system_prompt='You "plan" queries.')
        yield new.planner("r1_converse", planner_prompt="Plan with care.")
        yield new.calling("r1_converse", prompt="${parameters.question}", system_prompt=_R1)
        yield new.planner("chatbot", executor_system_prompt="You execute.")
        yield new.flow("reasoning", system_prompt="Be exact.", user_prompt="Plan: ${parameters.question}")
    else:
        yield new.chat("r1_converse", system_prompt="You reason.")
        yield new.one("reasoning", system_prompt="Be exact.", user_prompt="Plan: ${parameters.question}")


def _root_agents(version: str, models: Mapping[str, str], agents: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the registrations of agents that run other agents. agents: the others' ids by name."""
    new = _Bodies(models, version.startswith("3."))

    def runs(agent: str) -> dict[str, Any]:
        return {
            "type": "AgentTool",
            "include_output_in_agent_response": True,
            "parameters": {"agent_id": agents[agent]},
        }

    yield {"name": "root-flow", "type": "flow", "tools": [runs("one-json_mode")]}
    if not new.modern:  # from 3.0 on the other agent's answer is inserted raw, so that the template is no JSON
        suggest = new.tool(
            "claude_35", "suggest", prompt="Ask on, ${parameters.question}: ${parameters.AgentTool.output:-}"
        )
        yield {"name": "root-chat", "type": "flow", "tools": [runs("one-json_mode"), suggest]}
