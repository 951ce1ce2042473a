"""Models whose interface requires `inputs` (docs/evidence/facts.md, "Models that require inputs")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.profile import Model
from gateway.mlcommons.rendering import first_call
from gateway.mlcommons.template import RuntimeValues
from gateway.simulator.fixtures import Template, connector_body
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import LLM_URL, SimulatedCluster
from tests.oracle import Oracle, Outcome

CLAUDE = {"service_name": "bedrock", "model": "anthropic.claude-3-sonnet-20240229-v1:0", "max_tokens": "100"}
URL = "{llm}/bedrock/model/${parameters.model}/converse"
TEXTS = [name for name, case in CASES.items() if isinstance(case.input, str) and not case.parameters and not case.pairs]
TERSE = "Be terse. ${parameters.question} End."


def message(variable: str) -> str:
    return f'{{"messages":[{{"role":"user","content":[{{"text":"${{parameters.{variable}}}"}}]}}]}}'


class Agents:
    """A cluster with models that require `inputs`, and agents with their tools."""

    def __init__(self, version: str) -> None:
        self.cluster = SimulatedCluster(version)
        self.oracle = Oracle(self.cluster)

    def tool(self, name: str, variable: str, **parameters: str) -> dict[str, Any]:
        """An MLModelTool. variable: what the connector's template has as the user's text."""
        resources = self.cluster.core.resources
        template = Template(URL, message(variable), CLAUDE)
        made = resources.create_connector(connector_body(f"requires-{variable}-{name}", template, LLM_URL))
        model = resources.register_model(
            {"name": f"requires-{variable}-{name}", "function_name": "remote", **made}, True
        )
        given = {"model_id": model["model_id"], "response_filter": template.response_filter, **parameters}
        return {"type": "MLModelTool", "name": name, "parameters": given}

    def register(self, name: str, *tools: dict[str, Any], **body: Any) -> None:
        agent = {"name": name, "type": "flow", "tools": list(tools), **body}
        self.cluster.agents[name] = self.cluster.core.resources.register_agent(agent)["agent_id"]

    def outcome(self, name: str, case: str, **parameters: str) -> str:
        sent = self.cluster.send(name, {"input": CASES[case].input, "parameters": parameters})
        verdict = self.oracle.judge(name, parameters, (), sent)
        return (
            verdict.outcome.value
            if verdict.outcome is Outcome.ARRIVED
            else f"{verdict.outcome.value}: {verdict.detail}"
        )


@pytest.fixture(scope="module", params=["2.19.0", "3.4.0"])
def agents(request: pytest.FixtureRequest) -> Agents:
    agents = Agents(request.param)
    remembers = {"type": "conversational_flow", "app_type": "rag", "memory": {"type": "conversation_index"}}
    agents.register("inputs", agents.tool("llm", "inputs", inputs="${parameters.question}"))
    agents.register("template", agents.tool("llm", "inputs", inputs=TERSE))
    agents.register(
        "cflow", agents.tool("llm", "inputs", inputs="${parameters.chat_history:-} Q: " + TERSE), **remembers
    )
    agents.register("prompt and inputs", agents.tool("llm", "prompt", prompt=TERSE, inputs="${parameters.question}"))
    agents.register(
        "two",
        agents.tool("first", "inputs", inputs=TERSE),
        agents.tool("second", "inputs", inputs="Shorten: ${parameters.first.output} Asked: ${parameters.question}"),
    )
    return agents


@pytest.mark.parametrize("name", ["inputs", "template", "cflow", "prompt and inputs", "two"])
def test_every_text_arrives_with_the_agents_own_words(agents: Agents, name: str) -> None:
    assert {case: found for case in TEXTS if (found := agents.outcome(name, case)) != "arrived"} == {}


def test_a_missing_string_is_sent(agents: Agents) -> None:
    """Without it, the agent can't be called at all, not even without the gateway."""
    agents.register("without", agents.tool("llm", "prompt", prompt=TERSE))
    agents.register("bare", agents.tool("llm", "inputs"))
    two = (
        agents.tool("first", "prompt", prompt=TERSE),
        agents.tool("second", "prompt", prompt="Shorten: ${parameters.first.output}"),
    )
    agents.register("two without", *two)
    for name, parameters in (("without", {"inputs": "."}), ("two without", {"inputs": "."})):
        for case in TEXTS:
            sent = agents.cluster.send(name, CASES[case].body)
            assert agents.oracle.judge(name, parameters, (), sent).outcome is Outcome.ARRIVED, (name, case)
    for case in TEXTS:
        sent = agents.cluster.send("bare", CASES[case].body)
        assert sent.executed is not None
        assert sent.executed.status == 200
        (body,) = map(json.loads, sent.executed.llm_bodies)
        assert body == {"messages": [{"role": "user", "content": [{"text": CASES[case].input}]}]}


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (None, "requires inputs"),
        ('{"a":1}', "requires a string"),
        (' ["x"]', "requires a string"),
        ("5", "requires a string"),
        ("1 apple", "requires a string"),
        ("true", "requires a string"),
        ("1. Be brief.", None),
        ("[context] Be brief.", None),
        ('"quoted"', None),
        ("words", None),
    ],
)
def test_what_the_interface_accepts(agents: Agents, inputs: str | None, reason: str | None) -> None:
    """The object is recorded (38:flow_inputs_is_question.caller_inputs_json); the parser is the same for the others."""
    agents.register("any", agents.tool("llm", "prompt", prompt="Q: ${parameters.question}"))
    profile = agents.cluster._profile("any")
    assert isinstance(profile.models[0], Model)
    params = {"question": "x", **({"inputs": inputs} if inputs is not None else {})}
    if reason is None:
        assert first_call(profile, params, RuntimeValues())
    else:
        with pytest.raises(RenderFailure, match=reason):
            first_call(profile, params, RuntimeValues())
