"""The whole documents that are sent to the cluster."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.codes import Notice
from gateway.mlcommons.profile import MARKS
from gateway.register.documents import agent_body, as_native, mcp_connector_body, model_body
from gateway.register.handler import notices
from gateway.register.target import Target, check, makes_model, takes
from tests.register.simulated_cluster import (
    AGENTS,
    BEDROCK,
    GEMINI,
    OPENAI,
    TAG,
    TARGETS,
    block,
    golden,
    read,
    registration_of,
)

V2_19, V3_4, V3_6 = TARGETS.values()
NATIVE = Target((3, 8, 0), unified_api=True, mcp_enabled=True)
METADATA = {"model_id": "m1", "mcp_connector_ids": [], "model": {"model_id": "gpt-4o", "model_provider": OPENAI}}
RFC = {
    "name": "Claude 3.7 without t2ppl",
    "type": "conversational",
    "description": "this is a test agent",
    "model": {
        "model_id": "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
        "model_provider": "bedrock/converse",
        "credential": {
            "access_key": "YOUR_ACCESS_KEY",
            "secret_key": "YOUR_SECRET_KEY",
            "session_token": "YOUR_SESSION_TOKEN",
        },
    },
    "tools": [{"type": "ListIndexTool"}, {"type": "SearchIndexTool"}, {"type": "IndexMappingTool"}],
    "memory": {"type": "conversation_index"},
}


def made(document: dict[str, Any], target: Target = V2_19, ids: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the agent's body with its metadata decoded."""
    body = agent_body(read(document), target, TAG, "m1", ids)
    parameters = {**body["parameters"], "mlc_gateway": json.loads(body["parameters"]["mlc_gateway"])}
    return {**body, "parameters": parameters}


@pytest.mark.parametrize("provider", [BEDROCK, OPENAI, GEMINI])
@pytest.mark.parametrize(
    ("more", "has_slot"),
    [
        ({}, True),
        ({"tools": []}, False),
        ({"tools": [{"type": "ListIndexTool"}]}, True),
        ({"tools": [], "mcp": {"url": "https://tools.example.org"}}, True),
        ({"tools": [], "parameters": {"mcp_connectors": [{"mcp_connector_id": "c"}]}}, True),
        ({"tools": [], "parameters": {"mcp_connectors": '[{"mcp_connector_id": "c"}]'}}, True),
        ({"tools": [], "parameters": {"mcp_connectors": "[]"}}, False),
        ({"tools": [], "type": "plan_execute_and_reflect"}, False),
        ({"tools": [], "type": "flow"}, True),
    ],
)
def test_the_slot_for_tools_is_left_out_for_an_agent_without_any(
    provider: str, more: dict[str, Any], has_slot: bool
) -> None:
    registration = read({"name": "x", "model": block(provider), **more})
    template = model_body(registration, V3_6, TAG)["connector"]["actions"][0]["request_body"]
    assert ("${parameters.tool_configs:-}" in template) is has_slot
    assert "${parameters._interactions:-}]" in template


def codes(document: dict[str, Any], target: Target = V2_19) -> list[tuple[str, str]]:
    return [(notice.code, notice.place) for notice in notices(read(document), target)]


@pytest.mark.parametrize(("version", "name"), [(v, name) for v, names in AGENTS.items() for name in names])
def test_model_and_agent_of_every_provider_version_and_type(version: str, name: str) -> None:
    parameters = {"max_tokens": 1000, "system_prompt": 'Say "no".'}
    registration, target = registration_of(name, model_parameters=parameters), TARGETS[version]
    check(registration, target)
    assert makes_model(target, registration)
    documents = {
        "model": model_body(registration, target, TAG),
        "agent": agent_body(registration, target, TAG, "the-model-id"),
    }
    assert documents == golden("documents.json", version, name)


@pytest.mark.parametrize("version", TARGETS)
def test_the_body_of_the_rfc(version: str) -> None:
    registration, target = read(RFC), TARGETS[version]
    documents = {
        "model": model_body(registration, target, TAG),
        "agent": agent_body(registration, target, TAG, "the-model-id"),
        "notices": [[notice.code, notice.place] for notice in notices(registration, target)],
    }
    assert documents == golden("rfc.json", version)


@pytest.mark.parametrize("target", [V2_19, V3_4, V3_6, NATIVE])
def test_credentials_stand_in_the_connector_and_nowhere_else(target: Target) -> None:
    for provider in (BEDROCK, OPENAI, GEMINI):
        document = {"name": "x", "type": "flow", "model": block(provider)}
        registration = read(document)
        secrets = list(document["model"]["credential"].values())
        model = model_body(registration, target, TAG)
        assert model["connector"].pop("credential") == document["model"]["credential"]
        elsewhere = [json.dumps(model), json.dumps(agent_body(registration, target, TAG, "m1")), repr(registration)]
        assert not [secret for secret in secrets for text in elsewhere if secret in text]


def test_what_the_client_said_of_the_agent_is_kept() -> None:
    document = {
        "name": "x",
        "description": "d",
        "app_type": "rag",
        "model": block(OPENAI),
        "tools": [{"type": "PPLTool"}],
        "memory": {"type": "conversation_index", "window_size": 7},
        "parameters": {"max_iteration": 5, "verbose": True},
    }
    assert made(document) == {
        "name": "x",
        "description": "d",
        "app_type": "rag",
        "type": "conversational",
        "tools": [{"type": "PPLTool"}],
        "memory": {"type": "conversation_index", "window_size": 7},
        "llm": {"model_id": "m1", "parameters": {"response_filter": "$.choices[0].message.content"}},
        "parameters": {
            "max_iteration": 5,
            "verbose": True,
            "mlc_gateway_registration": TAG,
            "mlc_gateway": METADATA,
        },
    }


def test_a_flow_s_own_llm_tool_runs_the_model() -> None:
    own = {"type": "MLModelTool", "name": "llm", "parameters": {"prompt": "Say ${parameters.question}"}}
    other = {"type": "MLModelTool", "name": "other", "parameters": {"model_id": "m0"}}
    document = {"name": "x", "type": "flow", "model": block(OPENAI), "tools": [other, own]}
    asked = {
        "model_id": "m1",
        "response_filter": "$.choices[0].message.content",
        "prompt": "Say ${parameters.question}",
    }
    assert made(document)["tools"] == [other, {**own, "parameters": asked}]
    assert codes(document) == []


def test_a_flow_whose_tools_run_another_model_gets_one_more() -> None:
    other = {"type": "MLModelTool", "name": "other", "parameters": {"model_id": "m0"}}
    document = {"name": "x", "type": "flow", "model": block(OPENAI), "tools": [other]}
    asked = {
        "model_id": "m1",
        "prompt": "${parameters.question}",
        "response_filter": "$.choices[0].message.content",
    }
    assert made(document)["tools"] == [other, {"type": "MLModelTool", "parameters": asked}]
    assert codes(document) == [("FLOW_MODEL_TOOL", "tools")]


def test_v2_and_its_memory_where_there_are_none() -> None:
    memory = {"type": "agentic_memory", "memory_container_id": "c1", "window_size": 3}
    tools = [{"type": "PPLTool"}]
    document = {"name": "x", "type": "conversational/v2", "model": block(OPENAI), "memory": memory, "tools": tools}
    body = made(document)
    assert (body["type"], body["memory"]) == ("conversational", {"type": "conversation_index", "window_size": 3})
    asked = {"type": "conversational_v2", "memory": memory}
    assert body["parameters"]["mlc_gateway"] == {**METADATA, **asked}
    assert {name: body["parameters"].get(name) for name in MARKS} == {"gw_memory": "sessions", "gw_output": "unified"}
    for target in (V2_19, V3_6):  # 3.6 has that memory, but no V2 agents unless its API is on
        assert codes(document, target) == [("V2_AS_LEGACY", "type"), ("GATEWAY_MEMORY", "memory")]
        assert made(document, target)["memory"] == {"type": "conversation_index", "window_size": 3}


ONE_RUN = msgspec.structs.replace(V2_19, keeps_sessions=False)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({"type": "agentic_memory"}, ["MEMORY_AS_CONVERSATION_INDEX"]),
        ({"type": "Conversation_Index"}, []),
        ({"window_size": 3}, []),
    ],
)
def test_a_memory_that_an_agent_for_one_run_cannot_have(memory: dict[str, Any], expected: list[str]) -> None:
    found = codes({**RFC, "memory": memory}, ONE_RUN)
    assert [code for code, place in found if place == "memory"] == expected


V3_5 = Target((3, 5, 0), unified_api=False)
SESSIONS, UNIFIED = {"gw_memory": "sessions"}, {"gw_output": "unified"}
AGENTIC = {"type": "agentic_memory"}


@pytest.mark.parametrize(
    ("target", "more", "expected"),
    [
        (V2_19, {}, {}),
        (V2_19, {"memory": {"type": "conversation_index"}}, {}),
        (V2_19, {"type": "conversational_v2"}, {**SESSIONS, **UNIFIED}),
        (V2_19, {"type": "conversational_v2", "memory": {"type": "conversation_index"}}, UNIFIED),
        (V2_19, {"type": "conversational_v2", "memory": {"window_size": 3}}, {**SESSIONS, **UNIFIED}),
        (V2_19, {"memory": AGENTIC}, SESSIONS),
        (V2_19, {"memory": {"type": "REMOTE_AGENTIC_MEMORY"}}, SESSIONS),
        (V2_19, {"type": "flow", "memory": AGENTIC}, SESSIONS),
        (V2_19, {"type": "conversational_flow", "memory": AGENTIC}, SESSIONS),
        (V3_4, {"memory": AGENTIC}, SESSIONS),
        (V3_5, {"memory": AGENTIC}, {}),
        (V3_5, {"type": "conversational_v2", "memory": AGENTIC}, {**SESSIONS, **UNIFIED}),
        (V3_6, {"type": "conversational_v2", "memory": AGENTIC}, {**SESSIONS, **UNIFIED}),
        (NATIVE, {"type": "conversational_v2", "memory": AGENTIC}, {}),
        (NATIVE, {"memory": AGENTIC}, {}),
        (ONE_RUN, {"type": "conversational_v2", "memory": AGENTIC}, UNIFIED),
    ],
)
def test_what_the_gateway_does_for_an_agent_is_in_its_parameters(
    target: Target, more: dict[str, Any], expected: dict[str, str]
) -> None:
    body = made({"name": "x", "model": block(OPENAI), **more}, target)
    assert {name: value for name, value in body["parameters"].items() if name in MARKS} == expected
    if "gw_memory" in expected:
        assert body["memory"]["type"] == "conversation_index"


def test_a_credential_of_a_memory_in_another_cluster_is_not_kept() -> None:
    memory = {"type": "remote_agentic_memory", "memory_container_id": "c1", "credential": {"basic_auth_key": "secret"}}
    body = made({"name": "x", "model": block(OPENAI), "memory": {**memory, "endpoint": "https://other.example.org"}})
    kept = {"type": "remote_agentic_memory", "memory_container_id": "c1"}
    assert body["parameters"]["mlc_gateway"]["memory"] == kept
    assert "secret" not in json.dumps(body)


def test_a_parameter_that_is_not_sent_is_told() -> None:
    both = {"temperature": 0.1, "top_p": 0.2}
    document = {"name": "x", "model": block(BEDROCK, model_parameters=both)}
    assert codes(document) == [("SAMPLING_LEFT_OUT", "model.model_parameters.temperature")]
    document = {"name": "x", "model": block(OPENAI, model_parameters={**both, "reasoning_effort": "low"})}
    assert [place.rpartition(".")[2] for _, place in codes(document)] == ["temperature", "top_p"]
    document = {"name": "x", "model": block(GEMINI, model_parameters=both)}
    assert codes(document) == []


def test_notices_say_what_was_asked_for_and_what_was_made() -> None:
    found = notices(read({"name": "x", "tools": [{"type": "ListIndexTool"}], "model": block(OPENAI)}), V2_19)
    reason = "ListIndexTool is called CatIndexTool on this cluster"
    assert found == (Notice("TOOL_RENAMED", reason, "tools[0].type"),)


# MCP

SSE = {
    "name": "weather",
    "url": "https://mcp.example.com",
    "headers": {"Authorization": "Bearer ${credential.key}"},
    "credential": {"key": "the-mcp-key"},
    "tools": ["get_.*"],
}


def test_the_connector_of_an_mcp_server() -> None:
    registration = read({"name": "x", "llm": {"model_id": "m0"}, "mcp": {**SSE, "endpoint": "/events"}})
    (server,) = registration.mcp
    assert mcp_connector_body(server, TAG) == {
        "name": "weather",
        "description": f"MCP server of an agent, mlc-gateway {TAG}",
        "version": "1",
        "protocol": "mcp_sse",
        "url": "https://mcp.example.com",
        "credential": {"key": "the-mcp-key"},
        "headers": {"Authorization": "Bearer ${credential.key}"},
        "parameters": {"sse_endpoint": "/events"},
    }
    assert "the-mcp-key" not in repr(registration)
    streamable = read({"name": "x", "mcp": {"url": "http://h", "transport": "streamable_http", "endpoint": "/mcp"}})
    assert mcp_connector_body(streamable.mcp[0], TAG) == {
        "name": "MCP server",
        "description": f"MCP server of an agent, mlc-gateway {TAG}",
        "version": "1",
        "protocol": "mcp_streamable_http",
        "url": "http://h",
        "credential": {},
        "headers": {},
        "parameters": {"endpoint": "/mcp"},
    }


def test_an_agent_with_its_own_llm_gets_the_connectors_and_nothing_else() -> None:
    document = {
        "name": "x",
        "type": "conversational",
        "llm": {"model_id": "m0", "parameters": {"prompt": "${parameters.question}"}},
        "parameters": {"mcp_connectors": '[{"mcp_connector_id":"c0"}]'},
        "mcp": [SSE, {"url": "http://h"}],
    }
    body = agent_body(read(document), V3_4, TAG, "", ["c1", "c2"])
    parameters = body["parameters"]
    assert json.loads(parameters.pop("mlc_gateway")) == {"mcp_connector_ids": ["c1", "c2"]}
    assert body == {
        "name": "x",
        "type": "conversational",
        "llm": {"model_id": "m0", "parameters": {"prompt": "${parameters.question}"}},
        "parameters": {
            "mcp_connectors": [
                {"mcp_connector_id": "c0"},
                {"mcp_connector_id": "c1", "tool_filters": ["get_.*"]},
                {"mcp_connector_id": "c2"},
            ],
            "mlc_gateway_registration": TAG,
        },
    }


def test_a_cluster_that_takes_the_block_gets_it_back_with_the_connectors() -> None:
    model = block(OPENAI, model_parameters={"max_tokens": 10})
    registration = read({"name": "x", "type": "conversational", "model": model, "mcp": {"url": "http://h"}})
    assert not takes(NATIVE, registration)
    assert not makes_model(NATIVE, registration)
    body = agent_body(registration, NATIVE, TAG, "", ["c1"])
    assert body["model"] == {**model, "model_parameters": {"max_tokens": "10"}}
    assert "llm" not in body
    assert body["parameters"]["mcp_connectors"] == [{"mcp_connector_id": "c1"}]
    assert notices(registration, NATIVE) == ()


# The cluster's own way

MODEL = json.dumps(block(OPENAI)).encode()
SPACED = b'{ "name":"x","type" :"conversational", "model":%s, "n":1.50,"tools":[{"type":"t"}]}' % MODEL
NONE = {"type": "VisualizationTool", "name": "none", "description": "Not available."}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (SPACED, None),
        (SPACED.replace(b"conversational", b"CONVERSATIONAL"), None),
        (SPACED.replace(b"conversational", b"conversational_v2"), None),
        (SPACED.replace(b"conversational", b"conversational/v2"), "conversational_v2"),
        (SPACED.replace(b'"type" :"conversational",', b""), "conversational"),
    ],
)
def test_where_the_cluster_takes_it_the_bytes_pass_or_the_type_is_mended(body: bytes, sent: str | None) -> None:
    registration = read(json.loads(body))
    assert takes(NATIVE, registration)
    corrected = as_native(body, registration, NATIVE)
    assert corrected is None if sent is None else json.loads(corrected or b"") == {**json.loads(body), "type": sent}


@pytest.mark.parametrize(
    ("more", "tools"),
    [
        ({}, [NONE]),
        ({"tools": []}, [NONE]),
        ({"tools": [], "type": "plan_execute_and_reflect"}, [NONE]),
        ({"tools": [], "type": "conversational_v2"}, []),
        ({"tools": [], "parameters": {"mcp_connectors": [{"mcp_connector_id": "c"}]}}, []),
    ],
)
def test_where_the_cluster_would_send_an_empty_list_of_tools_it_gets_one(
    more: dict[str, Any], tools: list[dict[str, Any]]
) -> None:
    document = {"name": "x", "type": "conversational", "model": block(OPENAI), **more}
    registration = read(document)
    corrected = as_native(json.dumps(document).encode(), registration, NATIVE)
    assert (corrected is None) is (tools == [])
    assert json.loads(corrected or b"{}").get("tools", []) == tools
    codes = [(notice.code, notice.place) for notice in notices(registration, NATIVE)]
    assert codes == ([("PLACEHOLDER_TOOL", "tools")] if tools else [])


@pytest.mark.parametrize(
    ("provider", "more", "parameters", "places"),
    [
        (BEDROCK, {"model": {"system_prompt": "S"}}, {"system_prompt": "S"}, []),
        (GEMINI, {"model": {"system_prompt": "S"}, "parameters": {"a": "b"}}, {"a": "b", "system_prompt": "S"}, []),
        (BEDROCK, {"model": {"system_prompt": "S"}, "parameters": {"system_prompt": "T"}}, None, []),
        (OPENAI, {"model": {"system_prompt": "S"}}, None, ["model.model_parameters.system_prompt"]),
        (OPENAI, {"parameters": {"system_prompt": "S"}}, None, ["parameters.system_prompt"]),
        (BEDROCK, {"parameters": {"max_iteration": 3}}, None, ["parameters.max_iteration"]),
        (BEDROCK, {"model": {"max_iteration": "3"}}, None, ["model.model_parameters.max_iteration"]),
    ],
)
def test_parameters_that_the_cluster_s_v2_agents_do_not_read_there(
    provider: str, more: dict[str, Any], parameters: dict[str, Any] | None, places: list[str]
) -> None:
    model = block(provider, model_parameters=more["model"]) if "model" in more else block(provider)
    rest = {"parameters": more["parameters"]} if "parameters" in more else {}
    document = {"name": "x", "type": "conversational_v2", "model": model, **rest}
    registration = read(document)
    corrected = as_native(json.dumps(document).encode(), registration, NATIVE)
    assert (None if corrected is None else json.loads(corrected)["parameters"]) == parameters
    found = [(notice.code, notice.place) for notice in notices(registration, NATIVE)]
    assert found == [("V2_PARAMETER_IGNORED", place) for place in places]


@pytest.mark.parametrize(
    ("provider", "own", "sent"),
    [
        (GEMINI, {}, {"llm_response_filter": "$.candidates[0].content.parts[0].text"}),
        (GEMINI, {"llm_response_filter": "$.own"}, None),
        (BEDROCK, {}, None),
        (OPENAI, {}, None),
    ],
)
def test_a_planner_is_told_where_the_text_of_a_response_is_that_it_can_not_read(
    provider: str, own: dict[str, str], sent: dict[str, str] | None
) -> None:
    document: dict[str, Any] = {"name": "x", "type": "plan_execute_and_reflect", "model": block(provider)}
    document["tools"] = [{"type": "ListIndexTool"}]
    if own:
        document["parameters"] = own
    registration = read(document)
    corrected = as_native(json.dumps(document).encode(), registration, NATIVE)
    assert json.loads(corrected or b"{}").get("parameters") == sent
    assert json.loads(corrected or b"{}").keys() <= {*document, "parameters"}


@pytest.mark.parametrize("more", [{"url": "https://h"}, {"mcp": {"url": "https://h"}}])
@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ({}, {"system_prompt": "S"}),
        ({"a": "b"}, {"a": "b", "system_prompt": "S"}),
        ({"system_prompt": "T"}, {"system_prompt": "T"}),
    ],
)
def test_a_v2_agent_that_takes_more_than_one_call_keeps_its_system_prompt(
    own: dict[str, str], sent: dict[str, str], more: dict[str, Any]
) -> None:
    url = {"url": more["url"]} if "url" in more else {}
    mcp = {"mcp": more["mcp"]} if "mcp" in more else {}
    model = block(BEDROCK, model_parameters={"system_prompt": "S"}, **url)
    registration = read({"name": "x", "type": "conversational_v2", "model": model, "parameters": own, **mcp})
    assert not takes(NATIVE, registration)
    body = agent_body(registration, NATIVE, TAG, "", ["c1"] if mcp else [])
    assert {name: value for name, value in body["parameters"].items() if name in ("a", "system_prompt")} == sent
    assert ("mcp_connectors" in body["parameters"]) is bool(mcp)


@pytest.mark.parametrize("more", [{"type": "flow"}, {"type": "conversational_flow"}, {"url": "https://h"}])
def test_what_the_block_can_t_say_is_made_even_there(more: dict[str, str]) -> None:
    url = {"url": more["url"]} if "url" in more else {}
    registration = read({"name": "x", "type": more.get("type", "conversational"), "model": block(OPENAI, **url)})
    assert makes_model(NATIVE, registration)
    with pytest.raises(ValueError, match="does not take"):
        as_native(b"{}", registration, NATIVE)


@pytest.mark.parametrize(
    "target",
    [V2_19, V3_4, V3_6, Target((3, 6, 0)), Target((3, 5, 0), unified_api=False), Target((2, 19, 0), unified_api=True)],
)
def test_without_the_block_the_gateway_makes_the_model(target: Target) -> None:
    registration = read(RFC)
    assert not takes(target, registration)
    assert makes_model(target, registration)
