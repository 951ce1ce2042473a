"""More agents and templates as users have them: `python -m tests.matrix --holdout`.

They were written without a look at the delivery, from what the connector blueprints, agent tutorials and workflow
templates of OpenSearch have in common, and from the request formats of the vendors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gateway.agents.rules import Rule
from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import Template
from gateway.simulator.llm import bedrock, gemini, openai
from gateway.simulator.llm.checks import Refused, a_list, a_text, an_object, need
from gateway.simulator.llm.endpoints import ANSWER, answer_any
from gateway.simulator.predict import LlmReply, LlmRequest
from tests.delivery.simulated_cluster import SimulatedCluster

_RUNTIME = "https://bedrock-runtime.${parameters.region}.amazonaws.com/model"
_CONVERSE = f"{_RUNTIME}/${{parameters.model}}/converse"
_OPENAI = "https://api.openai.com/v1/chat/completions"
_GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/${parameters.model}:generateContent"

_OF_CONVERSE, _OF_CLAUDE = "$.output.message.content[0].text", "$.content[0].text"
_OF_OPENAI, _OF_GEMINI = "$.choices[0].message.content", "$.candidates[0].content.parts[0].text"
_AWS = {"region": "us-west-2", "service_name": "bedrock"}
_CLAUDE = {**_AWS, "anthropic_version": "bedrock-2023-05-31", "max_tokens": "8000", "temperature": "0.0001"}
_CHAT = "${parameters._chat_history:-}"
_ACTS = "${parameters._interactions:-}"


def _pretty(body: Any) -> str:
    """The body over many lines. A text ``raw:x`` is the placeholder ``${parameters.x}`` without quotes."""
    return re.sub(r'"raw:([\w.:-]+)"', r"${parameters.\1}", json.dumps(body, indent=2))


_FUNCTION = {"name": "find_book", "parameters": {"type": "object", "properties": {"title": {"type": "string"}}}}
_STATIC_TOOLS = json.dumps([{"type": "function", "function": _FUNCTION}])

TEMPLATES: Mapping[str, Template] = {
    # Bedrock Converse
    "nova_pretty": Template(
        _CONVERSE,
        _pretty(
            {
                "system": [{"text": "${parameters.system_prompt:-You help the readers of a library.}"}],
                "messages": [{"role": "user", "content": [{"text": "${parameters.user_prompt}"}]}],
                "inferenceConfig": {"maxTokens": "raw:max_tokens", "topP": "raw:top_p:-0.9"},
            }
        ),
        {**_AWS, "model": "us.amazon.nova-pro-v1:0", "max_tokens": "4096"},
        answer_filter=_OF_CONVERSE,
    ),
    "converse_typed": Template(
        f"{_RUNTIME}/us.anthropic.claude-sonnet-4-20250514-v1:0/converse",
        '{"system":[{"text":"${parameters.system_prompt}"}],'
        '"messages":[{"role":"user","content":[{"type":"text","text":"${parameters.user_prompt}"}]}]}',
        {**_AWS, "system_prompt": "Judge strictly."},
        answer_filter=_OF_CONVERSE,
    ),
    "llama_many": Template(
        _CONVERSE,
        '{"system":[{"text":"Answer from: ${parameters.context:-nothing}. Today is ${parameters.date:-unknown}."}],'
        '"messages":[{"role":"user","content":[{"text":"So far: ${parameters.chat_history:-}\\n\\n'
        'Question: ${parameters.question}\\n\\nReply in ${parameters.language:-English}."}]}],'
        '"inferenceConfig":{"maxTokens":512}}',
        {**_AWS, "model": "meta.llama3-1-70b-instruct-v1:0"},
        answer_filter=_OF_CONVERSE,
    ),
    "mistral_documents": Template(
        _CONVERSE,
        '{"system":[{"text":"You cite your sources."},{"cachePoint":{"type":"default"}}],'
        '"messages":[{"role":"user","content":[{"text":"Documents:\\n${parameters.documents:-none}"},'
        '{"text":"${parameters.prompt}"}]}],"inferenceConfig":{"temperature":${parameters.temperature}}}',
        {**_AWS, "model": "mistral.mistral-large-2407-v1:0", "temperature": "0.2"},
        answer_filter=_OF_CONVERSE,
    ),
    "thinking": Template(
        _CONVERSE,
        '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": ${parameters.messages} , '
        '"inferenceConfig": {"maxTokens": ${parameters.max_tokens}}, "additionalModelRequestFields": '
        '{"thinking": {"type": "enabled", "budget_tokens": ${parameters.budget_tokens}}} }',
        {**_CLAUDE, "model": "us.anthropic.claude-3-7-sonnet-20250219-v1:0", "budget_tokens": "2000"}
        | {"system_prompt": "You are a helpful assistant."},
        answer_filter=_OF_CONVERSE,
    ),
    "chatbot": Template(
        _CONVERSE,
        '{"messages": [' + _CHAT + '{"role":"user","content":[{"text":"${parameters.prompt:-}"}]}' + _ACTS + "]"
        "${parameters.tool_configs:-}}",
        {**_AWS, "model": "us.anthropic.claude-sonnet-5"},
        answer_filter=_OF_CONVERSE,
        interface="bedrock/converse/claude",
    ),
    "r1_converse": Template(
        _CONVERSE,
        '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": [' + _CHAT + '{"role":"user","content":'
        '[{"text":"${parameters.prompt}"}]}' + _ACTS + "] }",
        {**_AWS, "model": "us.deepseek.r1-v1:0"},
        answer_filter=_OF_CONVERSE,
        interface="bedrock/converse/deepseek_r1",
    ),
    # Bedrock InvokeModel
    "claude_35": Template(
        f"{_RUNTIME}/anthropic.claude-3-5-sonnet-20241022-v2:0/invoke",
        _pretty(
            {
                "anthropic_version": "${parameters.anthropic_version}",
                "max_tokens": "raw:max_tokens",
                "system": [{"type": "text", "text": "Use <answer> tags.", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "<q>${parameters.prompt}</q>"}]},
                ],
                "stop_sequences": ["</answer>"],
            }
        ),
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "claude_4": Template(
        f"{_RUNTIME}/us.anthropic.claude-opus-4-20250514-v1:0/invoke",
        '{ "anthropic_version": "${parameters.anthropic_version}", "max_tokens": ${parameters.max_tokens}, '
        '"messages": ${parameters.messages}, "thinking": {"type": "enabled", "budget_tokens": 1024 } }',
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "claude_prefill": Template(
        f"{_RUNTIME}/anthropic.claude-3-haiku-20240307-v1:0/invoke",
        '{"anthropic_version":"bedrock-2023-05-31","max_tokens":1024,"system":"You speak JSON only.","messages":['
        '{"role":"user","content":"${parameters.prompt}"},{"role":"assistant","content":"{"}]}',
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "nova_invoke": Template(
        f"{_RUNTIME}/amazon.nova-lite-v1:0/invoke",
        '{"schemaVersion":"messages-v1","system":[{"text":"Be kind."}],"messages":[{"role":"user","content":'
        '[{"text":"${parameters.prompt}"}]}],"inferenceConfig":{"max_new_tokens":500}}',
        _AWS,
        answer_filter=_OF_CONVERSE,
    ),
    "jamba": Template(
        f"{_RUNTIME}/ai21.jamba-1-5-large-v1:0/invoke",
        '{"messages":[{"role":"system","content":"You read contracts."},{"role":"user","content":'
        '"${parameters.inputs}"}],"max_tokens":1000}',
        _AWS,
        answer_filter=_OF_OPENAI,
    ),
    "mistral_messages": Template(
        f"{_RUNTIME}/mistral.mistral-large-2402-v1:0/invoke",
        '{"messages":${parameters.messages},"max_tokens":512}',
        _AWS,
        answer_filter=_OF_OPENAI,
    ),
    "command_r": Template(
        f"{_RUNTIME}/cohere.command-r-plus-v1:0/invoke",
        '{"message":"${parameters.prompt}","chat_history":[{"role":"USER","message":"Be brief."},{"role":"CHATBOT",'
        '"message":"I will."}],"preamble":"${parameters.preamble:-You help.}","max_tokens":400}',
        _AWS,
        answer_filter="$.text",
    ),
    "llama_3": Template(
        f"{_RUNTIME}/meta.llama3-8b-instruct-v1:0/invoke",
        '{"prompt":"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n${parameters.system_prompt}<|eot_id|>'
        "<|start_header_id|>user<|end_header_id|>\\n${parameters.prompt}<|eot_id|><|start_header_id|>assistant"
        '<|end_header_id|>\\n","max_gen_len":${parameters.max_gen_len:-512}}',
        {**_AWS, "system_prompt": "You are terse."},
        answer_filter="$.generation",
    ),
    "r1_invoke": Template(
        f"{_RUNTIME}/deepseek.r1-v1:0/invoke",
        '{ "prompt": "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>${parameters.inputs}'
        '<\uff5cAssistant\uff5c>", "temperature": ${parameters.temperature}, '
        '"max_gen_len": ${parameters.max_gen_len} }',
        {**_AWS, "temperature": "0", "max_gen_len": "4000"},
        answer_filter="$.choices[0].text",
    ),
    # OpenAI
    "json_mode": Template(
        _OPENAI,
        '{"model":"gpt-4o-mini","response_format":{"type":"json_object"},"messages":[{"role":"system","content":'
        '"You are an AI that speaks only JSON, such as {\\"response\\": [\\"question1\\", \\"C:\\\\\\\\temp\\"]}."},'
        '{"role":"user","content":"${parameters.prompt}\\nJSON:"}]}',
        {"temperature": "0"},
        answer_filter=_OF_OPENAI,
    ),
    "reasoning": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": [{"role":"developer","content":"${parameters.system_prompt}"},'
        + _CHAT
        + '{"role":"user","content":"${parameters.user_prompt}"}'
        + _ACTS
        + '], "reasoning_effort":"low","max_completion_tokens":${parameters.max_completion_tokens:-9000}'
        "${parameters.tool_configs:-}}",
        {"model": "o4-mini"},
        answer_filter=_OF_OPENAI,
        interface="openai/v1/chat/completions",
    ),
    "own_tools": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": [{"role":"developer","content":'
        '"${parameters.system_instruction}"},'
        + _CHAT
        + '{"role":"user","content":"${parameters.prompt}"}'
        + _ACTS
        + '], "tools": [${parameters._tools:-}],"parallel_tool_calls":${parameters.parallel_tool_calls},'
        '"tool_choice": "${parameters.tool_choice}" }',
        {"model": "gpt-4o"},
        answer_filter=_OF_OPENAI,
        interface="openai/v1/chat/completions",
    ),
    "static_tools": Template(
        _OPENAI,
        '{"model":"gpt-4.1","tools":' + _STATIC_TOOLS + ',"tool_choice":"none","messages":[{"role":"user","content":['
        '{"type":"text","text":"${parameters.prompt}"}]}]}',
        {},
        answer_filter=_OF_OPENAI,
    ),
    "messages_default": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": ${parameters.messages} }',
        {
            "model": "gpt-3.5-turbo",
            "messages": json.dumps(
                [
                    {"role": "system", "content": 'Style: ${parameters.style:-plain}. "Quote" nothing.'},
                    {"role": "user", "content": "Example?"},
                    {"role": "assistant", "content": '{"answer": "like this"}'},
                    {"role": "user", "content": "${parameters.prompt}"},
                ]
            ),
        },
        answer_filter=_OF_OPENAI,
    ),
    "completions": Template(
        "https://api.openai.com/v1/completions",
        '{ "model": "${parameters.model}", "prompt": "${parameters.prompt}", "max_tokens": ${parameters.max_tokens} }',
        {"model": "gpt-3.5-turbo-instruct", "max_tokens": "7"},
        answer_filter="$.choices[0].text",
    ),
    # OpenAI's format elsewhere
    "azure": Template(
        "https://${parameters.endpoint}/openai/deployments/${parameters.deploy-name}/chat/completions"
        "?api-version=${parameters.api-version}",
        '{ "messages": ${parameters.messages}, "temperature": ${parameters.temperature} }',
        {"endpoint": "library.openai.azure.com", "deploy-name": "gpt-4", "api-version": "2024-02-15-preview"}
        | {"temperature": "0.7"},
        answer_filter=_OF_OPENAI,
    ),
    "gpt_oss": Template(
        "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1/chat/completions",
        '{ "model": "${parameters.bedrock_model_id}", "messages": ${parameters.messages}, "stream": false }',
        {"service_name": "bedrock", "bedrock_model_id": "openai.gpt-oss-120b-1:0"},
        answer_filter=_OF_OPENAI,
    ),
    "vllm_qwen": Template(
        "http://vllm.internal:8000/v1/chat/completions",
        '{"model":"Qwen/Qwen2.5-VL-7B-Instruct","messages":[{"role":"system","content":"You see."},{"role":"user",'
        '"content":"${parameters.prompt}"}],"chat_template_kwargs":{"enable_thinking":false},"n":${parameters.n}}',
        {"n": "1"},
        answer_filter=_OF_OPENAI,
    ),
    "openrouter": Template(
        "https://openrouter.ai/api/v1/chat/completions",
        _pretty(
            {
                "model": "${parameters.model}",
                "provider": {"order": ["together"]},
                "messages": [{"role": "user", "content": [{"type": "text", "text": "${parameters.input_text}"}]}],
            }
        ),
        {"model": "mistralai/mixtral-8x7b-instruct"},
        answer_filter=_OF_OPENAI,
    ),
    "litellm": Template(
        "http://litellm:4000/chat/completions",
        '{"model":"claude","messages":[{"role":"system","content":"${parameters.system_prompt}"},'
        '{"role":"user","content":"${parameters.prompt}"}],"user":"${parameters.user:-nobody}",'
        '"metadata":{"tags":["${parameters.tag:-search}"]}}',
        {"system_prompt": 'Context of the shop: \\"${parameters.shop:-all}\\"'},
        answer_filter=_OF_OPENAI,
    ),
    # others
    "cohere_2": Template(
        "https://api.cohere.com/v2/chat",
        '{ "model": "${parameters.model}", "stream": false, "messages": ${parameters.messages} }',
        {"model": "command-r-plus"},
        answer_filter="$.message.content[0].text",
    ),
    "cohere_1": Template(
        "https://api.cohere.ai/v1/chat",
        '{ "message": "${parameters.inputs}", "model": "${parameters.model}" }',
        {"model": "command"},
        answer_filter="$.text",
    ),
    "ollama_native": Template(
        "http://localhost:11434/api/chat",
        '{"model":"llama3.2","stream":false,"messages":[{"role":"user","content":"${parameters.prompt}"}]}',
        {},
        answer_filter="$.message.content",
    ),
    "sagemaker": Template(
        "https://runtime.sagemaker.us-east-1.amazonaws.com/endpoints/mistral/invocations",
        '{ "inputs": "${parameters.inputs}", "parameters": {"do_sample": ${parameters.do_sample}, '
        '"max_new_tokens": ${parameters.max_new_tokens}} }',
        {"service_name": "sagemaker", "do_sample": "true", "max_new_tokens": "512"},
        answer_filter="$.generated_text",
    ),
    "gemini_snake": Template(
        _GEMINI,
        '{"system_instruction":{"parts":[{"text":"${parameters.system_prompt}"}]},"contents":[{"role":"user","parts":'
        '[{"text":"${parameters.prompt}"}]}],"generation_config":{"temperature":0},"tools":[{"google_search":{}}]}',
        {"model": "gemini-2.0-flash", "system_prompt": "You search."},
        answer_filter=_OF_GEMINI,
    ),
    "gemini_default": Template(
        _GEMINI,
        '{ "contents": ${parameters.contents} }',
        {"model": "gemini-1.5-pro", "contents": '[{"role":"user","parts":[{"text":"Hello. ${parameters.prompt}"}]}]'},
        answer_filter=_OF_GEMINI,
    ),
}

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
    """A cluster with these agents only."""

    # Cohere takes OpenAI's messages, and Nova those of Converse. Mistral and Jamba take no parts, and Ollama's own API
    # has its images elsewhere, so that no provider has their format: they get plain chat.
    advised_rules = (
        Rule("flow-cohere_2", "openai/v1/chat/completions"),
        Rule("one-nova_invoke", "bedrock/converse"),
    )

    def __init__(self, version: str) -> None:
        super().__init__(version, _Core(version))

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


class _Core(ClusterCore):
    """A cluster whose models may have APIs that no agent of the simulator uses."""

    @property
    def llm(self) -> Callable[[LlmRequest], LlmReply]:
        return self._llm

    @llm.setter
    def llm(self, usual: Callable[[LlmRequest], LlmReply]) -> None:
        self._llm = partial(_answer, usual)


_OTHER_ANSWER = json.dumps(
    {
        "text": ANSWER,
        "generation": ANSWER,
        "generated_text": ANSWER,
        "message": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
        "choices": [{"text": ANSWER, "message": {"role": "assistant", "content": ANSWER}}],
        "output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}},
        "candidates": [{"content": {"role": "model", "parts": [{"text": ANSWER}]}}],
    }
)


def _answer(usual: Callable[[LlmRequest], LlmReply], request: LlmRequest) -> LlmReply:
    """Answer a call. usual: answers the APIs that the simulator has, and checks what it receives or not."""
    path = urlsplit(request.url).path
    check = next((check for pattern, check in _OTHERS if re.search(pattern, path)), None)
    if check is None:
        return usual(request)
    if usual is not answer_any:
        try:
            check(json.loads(request.body))
        except (Refused, ValueError) as problem:
            return LlmReply(400, json.dumps({"message": str(problem)}))
    return LlmReply(200, _OTHER_ANSWER)


def _completed(name: str, *others: str) -> Callable[[Any], None]:
    """Return the check of a body with a text to complete, the member `name`."""

    def check(body: Any) -> None:
        need(isinstance(body, dict) and not {*body} - {name, *others}, "body: unknown fields")
        a_text(body.get(name), name)

    return check


def _texts_only(body: Any) -> None:
    """Check a body in OpenAI's format for a model that takes strings only."""
    for message in a_list(an_object(body, "body", {"messages", "max_tokens"})["messages"], "messages"):
        need(isinstance(message.get("content"), str), "messages: content must be a string")
    openai.check_deployment(body)


def _nova(body: Any) -> None:
    bedrock.check({name: value for name, value in body.items() if name != "schemaVersion"})


def _typed(body: Any) -> None:
    """Converse ignores members that it does not know, such as the `type` of a block."""
    for message in body["messages"]:
        for block in message["content"]:
            block.pop("type", None)
    bedrock.check(body)


def _in_any_case(body: Any) -> None:
    """Gemini's members may be written with underscores too."""
    gemini.check({re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in body.items()})


_OTHERS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    (r"claude-sonnet-4-20250514[^/]*/converse$", _typed),
    (r"/amazon\.nova[^/]*/invoke$", _nova),
    (r":generateContent$", _in_any_case),
    (r"/(ai21|mistral)\.[^/]*/invoke$", _texts_only),
    (r"/cohere\.[^/]*/invoke$", _completed("message", "chat_history", "preamble", "max_tokens")),
    (r"/(meta|deepseek)\.[^/]*/invoke$", _completed("prompt", "temperature", "max_gen_len")),
    (r"/v1/completions$", _completed("prompt", "model", "max_tokens")),
    (r"/v1/chat$", _completed("message", "model")),
    (r"/v2/chat$|/api/chat$", openai.check),
    (r"/invocations$", _completed("inputs", "parameters")),
)
