"""Tools of earlier calls are declared beside the messages, where the API requires that and the template has a slot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery.template_change import UnreadableTemplate, member_slots
from gateway.providers import registry
from tests.delivery.cases import CALL, CASES, RESULT, turn
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.upgrades import upgrade
from tests.oracle import Oracle, Outcome

TOOLS = CASES["tool call and result"]
TWO_CALLS = [
    turn("user", "a"),
    turn("assistant", CALL, {"toolUse": {"toolUseId": "t2", "name": "time", "input": {}}}),
    turn("user", RESULT, {"toolResult": {"toolUseId": "t2", "content": [{"type": "text", "text": "noon"}]}}),
    turn("assistant", {"toolUse": {"toolUseId": "t3", "name": "weather", "input": {}}}),
    turn("user", {"toolResult": {"toolUseId": "t3", "content": [{"type": "text", "text": "rain"}]}}),
    turn("assistant", "b"),
    turn("user", "c"),
]
NOTE = "Used earlier in this conversation. Not available now."


@pytest.fixture(scope="module")
def upgraded() -> SimulatedCluster:
    cluster = SimulatedCluster("2.19.0")
    upgrade(cluster)
    return cluster


def received(cluster: SimulatedCluster, agent: str, value: Any) -> Any:
    sent = cluster.send(agent, {"input": value})
    assert sent.rewritten is not None, sent.error
    assert "TOOLS_DECLARED" in [notice.code for notice in sent.rewritten.plan.notices]
    assert sent.executed is not None
    assert sent.executed.status == 200
    return json.loads(sent.executed.llm_bodies[0])


@pytest.mark.parametrize("agent", ["flow-bedrock_tutorial", "conv-bedrock_tutorial", "per-bedrock_upgraded"])
def test_each_tool_is_declared_once_through_the_slot_of_function_calling(agent: str) -> None:
    specs = [
        {"toolSpec": {"name": name, "description": NOTE, "inputSchema": {"json": {"type": "object"}}}}
        for name in ("weather", "time")
    ]
    assert received(cluster_of("3.4.0"), agent, TWO_CALLS)["toolConfig"] == {"tools": specs}


@pytest.mark.parametrize("agent", ["flow-a", "conv-d", "cflow-f", "flow-h"])
def test_after_the_upgrade_the_connector_writes_the_member(upgraded: SimulatedCluster, agent: str) -> None:
    names = [tool["toolSpec"]["name"] for tool in received(upgraded, agent, TWO_CALLS)["toolConfig"]["tools"]]
    assert names == ["weather", "time"]


@pytest.mark.parametrize("agent", ["flow-i", "conv-j"])
def test_anthropics_form(upgraded: SimulatedCluster, agent: str) -> None:
    tools = [{"name": name, "description": NOTE, "input_schema": {"type": "object"}} for name in ("weather", "time")]
    assert received(upgraded, agent, TWO_CALLS)["tools"] == tools


def test_all_llm_tools_of_a_flow_that_get_the_messages_get_the_declarations(upgraded: SimulatedCluster) -> None:
    sent = upgraded.send("two-a", CASES["tool result last"].body)
    assert sent.executed is not None
    assert ["toolConfig" in json.loads(body) for body in sent.executed.llm_bodies] == [True, True]


def test_nothing_is_declared_where_the_template_does_it() -> None:
    sent = cluster_of("3.4.0").send("fc-bedrock_tutorial", TOOLS.body)
    assert sent.rewritten is not None
    assert "TOOLS_DECLARED" not in [notice.code for notice in sent.rewritten.plan.notices]


def test_the_oracle_reads_the_declarations() -> None:
    cluster = cluster_of("3.4.0")
    sent = cluster.send("flow-bedrock_tutorial", TOOLS.body)
    assert Oracle(cluster).judge("flow-bedrock_tutorial", {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize(("name", "declared"), [("bedrock/converse", True), ("openai/v1/chat/completions", False)])
def test_providers_that_need_declarations(name: str, declared: bool) -> None:
    provider = registry.provider(name)
    assert provider.needs_declarations is declared
    assert provider.called_tools([{"role": "user", "content": [{"text": "a"}]}]) == []


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ('{"messages":[]${parameters.a:-}}', ["a"]),
        ('{"messages":[] ${parameters.a}${parameters.b:-x} }', ["a", "b"]),
        ('{"x":${parameters.a},"messages":[${parameters.b}]}', []),
        ('{${parameters.a}"messages":[],${parameters.b}}', []),
        ("", []),
    ],
)
def test_slots_of_members(template: str, names: list[str]) -> None:
    assert member_slots(template) == names


def test_a_template_that_does_not_close() -> None:
    with pytest.raises(UnreadableTemplate):
        member_slots('{"messages":[')
