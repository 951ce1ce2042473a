"""Registrations with an `mcp` block on a real 3.6.0: the server's tools reach the LLM, and are called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import aiohttp
import pytest
import urllib3

from gateway.register.target import MCP_SETTING
from tests.conftest import StartGateway
from tests.faulty_cluster import FaultyCluster

from .agents import WIRES, Api
from .delivered import Send
from .llm import LLM, ToolCall
from .mcp import FOUND, Called, McpServer
from .speech import tool_names
from .unified import MODELS, enabled, redirect

pytestmark = pytest.mark.real_cluster

PROTOCOLS = ["mcp_streamable_http", "mcp_sse"]


def switch(api: Api, on: bool | None) -> None:
    api.must("PUT", "/_cluster/settings", {"persistent": {MCP_SETTING: on}})


@pytest.fixture
def mcp_on(api: Api) -> Iterator[None]:
    switch(api, True)
    yield
    switch(api, None)


@pytest.fixture
def server() -> Iterator[McpServer]:
    with McpServer() as running:
        yield running


def mcp_body(server: McpServer, protocol: str, provider: str, llm: LLM | None) -> dict[str, Any]:
    """llm: where the model answers; None for a body that the cluster itself takes."""
    model = MODELS[provider] | ({"url": llm.url + WIRES[provider].path} if llm else {})
    block = {
        "name": "words",
        "url": server.url,
        "protocol": protocol,
        "headers": {"Authorization": "Bearer ${credential.token}"},
        "credential": {"token": "the-token"},
        "tools": ["lookup_.*"],
    }
    return {"name": f"with {protocol}", "type": "conversational", "model": model, "tools": [], "mcp": block}


def connector_ids(api: Api) -> set[str]:
    api.must("POST", "/.plugins-ml-connector/_refresh")
    everything = {"query": {"match_all": {}}, "size": 10_000}
    hits = api.must("POST", "/_plugins/_ml/connectors/_search", everything)["hits"]["hits"]
    return {hit["_id"] for hit in hits}


def is_used(server: McpServer, llm: LLM, answer: Any, provider: str) -> None:
    """The LLM was offered the one tool, called it, and got its result."""
    asked, answered = llm.taken()
    assert tool_names(asked) == ["lookup_word"], answer
    assert server.called == [Called("lookup_word", {"word": "owl"}, "Bearer the-token")]
    assert FOUND + "owl" in json.dumps(answered)


def runs(send: Send, server: McpServer, llm: LLM, agent_id: str, provider: str) -> None:
    llm.taken()
    llm.replies(ToolCall("lookup_word", {"word": "owl"}))
    status, answer = send(agent_id, {"input": "What is an owl?"})
    assert status == 200, answer
    is_used(server, llm, answer, provider)


def is_removed(gateway: Api, api: Api, agent_id: str) -> None:
    agent = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")
    model_id = agent["llm"]["model_id"]
    (entry,) = json.loads(agent["parameters"]["mcp_connectors"])
    connector = f"/_plugins/_ml/connectors/{entry['mcp_connector_id']}"
    assert "the-token" not in json.dumps([agent, api.must("GET", connector)])
    deleted = urllib3.request("DELETE", f"{gateway.url}/_plugins/_ml/agents/{agent_id}?cascade=true")
    assert deleted.status == 200, deleted.data
    answer = deleted.headers["X-MLC-Cleanup"]
    for path in (f"/_plugins/_ml/agents/{agent_id}", f"/_plugins/_ml/models/{model_id}"):
        assert api.call("GET", path)[0] == 404, (path, answer)
    if api.call("GET", connector)[0] != 404:
        assert is_taken_for_used(api, connector), answer
        assert f"connector {entry['mcp_connector_id']} is left behind: " in answer


def is_taken_for_used(api: Api, connector: str) -> bool:
    """Whether the cluster refuses to delete a connector for models that use another one.

    It looks for the id as for words of a text, split at its dashes: ``J-SGAa`` is found in ``J-N-Aa``, too.
    """
    status, answer = api.call("DELETE", connector)
    named = re.findall(r"\[([\w, -]+)\]$", answer["error"]["reason"])
    users = [api.must("GET", f"/_plugins/_ml/models/{id}")["connector_id"] for id in named[0].split(", ")]
    return status == 409 and bool(users) and not any(connector.endswith(f"/{user}") for user in users)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_mcp_off_the_refusal_names_the_call_that_turns_it_on(
    gateway_url: str, api: Api, llm: LLM, server: McpServer, protocol: str
) -> None:
    gateway, body = Api(gateway_url), mcp_body(server, protocol, "bedrock", llm)
    before = connector_ids(api)
    status, answer = gateway.call("POST", "/_plugins/_ml/agents/_register", body)
    assert status == 400
    (problem,) = answer["error"]["problems"]
    assert (problem["field"], problem["code"]) == ("mcp", "MCP_DISABLED")
    assert connector_ids(api) == before
    method, path, call = problem["help"].removeprefix("An administrator runs: ").split(" ", 2)
    api.must(method, path, json.loads(call))
    try:
        agent_id = gateway.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"]
        is_removed(gateway, api, agent_id)
    finally:
        switch(api, None)


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_its_tools_are_called(
    gateway_url: str,
    api: Api,
    llm: LLM,
    through: Send,
    server: McpServer,
    mcp_on: None,
    protocol: str,
    provider: str,
    unified: bool,
) -> None:
    """With the unified API on the cluster makes the model itself, at an address of its own."""
    gateway = Api(gateway_url)
    body = mcp_body(server, protocol, provider, None if unified else llm)
    with enabled(api) if unified else nullcontext():
        agent_id = gateway.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"]
        if unified:
            agent = api.must("GET", f"/_plugins/_ml/agents/{agent_id}")
            assert agent["model"]["model_provider"] == WIRES[provider].name
            redirect(api, agent_id, llm.url)
        runs(through, server, llm, agent_id, provider)
        is_removed(gateway, api, agent_id)


async def test_a_model_that_the_cluster_made_itself_is_not_searched_for(
    real_cluster: str, api: Api, server: McpServer, mcp_on: None, unified_on: None, start_gateway: StartGateway
) -> None:
    """It has no tag: a search for one goes on for `registration.visible_within`."""
    async with FaultyCluster(real_cluster) as front, aiohttp.ClientSession() as session:
        gateway = await start_gateway(front.url)
        url = f"http://127.0.0.1:{gateway.data_port}/_plugins/_ml/agents/"
        body = mcp_body(server, "mcp_sse", "bedrock", None) | {"name": "seen from the front"}
        async with session.post(f"{url}_register", json=body) as answer:
            assert answer.status == 200, await answer.text()
            agent_id = (await answer.json())["agent_id"]
        assert front.calls("POST", "/_plugins/_ml/models/_search") == []
        async with session.delete(f"{url}{agent_id}?cascade=true") as answer:
            assert answer.status == 200, await answer.text()


def test_an_agent_that_names_its_own_model(
    gateway_url: str, api: Api, llm: LLM, through: Send, server: McpServer, mcp_on: None
) -> None:
    gateway = Api(gateway_url)
    made = gateway.must("POST", "/_plugins/_ml/agents/_register", mcp_body(server, "mcp_sse", "openai", llm))
    model_id = api.must("GET", f"/_plugins/_ml/agents/{made['agent_id']}")["llm"]["model_id"]
    body = mcp_body(server, "mcp_streamable_http", "openai", llm)
    del body["model"]
    body["name"] = "on a model that is there"
    body["llm"] = {"model_id": model_id, "parameters": {"prompt": "${parameters.question}"}}
    body["parameters"] = {"_llm_interface": "openai/v1/chat/completions"}
    agent_id = gateway.must("POST", "/_plugins/_ml/agents/_register", body)["agent_id"]
    runs(through, server, llm, agent_id, "openai")
    gateway.must("DELETE", f"/_plugins/_ml/agents/{agent_id}?cascade=true")
    assert api.call("GET", f"/_plugins/_ml/models/{model_id}")[0] == 200  # it was not made for this agent
    is_removed(gateway, api, made["agent_id"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_quick_execute(gateway_url: str, api: Api, llm: LLM, server: McpServer, mcp_on: None, protocol: str) -> None:
    before = connector_ids(api)
    body = mcp_body(server, protocol, "bedrock", llm) | {"input": "What is an owl?"}
    llm.replies(ToolCall("lookup_word", {"word": "owl"}))
    answer = Api(gateway_url).must("POST", "/_plugins/_ml/agents/_execute", body)
    is_used(server, llm, answer, "bedrock")
    assert connector_ids(api) == before
