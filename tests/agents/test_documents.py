"""Profiles are read whole from recorded documents; damaged ones are reported by their places."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.documents import needed, needed_connector, read_model, read_profile
from gateway.errors import Problem, UnresolvedAgent
from gateway.mlcommons.profile import AgentProfile

from .profiles import CONNECTOR_B, GOLDEN
from .recorded import agent_id, profile_of, recorded, unknown_agent


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: f"{'.'.join(map(str, p.version))}-{p.name}")
def test_recorded_documents_make_this_whole_profile(golden: AgentProfile) -> None:
    assert profile_of(".".join(map(str, golden.version)), golden.name) == golden


def test_needed_models_in_order_of_use_and_once_each() -> None:
    docs = recorded("2.19.0")
    assert needed(docs["agents"][agent_id(docs, "conv-b")]) == ("gHXu_6EBm8w0PCMjYmLt",)
    tools = [{"type": "MLModelTool", "parameters": {"model_id": m}} for m in "bcab"]
    tools.insert(1, {"type": "SearchIndexTool", "parameters": {"model_id": "not an LLM"}})
    assert needed({"type": "conversational", "llm": {"model_id": "a"}, "tools": tools}) == ("a", "b", "c")
    assert needed({"type": "FLOW", "llm": {"model_id": "a"}, "tools": tools}) == ("b", "c", "a")


def test_needed_connector() -> None:
    docs = recorded("2.19.0")
    assert needed_connector(docs["models"]["fHXu_6EBm8w0PCMjYGLR"]) == "enXu_6EBm8w0PCMjYGI-"
    assert needed_connector(docs["models"]["CHXz_6EBm8w0PCMjDmUi"]) is None
    assert needed_connector({"algorithm": "TEXT_EMBEDDING"}) is None


def test_default_interface_of_older_claude_models_requires_inputs() -> None:
    docs = recorded("2.19.0")
    embedded = docs["models"]["CHXz_6EBm8w0PCMjDmUi"]["connector"]
    model = read_model("A3Xz_6EBm8w0PCMjC2VH", docs["models"], {"AHXz_6EBm8w0PCMjCWXv": embedded}, "")
    assert model.required_inputs == ("inputs",)


@pytest.mark.parametrize(
    ("schema", "required"),
    [
        ({"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": "string"}}}}}, ("a",)),
        (
            {"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": ["null", "string"]}}}}},
            ("a",),
        ),
        ({"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": "array"}}}}}, ()),
        ({"properties": {"parameters": {"required": ["a"]}}}, ("a",)),
        ({"properties": {"text_docs": {"type": "array"}}}, ()),
        ('{"properties":{"parameters":{"required":["a"]}}}', ("a",)),
        ({}, ()),
        ([], ()),
    ],
)
def test_required_inputs_of_an_interface(schema: Any, required: tuple[str, ...]) -> None:
    models = {"m": {**recorded("2.19.0")["models"]["CHXz_6EBm8w0PCMjDmUi"], "interface": {"input": schema}}}
    assert read_model("m", models, {}, "").required_inputs == required


def test_values_that_are_no_strings_become_strings() -> None:
    agent, models, connectors = unknown_agent()
    agent["parameters"] = {"n": 5, "f": True, "list": ["a"], "none": None, "s": "text"}
    profile = read_profile("id-1", agent, models, connectors, (3, 4, 0))
    assert profile.parameters == {"n": "5", "f": "true", "list": '["a"]', "s": "text"}


PREDICT = {"action_type": "PREDICT", "url": "http://h/", "request_body": "{}"}


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"agent": {"type": 7}}, [("agents/x.type", "the agent has no type")]),
        ({"agent": {"llm": None}}, [("agents/x.llm.model_id", "the agent names no LLM")]),
        (
            {"agent": {"llm": []}},
            [("agents/x.llm", "llm is not an object"), ("agents/x.llm.model_id", "the agent names no LLM")],
        ),
        ({"agent": {"parameters": "p"}}, [("agents/x.parameters", "parameters are not an object")]),
        ({"agent": {"tools": {}}}, [("agents/x.tools", "tools is not an array")]),
        ({"agent": {"tools": [{"type": "A"}, 3]}}, [("agents/x.tools[1]", "a tool has no type")]),
        (
            {"agent": {"tools": [{"type": "MLModelTool"}]}},
            [("agents/x.tools[0].parameters.model_id", "the MLModelTool names no model")],
        ),
        (
            {
                "agent": {
                    "tools": [{"type": "MLModelTool", "parameters": {"model_id": "m"}, "config": {"model_id": "n"}}]
                }
            },
            [("agents/x.tools[0].parameters.model_id", "the MLModelTool names two models")],
        ),
        ({"models": {}}, [("agents/x.llm.model_id", "the model m does not exist")]),
        ({"models": {"m": {"algorithm": "X"}}}, [("models/m", "the model has no connector, so it is no remote LLM")]),
        ({"models": {"m": {"connector_id": "d"}}}, [("models/m.connector_id", "the connector d does not exist")]),
        (
            {"models": {"m": {"connector_id": "c", "interface": {"input": "{"}}}},
            [("models/m.interface.input", "the model's input interface is not JSON")],
        ),
        ({"connectors": {"c": {}}}, [("connectors/c.actions", "the connector has no predict action")]),
        (
            {"connectors": {"c": {"actions": [{**PREDICT, "action_type": "BATCH_PREDICT"}]}}},
            [("connectors/c.actions", "the connector has no predict action")],
        ),
        (
            {"connectors": {"c": {"actions": [{"action_type": "x"}, {**PREDICT, "request_body": None}]}}},
            [("connectors/c.actions[1].request_body", "the predict action has no request_body")],
        ),
        (
            {"models": {"m": {"connector": {"actions": [{**PREDICT, "url": 1}]}}}},
            [("models/m.connector.actions[0].url", "the predict action has no url")],
        ),
        (
            {"connectors": {"c": {"actions": [PREDICT], "parameters": []}}},
            [("connectors/c.parameters", "parameters are not an object")],
        ),
    ],
)
def test_every_unreadable_part_is_named(changes: dict[str, Any], problems: list[tuple[str, str]]) -> None:
    agent, models, connectors = unknown_agent()
    agent |= changes.get("agent", {})
    with pytest.raises(UnresolvedAgent) as caught:
        read_profile("x", agent, changes.get("models", models), changes.get("connectors", connectors), (2, 19, 0))
    assert [(p.place, p.reason) for p in caught.value.problems] == problems


def test_a_model_that_is_missing_is_reported_once_for_each_place_that_names_it() -> None:
    agent, _, connectors = unknown_agent()
    agent["tools"] = [{"type": "MLModelTool", "parameters": {"model_id": "m"}}]
    with pytest.raises(UnresolvedAgent) as caught:
        read_profile("x", agent, {}, connectors, (2, 19, 0))
    assert [p.place for p in caught.value.problems] == [
        "agents/x.llm.model_id",
        "agents/x.tools[0].parameters.model_id",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(p for key, value in items for p in _paths(value, (*path, key)))]


@given(st.data())
def test_any_damage_gives_a_profile_or_an_unresolved_agent(data: st.DataObject) -> None:
    docs = copy.deepcopy(recorded("2.19.0"))
    id_ = agent_id(docs, "conv-b")
    used = {"agents": {id_: docs["agents"][id_]}}
    used["models"] = {"gHXu_6EBm8w0PCMjYmLt": docs["models"]["gHXu_6EBm8w0PCMjYmLt"]}
    used["connectors"] = {CONNECTOR_B.id: docs["connectors"][CONNECTOR_B.id]}
    *parents, last = data.draw(st.sampled_from([path for path in _paths(used) if len(path) > 2]))
    place: Any = used
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON)
    problems: tuple[Problem, ...] = ()
    profile = None
    try:
        profile = read_profile(id_, used["agents"][id_], used["models"], used["connectors"], (2, 19, 0))
    except UnresolvedAgent as unresolved:
        problems = unresolved.problems
    if profile is None:
        assert problems
        assert all(problem.place and problem.reason for problem in problems)
    else:
        assert all(isinstance(v, str) for m in profile.models for v in m.connector.parameters.values())


def flow_that_runs(agent: str, type_: str = "flow") -> dict[str, Any]:
    return {"type": type_, "tools": [{"type": "AgentTool", "parameters": {"agent_id": agent}}]}


def test_the_flow_that_an_agent_tool_runs_is_read_with_its_llm() -> None:
    docs = recorded("2.19.0")
    id_ = agent_id(docs, "flow-a")
    profile = read_profile(
        "root", flow_that_runs(id_), docs["models"], docs["connectors"], (2, 19, 0), others=docs["agents"]
    )
    inner = profile_of("2.19.0", "flow-a")
    (tool,) = profile.tools
    assert tool.agent is not None
    assert (tool.agent.id, tool.agent.tools, profile.models) == (id_, inner.tools, inner.models)
    assert (profile.agent_ids, profile.provider) == (("root", id_), inner.provider)


@pytest.mark.parametrize("agent", ["conv-b", "gone", "root"])
def test_an_agent_of_another_type_or_that_can_not_be_read_is_left_out(agent: str) -> None:
    docs = recorded("2.19.0")
    agents = {"gone": {"type": "flow", "tools": [{"type": "MLModelTool", "parameters": {"model_id": "gone"}}]}}
    agents |= {"root": flow_that_runs("root"), "conv-b": docs["agents"][agent_id(docs, "conv-b")]}
    profile = read_profile("root", flow_that_runs(agent), docs["models"], {}, (2, 19, 0), others=agents)
    (tool,) = profile.tools
    assert profile.models == ()
    assert tool.calls_unread_llm or (tool.agent is not None and tool.agent.tools[0].calls_unread_llm)


def test_only_a_flow_passes_its_parameters_to_the_agent_that_a_tool_runs() -> None:
    docs = recorded("2.19.0")
    agent = {
        **flow_that_runs(agent_id(docs, "flow-a"), "conversational"),
        "llm": {"model_id": next(iter(docs["models"]))},
    }
    profile = read_profile("x", agent, docs["models"], docs["connectors"], (2, 19, 0), others=docs["agents"])
    assert [tool.agent for tool in profile.tools] == [None]
