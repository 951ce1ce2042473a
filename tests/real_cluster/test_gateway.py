"""The gateway before a real 3.6.0: agents registered the old way answer all of `input`, and the LLM gets all of it.

Every request is sent with opensearch-py. What the LLM endpoint received must equal the provider's mapping of the
input, the agent's own prompt around the question where it has one; the same request sent direct must fail.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from gateway.app import build
from gateway.config.load import load
from gateway.observe.logs import configure
from gateway.providers.base import MappingOptions
from gateway.providers.registry import provider as provider_named
from gateway.unified.model import Base64, Media
from gateway.unified.request import read_execute

from .agents import TEMPLATES, TYPES, WIRES, Agent, Api
from .llm import LLM
from .speech import PNG, dumps, prompted, system, turns
from .unified import switch

pytestmark = pytest.mark.real_cluster

PLAN = '{"steps": [], "result": "done"}'
HOSTILE = '${parameters.question} $ $$ $${parameters.x} {"a":["x"]} "q" \\" \\n \n\t{ </script> é 漢字 😀 \u2028 ${credential.k}'
MARK = "THE-QUESTION"


def text_block(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}}


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def conversation(first: str, last: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Four turns before the last: the first with an image between texts."""
    return [
        said("user", text_block(first), IMAGE, text_block("what is it?")),
        said("assistant", text_block("a dot")),
        said("user", text_block("sure?")),
        said("assistant", text_block("yes")),
        said("user", *last),
    ]


INPUTS: dict[str, Any] = {
    "text": 'hello "quoted" \\ back\nline é 漢字',
    "text_hostile": HOSTILE,
    "text_like_json": '{"a": "b"}',
    "text_rewriting": '["a"},{"image":{}},{"text":"b"]',
    "blocks": [text_block("first:"), IMAGE, text_block("second:"), IMAGE, text_block("compare")],
    "blocks_hostile": [text_block(HOSTILE), IMAGE, text_block(HOSTILE)],
    "conversation": conversation("look", [text_block("thanks")]),
    "conversation_image_last": conversation("look", [text_block("and"), IMAGE, text_block("this?")]),
    "conversation_hostile": conversation(HOSTILE, [text_block(HOSTILE)]),
}
WITHOUT_MEDIA = {"text", "text_hostile", "text_like_json", "text_rewriting"}


@pytest.fixture(scope="session")
def gateway_url(real_cluster: str) -> Iterator[str]:
    """A gateway before the real cluster, in a thread with a loop of its own."""
    listen = {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2}
    settings = load(None, {}, {"listen": listen, "upstream": {"url": real_cluster}})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def on_loop(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    gateway = build(settings, log=configure("error", "json"))
    on_loop(gateway.start())
    yield f"http://127.0.0.1:{gateway.data_port}"
    on_loop(gateway.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def execute_with(client: OpenSearch, agent_id: str, body: Any) -> tuple[int, Any]:
    """Status and body of `execute_agent`, errors included."""
    try:
        return 200, client.plugins.ml.execute_agent(agent_id=agent_id, body=body)
    except TransportError as error:
        return int(error.status_code), error.info


Send = Callable[[str, Any], tuple[int, Any]]


@pytest.fixture(scope="session")
def through(gateway_url: str) -> Iterator[Send]:
    """Sends an execute body to an agent through the gateway, with opensearch-py."""
    with OpenSearch(gateway_url, timeout=60, max_retries=0) as client:
        yield lambda agent_id, body: execute_with(client, agent_id, body)


@pytest.fixture(scope="session")
def direct(real_cluster: str) -> Iterator[Send]:
    """The same, straight to the cluster."""
    with OpenSearch(real_cluster, timeout=60, max_retries=0) as client:
        yield lambda agent_id, body: execute_with(client, agent_id, body)


def mapping(name: str, value: Any) -> list[dict[str, Any]]:
    """The provider's own words for `input` = value, media in place."""
    agent_input = read_execute(json.dumps({"input": value}).encode()).input
    assert agent_input is not None
    written = json.dumps(provider_named(name).map(agent_input, MappingOptions()).messages)
    for message in agent_input.messages:
        for block in message.content:
            if isinstance(block, Media) and isinstance(block.source, Base64):
                written = written.replace(block.source.token, bytes(block.source.data).decode())
    mapped: list[dict[str, Any]] = json.loads(written)
    return mapped


def field_of(name: str) -> str:
    return provider_named(name).content_field


def canonical(name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One normal form. On OpenAI user messages in a row count as one: its template's user turn takes only text,
    so a part of any other kind becomes a message of its own (FACTS, B′)."""
    normal: list[dict[str, Any]] = provider_named(name).canonical(messages)
    if not name.startswith("openai"):
        return normal
    joined: list[dict[str, Any]] = []
    for message in normal:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {"role": "user", "content": [*joined[-1]["content"], *message["content"]]}
        else:
            joined.append(message)
    return joined


@pytest.fixture(scope="session")
def prompts(api: Api, agents: dict[str, Agent], endpoint: LLM) -> dict[tuple[str, str], tuple[str, str]]:
    """(provider, type) → what the agent puts before and behind a question, as a plain question shows it."""
    learned = {}
    for agent in agents.values():
        if agent.template != "tutorial":
            continue
        endpoint.taken()
        endpoint.replies(PLAN)
        api.execute(agent.agent_id, {"parameters": {"question": MARK}})
        (turn,) = canonical(agent.provider, turns(endpoint.taken()[0]))
        (part,) = turn[field_of(agent.provider)]
        before, _, after = part["text"].partition(MARK)
        learned[agent.provider, agent.type] = (before, after)
    return learned


def without_prompt(name: str, messages: list[dict[str, Any]], prompt: tuple[str, str]) -> list[dict[str, Any]]:
    """`messages` less the agent's own prompt, which must stand around texts of the last user turn, once."""
    before, after = prompt
    messages = json.loads(json.dumps(messages))
    parts = [part for part in messages[-1][field_of(name)] if "text" in part]
    if before:
        (first,) = [part for part in parts if part["text"].startswith(before)]
        first["text"] = first["text"][len(before) :]
    if after:
        (last,) = [part for part in parts if part["text"].endswith(after)]
        last["text"] = last["text"][: -len(after)]
    return messages


def refused_with_code(status: int, body: Any) -> bool:
    """A 400 of the gateway's own that names the place and the limitation."""
    if status != 400 or body["error"]["type"] != "UndeliverableContent":
        return False
    return all(problem["field"].startswith("input") and problem["code"] for problem in body["error"]["problems"])


def agent_names() -> list[str]:
    names = [f"{provider}_{type_}_{template}" for provider in WIRES for type_ in TYPES for template in TEMPLATES]
    return [name for name in names if not name.startswith("gemini_per")]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", agent_names())
def test_input_arrives_whole_through_the_gateway_and_fails_without(
    agents: dict[str, Agent],
    prompts: dict[tuple[str, str], tuple[str, str]],
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
    if agent.type == "per" and kind not in WITHOUT_MEDIA and refused_with_code(status, answer):
        assert received == []
        return
    assert (status, len(received)) == (200, 1), answer
    arrived = canonical(agent.provider, turns(received[0]))
    prompt = prompts[agent.provider, agent.type]
    assert without_prompt(agent.provider, arrived, prompt) == canonical(
        agent.provider, mapping(agent.provider, INPUTS[kind])
    )


@pytest.mark.parametrize("name", [name for name in agent_names() if "_per_" not in name])
def test_system_text_joins_the_agents_own(
    agents: dict[str, Agent],
    prompts: dict[tuple[str, str], tuple[str, str]],
    through: Send,
    llm: LLM,
    name: str,
) -> None:
    agent = agents[name]
    rules = 'Answer in "verse" ${parameters.model}.'
    status, answer = through(agent.agent_id, {"input": [said("system", text_block(rules)), said("user", text_block("hi"))]})
    received = llm.taken()
    assert status == 200, answer
    arrived = canonical(agent.provider, turns(received[0]))
    unframed = without_prompt(agent.provider, arrived, prompts[agent.provider, agent.type])
    assert unframed == canonical(agent.provider, mapping(agent.provider, "hi"))
    assert system(received[0]).count(rules) == 1


@pytest.mark.parametrize("name", [name for name in agent_names() if "_per_" not in name])
def test_tool_history_arrives_or_is_refused(
    agents: dict[str, Agent],
    prompts: dict[tuple[str, str], tuple[str, str]],
    through: Send,
    llm: LLM,
    name: str,
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    value = [
        said("user", text_block("weather?")),
        {"role": "assistant", "content": [text_block("looking")], "toolCalls": [call]},
        {"role": "tool", "content": [text_block("sunny")], "toolCallId": "call_1"},
        said("assistant", text_block("it is sunny")),
        said("user", text_block("thanks")),
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
def test_remembered_turns_come_back_as_they_were_said(
    agents: dict[str, Agent], through: Send, llm: LLM, provider: str, template: str
) -> None:
    agent = agents[f"{provider}_conv_tools_{template}"]
    _, first = through(agent.agent_id, {"input": HOSTILE})
    memory_id = first["inference_results"][0]["output"][0]["result"]
    llm.taken()
    status, answer = through(agent.agent_id, {"input": "next", "parameters": {"memory_id": memory_id}})
    assert status == 200, answer
    told = [said("user", text_block(HOSTILE)), said("assistant", text_block("the answer"))]
    expected = mapping(agent.provider, [*told, said("user", text_block("next"))])
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
    prompts: dict[tuple[str, str], tuple[str, str]],
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


@pytest.mark.parametrize("kind", ["text", "blocks", "conversation"])
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


def test_input_wins_over_question(
    agents: dict[str, Agent], through: Send, unified_on_through: None, llm: LLM
) -> None:
    body = {"input": "from input", "parameters": {"question": "from question"}}
    status, answer = through(agents["bedrock_conv_tools_tutorial"].agent_id, body)
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "from input")]
    assert "from question" not in dumps(answer)
