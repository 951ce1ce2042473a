"""Registering agents with a `model` block on a real 3.6.0, the unified agent API off (as users have it) and on.

Bodies are sent with opensearch-py and opensearch-js. The agents must then answer text, image blocks and a conversation
through the gateway, and the LLM endpoint must receive the provider's mapping of each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import urllib3
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from gateway.agents.documents import read_profile
from gateway.execute.deliveries import NOTICE
from gateway.execute.run_answer import read_answer
from gateway.memory.model import Usage

from .agents import WIRES, Api
from .delivered import INPUTS, Send, canonical, mapping
from .llm import ANSWER, LLM, PLAN, ToolCall
from .speech import tool_names, turns
from .unified import MODELS, redirect

pytestmark = pytest.mark.real_cluster

JS = Path(__file__).parents[1] / "clients" / "js"
DEFAULT_TOOLS = ["IndexMappingTool", "ListIndexTool", "SearchIndexTool"]  # in no order of the cluster's
KINDS = ["text", "text_hostile", "blocks", "conversation"]
Register = Callable[[str, Any], tuple[int, Any]]


def register_py(url: str, body: Any) -> tuple[int, Any]:
    with OpenSearch(url, timeout=30, max_retries=0) as client:
        try:
            return 200, client.plugins.ml.register_agents(body=body)
        except TransportError as error:
            if not isinstance(error.status_code, int):
                raise  # no answer at all
            return error.status_code, error.info


def register_js(url: str, body: Any) -> tuple[int, Any]:
    if shutil.which("node") is None or not (JS / "node_modules").is_dir():
        pytest.skip("opensearch-js is not installed here")
    registrations = json.dumps({"url": url, "bodies": [body]})
    run = subprocess.run(
        ["node", "register.mjs"], cwd=JS, input=registrations, capture_output=True, text=True, check=True
    )
    (answer,) = json.loads(run.stdout)
    return answer["status"], answer["answer"]


CLIENTS: dict[str, Register] = {"py": register_py, "js": register_js}


def rfc_body(provider: str, client: str) -> dict[str, Any]:
    """The RFC's registration body, for each provider."""
    return {
        "name": f"registered with {client} for {provider}",
        "type": "conversational",
        "description": "this is a test agent",
        "model": MODELS[provider],
        "tools": [{"type": "ListIndexTool"}, {"type": "SearchIndexTool"}, {"type": "IndexMappingTool"}],
        "memory": {"type": "conversation_index"},
    }


def at_test_llm(body: dict[str, Any], provider: str, llm: LLM) -> dict[str, Any]:
    """The body, its model at the test's LLM."""
    return body | {"model": {**body["model"], "url": llm.url + WIRES[provider].path}}


def noticed(gateway_url: str, body: Any) -> tuple[str, list[str]]:
    """The id of the agent a registration made, and the codes of its notices; opensearch-py shows no headers."""
    headers = {"Content-Type": "application/json"}
    target = f"{gateway_url}/_plugins/_ml/agents/_register"
    response = urllib3.request("POST", target, body=json.dumps(body), headers=headers, timeout=60)
    assert response.status == 200, response.data
    return response.json()["agent_id"], list(filter(None, response.headers.get(NOTICE, "").split(", ")))


def arrives(send: Send, llm: LLM, agent_id: str, provider: str, kind: str) -> None:
    llm.taken()
    status, answer = send(agent_id, {"input": INPUTS[kind]})
    assert status == 200, answer
    (received,) = llm.taken()
    name = WIRES[provider].name
    assert canonical(name, turns(received)) == canonical(name, mapping(name, INPUTS[kind]))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("provider", MODELS)
def test_the_rfcs_body_with_the_api_off(
    gateway_url: str, real_cluster: str, api: Api, llm: LLM, through: Send, provider: str, client: str
) -> None:
    body = rfc_body(provider, client)
    body = at_test_llm(body, provider, llm)
    status, answer = CLIENTS[client](real_cluster, body)
    assert (status, answer["error"]["type"]) == (400, "illegal_argument_exception")

    status, answer = CLIENTS[client](gateway_url, body)
    assert status == 200, answer
    assert list(answer) == ["agent_id"]
    for kind in KINDS:
        arrives(through, llm, answer["agent_id"], provider, kind)
    shown = json.dumps(api.must("GET", f"/_plugins/_ml/agents/{answer['agent_id']}"))
    assert not any(json.dumps(value) in shown for value in body["model"]["credential"].values())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("provider", MODELS)
def test_the_rfcs_body_with_the_api_on(
    gateway_url: str, api: Api, llm: LLM, through: Send, unified_on: None, provider: str, client: str
) -> None:
    status, answer = CLIENTS[client](gateway_url, rfc_body(provider, client) | {"name": f"native {provider} {client}"})
    assert status == 200, answer
    agent = api.must("GET", f"/_plugins/_ml/agents/{answer['agent_id']}")
    assert agent["model"] == {name: MODELS[provider][name] for name in ("model_id", "model_provider")}
    assert "mlc_gateway_registration" not in agent["parameters"]
    redirect(api, answer["agent_id"], llm.url)
    for kind in KINDS:
        arrives(through, llm, answer["agent_id"], provider, kind)


@pytest.mark.parametrize("type_", ["flow", "conversational_flow", "plan_execute_and_reflect"])
def test_other_types_with_the_api_off(gateway_url: str, llm: LLM, through: Send, type_: str) -> None:
    body = rfc_body("bedrock", "py") | {"name": f"a {type_}", "type": type_}
    body = at_test_llm(body, "bedrock", llm)
    if type_ != "plan_execute_and_reflect":
        body["tools"] = []
    status, answer = register_py(gateway_url, body)
    assert status == 200, answer
    llm.taken()
    if type_ == "plan_execute_and_reflect":
        llm.replies(PLAN)
    status, response = through(answer["agent_id"], {"input": "hello"})
    assert status == 200, response
    assert "hello" in json.dumps(llm.taken()[0])


@pytest.mark.parametrize("provider", MODELS)
def test_tools_that_are_not_named(gateway_url: str, llm: LLM, through: Send, provider: str) -> None:
    body = at_test_llm(rfc_body(provider, "default tools"), provider, llm)
    for tools, offered in ((None, DEFAULT_TOOLS), ([], [])):
        status, answer = register_py(gateway_url, body | {"tools": tools})
        assert status == 200, answer
        llm.taken()
        status, response = through(answer["agent_id"], {"input": INPUTS["conversation"]})
        assert status == 200, response
        (received,) = llm.taken()
        assert tool_names(received) == offered


def v2_body(provider: str, container: str) -> dict[str, Any]:
    memory = {"type": "agentic_memory", "memory_container_id": container}
    return rfc_body(provider, "v2") | {"type": "conversational/v2", "memory": memory}


@pytest.mark.parametrize("provider", MODELS)
def test_v2_with_the_api_off_has_memory_and_answers_of_the_gateway(
    gateway_url: str, api: Api, llm: LLM, through: Send, container: str, provider: str
) -> None:
    agent_id, notices = noticed(gateway_url, at_test_llm(v2_body(provider, container), provider, llm))
    assert notices == ["V2_AS_LEGACY", "GATEWAY_MEMORY"]
    agent = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")
    assert (agent["type"].lower(), agent["memory"]["type"]) == ("conversational", "conversation_index")
    noted = json.loads(agent["parameters"]["mlc_gateway"])
    assert (noted["type"], noted["memory"]["memory_container_id"]) == ("conversational_v2", container)
    for kind in KINDS:
        arrives(through, llm, agent_id, provider, kind)
    assert "gw_" not in json.dumps(llm.taken())
    status, answer = through(agent_id, {"input": "hello"})
    assert (status, answer) == (200, unified_form(answer["memory_id"]))
    assert answer["memory_id"].startswith("gws-")
    again = {"input": "and now?", "parameters": {"memory_id": answer["memory_id"]}}
    assert through(agent_id, again) == (200, unified_form(answer["memory_id"]))
    received = json.dumps(llm.taken()[-1])
    assert [received.count(text) for text in ("hello", ANSWER, "and now?")] == [1, 1, 1]


def unified_form(memory_id: str) -> dict[str, Any]:
    return {
        "stop_reason": "end_turn",
        "message": {"role": "assistant", "content": [{"text": ANSWER}]},
        **({"memory_id": memory_id} if memory_id else {}),
        "metrics": {"total_usage": {}},
    }


@pytest.mark.parametrize("provider", MODELS)
def test_the_steps_of_an_agent_are_read_from_its_answer(
    gateway_url: str, api: Api, llm: LLM, direct: Send, provider: str
) -> None:
    body = at_test_llm(rfc_body(provider, "steps"), provider, llm)
    status, registered = register_py(gateway_url, body)
    assert status == 200, registered
    agent_id = registered["agent_id"]
    agent = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")
    model_id = agent["llm"]["model_id"]
    model = api.must("GET", f"/_plugins/_ml/models/{model_id}")
    profile = read_profile(agent_id, agent, {model_id: model}, {}, (3, 6, 0))
    llm.taken()
    llm.replies(ToolCall("ListIndexTool", {"indices": ["no-such-index"]}))
    status, answer = direct(agent_id, {"parameters": {"question": "which indices?", "verbose": True}})
    assert status == 200, answer
    run = read_answer(profile, json.dumps(answer).encode())
    call, result, final = run.messages
    [use], [output] = call.content, result.content
    assert (use["toolUse"]["name"], use["toolUse"]["input"]) == ("ListIndexTool", {"indices": ["no-such-index"]})
    assert output["toolResult"]["toolUseId"] == use["toolUse"]["toolUseId"]
    assert call.metadata.usage == Usage(11, 7, 18)
    assert (final.content, run.text) == (({"text": ANSWER},), ANSWER)


def test_an_agent_that_is_stopped_at_its_limit(gateway_url: str, llm: LLM, through: Send) -> None:
    body = at_test_llm(rfc_body("openai", "limit"), "openai", llm)
    status, made = register_py(gateway_url, body | {"type": "conversational_v2", "parameters": {"max_iteration": 2}})
    assert status == 200, made
    llm.replies(*[ToolCall("ListIndexTool", {"indices": ["no-such-index"]})] * 3)
    status, answer = through(made["agent_id"], {"input": "hello"})
    assert (status, answer["stop_reason"]) == (200, "max_iterations"), answer


def test_usage_of_a_flow_without_a_filter(gateway_url: str, api: Api, llm: LLM, through: Send) -> None:
    """The answer of a flow whose LLM tool has no `response_filter` is the LLM's whole response."""
    status, made = register_py(gateway_url, at_test_llm(rfc_body("bedrock", "flow"), "bedrock", llm))
    assert status == 200, made
    model_id = api.must("GET", f"/_plugins/_ml/agents/{made['agent_id']}")["llm"]["model_id"]
    tool = {"type": "MLModelTool", "parameters": {"model_id": model_id, "prompt": "${parameters.question}"}}
    flow = {"name": "raw flow", "type": "flow", "tools": [tool], "parameters": {"gw_output": "unified"}}
    agent_id = api.must("POST", "/_plugins/_ml/agents/_register", flow)["agent_id"]
    status, answer = through(agent_id, {"input": "hello"})
    assert status == 200, answer
    counts = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}
    assert answer == unified_form("") | {"metrics": {"total_usage": counts}}


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_v2_with_the_api_on(
    gateway_url: str, api: Api, llm: LLM, through: Send, container: str, unified_on: None, provider: str
) -> None:
    agent_id, notices = noticed(gateway_url, v2_body(provider, container))
    assert notices == []
    assert api.must("GET", f"/_plugins/_ml/agents/{agent_id}")["type"].lower() == "conversational_v2"
    redirect(api, agent_id, llm.url)
    for kind in ("text", "blocks", "conversation"):
        arrives(through, llm, agent_id, provider, kind)


def test_what_a_registration_made_is_removed_with_its_agent(gateway_url: str, api: Api, llm: LLM) -> None:
    body = rfc_body("openai", "cascade")
    body = at_test_llm(body, "openai", llm)
    status, answer = register_py(gateway_url, body)
    assert status == 200, answer
    model_id = api.must("GET", f"/_plugins/_ml/agents/{answer['agent_id']}")["llm"]["model_id"]
    group_id = api.must("GET", f"/_plugins/_ml/models/{model_id}")["model_group_id"]
    Api(gateway_url).must("DELETE", f"/_plugins/_ml/agents/{answer['agent_id']}?cascade=true")
    assert api.call("GET", f"/_plugins/_ml/models/{model_id}")[0] == 404
    assert api.call("GET", f"/_plugins/_ml/model_groups/{group_id}")[0] == 404


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_v2_with_a_url_and_the_api_on(
    gateway_url: str, api: Api, llm: LLM, through: Send, container: str, unified_on: None, provider: str
) -> None:
    body = at_test_llm(v2_body(provider, container), provider, llm) | {"name": f"v2 at a url {provider}"}
    agent_id, notices = noticed(gateway_url, body)
    assert notices == []
    for kind in ("text", "blocks", "conversation"):
        arrives(through, llm, agent_id, provider, kind)
    model_id = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")["llm"]["model_id"]
    Api(gateway_url).must("DELETE", f"/_plugins/_ml/agents/{agent_id}?cascade=true")
    assert api.call("GET", f"/_plugins/_ml/models/{model_id}")[0] == 404


def test_many_at_once(gateway_url: str, api: Api, llm: LLM) -> None:
    body = at_test_llm(rfc_body("openai", "at once"), "openai", llm)
    bodies = [body | {"name": f"at once {number}"} for number in range(20)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda one: noticed(gateway_url, one)[0], bodies))
    assert len(set(answers)) == len(bodies)
    with ThreadPoolExecutor(len(bodies)) as pool:
        deleted = pool.map(
            lambda id: Api(gateway_url).must("DELETE", f"/_plugins/_ml/agents/{id}?cascade=true"), answers
        )
        assert {one["result"] for one in deleted} == {"deleted"}
    named = {"query": {"match": {"description": "mlc-gateway"}}, "size": 200}
    groups = api.must("POST", "/_plugins/_ml/model_groups/_search", named)["hits"]["hits"]
    models = api.must("POST", "/_plugins/_ml/models/_search", {"query": {"match_all": {}}, "size": 1000})["hits"][
        "hits"
    ]
    used = {hit["_source"].get("model_group_id") for hit in models}
    assert [hit for hit in groups if hit["_id"] not in used] == []


@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": [{"type": "ListIndexTool"}]}], ids=json.dumps)
@pytest.mark.parametrize("provider", MODELS)
def test_quick_execute_leaves_nothing(
    gateway_url: str, api: Api, llm: LLM, provider: str, tools: dict[str, Any]
) -> None:
    everything = {"query": {"match_all": {}}, "size": 1000}

    def count(kind: str) -> int:
        total: int = api.must("POST", f"/_plugins/_ml/{kind}/_search", everything)["hits"]["total"]["value"]
        return total

    before = count("agents"), count("models")
    model = {**MODELS[provider], "url": llm.url + WIRES[provider].path}
    body = {"model": model, "input": INPUTS["blocks"], **tools}
    answer = Api(gateway_url).must("POST", "/_plugins/_ml/agents/_execute", body)
    assert "inference_results" in answer
    (received,) = llm.taken()
    name = WIRES[provider].name
    assert canonical(name, turns(received)) == canonical(name, mapping(name, INPUTS["blocks"]))
    assert tool_names(received) == (DEFAULT_TOOLS if tools == {} else [one["type"] for one in tools["tools"]])
    assert (count("agents"), count("models")) == before
