"""The proof finds what an upgrade would change for a legacy caller, and nothing where nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.delivery.template_change import find_change, with_upgrades
from gateway.migrate.proof import QUESTIONS, agent_proof, outcomes, raw_proof
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.mlcommons.template import RuntimeValues
from gateway.providers import registry
from tests.delivery.simulated_cluster import SimulatedCluster

WORLDS = {version: SimulatedCluster(version) for version in ("2.19.0", "3.4.0")}
AGENTS = [
    (version, name)
    for version, cluster in WORLDS.items()
    for name in cluster.agents
    if not name.startswith(("flow-c", "cflow-c", "conv-c"))
]
MOST_SLOW = [pytest.param(*agent, marks=pytest.mark.slow if number % 6 else ()) for number, agent in enumerate(AGENTS)]
"""All agents; those that `make test` leaves out run in CI."""


def _with_connectors(profile: AgentProfile, change: Callable[[Connector], Connector]) -> AgentProfile:
    def model(old: Model) -> Model:
        return replace(old, connector=change(old.connector))

    tools = tuple(replace(tool, model=model(tool.model) if tool.model else None) for tool in profile.tools)
    return replace(profile, llm=model(profile.llm) if profile.llm else None, tools=tools)


def _upgrade(connector: Connector) -> Connector:
    change = find_change(connector, registry.provider("bedrock/converse"))
    return replace(
        connector,
        request_body=change.request_body,
        parameters={**connector.parameters, **change.parameters},
    )


@pytest.mark.parametrize(("version", "name"), MOST_SLOW)
def test_every_offered_upgrade_of_the_fixtures_renders_legacy_calls_alike(version: str, name: str) -> None:
    profile = WORLDS[version].profile(name)
    if not profile.models or not profile.provider:
        return

    proof = agent_proof(profile, with_upgrades(profile, registry.provider(profile.provider)))
    own_value = any(name in tool.parameters for tool in profile.tools for name in ("messages", "contents", "body"))
    assert proof.differing == () or own_value
    assert proof.calls == 2 * 3 * len(QUESTIONS)


@pytest.mark.parametrize("name", ["flow-d", "cflow-d", "conv-d", "cflow-f"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: value.replace("${parameters.prompt}", "${parameters.question}"),
        lambda value: value.replace("${parameters.prompt}", " ${parameters.prompt}"),
        lambda value: value.replace('"user"', '"assistant"'),
        lambda value: value.replace('{"text"', '{"text":"x"},{"text"'),
    ],
)
def test_a_wrong_default_is_found(name: str, spoil: Callable[[str], str]) -> None:
    profile = WORLDS["2.19.0"].profile(name)

    def change(connector: Connector) -> Connector:
        new = _upgrade(connector)
        (added,) = new.parameters.keys() - connector.parameters.keys() - {"tools_member"}
        return replace(new, parameters={**new.parameters, added: spoil(new.parameters[added])})

    assert agent_proof(profile, _with_connectors(profile, change)).differing


def test_an_agent_whose_own_parameter_was_ignored_until_now_is_found() -> None:
    profile = WORLDS["2.19.0"].profile("flow-d")
    tool = profile.tools[0]
    own = replace(tool, parameters={**tool.parameters, "messages": '[{"role":"user","content":[{"text":"other"}]}]'})
    profile = replace(profile, tools=(own,))
    assert agent_proof(profile, _with_connectors(profile, _upgrade)).differing


def test_a_later_tool_of_a_flow_counts_too() -> None:
    profile = WORLDS["2.19.0"].profile("flow-d")
    first = profile.tools[0]
    second = replace(first, name="second", parameters={**first.parameters, "messages": "[]"})
    profile = replace(profile, tools=(first, second))
    assert agent_proof(profile, _with_connectors(profile, _upgrade)).differing


def test_a_tool_of_a_conversational_agent_counts_too() -> None:
    cluster = WORLDS["2.19.0"]
    profile = cluster.profile("conv-a")
    model = cluster.profile("flow-d").tools[0].model
    tool = Tool("MLModelTool", "helper", {"prompt": "Help: ${parameters.question}", "messages": "[]"}, {}, model)
    profile = replace(profile, tools=(tool,))

    def change(connector: Connector) -> Connector:
        return _upgrade(connector) if model is not None and connector == model.connector else connector

    assert agent_proof(profile, _with_connectors(profile, change)).differing


def test_both_ways_of_an_ambiguous_question_are_rendered() -> None:
    profile = WORLDS["2.19.0"].profile("flow-d")
    tool = replace(profile.tools[0], parameters={**profile.tools[0].parameters, "prompt": "${parameters.question}"})
    found = outcomes(replace(profile, tools=(tool,)), {"question": "{a:1}"}, RuntimeValues())
    text = '{"messages":[{"role":"user","content":[{"text":"{a:1}"}]}]}'
    assert found == [(text, text)]
    (broken,) = outcomes(replace(profile, tools=(tool,)), {"question": '{"a":1,}'}, RuntimeValues())
    assert broken == (None, text.replace("{a:1}", '{\\"a\\":1,}'))  # raw it breaks the quotes, escaped it arrives


def test_direct_predict_calls() -> None:
    model = WORLDS["2.19.0"].profile("flow-d").tools[0].model
    assert model is not None
    good = replace(model, connector=_upgrade(model.connector))
    assert raw_proof(model, good, (2, 19, 0)) == ()
    wrong = replace(good.connector, parameters={**good.connector.parameters, "messages": "[]"})
    assert raw_proof(model, replace(good, connector=wrong), (2, 19, 0))
