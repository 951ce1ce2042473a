"""Registers connectors, models and agents on a cluster the old way: plain HTTP, no `model` block, no `input`.

What it makes: agent types × connector templates × providers. `GET` shows the same documents on 3.0–3.4.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import urllib3

from . import cluster

MODEL = "us.anthropic.claude-3-7-sonnet-20250219-v1:0"
SYSTEM = "Be terse."
FLOW_PROMPT = "\n\nHuman: ${parameters.question}\n\nAssistant:"
CFLOW_PROMPT = "\n\nHistory:\n${parameters.chat_history:-}\n\nHuman: ${parameters.question}\n\nAssistant:"

TEMPLATES = ("tutorial", "upgraded", "array")
TYPES = ("flow", "cflow", "conv_react", "conv_tools", "per")


class Wire(msgspec.Struct, frozen=True):
    """How one provider's connector is written.

    turn: the user turn with the prompt in it. body: the request, `{messages}` where the turns stand.
    messages: the parameter a whole-array template takes. filter: where the answer's text stands.
    """

    name: str
    protocol: str
    parameters: dict[str, str]
    credential: dict[str, str]
    headers: dict[str, str]
    path: str
    turn: str
    body: str
    messages: str
    filter: str
    interface: str


_BEDROCK_KEYS = {"access_key": "AK", "secret_key": "SK", "session_token": "ST"}

WIRES = {
    "bedrock": Wire(
        name="bedrock/converse",
        protocol="aws_sigv4",
        parameters={"region": "us-east-1", "service_name": "bedrock", "model": MODEL},
        credential=_BEDROCK_KEYS,
        headers={"content-type": "application/json"},
        path="/model/${parameters.model}/converse",
        turn='{"role":"user","content":[{"text":"${parameters.prompt}"}]}',
        body='{"system":[{"text":"${parameters.system_prompt}"}],"messages":{messages}${parameters.tool_configs:-}}',
        messages="messages",
        filter="$.output.message.content[0].text",
        interface="bedrock/converse/claude",
    ),
    "openai": Wire(
        name="openai/v1/chat/completions",
        protocol="http",
        parameters={"model": "gpt-4o"},
        credential={"openAI_key": "sk"},
        headers={"Authorization": "Bearer ${credential.openAI_key}"},
        path="/v1/chat/completions",
        turn='{"role":"user","content":"${parameters.prompt}"}',
        body='{"model":"${parameters.model}","messages":{messages}${parameters.tool_configs:-}}',
        messages="messages",
        filter="$.choices[0].message.content",
        interface="openai/v1/chat/completions",
    ),
    "gemini": Wire(
        name="gemini/v1beta/generatecontent",
        protocol="http",
        parameters={"model": "gemini-2.5-pro"},
        credential={"gemini_key": "g"},
        headers={"x-goog-api-key": "${credential.gemini_key}"},
        path="/v1beta/models/${parameters.model}:generateContent",
        turn='{"role":"user","parts":[{"text":"${parameters.prompt}"}]}',
        body='{"systemInstruction":{"parts":[{"text":"${parameters.system_prompt}"}]},"contents":{messages}'
        "${parameters.tool_configs:-}}",
        messages="contents",
        filter="$.candidates[0].content.parts[0].text",
        interface="gemini/v1beta/generatecontent",
    ),
}
_OPENAI_SYSTEM = '{"role":"developer","content":"${parameters.system_prompt}"},'


@dataclass(frozen=True)
class Agent:
    """A registered agent. provider: the wire format's name. documents: what GET gives (agent, model, connector)."""

    name: str
    agent_id: str
    provider: str
    type: str
    template: str
    documents: dict[str, Any]


class Api:
    """Plain JSON over HTTP to a cluster (or a gateway before it)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=60)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body (JSON data); a `str` body is sent as it is."""
        raw = None if body is None else body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        response = self._pool.request(method, self.url + path, body=raw, headers=headers)
        return response.status, json.loads(response.data) if response.data else None

    def must(self, method: str, path: str, body: Any = None) -> Any:
        """The body of a 2xx answer; anything else is an AssertionError that shows the answer."""
        status, answer = self.call(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def execute(self, agent_id: str, body: Any) -> tuple[int, Any]:
        return self.call("POST", f"/_plugins/_ml/agents/{agent_id}/_execute", body)


def request_body(wire: Wire, template: str) -> str:
    """The connector's template: tutorial (prompt inside quotes), upgraded (``body``) or array (all turns)."""
    if template == "array":
        turns = f"${{parameters.{wire.messages}}}"
    else:
        system = _OPENAI_SYSTEM if wire.name.startswith("openai") else ""
        turn = wire.turn if template == "tutorial" else "${parameters.body}"
        turns = f"[{system}${{parameters._chat_history:-}}{turn}${{parameters._interactions:-}}]"
    return wire.body.replace("{messages}", turns)


def connector_body(llm_url: str, provider: str, template: str, wire: Wire | None = None) -> dict[str, Any]:
    """A connector, standalone or inside a model. wire: another than the provider's own."""
    wire = wire or WIRES[provider]
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": llm_url + wire.path,
        "headers": wire.headers,
        "request_body": request_body(wire, template),
    }
    return {
        "name": f"{provider}_{template}",
        "description": "test",
        "version": 1,
        "protocol": wire.protocol,
        "parameters": wire.parameters | ({"body": wire.turn} if template == "upgraded" else {}),
        "credential": wire.credential,
        "actions": [action],
    }


_used_words: set[str] = set()
"""Of the ids of connectors with models. The cluster takes connectors for each other whose ids share a word."""
_SAME_WORD = 90.0
"""Seconds after which a node makes ids of other words: their fourth character changes every 65.5 seconds. Where it is a
dash, and the node's own part has another one, all ids of that time share what is between the two.
"""


def connect(api: Api, llm_url: str, provider: str, template: str, wire: Wire | None = None) -> tuple[str, str]:
    """A connector and a deployed model on it: (connector_id, model_id). wire: another than the provider's own."""
    connector = connector_body(llm_url, provider, template, wire)
    until = time.monotonic() + _SAME_WORD
    while True:
        connector_id = api.must("POST", "/_plugins/_ml/connectors/_create", connector)["connector_id"]
        words = cluster.words_of(connector_id)
        if not words & _used_words or time.monotonic() > until:
            break
        api.call("DELETE", f"/_plugins/_ml/connectors/{connector_id}")  # refused where a model is taken for its user
        time.sleep(1)
    _used_words.update(words)
    model = {"name": connector["name"], "function_name": "remote", "connector_id": connector_id}
    registered = api.must("POST", "/_plugins/_ml/models/_register?deploy=true", model)
    return connector_id, registered["model_id"]


def agent_body(name: str, type_: str, wire: Wire, model_id: str) -> dict[str, Any]:
    """What registers an agent of one of `TYPES`."""
    common = {"name": name, "description": "test", "app_type": "test"}
    memory = {"type": "conversation_index"}
    listing = [{"type": "ListIndexTool", "name": "ListIndexTool"}]
    if type_ in ("flow", "cflow"):
        parameters = {
            "model_id": model_id,
            "prompt": FLOW_PROMPT if type_ == "flow" else CFLOW_PROMPT,
            "system_prompt": SYSTEM,
            "response_filter": wire.filter,
        }
        tools = [{"type": "MLModelTool", "name": "llm", "parameters": parameters}]
        if type_ == "flow":
            return common | {"type": "flow", "tools": tools}
        return common | {"type": "conversational_flow", "tools": tools, "memory": memory}
    if type_ == "conv_react":
        llm = {"model_id": model_id, "parameters": {"max_iteration": 3, "response_filter": wire.filter}}
        return common | {"type": "conversational", "llm": llm, "memory": memory, "tools": listing}
    prompt = {"prompt": "${parameters.question}"}
    interface = {"_llm_interface": wire.interface}
    if type_ == "conv_tools":
        llm = {"model_id": model_id, "parameters": {"max_iteration": 5, "system_prompt": SYSTEM, **prompt}}
        conversational = {"type": "conversational", "llm": llm, "parameters": interface}
        return common | conversational | {"memory": memory, "tools": listing}
    llm = {"model_id": model_id, "parameters": prompt}
    planner = {"type": "plan_execute_and_reflect", "llm": llm, "parameters": interface}
    return common | planner | {"memory": memory, "tools": listing}


def register(api: Api, body: dict[str, Any]) -> str:
    """Registers an agent and returns its id."""
    agent_id: str = api.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"]
    return agent_id


def register_all(api: Api, llm_url: str) -> dict[str, Agent]:
    """Every provider × type × template, named like ``bedrock_flow_tutorial``."""
    agents = {}
    for provider, wire in WIRES.items():
        for template in TEMPLATES:
            connector_id, model_id = connect(api, llm_url, provider, template)
            for type_ in TYPES:
                if (provider, type_) == ("gemini", "per"):
                    continue  # 3.6 answers 500 "Unsupported llm interface" (test_facts)
                name = f"{provider}_{type_}_{template}"
                agent_id = register(api, agent_body(name, type_, wire, model_id))
                documents = {
                    "agent": api.must("GET", f"/_plugins/_ml/agents/{agent_id}"),
                    "model": api.must("GET", f"/_plugins/_ml/models/{model_id}"),
                    "connector": api.must("GET", f"/_plugins/_ml/connectors/{connector_id}"),
                }
                agents[name] = Agent(name, agent_id, wire.name, type_, template, documents)
    return agents
