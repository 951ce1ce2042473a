"""The usual connectors and agents, for the demo, the matrix and the property tests.

On 2.19 the templates are those of docs/evidence/facts.md ("What arrives"), each with a flow, a conversational_flow and
a conversational agent; on 3.x the tutorial connectors, the upgraded ones, and one that takes whole messages; from 3.5
on also unified V1 agents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from gateway.simulator.core import ClusterCore
from gateway.simulator.settings import UNIFIED_API
from gateway.simulator.unified_fixtures import unified_bodies

_BEDROCK = "{llm}/bedrock/model/${parameters.model}/converse"
_INVOKE = "{llm}/bedrock/model/${parameters.model}/invoke"
_ANTHROPIC = "{llm}/anthropic/v1/messages"
_COHERE = "{llm}/cohere/v2/chat"
_OPENAI = "{llm}/openai/v1/chat/completions"
_GEMINI = "{llm}/gemini/v1beta/models/${parameters.model}:generateContent"

_FILTERS = {
    _BEDROCK: "$.output.message.content[0].text",
    _OPENAI: "$.choices[0].message.content",
    _GEMINI: "$.candidates[0].content.parts[0].text",
    _INVOKE: "$.content[0].text",
    _ANTHROPIC: "$.content[0].text",
    _COHERE: "$.message.content[0].text",
}


@dataclass(frozen=True)
class Template:
    """A connector's request body with its parameters, and the address of its model."""

    url: str
    body: str
    parameters: Mapping[str, str]
    answer_filter: str | None = None
    interface: str | None = None

    @property
    def response_filter(self) -> str:
        """Path of the text in the answer."""
        return self.answer_filter or _FILTERS[self.url]


_SYSTEM = {"system_prompt": "Be brief."}
CLASSIC: Mapping[str, Template] = {
    "a": Template(
        _BEDROCK,
        '{"system":[{"text":"${parameters.system_prompt}"}],"messages":${parameters.messages},'
        '"inferenceConfig":{"maxTokens":${parameters.max_tokens}}}',
        {"model": "claude-3", "max_tokens": "500", **_SYSTEM},
    ),
    "b": Template(_OPENAI, '{"model":"${parameters.model}","messages":${parameters.messages}}', {"model": "gpt-4o"}),
    "c": Template(
        _INVOKE,
        '{"prompt":"${parameters.prompt}","max_tokens_to_sample":${parameters.max_tokens_to_sample}}',
        {"model": "claude-2", "max_tokens_to_sample": "800"},
        answer_filter="$.completion",
    ),
    "d": Template(
        _BEDROCK, '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}', {"model": "claude-3"}
    ),
    "e": Template(
        _GEMINI, '{"contents":[{"role":"user","parts":[{"text":"${parameters.prompt}"}]}]}', {"model": "gemini-2.5-pro"}
    ),
    "e2": Template(_GEMINI, '{"contents":${parameters.contents}}', {"model": "gemini-2.5-pro"}),
    "f": Template(
        _BEDROCK,
        '{"system":[{"text":"${parameters.system_prompt}"}],"messages":[${parameters._chat_history:-}'
        '{"role":"user","content":[{"text":"${parameters.prompt}"}]}${parameters._interactions:-}]'
        "${parameters.tool_configs:-}}",
        {"model": "claude-3", **_SYSTEM},
    ),
    "g": Template(
        _OPENAI,
        '{"model":"${parameters.model}","messages":[{"role":"developer","content":"${parameters.system_instruction}"},'
        '{"role":"user","content":"${parameters.prompt}"}]}',
        {"model": "gpt-4o", "system_instruction": "Be brief."},
    ),
    "h": Template(
        _BEDROCK,
        '{"messages":${parameters.messages}}',
        {"model": "claude-3", "messages": '[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]'},
    ),
    "i": Template(
        _INVOKE,
        '{"anthropic_version":"bedrock-2023-05-31","max_tokens":${parameters.max_tokens},"messages":'
        '[{"role":"user","content":[{"type":"text","text":"${parameters.prompt}"}]}]}',
        {"model": "claude-3", "max_tokens": "1000"},
    ),
    "j": Template(
        _ANTHROPIC,
        '{"model":"${parameters.model}","max_tokens":${parameters.max_tokens},'
        '"system":"${parameters.system_prompt}","messages":${parameters.messages}}',
        {"model": "claude-4", "max_tokens": "1000", **_SYSTEM},
    ),
    "k": Template(
        _COHERE,
        '{"model":"${parameters.model}","stream":false,"messages":[{"role":"system",'
        '"content":"${parameters.system_prompt}"},{"role":"user","content":"${parameters.prompt}"}]}',
        {"model": "command-a-03-2025", **_SYSTEM},
    ),
}

_BR, _OA = "bedrock/converse/claude", "openai/v1/chat/completions"
_BR_FRAME = (
    '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": [${parameters._chat_history:-}USER'
    "${parameters._interactions:-}]${parameters.tool_configs:-} }"
)
_OA_FRAME = (
    '{ "model": "${parameters.model}", "messages": [{"role":"developer","content":"${parameters.system_prompt}"},'
    "${parameters._chat_history:-}USER${parameters._interactions:-}]${parameters.tool_configs:-} }"
)
_BR_USER = '{"role":"user","content":[{"text":"${parameters.prompt}"}]}'
_OA_USER = '{"role":"user","content":"${parameters.prompt}"}'
_CLAUDE = {"model": "claude-3-7"}
MODERN: Mapping[str, Template] = {
    "bedrock_tutorial": Template(_BEDROCK, _BR_FRAME.replace("USER", _BR_USER), _CLAUDE, interface=_BR),
    "openai_tutorial": Template(_OPENAI, _OA_FRAME.replace("USER", _OA_USER), {"model": "gpt-4o"}, interface=_OA),
    "bedrock_upgraded": Template(
        _BEDROCK, _BR_FRAME.replace("USER", "${parameters.body}"), {**_CLAUDE, "body": _BR_USER}, interface=_BR
    ),
    "openai_upgraded": Template(
        _OPENAI, _OA_FRAME.replace("USER", "${parameters.body}"), {"model": "gpt-4o", "body": _OA_USER}, interface=_OA
    ),
    "bedrock_messages": Template(_BEDROCK, CLASSIC["a"].body, CLASSIC["a"].parameters),
    "openai_messages": CLASSIC["b"],
    "gemini_contents": CLASSIC["e2"],
    "gemini_text": CLASSIC["e"],
    "anthropic_messages": CLASSIC["j"],
    "cohere_messages": Template(
        _COHERE,
        '{ "model": "${parameters.model}", "stream": false, "messages": ${parameters.messages} }',
        {"model": "command-a-vision-07-2025"},
    ),
    "invoke_messages": Template(
        _INVOKE,
        '{"anthropic_version":"bedrock-2023-05-31","max_tokens":${parameters.max_tokens},'
        '"system":[{"type":"text","text":"${parameters.system_prompt}"}],"messages":${parameters.messages}}',
        {"model": "anthropic.claude-4", "max_tokens": "1000", **_SYSTEM},
    ),
}

FLOW_PROMPT = "You answer for the library.\n\nAsked: ${parameters.question}\n\nAnswer:"
CONVERSATIONAL_FLOW_PROMPT = (
    "You answer for the library.\n\n${parameters.chat_history:-}\n\nAsked: ${parameters.question}\n\nAnswer:"
)


def templates(version: str) -> Mapping[str, Template]:
    """Return the connector templates of a version, by name."""
    return MODERN if version.startswith("3.") else CLASSIC


def connector_body(name: str, template: Template, llm_url: str) -> dict[str, Any]:
    """Return the body of ``POST /connectors/_create``."""
    return {
        "name": f"connector-{name}",
        "description": "seeded",
        "version": "1",
        "protocol": "http",
        "parameters": dict(template.parameters),
        "credential": {"key": "not-a-secret"},
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": template.url.replace("{llm}", llm_url),
                "headers": {"Content-Type": "application/json", "X-Key": "${credential.key}"},
                "request_body": template.body,
            }
        ],
    }


def agent_bodies(
    version: str, name: str, template: Template, model_id: str, whole: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the bodies of ``POST /agents/_register`` for one model: flow, cflow, conv, and on 3.x fc and per.

    whole: the first two answer with the LLM's whole response, and so with its tokens, and not with the text alone.
    """
    asked = {"model_id": model_id, **({} if whole else {"response_filter": template.response_filter})}
    if template.interface is not None:
        asked["system_prompt"] = "Be brief."

    def tool(prompt: str) -> list[dict[str, Any]]:
        return [{"type": "MLModelTool", "name": "llm", "parameters": {**asked, "prompt": prompt}}]

    memory = {"type": "conversation_index"}
    yield {"name": f"flow-{name}", "type": "flow", "tools": tool(FLOW_PROMPT)}
    common = {"app_type": "rag", "memory": memory}
    yield {"name": f"cflow-{name}", "type": "conversational_flow", **common, "tools": tool(CONVERSATIONAL_FLOW_PROMPT)}
    lister = [{"type": "ListIndexTool" if version.startswith("3.") else "CatIndexTool"}]
    own = {"max_iteration": "5", "response_filter": template.response_filter}
    llm = {
        "model_id": model_id,
        "parameters": {**own, **({"system_prompt": "Be brief."} if template.interface else {})},
    }
    yield {"name": f"conv-{name}", "type": "conversational", "llm": llm, **common, "tools": lister}
    if template.interface is not None:
        calling = {"_llm_interface": template.interface}
        prompt = {"max_iteration": "5", "system_prompt": "Be brief.", "prompt": "${parameters.question}"}
        llm = {"model_id": model_id, "parameters": prompt}
        yield {
            "name": f"fc-{name}",
            "type": "conversational",
            "llm": llm,
            **common,
            "parameters": calling,
            "tools": lister,
        }
        llm = {"model_id": model_id, "parameters": {"prompt": "${parameters.question}"}}
        yield {
            "name": f"per-{name}",
            "type": "plan_execute_and_reflect",
            "llm": llm,
            **common,
            "parameters": calling,
            "tools": lister,
        }


def _seed_unified(core: ClusterCore, llm_url: str) -> Iterator[tuple[str, str]]:
    """Register the V1 agents with the unified API on, and point their connectors at `llm_url`."""
    core.settings.change({"persistent": {UNIFIED_API: "true"}})
    urls = {"bedrock": _BEDROCK, "openai": _OPENAI, "gemini": _GEMINI}
    for body in unified_bodies():
        agent_id = core.register_agent(body)["agent_id"]
        model_id = core.resources.agent(agent_id)["llm"]["model_id"]
        action = core.resources.model(model_id)["connector"]["actions"][0]
        url = urls[body["name"].partition("-")[2]].replace("{llm}", llm_url)
        core.resources.update_model(model_id, {"connector": {"actions": [{**action, "url": url}]}})
        yield body["name"], agent_id


def seed_core(core: ClusterCore, llm_url: str = "http://llm.invalid") -> dict[str, str]:
    """Register everything in `core`. Return agent ids by name, ``flow-a``, ``fc-bedrock_tutorial``, ``v1-openai``, ….

    From 3.5 on, that includes unified V1 agents, and leaves the unified API on.
    """
    agents: dict[str, str] = {}
    for name, template in templates(core.version).items():
        connector = core.resources.create_connector(connector_body(name, template, llm_url))
        model_body = {"name": f"model-{name}", "function_name": "remote", **connector}
        model_id = core.resources.register_model(model_body, deploy=True)["model_id"]
        for body in agent_bodies(core.version, name, template, model_id):
            agents[body["name"]] = core.resources.register_agent(body)["agent_id"]
    if core.unified:
        agents.update(_seed_unified(core, llm_url))
    return agents


async def seed(cluster_url: str, llm_url: str | None = None, whole: bool = False) -> dict[str, str]:
    """Register everything over HTTP, in a simulator or a real cluster. Return agent ids by name.

    llm_url: the address of the models; by default it is read from the simulator (``GET /_simulator``). whole: see
    `agent_bodies`.
    """
    async with _session(cluster_url) as session:
        version = str((await _json(session, "GET", "/"))["version"]["number"])
        if llm_url is None:
            llm_url = str((await _json(session, "GET", "/_simulator"))["llm_url"])
        agents: dict[str, str] = {}
        for name, template in templates(version).items():
            connector = connector_body(name, template, llm_url)
            made = await _json(session, "POST", "/_plugins/_ml/connectors/_create", connector)
            body = {"name": f"model-{name}", "function_name": "remote", "connector_id": made["connector_id"]}
            model = await _json(session, "POST", "/_plugins/_ml/models/_register?deploy=true", body)
            for body in agent_bodies(version, name, template, model["model_id"], whole):
                agent = await _json(session, "POST", "/_plugins/_ml/agents/_register", body)
                agents[body["name"]] = agent["agent_id"]
        return agents


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=url) as session:
        yield session


async def _json(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with session.request(method, path, json=body) as response:
        answer: dict[str, Any] = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {answer}")
        return answer
