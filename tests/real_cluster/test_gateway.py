"""The gateway before a real 3.6.0: agents registered the old way answer all of `input`, and the LLM gets all of it.

Every request is sent with opensearch-py. What the LLM endpoint received must equal the provider's mapping of the
input, the agent's own prompt around the question where it has one; the same request sent direct must fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .agents import TEMPLATES, WIRES, Agent, Api
from .delivered import (
    HOSTILE,
    IMAGE,
    INPUTS,
    Prompts,
    Send,
    agent_names,
    canonical,
    execute_showing_headers,
    field_of,
    input_message,
    mapping,
    refused_with_code,
    text_block,
    without_prompt,
)
from .llm import LLM, PLAN
from .speech import dumps, prompted, system, turns
from .unified import switch

pytestmark = pytest.mark.real_cluster


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", agent_names())
def test_input_arrives_whole_through_the_gateway_and_fails_without(
    agents: dict[str, Agent],
    prompts: Prompts,
    through: Send,
    direct: Send,
    llm: LLM,
    name: str,
    kind: str,
) -> None:
    agent, body = agents[name], {"input": INPUTS[kind]}
    status, answer = direct(agent.agent_id, body)
    assert status >= 400, answer
    assert llm.taken() == []

    if agent.type == "per":
        llm.replies(PLAN)
    status, answer = through(agent.agent_id, body)
    received = llm.taken()
    assert (status, len(received)) == (200, 1), answer
    arrived = canonical(agent.provider, turns(received[0]))
    prompt = prompts[agent.provider, agent.type]
    assert without_prompt(agent.provider, arrived, prompt) == canonical(
        agent.provider, mapping(agent.provider, INPUTS[kind])
    )


@pytest.mark.parametrize("kind", ["text and image", "image and text", "image"])
@pytest.mark.parametrize("name", [name for name in agent_names() if "_per_" not in name])
def test_media_at_an_edge_arrives_with_neutral_texts_at_most(
    agents: dict[str, Agent],
    prompts: Prompts,
    gateway_url: str,
    llm: LLM,
    name: str,
    kind: str,
) -> None:
    agent = agents[name]
    value = [text_block("look") if word == "text" else IMAGE for word in kind.split(" and ")]
    headers, answer = execute_showing_headers(gateway_url, agent.agent_id, {"input": value})
    received = llm.taken()
    assert len(received) == 1, answer
    arrived = canonical(agent.provider, turns(received[0]))
    expected = canonical(agent.provider, mapping(agent.provider, value))
    unframed = without_prompt(agent.provider, arrived, prompts[agent.provider, agent.type])
    field = field_of(agent.provider)
    assert not [part for part in arrived[0][field] if not part.get("text", "x").strip()], "a blank text is refused"
    parts, wanted = (turn[0][field] for turn in (unframed, expected))
    assert [part for part in parts if part in wanted] == wanted
    # A template's quotes need a text on either side of the media, and the agent's prompt one to stand around.
    added = [part["text"] for part in parts if part not in wanted]
    assert len(added) <= 2
    assert not any(added) or "NEUTRAL_TEXT_ADDED" in headers["X-MLC-Gateway-Notice"]


@pytest.mark.parametrize("name", [name for name in agent_names() if "_per_" not in name])
def test_system_text_joins_the_agents_own(
    agents: dict[str, Agent],
    prompts: Prompts,
    through: Send,
    llm: LLM,
    name: str,
) -> None:
    agent = agents[name]
    rules = 'Answer in "verse" ${parameters.model}.'
    status, answer = through(
        agent.agent_id, {"input": [input_message("system", text_block(rules)), input_message("user", text_block("hi"))]}
    )
    received = llm.taken()
    assert status == 200, answer
    arrived = canonical(agent.provider, turns(received[0]))
    unframed = without_prompt(agent.provider, arrived, prompts[agent.provider, agent.type])
    assert unframed == canonical(agent.provider, mapping(agent.provider, "hi"))
    assert system(received[0]).count(rules) == 1


@pytest.mark.parametrize("name", [name for name in agent_names() if "_per_" not in name])
def test_tool_history_arrives_or_is_refused(
    agents: dict[str, Agent],
    prompts: Prompts,
    through: Send,
    llm: LLM,
    name: str,
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    value = [
        input_message("user", text_block("weather?")),
        {"role": "assistant", "content": [text_block("looking")], "toolCalls": [call]},
        {"role": "tool", "content": [text_block("sunny")], "toolCallId": "call_1"},
        input_message("assistant", text_block("it is sunny")),
        input_message("user", text_block("thanks")),
    ]
    agent = agents[name]
    status, answer = through(agent.agent_id, {"input": value})
    received = llm.taken()
    if refused_with_code(status, answer):
        assert received == []
        assert (agent.provider, agent.type) != ("bedrock/converse", "conv_tools")
        return
    assert status == 200, answer
    arrived = canonical(agent.provider, turns(received[0]))
    unframed = without_prompt(agent.provider, arrived, prompts[agent.provider, agent.type])
    assert unframed == canonical(agent.provider, mapping(agent.provider, value))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("provider", WIRES)
def test_remembered_turns_come_back_exactly(
    agents: dict[str, Agent], through: Send, llm: LLM, provider: str, template: str
) -> None:
    agent = agents[f"{provider}_conv_tools_{template}"]
    _, first = through(agent.agent_id, {"input": HOSTILE})
    memory_id = first["inference_results"][0]["output"][0]["result"]
    llm.taken()
    status, answer = through(agent.agent_id, {"input": "next", "parameters": {"memory_id": memory_id}})
    assert status == 200, answer
    remembered = [input_message("user", text_block(HOSTILE)), input_message("assistant", text_block("the answer"))]
    if template == "array":
        remembered = []  # this template has no place that the agent fills from its memory, with or without the gateway
    expected = mapping(agent.provider, [*remembered, input_message("user", text_block("next"))])
    assert canonical(agent.provider, turns(llm.taken()[0])) == canonical(agent.provider, expected)


def test_wrong_input_is_refused_with_every_problem(agents: dict[str, Agent], through: Send, llm: LLM) -> None:
    value = [{"type": "image", "source": {"type": "base64", "data": "%%%"}}, {"type": "hologram"}]
    status, answer = through(agents["bedrock_flow_tutorial"].agent_id, {"input": value})
    assert (status, answer["error"]["type"], llm.taken()) == (400, "ValidationException", [])
    places = {problem["field"].partition("]")[0] for problem in answer["error"]["problems"]}
    assert places == {"input[0", "input[1"}


@pytest.mark.parametrize("name", agent_names())
def test_question_passes_as_without_the_gateway(
    agents: dict[str, Agent], through: Send, direct: Send, llm: LLM, name: str
) -> None:
    body = {"parameters": {"question": "legacy", "system_prompt": "s"}}
    seen = []
    for send in (direct, through):
        if "_per_" in name:
            llm.replies(PLAN)
        status, answer = send(agents[name].agent_id, body)
        seen.append((status, llm.taken(), answer.get("error") if status >= 400 else None))
    assert seen[0] == seen[1]


# --- with the unified agent API on: legacy agents would answer 500, V1 takes only text, V2 takes no question


@pytest.fixture
def unified_on_through(gateway_url: str) -> Iterator[None]:
    """Switched by a request that passes through the gateway, which so learns of it."""
    switch(Api(gateway_url), True)
    yield
    switch(Api(gateway_url), None)


@pytest.mark.parametrize("kind", ["text_hostile", "blocks_hostile", "conversation_hostile"])
@pytest.mark.parametrize("type_", ["flow", "cflow", "conv_react", "conv_tools"])
def test_on_legacy_agents_still_get_it_whole(
    agents: dict[str, Agent],
    prompts: Prompts,
    through: Send,
    direct: Send,
    unified_on_through: None,
    llm: LLM,
    type_: str,
    kind: str,
) -> None:
    agent, body = agents[f"bedrock_{type_}_tutorial"], {"input": INPUTS[kind]}
    assert direct(agent.agent_id, body)[0] == 500
    status, answer = through(agent.agent_id, body)
    assert status == 200, answer
    arrived = canonical(agent.provider, turns(llm.taken()[0]))
    unframed = without_prompt(agent.provider, arrived, prompts[agent.provider, agent.type])
    assert unframed == canonical(agent.provider, mapping(agent.provider, INPUTS[kind]))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("provider", WIRES)
def test_on_unified_v1_gets_all_of_it(
    unified_agents: dict[str, str], through: Send, unified_on_through: None, llm: LLM, provider: str, kind: str
) -> None:
    status, answer = through(unified_agents[f"v1_{provider}"], {"input": INPUTS[kind]})
    assert status == 200, answer
    name = WIRES[provider].name
    assert canonical(name, turns(llm.taken()[0])) == canonical(name, mapping(name, INPUTS[kind]))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_on_v2_takes_input_itself(
    unified_agents: dict[str, str], through: Send, unified_on_through: None, llm: LLM, provider: str, kind: str
) -> None:
    status, answer = through(unified_agents[f"v2_{provider}"], {"input": INPUTS[kind]})
    assert status == 200, answer
    name = WIRES[provider].name
    assert canonical(name, turns(llm.taken()[0])) == canonical(name, mapping(name, INPUTS[kind]))


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_on_v2_question_becomes_input(
    unified_agents: dict[str, str], through: Send, direct: Send, unified_on_through: None, llm: LLM, provider: str
) -> None:
    body = {"parameters": {"question": "legacy words"}}
    assert direct(unified_agents[f"v2_{provider}"], body)[0] == 500
    status, answer = through(unified_agents[f"v2_{provider}"], body)
    assert status == 200, answer
    name = WIRES[provider].name
    assert canonical(name, turns(llm.taken()[0])) == canonical(name, [prompted(provider, "legacy words")])


@pytest.mark.parametrize("provider", WIRES)
def test_off_unified_v1_gets_all_of_it(
    unified_agents: dict[str, str], through: Send, direct: Send, llm: LLM, provider: str
) -> None:
    body = {"input": INPUTS["conversation"]}
    assert direct(unified_agents[f"v1_{provider}"], body)[0] == 400
    status, answer = through(unified_agents[f"v1_{provider}"], body)
    assert status == 200, answer
    name = WIRES[provider].name
    assert canonical(name, turns(llm.taken()[0])) == canonical(name, mapping(name, INPUTS["conversation"]))


def test_input_wins_over_question(agents: dict[str, Agent], through: Send, unified_on_through: None, llm: LLM) -> None:
    body = {"input": "from input", "parameters": {"question": "from question"}}
    status, answer = through(agents["bedrock_conv_tools_tutorial"].agent_id, body)
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "from input")]
    assert "from question" not in dumps(answer)
