"""A proof takes only the cluster's own failures for a no; a fault of the gateway's own code is an internal error."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery import plan, proof, search, system_text
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Candidate
from gateway.delivery.plan import Plan
from gateway.delivery.proof import Proved
from gateway.delivery.target import TargetTurns
from gateway.delivery.trees import value_at
from gateway.errors import UndeliverableContent
from gateway.execute.body import payloads_of
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.profile import AgentProfile
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import RuntimeValues
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.request import parameters_as_strings, read_execute
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import Sent, cluster_of


def make_plan(profile: AgentProfile, value: Any = "hi", provider: str = "", **params: str) -> Plan:
    request = read_execute(json.dumps({"input": value}).encode())
    assert request.input is not None
    used = registry.provider(provider or profile.provider)
    return plan.plan(profile, used, request.input, params, MappingOptions(), "t1")


def codes(profile: AgentProfile, *rest: Any, **params: str) -> set[str]:
    with pytest.raises(UndeliverableContent) as refusal:
        make_plan(profile, *rest, **params)
    return {problem.code for problem in refusal.value.problems}


def templated(name: str, body: str, version: str = "2.19.0", **parameters: str) -> AgentProfile:
    """The flow agent `name` with another template in its connector."""
    profile = cluster_of(version).profile(name)
    (tool,) = profile.tools
    assert tool.model is not None
    connector = replace(tool.model.connector, request_body=body, parameters={**parameters})
    return replace(profile, tools=(replace(tool, model=replace(tool.model, connector=connector)),))


def _parameter_that_is_no_text(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    question: Any = {"question": target.question, "number": 5}
    yield Candidate("wrong", question, lambda env: {})


def _body_that_can_not_be_made(error: Exception) -> Any:
    def strategy(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
        def expected(env: Any) -> Any:
            raise error

        yield Candidate("wrong", {"question": target.question}, expected)

    return strategy


def _no_candidate(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
    raise KeyError("no such slot")
    yield


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        (_parameter_that_is_no_text, TypeError),
        (_body_that_can_not_be_made(KeyError("x")), KeyError),
        (_body_that_can_not_be_made(IndexError("x")), IndexError),
        (_body_that_can_not_be_made(TypeError("x")), TypeError),
        (_no_candidate, KeyError),
    ],
)
def test_a_strategys_bug_is_raised(strategy: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt} ${parameters.prompt.toString():-}"}]}]}'
    )
    monkeypatch.setattr(search, "STRATEGIES", (strategy,))
    with pytest.raises(error):
        make_plan(templated("flow-a", body))


SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
WITH_SYSTEM = (
    '{"system":[{"text":"${parameters.system_prompt}"}],'
    '"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
)


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), IndexError("x")])
def test_a_bug_in_placing_the_system_text_is_raised(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, body: Any) -> Any:
        raise error

    monkeypatch.setattr(system_text._Apply, "__call__", broken)
    with pytest.raises(type(error)):
        make_plan(templated("flow-a", WITH_SYSTEM, system_prompt="Own."), SYSTEM)


def test_the_system_text_arrives_where_the_template_has_a_place() -> None:
    assert (
        make_plan(templated("flow-a", WITH_SYSTEM, system_prompt="Own."), SYSTEM).parameters["system_prompt"]
        == "Own.\n\nBe brief."
    )


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("a", 0, "b"), 1), (("a",), [{"b": 1}]), ((), {"a": [{"b": 1}]}), (("a", 1, "b"), None), (("x",), None),
        (("a", "b"), None), ((0,), None), (("a", 0, "b", "c"), None),
    ],
)  # fmt: skip
def test_what_stands_at_a_path(path: tuple[str | int, ...], found: Any) -> None:
    assert value_at({"a": [{"b": 1}]}, path) == found


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt} ${parameters.missing}"}]}]}',
        '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]',
        '{"messages":[{"role":"user","content":[{"text":"${parameters.loop}"}]}]}',
    ],
    ids=["a placeholder that is not filled", "invalid JSON", "a placeholder that leads to itself"],
)
def test_the_clusters_own_failures_are_a_refusal(body: str) -> None:
    assert codes(templated("flow-a", body, loop="${parameters.loop}")) == {"AGENT_NOT_CALLABLE"}


def test_placeholders_that_are_nested_too_deeply_are_the_clusters_own_failure() -> None:
    chain = {f"p{number}": f"${{parameters.p{number + 1}}}" for number in range(5000)}
    profile = templated("flow-a", '{"messages":"${parameters.p0}"}', **chain)
    with pytest.raises(RenderFailure, match="nested too deeply"):
        first_call(profile, {"question": "x"}, RuntimeValues())


@pytest.mark.parametrize(
    "turn", ['["${parameters.system_prompt}"]', '[[1, "${parameters.system_prompt}"]]', "1", "null"]
)
@pytest.mark.parametrize("provider", ["bedrock", "openai", "gemini"])
def test_a_template_whose_turns_are_no_turns_is_no_internal_error(turn: str, provider: str) -> None:
    for field in ("messages", "contents"):
        body = f'{{"{field}":[{turn},{{"role":"user","content":"${{parameters.prompt}}"}}]}}'
        with contextlib.suppress(UndeliverableContent):
            make_plan(templated("flow-a", body), SYSTEM, provider)


@pytest.mark.parametrize("agent", ["flow-a", "conv-a", "cflow-a"])
@pytest.mark.parametrize("value", ["5", "{", "[[1]]", '{"a":1}', "null", "[" * 100_000])
def test_selected_tools_that_are_no_list_of_names_are_refused(agent: str, value: str) -> None:
    assert codes(cluster_of("2.19.0").profile(agent), selected_tools=value) == {"AGENT_NOT_CALLABLE"}


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("agent", ["flow-d", "conv-a", "cflow-e"])
def test_planning_leaves_nothing_to_the_garbage_collector(agent: str) -> None:
    # A body of many megabytes would stay until the next collection.
    profile = cluster_of("2.19.0").profile(agent)
    make_plan(profile, "${parameters.x} $")
    gc.collect()
    gc.disable()
    try:
        make_plan(profile, "${parameters.x} $")
        assert gc.collect() == 0
    finally:
        gc.enable()


def _doubling(count: int) -> dict[str, str]:
    """Parameters that each hold the next one twice, so that the first expands to 2 ** count texts."""
    held = {f"a{index}": f"${{parameters.a{index + 1}}}" * 2 for index in range(count)}
    return {**held, f"a{count}": "lol"}


@pytest.mark.parametrize("agent", ["flow-a", "conv-a", "flow-d"])
@pytest.mark.parametrize("parameter", ["prompt", "messages", "inputText"])
def test_parameters_that_double_without_end_are_refused(agent: str, parameter: str) -> None:
    params = {**_doubling(40), parameter: "${parameters.a0} ${parameters.question}"}
    profile = cluster_of("2.19.0").profile(agent)
    with contextlib.suppress(UndeliverableContent):
        # An agent whose template does not name the parameter is answered, with the parameter unused.
        assert "a0" not in str(make_plan(profile, **params).request)


def test_parameters_that_double_say_why_they_are_refused() -> None:
    params = {**_doubling(40), "prompt": "${parameters.a0} ${parameters.question}"}
    with pytest.raises(UndeliverableContent, match="expand to many times their length") as refusal:
        make_plan(cluster_of("2.19.0").profile("conv-a"), **params)
    assert [(problem.place, problem.code) for problem in refusal.value.problems] == [
        ("parameters", "AGENT_NOT_CALLABLE")
    ]


def test_a_long_chain_of_parameters_is_refused() -> None:
    chain = {f"a{index}": f"${{parameters.a{index + 1}}}" for index in range(250)} | {"a250": "end"}
    with pytest.raises(UndeliverableContent, match="more than 200 placeholders"):
        make_plan(cluster_of("2.19.0").profile("flow-d"), **chain, prompt="${parameters.a0} ${parameters.question}")


# What was proved is what is sent

SENT = {
    "2.19.0": ["flow-a", "conv-d", "cflow-f", "two-d", "bare-b"],
    "3.4.0": ["flow-bedrock_tutorial", "conv-openai_tutorial", "fc_noprompt-bedrock_tutorial", "bare-bedrock_upgraded"],
}


def test_a_plan_that_counts_as_proved_holds_only_what_was_proved() -> None:
    proved = Proved({"question": "x"})
    assert Plan("text", "", proved, "x", None).parameters == {"question": "x"}
    with pytest.raises(AssertionError):
        Plan("text", "", {**proved, "inputs": "x"}, "x", None)
    with pytest.raises(AssertionError):
        replace(Plan("text", "", proved, "x", None), parameters={**proved, "inputs": "x"})
    with pytest.raises(TypeError):
        proved["inputs"] = "x"  # type: ignore[index]


@pytest.mark.parametrize(("version", "agents"), SENT.items())
def test_all_parameters_that_are_sent_were_rendered(
    version: str, agents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that the agent can't do without, and the caller's own."""
    rendered: list[dict[str, str]] = []

    def render(profile: AgentProfile, params: Mapping[str, str], env: RuntimeValues) -> Any:
        rendered.append(dict(params))
        return first_call(profile, params, env)

    def as_sent(value: str, sent: Sent) -> str:
        assert sent.input is not None
        for token, data in payloads_of(sent.input).items():
            value = value.replace(token, bytes(data).decode())
        return value

    monkeypatch.setattr(proof, "first_call", render)
    cluster = cluster_of(version)
    for name in agents:
        for case in CASES.values():
            rendered.clear()
            sent = cluster.send(name, case.body, case.pairs)
            if sent.rewritten is None:
                continue
            assert sent.rewritten.body is not None
            parameters = json.loads(b"".join(sent.rewritten.body))["parameters"]
            proved = {name: as_sent(value, sent) for name, value in rendered[-1].items()}
            assert parameters_as_strings(parameters) == proved, (name, case)
