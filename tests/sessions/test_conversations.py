"""Conversations of several turns: the LLM gets all of it once and in order, on every version, through any gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.execute.deliveries import BOTH_SENT, DELIVERY
from gateway.simulator.fixtures import connector_body, seed_core
from gateway.simulator.fixtures import templates as templates_of
from gateway.simulator.server import Simulator
from tests.delivery.cases import DOCUMENT, IMAGE
from tests.lifecycle.process import Process
from tests.sessions.conftest import Cluster, StartCluster
from tests.wire_formats import FORMATS, canonical

DATA = IMAGE["source"]["data"]
CALL = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "zoom", "input": {"by": 2}}}]}
RESULT = {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "a dot of red"}]}}]}
TURNS: list[Any] = [
    [{"type": "text", "text": "What is this?"}, IMAGE],
    [{"role": "user", "content": "Zoom in."}, CALL, RESULT, {"role": "user", "content": "Well?"}],
    "What colour was it?",
]
IN_ORDER = [
    "What is this?", DATA, "First answer.", "Zoom in.", "zoom", "a dot of red", "Well?", "Second answer.",
    "What colour was it?",
]  # fmt: skip
AGENTS = [
    ("2.19.0", "flow-b"),
    ("2.19.0", "conv-b"),
    ("2.19.0", "cflow-e2"),
    ("3.4.0", "flow-openai_messages"),
    ("3.4.0", "fc-bedrock_upgraded"),
    ("3.6.0", "fc-openai_tutorial"),
    ("3.6.0", "v1-bedrock"),
    ("3.6.0", "v1-gemini"),
    ("3.8.0", "conv-bedrock_upgraded"),
    ("3.8.0", "v1-openai"),
]


def texts_in_order(sent: Any) -> list[str]:
    """The parts of the conversation that an LLM received, in order."""
    text = json.dumps(sent, ensure_ascii=False)
    found = sorted((text.index(part), part) for part in IN_ORDER if part in text)
    assert all(text.count(part) == 1 for _, part in found if part != "zoom"), text
    return [part for _, part in found]


async def ask_twice(cluster: Cluster, agent: str) -> str:
    """Run the first two turns, and return the session's id."""
    cluster.simulator.script(["First answer.", "Second answer.", "Third answer."])
    memory_id = ""
    for turn in TURNS[:2]:
        answered = await cluster.ask(agent, {"input": turn}, memory_id)
        assert answered.status == 200, answered.body
        memory_id = answered.memory_id
    return memory_id


@pytest.mark.parametrize(("version", "agent"), AGENTS)
async def test_three_turns_with_an_image_and_a_tool_call(start_cluster: StartCluster, version: str, agent: str) -> None:
    cluster = await start_cluster(version)
    memory_id = await ask_twice(cluster, agent)
    third = await cluster.ask(agent, {"input": TURNS[2]}, memory_id)
    assert third.status == 200, third.body
    assert third.memory_id == memory_id
    assert texts_in_order(third.llm[0]) == IN_ORDER


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "flow-b"), ("3.6.0", "v1-bedrock")])
async def test_the_delivery_header_names_what_the_client_sent(
    start_cluster: StartCluster, version: str, agent: str
) -> None:
    cluster = await start_cluster(version)
    memory_id = ""
    for sent, kind in (
        ({"input": "one"}, "text"),
        ({"input": "two"}, "text"),
        ({"input": [{"type": "text", "text": "three"}]}, "content_blocks"),
        ({"input": [{"role": "user", "content": "four"}]}, "messages"),
        ({"parameters": {"question": "five"}}, "question"),
    ):
        answered = await cluster.ask(agent, sent, memory_id)
        memory_id = answered.memory_id
        assert answered.headers[DELIVERY].split("; ")[2:] == [f"input={kind}"]


async def test_a_question_beside_the_input_is_ignored_with_a_warning(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0")
    memory_id = ""
    for text in ("one", "two"):
        answered = await cluster.ask("flow-b", {"input": text, "parameters": {"question": "x"}}, memory_id)
        memory_id = answered.memory_id
        assert answered.headers["Warning"] == BOTH_SENT
    assert "Warning" not in (await cluster.ask("flow-b", {"parameters": {"question": "x"}}, memory_id)).headers


async def test_a_second_gateway_goes_on_with_the_session(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("3.6.0")
    memory_id = await ask_twice(cluster, "v1-bedrock")
    first, second = cluster.gateways[0], await cluster.start()
    third = await cluster.ask("v1-bedrock", {"input": TURNS[2]}, memory_id, gateway=second)
    assert texts_in_order(third.llm[0]) == IN_ORDER
    fourth = await cluster.ask("v1-bedrock", {"input": "And now?"}, memory_id, gateway=first)
    assert json.dumps(fourth.llm[0]).count("Third answer.") == 1


@pytest.mark.slow
async def test_a_gateway_that_was_killed_goes_on_after_its_restart(tmp_path: Path) -> None:
    async with Simulator("2.19.0") as simulator:
        agent_id = seed_core(simulator.core, simulator.llm_url)["flow-b"]
        settings = {
            "upstream": {"url": simulator.url},
            "memory": {"sqlite": {"path": str(tmp_path / "sessions.sqlite3")}},
            "agents": {"rules": [{"agent": "*", "memory": "gateway"}]},
        }
        simulator.script(["First answer.", "Second answer.", "Third answer."])
        memory_id = ""
        async with aiohttp.ClientSession() as client:
            for turn in TURNS:
                async with Process(tmp_path, settings) as gateway:
                    data_port, _ = await gateway.ports()
                    body = {"input": turn, "parameters": {"memory_id": memory_id}}
                    url = f"http://127.0.0.1:{data_port}/_plugins/_ml/agents/{agent_id}/_execute"
                    async with client.post(url, json=body) as response:
                        answer = await response.json()
                        assert response.status == 200, answer
                    gateway.process.kill()
                    await gateway.process.wait()
                outputs = answer["inference_results"][0]["output"]
                memory_id = next(output["result"] for output in outputs if output["name"] == "memory_id")
        assert texts_in_order(simulator.received[-1]) == IN_ORDER


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "conv-d"), ("2.19.0", "flow-b"), ("3.8.0", "v1-openai")])
async def test_legacy_questions_are_turns_too(start_cluster: StartCluster, version: str, agent: str) -> None:
    cluster = await start_cluster(version)
    cluster.simulator.script(["It is ${parameters.question}."])
    first = await cluster.ask(agent, {"parameters": {"question": "Who are you?"}})
    assert first.memory_id.startswith("gws-")
    second = await cluster.ask(agent, {"parameters": {"question": "Sure?"}}, first.memory_id)
    assert second.status == 200, second.body
    sent = json.dumps(second.llm[0])
    assert sent.count("Who are you?") == sent.count("It is ${parameters.question}.") == sent.count("Sure?") == 1


async def test_a_client_that_sends_the_whole_conversation_doubles_nothing(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("3.6.0")
    conversation: list[Any] = []
    memory_id = ""
    for number in range(3):
        conversation.append({"role": "user", "content": f"Question {number}?"})
        cluster.simulator.script([f"Answer {number}."])
        answered = await cluster.ask("v1-openai", {"input": conversation}, memory_id)
        memory_id = answered.memory_id
        conversation.append({"role": "assistant", "content": f"Answer {number}."})
        sent = answered.llm[0]["messages"]
        assert len([turn for turn in sent if turn["role"] != "developer"]) >= 2 * number + 1
        text = json.dumps(sent)
        for earlier in range(number):
            assert text.count(f"Question {earlier}?") == text.count(f"Answer {earlier}.") == 1
    again = await cluster.ask("v1-openai", {"input": conversation}, memory_id)
    assert again.status == 400
    assert again.body["error"]["problems"][0]["field"] == "input"


async def test_the_provider_changes_in_the_middle_of_a_session(start_cluster: StartCluster) -> None:
    """Bedrock, OpenAI, Gemini, Anthropic: the same agent id with other models."""
    cluster = await start_cluster("3.4.0")
    core = cluster.simulator.core
    models = {doc["name"]: model_id for model_id, doc in core.resources.models.items()}
    claude = templates_of("3.4.0")["anthropic_messages"]
    made = core.resources.create_connector(
        {
            **connector_body("claude", claude, cluster.simulator.llm_url),
            "actions": [
                {
                    **connector_body("claude", claude, cluster.simulator.llm_url)["actions"][0],
                    "request_body": claude.body.replace(
                        "${parameters.messages}}", "${parameters.messages}${parameters.tool_configs:-}}"
                    ),
                }
            ],
        }
    )
    anthropic = core.resources.register_model({"name": "claude", "function_name": "remote", **made}, True)["model_id"]
    llms = [
        ("bedrock/converse", models["model-bedrock_upgraded"], "$.output.message.content[0].text"),
        ("openai/v1/chat/completions", models["model-openai_messages"], "$.choices[0].message.content"),
        ("gemini/v1beta/generatecontent", models["model-gemini_contents"], "$.candidates[0].content.parts[0].text"),
        ("anthropic/v1/messages", anthropic, "$.content[0].text"),
    ]
    agent_id = cluster.agents["flow-bedrock_upgraded"]
    memory_id = ""
    answers = ["First answer.", "Second answer.", "Third answer.", "Fourth answer."]
    for number, ((provider, model_id, filter_), turn) in enumerate(zip(llms, [*TURNS, "And its size?"], strict=True)):
        document = core.resources.agent(agent_id)
        tool = document["tools"][0]
        parameters = {**tool["parameters"], "model_id": model_id, "response_filter": filter_}
        core.resources.update_agent(agent_id, {"tools": [{**tool, "parameters": parameters}]})
        gateway = await cluster.start()  # which has no profile of the agent yet
        cluster.simulator.script([answers[number]])
        answered = await cluster.ask(agent_id, {"input": turn}, memory_id, gateway=gateway)
        assert answered.status == 200, (provider, answered.body)
        memory_id = answered.memory_id
        (sent,) = answered.llm
        wire = FORMATS[provider]
        assert canonical(wire, sent[wire.messages]), provider
        expected = IN_ORDER[: (2, 7, 9, 9)[number]]
        assert texts_in_order(sent) == expected, provider


async def test_a_client_retries_and_edits_the_conversation_that_it_sends(start_cluster: StartCluster) -> None:
    """Four times the same request, then one with another answer in it: nothing arrives twice, nothing is mixed."""
    cluster = await start_cluster("3.4.0")
    answers = [f"R{number}." for number in range(1, 7)]
    parts = ["q1.", "q2.", "CHANGED.", *answers]
    cluster.simulator.script(answers)
    first = await cluster.ask("flow-openai_messages", {"input": [{"role": "user", "content": "q1."}]})

    async def sent(*texts: str) -> tuple[list[str], str]:
        roles = ("user", "assistant", "user")
        talk = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        answered = await cluster.ask("flow-openai_messages", {"input": talk}, first.memory_id)
        assert answered.status == 200, answered.body
        received = json.dumps(answered.llm[0])
        found = sorted((received.index(part), part) for part in parts if part in received)
        assert all(received.count(part) == 1 for _, part in found), received
        return [part for _, part in found], answered.notices

    assert await sent("q1.", "R1.", "q2.") == (["q1.", "R1.", "q2."], "")
    for _ in range(3):
        assert await sent("q1.", "R1.", "q2.") == (["q1.", "R1.", "q2."], "MEMORY_ANSWERED_AGAIN")
    assert await sent("q1.", "CHANGED.", "q2.") == (["q1.", "CHANGED.", "q2."], "MEMORY_FORKED")


@pytest.mark.parametrize(("kind", "count", "most"), [("document", 7, 5), ("image", 22, 20)])
async def test_a_session_goes_on_beyond_what_bedrock_takes_in_a_request(
    start_cluster: StartCluster, kind: str, count: int, most: int
) -> None:
    cluster = await start_cluster("3.6.0")
    medium = IMAGE if kind == "image" else DOCUMENT
    memory_id, notices = "", ""
    for number in range(count):
        body = {"input": [{"type": "text", "text": f"{number}?"}, medium]}
        answered = await cluster.ask("v1-bedrock", body, memory_id)
        assert answered.status == 200, answered.body
        memory_id, notices = answered.memory_id, answered.notices
        sent = [block for message in answered.llm[0]["messages"] for block in message["content"] if kind in block]
        assert len(sent) == min(number + 1, most)
        assert ("MEMORY_MEDIA_LEFT_OUT" in notices) == (number >= most)
    stored = json.dumps(answered.llm[0])
    assert stored.count(f"(Here was the {kind}") == count - most
