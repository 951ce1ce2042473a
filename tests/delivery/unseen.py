"""Agents and templates as users have them, unlike the matrix's: `python -m tests.matrix --unseen`.

The bodies follow the connector blueprints and agent tutorials of OpenSearch, and the request formats of the vendors.
No rule of the delivery was written for one of them, so they tell how far the rules reach.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.simulator.fixtures import Template
from tests.delivery.simulated_cluster import SimulatedCluster

_BEDROCK = "{llm}/bedrock/model/${parameters.model}/converse"
_INVOKE = "{llm}/bedrock/model/${parameters.model}/invoke"
_OPENAI = "{llm}/openai/v1/chat/completions"
_GEMINI = "{llm}/gemini/v1beta/models/${parameters.model}:generateContent"

_SAMPLING = {"temperature": "0.0", "max_tokens": "8000"}
_CLAUDE = {
    "region": "us-east-1",
    "service_name": "bedrock",
    "model": "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
    "anthropic_version": "bedrock-2023-05-31",
    **_SAMPLING,
}
_CONVERSE_ENDS = '"inferenceConfig":{"maxTokens":${parameters.max_tokens},"temperature":${parameters.temperature}}'
_TOOL = '{"toolSpec":{"name":"weather","inputSchema":{"json":{"type":"object"}}}}'

TEMPLATES: Mapping[str, Template] = {
    # Bedrock InvokeModel, Claude 3
    "invoke_inputs": Template(
        _INVOKE,
        '{"messages":[{"role":"user","content":[{"type":"text","text":"${parameters.inputs}"}]}],'
        '"anthropic_version":"${parameters.anthropic_version}","max_tokens":${parameters.max_tokens},'
        '"temperature":${parameters.temperature}}',
        {**_CLAUDE, "model": "anthropic.claude-3-sonnet-20240229-v1:0"},
    ),
    "invoke_image_slot": Template(
        _INVOKE,
        '{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64",'
        '"media_type":"${parameters.image_type:-image/jpeg}","data":"${parameters.image}"}},'
        '{"type":"text","text":"${parameters.inputs}"}]}],"anthropic_version":"${parameters.anthropic_version}",'
        '"max_tokens":${parameters.max_tokens}}',
        _CLAUDE,
    ),
    "invoke_system": Template(
        _INVOKE,
        '{"anthropic_version":"${parameters.anthropic_version}","system":"${parameters.system_prompt}",'
        '"stop_sequences":${parameters.stop},"max_tokens":${parameters.max_tokens},'
        '"messages":${parameters.messages}}',
        {**_CLAUDE, "system_prompt": 'Answer with \\"I don\'t know\\" if in doubt.', "stop": '["\\n\\nHuman:"]'},
    ),
    "invoke_chat": Template(
        _INVOKE,
        '{"anthropic_version":"bedrock-2023-05-31","max_tokens":1024,"system":"You are a data analyst.",'
        '"messages":[${parameters._chat_history:-}{"role":"user","content":"${parameters.prompt}"}]}',
        _CLAUDE,
    ),
    # Bedrock InvokeModel, text
    "claude_2": Template(
        _INVOKE,
        '{"prompt":"\\n\\nHuman: ${parameters.prompt}\\n\\nAssistant:","max_tokens_to_sample":8000,'
        '"anthropic_version":"${parameters.anthropic_version}","temperature":${parameters.temperature}}',
        {**_CLAUDE, "model": "anthropic.claude-v2:1"},
        answer_filter="$.completion",
    ),
    "titan": Template(
        _INVOKE,
        '{"inputText":"${parameters.inputText}","textGenerationConfig":{"maxTokenCount":${parameters.max_tokens}}}',
        {**_CLAUDE, "model": "amazon.titan-text-express-v1"},
        answer_filter="$.results[0].outputText",
    ),
    # Bedrock Converse
    "converse_inputs": Template(
        _BEDROCK,
        '{"system":[{"text":"${parameters.system_prompt:-You are a helpful assistant.}"}],'
        '"messages":[{"role":"user","content":[{"text":"${parameters.inputs}"}]}],' + _CONVERSE_ENDS + "}",
        _CLAUDE,
    ),
    "converse_typed": Template(
        _BEDROCK,
        '{"system":[{"text":"${parameters.system_prompt}"}],"messages":[{"role":"user","content":[{"type":"text",'
        '"text":"${parameters.user_prompt}"}]}],' + _CONVERSE_ENDS + "}",
        {**_CLAUDE, "system_prompt": "Be brief."},
    ),
    "converse_few_shot": Template(
        _BEDROCK,
        '{"messages":[{"role":"user","content":[{"text":"How many shelves?"}]},'
        '{"role":"assistant","content":[{"text":"{\\"count\\": 12}"}]},'
        '{"role":"user","content":[{"text":"${parameters.prompt}"}]}],' + _CONVERSE_ENDS + "}",
        _CLAUDE,
    ),
    "converse_content": Template(
        _BEDROCK,
        '{"messages":[{"role":"user","content":${parameters.content}}],' + _CONVERSE_ENDS + "}",
        _CLAUDE,
    ),
    "converse_tools": Template(
        _BEDROCK,
        '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}],'
        f'"toolConfig":{{"tools":[{_TOOL}]}},' + _CONVERSE_ENDS + "}",
        _CLAUDE,
    ),
    "converse_agent": Template(
        _BEDROCK,
        '{ "system": [{"text": "${parameters.system_prompt}"}], ' + _CONVERSE_ENDS + ", "
        '"messages": [${parameters._chat_history:-}{"role":"user","content":[{"text":"${parameters.prompt}"}]}'
        "${parameters._interactions:-}]${parameters.tool_configs:-} }",
        _CLAUDE,
        interface="bedrock/converse/claude",
    ),
    # OpenAI's format: DeepSeek, Azure, vLLM, Ollama, Google
    "deepseek": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": ${parameters.messages}, "temperature": 0.7 }',
        {"model": "deepseek-chat", "endpoint": "api.deepseek.com"},
    ),
    "azure": Template(
        "{llm}/openai/deployments/gpt-4o/chat/completions?api-version=2024-06-01",
        '{"messages":[{"role":"system","content":"${parameters.system_instruction:-You are a helpful assistant.}"},'
        '{"role":"user","content":"${parameters.prompt}"}],"temperature":${parameters.temperature}}',
        _SAMPLING,
        answer_filter="$.choices[0].message.content",
    ),
    "vllm": Template(
        _OPENAI,
        '{"model":"${parameters.model}","messages":[{"role":"user","content":"${parameters.prompt}"}],'
        '"stop":["\\nObservation:"],"stream":false,"max_tokens":${parameters.max_tokens}}',
        {"model": "meta-llama/Llama-3.1-8B-Instruct", **_SAMPLING},
    ),
    "ollama": Template(
        _OPENAI,
        '{"messages":[{"role":"system","content":"${parameters.system_prompt}"},'
        '{"role":"user","content":[{"type":"text","text":"${parameters.prompt}"}]}],"model":"${parameters.model}"}',
        {"model": "llama3.2-vision", "system_prompt": "You are a librarian."},
    ),
    "vision_slot": Template(
        _OPENAI,
        '{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"text","text":"${parameters.prompt}"},'
        '{"type":"image_url","image_url":{"url":"${parameters.image_url}"}}]}]}',
        {"image_url": "https://example.org/logo.png"},
    ),
    "openai_agent": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": [{"role":"system","content":"${parameters.system_prompt}"},'
        '${parameters._chat_history:-}{"role":"user","content":"${parameters.prompt}"}${parameters._interactions:-}]'
        '${parameters.tool_configs:-}, "reasoning_effort": "low" }',
        {"model": "gpt-5-mini"},
        interface="openai/v1/chat/completions",
    ),
    "openai_messages": Template(
        _OPENAI,
        '{"model":"${parameters.model}","messages":${parameters.messages}}',
        {"model": "gpt-oss-120b"},
        interface="openai/v1/chat/completions",
    ),
    # Cohere, version 2
    "cohere": Template(
        "{llm}/cohere/v2/chat",
        '{"model":"${parameters.model}","stream":false,"safety_mode":"CONTEXTUAL","messages":[{"role":"system",'
        '"content":"${parameters.system_prompt}"},{"role":"user","content":"${parameters.prompt}"}],'
        '"temperature":${parameters.temperature}}',
        {"model": "command-a-vision-07-2025", "system_prompt": "You are a librarian.", **_SAMPLING},
        answer_filter="$.message.content[0].text",
    ),
    # Gemini
    "gemini_system": Template(
        _GEMINI,
        '{"systemInstruction":{"parts":[{"text":"${parameters.system_prompt}"}]},'
        '"contents":[{"role":"user","parts":[{"text":"${parameters.inputs}"}]}],'
        '"generationConfig":{"temperature":${parameters.temperature}}}',
        {"model": "gemini-2.5-flash", "system_prompt": "You are a librarian.", **_SAMPLING},
    ),
    "gemini_few_shot": Template(
        _GEMINI,
        '{"contents":[{"parts":[{"text":"How many shelves?"}]},{"role":"model","parts":[{"text":"Twelve."}]},'
        '{"parts":[{"text":"${parameters.prompt}"}]}]}',
        {"model": "gemini-2.5-flash"},
    ),
}

_KNOWLEDGE = (
    "You are a professional data analyst. You answer from this context.\n\n"
    "Context:\n${parameters.knowledge.output:-}\n\n"
)
_RAG = f"{_KNOWLEDGE}Human: ${{parameters.question}}\n\nIf you don't know, say \"I don't know\".\n\nAssistant:"
_RAG_CHAT = f"{_KNOWLEDGE}${{parameters.chat_history:-}}\n\nHuman: ${{parameters.question}}\n\nAssistant:"
_REACT = (
    "Assistant uses these tools: ${parameters.tool_names}\n\nCHAT HISTORY:\n${parameters.chat_history}\n\n"
    "Human: ${parameters.question}\n\n${parameters.scratchpad}\nAssistant:"
)
_MESSAGES = json.dumps(
    [
        {"role": "system", "content": "You are a professional data analyst. Context: ${parameters.knowledge.output:-}"},
        {"role": "user", "content": "${parameters.question}"},
    ]
)
_MEMORY = {"type": "conversation_index"}


class _Bodies:
    """Bodies of ``POST /agents/_register``. models: model id by template."""

    def __init__(self, models: Mapping[str, str], modern: bool) -> None:
        self._models = models
        self._lister = {"type": "ListIndexTool" if modern else "CatIndexTool"}
        self._knowledge = {**self._lister, "name": "knowledge"}

    def flow(self, template: str, type_: str = "flow", **parameters: str) -> dict[str, Any]:
        asked = {"model_id": self._models[template], "response_filter": TEMPLATES[template].response_filter}
        if TEMPLATES[template].interface:
            asked["system_prompt"] = "You are a librarian."
        tool = {"type": "MLModelTool", "description": "A general tool", "name": "llm_tool"}
        tools = [self._knowledge, {**tool, "parameters": {**asked, **parameters}}]
        return {"name": f"{type_}-{template}", "type": type_, "description": "as users have it", "tools": tools}

    def chat_flow(self, template: str, **parameters: str) -> dict[str, Any]:
        flow = self.flow(template, "conversational_flow", **parameters)
        return {**flow, "app_type": "rag", "memory": _MEMORY}

    def chat(self, template: str, type_: str = "conversational", kind: str = "chat", **llm: str) -> dict[str, Any]:
        asked = {"max_iteration": "5", "stop_when_no_tool_found": "true"}
        if not TEMPLATES[template].interface:
            asked["response_filter"] = TEMPLATES[template].response_filter
        return {
            "name": f"{kind}-{template}",
            "type": type_,
            "app_type": "os_chat",
            "llm": {"model_id": self._models[template], "parameters": {**asked, **llm}},
            "memory": _MEMORY,
            "tools": [self._lister],
        }

    def calling(self, template: str, **llm: str) -> dict[str, Any]:
        interface = TEMPLATES[template].interface or ""
        return {**self.chat(template, kind="calling", **llm), "parameters": {"_llm_interface": interface}}

    def planner(self, template: str, **parameters: str) -> dict[str, Any]:
        interface = TEMPLATES[template].interface or ""
        body = self.chat(template, "plan_execute_and_reflect", "planner", prompt="${parameters.question}")
        return {**body, "parameters": {"_llm_interface": interface, **parameters}}


class UnseenCluster(SimulatedCluster):
    """A cluster with these agents only."""

    def seed(self) -> None:
        """Register templates and agents."""
        self.templates = TEMPLATES
        for body in _agent_bodies(self.version, {name: self.model(name) for name in TEMPLATES}):
            self.register(body)


def _agent_bodies(version: str, models: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the registrations of a version's agents. models: model id by name of `TEMPLATES`."""
    modern = version.startswith("3.")
    new = _Bodies(models, modern)
    yield new.chat_flow("invoke_inputs", inputs=_RAG_CHAT)
    yield new.flow("invoke_image_slot", inputs="${parameters.question}")
    yield new.chat("invoke_system", prompt=_REACT)
    yield new.chat_flow("invoke_chat", prompt=_RAG)
    yield new.chat_flow("claude_2", prompt=_RAG_CHAT)
    yield new.flow("titan", inputText=_RAG)
    yield new.flow("converse_inputs", inputs=_RAG)
    yield new.chat_flow("converse_few_shot", prompt=_RAG_CHAT)
    yield new.flow("converse_content", content='[{"text":"${parameters.question}"}]')
    yield new.chat_flow("converse_content", prompt=_RAG_CHAT)
    yield new.flow("converse_tools", prompt=_RAG)
    yield new.flow("converse_agent", prompt="${parameters.question}")
    yield new.flow("deepseek", messages=_MESSAGES)
    yield new.chat_flow("azure", prompt=_RAG_CHAT)
    yield new.chat("vllm")
    yield new.chat("ollama", prompt=_REACT)
    yield new.flow("vision_slot", prompt=_RAG)
    yield new.flow("gemini_system", inputs=_RAG)
    yield new.chat_flow("gemini_few_shot", prompt=_RAG_CHAT)
    yield new.flow("converse_typed", user_prompt=_RAG)
    yield new.chat_flow("cohere", prompt=_RAG_CHAT)
    if modern:
        asked = "${parameters.context:-}\n${parameters.question}"
        yield new.calling("converse_agent", prompt=asked, system_prompt="You are a librarian.")
        yield new.calling("openai_agent", prompt="${parameters.question}", system_prompt='Say "hello" first.')
        yield new.chat("openai_agent", system_prompt="You are a librarian.")
        yield new.calling("openai_messages", system_prompt="You are a librarian.")
        yield new.planner("converse_agent", system_prompt="You plan.")
    else:
        yield new.chat("converse_agent", prompt=_REACT, system_prompt="You are a librarian.")
        yield new.chat_flow("openai_agent", prompt=_RAG)
        yield new.chat("converse_tools")
