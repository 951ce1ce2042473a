"""The gateway's rendering against the simulator's, which was written apart from it and held to the recordings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from gateway.mlcommons.agents.flow import tool_values
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.rendering import first_call, first_llm, is_strict_json
from gateway.mlcommons.template import RuntimeValues
from tests.conftest import examples
from tests.delivery.simulated_cluster import LISTED, cluster_of
from tests.matrix import VERSIONS
from tests.strategies import hostile_text, json_values

FLOWS = ("flow", "cflow", "own", "bare", "lister", "two")
CALLING = ("fc",)  # agents with a prompt of their own; the text built into the cluster is unknown
AGENTS = [
    (v, name) for v in VERSIONS for name in sorted(cluster_of(v).agents) if name.partition("-")[0] in (*FLOWS, *CALLING)
]

NAMES = (
    "prompt",
    "messages",
    "contents",
    "body",
    "system_prompt",
    "_chat_history",
    "chat_history",
    "gw_a",
    "llm.prompt",
)
VALUES = (
    hostile_text(3)
    | st.sampled_from(["${parameters.question}", "${parameters.gw_a}", "<$${parameters.gw_a}>", "${parameters.gw_a},"])
    | json_values(4).map(json.dumps)
)
RAW = st.sampled_from(["body", "_chat_history,gw_a", "_chat_history,_tools,_interactions,tool_configs,prompt"])


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, str]:
    chosen = {name: draw(VALUES) for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))}
    if draw(st.integers(0, 3)) == 0:
        chosen["no_escape_params"] = draw(RAW)
    if draw(st.booleans()):
        chosen["skip_validating_missing_parameters"] = "true"
    return {"question": draw(VALUES), **chosen}


@examples(300)
@given(st.sampled_from(AGENTS), parameters())
def test_what_is_predicted_is_what_the_llm_receives(agent: tuple[str, str], params: dict[str, str]) -> None:
    version, name = agent
    cluster = cluster_of(version)
    note(f"{agent} {params}")
    profile = cluster.profile(name)
    try:
        predicted = first_call(profile, params, RuntimeValues(tool_output=LISTED))
    except RenderFailure:
        event("not predicted")
        return
    executed = cluster.ask(cluster.agents[name], params)
    cluster.forget()
    assert executed.llm_bodies, (executed.body, predicted)
    received = json.loads(executed.llm_bodies[0])
    event("predicted")
    if name.startswith(CALLING):  # the tools are symbols to the gateway
        predicted, received = ({k: v for k, v in body.items() if k[:4] != "tool"} for body in (predicted, received))
        received.pop("parallel_tool_calls", None)
    assert predicted == received


def connector(body: str, **values: str) -> Connector:
    return Connector("c", "http", "http://llm.invalid/converse", body, values)


def flow(*tools: Tool, version: tuple[int, ...] = (2, 19, 0)) -> AgentProfile:
    generation = Generation.TEXT if version < (3,) else Generation.FUNCTION_CALLING
    return AgentProfile("id", "name", "flow", version, generation, tools=tools)


def llm(name: str, body: str = '{"p":"${parameters.prompt}"}', **values: str) -> Tool:
    return Tool("MLModelTool", name, values, model=Model("m", connector(body)))


LISTER = Tool("CatIndexTool", "lister")


def test_the_first_llm_is_the_first_tool_with_a_model() -> None:
    assert first_llm(flow(LISTER, llm("one"), llm("two")), {})[1] == llm("one")


def test_selected_tools_choose_and_order() -> None:
    agent = flow(LISTER, llm("one"), llm("two"))
    assert first_llm(agent, {"selected_tools": '["two","one","nobody"]'})[1] == llm("two")
    assert first_llm(agent, {"selected_tools": '["lister"]'}) == (None, None)
    with pytest.raises(RenderFailure, match="selected_tools is not a JSON list"):
        first_llm(agent, {"selected_tools": "two"})


@pytest.mark.parametrize(
    ("version", "request_values", "expected"),
    [
        ((2, 19, 0), {}, {"a": "tool", "b": "config"}),
        ((2, 19, 0), {"a": "request", "b": "request"}, {"a": "request", "b": "config"}),
        ((2, 19, 0), {"one.a": "named"}, {"a": "named", "b": "config", "one.a": "named"}),
        ((3, 4, 0), {"a": "request", "one.a": "named"}, {"a": "named", "b": "config", "one.a": "named"}),
        ((2, 19, 0), {"MLModelTool.a": "typed"}, {"a": "typed", "b": "config", "MLModelTool.a": "typed"}),
        ((3, 4, 0), {"MLModelTool.a": "typed"}, {"a": "tool", "b": "config", "MLModelTool.a": "typed"}),
        ((3, 4, 0), {"one.a": "named"}, {"a": "named", "b": "config", "one.a": "named"}),
    ],
)
def test_whose_parameter_wins(version: tuple[int, ...], request_values: dict[str, str], expected: Any) -> None:
    tool = Tool("MLModelTool", "one", {"a": "tool"}, {"b": "config"})
    assert tool_values(flow(tool, version=version), tool, request_values) == expected


def test_on_2x_nobody_knows_which_of_two_parameters_wins() -> None:
    tool = Tool("MLModelTool", "one")
    with pytest.raises(RenderFailure, match=r"^both a and one\.a are sent$"):
        tool_values(flow(tool), tool, {"a": "request", "one.a": "named"})


def test_the_output_of_an_earlier_tool_is_escaped() -> None:
    agent = flow(LISTER, llm("one", prompt="${parameters.lister.output}?"))
    assert first_call(agent, {}, RuntimeValues(tool_output='a "b"')) == {"p": 'a \\"b\\"?'}


FAILURES = {
    "a value that may or may not be JSON": (
        {"question": "{a:1}"},
        "the parameter question may or may not count as JSON",
    ),
    "a placeholder that nobody fills": ({"question": "${parameters.x}"}, "the placeholder x is not filled"),
    "a cycle": (
        {"question": "${parameters.question}"},
        "placeholders lead back to themselves: prompt -> question -> question",
    ),
    "broken JSON": ({"question": '{"a":1}'}, "the rendered request is not valid JSON"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_what_can_not_be_predicted_fails(kind: str) -> None:
    params, reason = FAILURES[kind]
    with pytest.raises(RenderFailure) as failure:
        first_call(flow(llm("one", prompt="Q: ${parameters.question}")), params, RuntimeValues())
    assert str(failure.value).startswith(reason.partition(": prompt")[0])


def test_a_missing_value_with_the_default_null_becomes_null() -> None:
    agent = flow(llm("one", '{"p":"${parameters.stop:-null}","q":"${parameters.q:-null}"}'))
    assert first_call(agent, {"q": "here"}, RuntimeValues()) == {"p": None, "q": "here"}


@pytest.mark.parametrize(
    ("text", "strict"),
    [("{}", True), ("[1]", True), ("[NaN]", False), ('{"a":1,"a":2}', False), ("1", False), ("{a:1}", False)],
)
def test_strict_json(text: str, strict: bool) -> None:
    assert is_strict_json(text) is strict
