"""Defaults of a registration, by version."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidInput
from gateway.register.documents import agent_body, default_tools
from gateway.register.handler import notices
from gateway.register.target import Target, check, makes_model
from tests.register.simulated_cluster import (
    ANTHROPIC,
    BEDROCK,
    COHERE,
    GEMINI,
    INVOKE,
    OPENAI,
    TAG,
    TARGETS,
    block,
    read,
)

V2_19, V3_4, V3_6 = TARGETS.values()


def types(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["type"] for tool in tools]


def agent(target: Target = V2_19, **more: Any) -> dict[str, Any]:
    return agent_body(read({"name": "x", "model": block(OPENAI), **more}), target, TAG, "m1")


@pytest.mark.parametrize(
    ("version", "lister"), [((2, 13, 0), "CatIndexTool"), ((2, 19, 0), "CatIndexTool"), ((3, 0, 0), "ListIndexTool")]
)
def test_the_three_tools_of_the_rfc_under_the_names_they_have_there(version: tuple[int, ...], lister: str) -> None:
    assert types(default_tools(Target(version))) == [lister, "IndexMappingTool", "SearchIndexTool"]


def test_a_minimal_registration() -> None:
    made = agent()
    assert made["type"] == "conversational"
    assert types(made["tools"]) == ["CatIndexTool", "IndexMappingTool", "SearchIndexTool"]
    assert made["memory"] == {"type": "conversation_index"}


@pytest.mark.parametrize("absent", [{}, {"tools": None, "memory": None, "type": None, "parameters": None}])
def test_null_is_absent(absent: dict[str, Any]) -> None:
    assert agent(**absent) == agent()


MCP = {"url": "https://mcp.example.com"}
NONE = {"type": "VisualizationTool", "name": "none", "description": "Not available."}


@pytest.mark.parametrize(
    ("target", "more", "tools"),
    [
        (V3_4, {}, []),
        (V3_6, {"model": block(GEMINI)}, []),
        (V3_4, {"type": "plan_execute_and_reflect"}, []),
        (V2_19, {}, [NONE]),
        (V2_19, {"type": "conversational_v2"}, [NONE]),
        (V3_4, {"model": block(GEMINI)}, [NONE]),
        (V3_4, {"model": block(ANTHROPIC), "type": "plan_execute_and_reflect"}, [NONE]),
        (V3_4, {"model": block(GEMINI), "mcp": MCP}, []),
        (V3_4, {"model": block(GEMINI), "parameters": {"mcp_connectors": [{"mcp_connector_id": "c"}]}}, []),
    ],
)
def test_no_tools_means_none_where_the_agent_runs_without(
    target: Target, more: dict[str, Any], tools: list[dict[str, Any]]
) -> None:
    asked = {"name": "x", "model": block(OPENAI), "tools": [], **more}
    connectors = ["c1"] if "mcp" in more else []
    assert agent_body(read(asked), target, TAG, "m1", connectors)["tools"] == tools
    codes = [(notice.code, notice.place) for notice in notices(read(asked), target) if notice.place == "tools"]
    assert codes == ([("PLACEHOLDER_TOOL", "tools")] if tools else [])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"app_type": "", "memory": {"type": "conversation_index"}}),
        ({"app_type": "rag"}, {"app_type": "rag", "memory": {"type": "conversation_index"}}),
        (
            {"memory": {"type": "conversation_index", "window_size": 3}},
            {"app_type": "", "memory": {"type": "conversation_index", "window_size": 3}},
        ),
    ],
)
def test_a_conversational_flow_gets_both_that_it_needs_to_remember(
    asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = agent(type="conversational_flow", **asked)
    assert {name: made[name] for name in ("app_type", "memory")} == expected
    own = {"name": "x", "type": "conversational_flow", "tools": [{"type": "t"}], "mcp": MCP, **asked}
    made = agent_body(read(own), Target((3, 8, 0)), TAG, "", ["c1"])
    assert {name: made[name] for name in ("app_type", "memory") if name in made} == (expected if asked else {})
    places = {notice.place for notice in notices(read(own), Target((3, 8, 0))) if notice.code == "FLOW_MEMORY_SET"}
    assert places == (expected.keys() - asked.keys() if asked else set())


def test_a_flow_gets_only_its_llm_and_no_memory() -> None:
    made = agent(type="flow")
    assert types(made["tools"]) == ["MLModelTool"]
    assert "memory" not in made
    assert agent(type="conversational_flow")["memory"] == {"type": "conversation_index"}


@pytest.mark.parametrize(
    ("target", "asked", "got"),
    [
        (V2_19, {"type": "ListIndexTool"}, {"type": "CatIndexTool", "name": "ListIndexTool"}),
        (V2_19, {"type": "ListIndexTool", "name": "lister"}, {"type": "CatIndexTool", "name": "lister"}),
        (V2_19, {"type": "CatIndexTool"}, {"type": "CatIndexTool"}),
        (V3_4, {"type": "CatIndexTool"}, {"type": "ListIndexTool", "name": "CatIndexTool"}),
        (V3_4, {"type": "PPLTool", "name": "p"}, {"type": "PPLTool", "name": "p"}),
    ],
)
def test_the_tool_that_changed_its_name(target: Target, asked: dict[str, str], got: dict[str, str]) -> None:
    assert agent(target, tools=[asked])["tools"] == [got]


@pytest.mark.parametrize(
    ("target", "type_", "lower"),
    [
        (V2_19, "agentic_memory", "conversation_index"),
        (V3_4, "remote_agentic_memory", "conversation_index"),
        (Target((3, 5, 0)), "agentic_memory", "agentic_memory"),
        (V3_6, "agentic_memory", "agentic_memory"),
        (V2_19, "conversation_index", "conversation_index"),
    ],
)
def test_memory(target: Target, type_: str, lower: str) -> None:
    assert agent(target, memory={"type": type_})["memory"]["type"] == lower


STREAMABLE = {**MCP, "protocol": "mcp_streamable_http"}


@pytest.mark.parametrize(
    ("target", "document", "problems"),
    [
        (V2_19, {"type": "plan_execute_and_reflect"}, {("type", "TYPE_NOT_ON_VERSION")}),
        (V3_4, {"type": "plan_execute_and_reflect"}, set()),
        (V3_6, {"type": "ag_ui"}, {("type", "TYPE_NOT_ON_VERSION")}),
        (Target((3, 6, 0), unified_api=True), {"type": "ag_ui"}, set()),
        (V2_19, {"type": "conversational_v2"}, set()),
        (V2_19, {"mcp": MCP}, {("mcp[0]", "MCP_NOT_ON_VERSION")}),
        (Target((3, 0, 0)), {"mcp": MCP}, set()),
        (Target((3, 0, 0)), {"mcp": {**MCP, "endpoint": "/sse"}}, set()),
        (Target((3, 0, 0)), {"mcp": {**MCP, "endpoint": "/events"}}, {("mcp[0]", "MCP_NOT_ON_VERSION")}),
        (Target((3, 2, 0)), {"mcp": [MCP, STREAMABLE]}, {("mcp[1]", "MCP_NOT_ON_VERSION")}),
        (Target((3, 3, 0)), {"mcp": [MCP, STREAMABLE]}, set()),
        (Target((3, 4, 0)), {"type": "flow", "mcp": MCP}, {("mcp[0]", "MCP_NOT_ON_VERSION")}),
        (Target((3, 8, 0)), {"type": "flow", "mcp": MCP}, set()),
        (Target((3, 4, 0), mcp_enabled=False), {"mcp": MCP}, {("mcp", "MCP_DISABLED")}),
        (Target((3, 4, 0), mcp_enabled=True), {"mcp": MCP}, set()),
        (
            V2_19,
            {"type": "plan_execute_and_reflect", "mcp": [MCP, MCP]},
            {("type", "TYPE_NOT_ON_VERSION"), ("mcp[0]", "MCP_NOT_ON_VERSION"), ("mcp[1]", "MCP_NOT_ON_VERSION")},
        ),
    ],
)
def test_what_a_version_rules_out(target: Target, document: dict[str, Any], problems: set[tuple[str, str]]) -> None:
    registration = read({"name": "x", "model": block(OPENAI), **document})
    if not problems:
        check(registration, target)
        return
    with pytest.raises(InvalidInput) as refused:
        check(registration, target)
    assert {(problem.place, problem.code) for problem in refused.value.problems} == problems


def test_the_refusal_names_the_call_that_turns_mcp_on() -> None:
    with pytest.raises(InvalidInput) as refused:
        check(read({"name": "x", "mcp": MCP}), Target((3, 4, 0), mcp_enabled=False))
    call = 'PUT /_cluster/settings {"persistent":{"plugins.ml_commons.mcp_connector_enabled":true}}'
    assert refused.value.problems[0].help == f"An administrator runs: {call}"


UNIFIED = Target((3, 8, 0), unified_api=True)


@pytest.mark.parametrize("provider", [ANTHROPIC, COHERE, INVOKE])
def test_a_provider_that_the_cluster_does_not_know(provider: str) -> None:
    """The gateway makes the model even where the cluster takes a `model` block, and refuses types that need one."""
    asked = {"name": "x", "model": block(provider)}
    registration = read({**asked, "type": "conversational"})
    assert makes_model(UNIFIED, registration)
    assert not makes_model(UNIFIED, read({**asked, "model": block(BEDROCK)}))
    check(registration, UNIFIED)
    for type_ in ("conversational_v2", "ag_ui"):
        with pytest.raises(InvalidInput) as refused:
            check(read({**asked, "type": type_}), UNIFIED)
        assert [(p.place, p.code) for p in refused.value.problems] == [("type", "TYPE_NOT_ON_VERSION")]
