"""The gateway's sessions before a real 3.6.0: conversations, imports, and reads beside the cluster's own memory."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from gateway.memory.model import Owner, SessionKey
from gateway.memory.owner import new_session_id
from tests.conftest import StartGateway
from tests.delivery.cases import DOCUMENT, IMAGE
from tests.lifecycle.process import Process
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import assistant, image, turn, user
from tests.sessions.test_conversations import IN_ORDER, TURNS, texts_in_order

from .agents import WIRES, Agent, Api
from .llm import LLM
from .unified import register_unified, unified_body

pytestmark = pytest.mark.real_cluster

AGENT = "Ym9iOn-lY3_ldA9012xy"
MEMORY = "/_plugins/_ml/memory"


def converse(api: Api, *exchanges: tuple[str, str]) -> str:
    memory_id: str = api.must("POST", f"{MEMORY}/", {"name": "a conversation"})["memory_id"]
    for question, answer in exchanges:
        body = {"input": question, "response": answer, "origin": "test", "prompt_template": ""}
        api.must("POST", f"{MEMORY}/{memory_id}/messages", body)
    return memory_id


def test_conversations_of_the_cluster_are_imported(
    api: Api, real_cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    commands = Commands(place, capsys)
    old = converse(api, ("My name is Bob.", "Hello Bob"), ("What is my name?", "Bob"))
    arguments = ("--url", real_cluster, "--agent", AGENT, old)
    first = commands.json("import-cluster", *arguments)
    assert (first["imported"], first["turns"], first["failed"]) == (1, 2, {})
    session_key = SessionKey(Owner(AGENT), first["sessions"][old])
    assert place.texts(session_key) == ["My name is Bob.", "Hello Bob", "What is my name?", "Bob"]
    assert commands.json("import-cluster", *arguments)["present"] == 1
    assert old in commands.json("import-cluster", "--url", real_cluster, "--agent", AGENT)["sessions"]


async def fetch(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.request(method, url, json=body) as response:
        return response.status, await response.json()


async def test_both_memories_are_read_through_one_gateway(
    api: Api, real_cluster: str, start_gateway: StartGateway, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    own, old = new_session_id(AGENT), converse(api, ("Hi", "Hello"))
    session_key = SessionKey(Owner(AGENT), own)
    await asyncio.to_thread(place.append, session_key, turn(user("Look:", image()), assistant("A dot.")))
    settings = json.loads(place.config.read_text())["memory"]
    gateway = await start_gateway(real_cluster, None, {"memory": settings})
    base = f"http://127.0.0.1:{gateway.data_port}"
    status, document = await fetch(f"{base}{MEMORY}/{own}/messages")
    assert (status, [one["response"] for one in document["messages"]]) == (200, ["A dot."])
    status, document = await fetch(f"{base}{MEMORY}/{old}/messages")
    assert (status, [one["response"] for one in document["messages"]]) == (200, ["Hello"])
    unknown = new_session_id(AGENT)
    direct = await fetch(f"{real_cluster}{MEMORY}/{unknown}")
    assert await fetch(f"{base}{MEMORY}/{unknown}") == direct
    assert direct[0] == 404
    search = {"query": {"term": {"namespace.session_id": own}}}
    _, document = await fetch(f"{base}/_plugins/_ml/memory_containers/any/memories/working/_search", "POST", search)
    assert document["hits"]["total"]["value"] == 2
    assert await fetch(f"{base}{MEMORY}/{own}", "DELETE") == (200, {"success": True})
    assert (await fetch(f"{base}{MEMORY}/{own}"))[0] == 404


# Conversations

AGENTS = [f"{provider}_{type_}_upgraded" for provider in WIRES for type_ in ("flow", "cflow", "conv_tools")]


def settings_for(real_cluster: str, folder: Path) -> dict[str, Any]:
    """Return settings by which every agent has the gateway's memory, in a file of `folder`."""
    return {
        "upstream": {"url": real_cluster},
        "memory": {"sqlite": {"path": str(folder / "sessions.sqlite3")}},
        "agents": {"rules": [{"agent": "*", "memory": "gateway"}]},
    }


async def ask(gateway: Process, agent_id: str, input: Any, memory_id: str) -> Any:
    """Run the agent through `gateway`, and return the answer."""
    data_port, _ = await gateway.ports()
    body = {"input": input, "parameters": {"memory_id": memory_id}}
    url = f"http://127.0.0.1:{data_port}/_plugins/_ml/agents/{agent_id}/_execute"
    status, answer = await fetch(url, "POST", body)
    assert status == 200, answer
    return answer


@pytest.mark.parametrize("name", AGENTS)
async def test_three_turns_through_gateways_that_are_killed_in_between(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, tmp_path: Path, name: str
) -> None:
    settings, memory_id = settings_for(real_cluster, tmp_path), ""
    for turn_input, reply in zip(TURNS, ("First answer.", "Second answer.", "Third answer."), strict=True):
        llm.taken()
        llm.replies(reply)
        async with Process(tmp_path, settings) as gateway:
            answer = await ask(gateway, agents[name].agent_id, turn_input, memory_id)
            gateway.process.kill()
            await gateway.process.wait()
        outputs = answer["inference_results"][0]["output"]
        memory_id = next(output["result"] for output in outputs if output["name"] == "memory_id")
    assert texts_in_order(llm.taken()[0]) == IN_ORDER


async def test_two_gateway_processes_share_a_session(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, tmp_path: Path
) -> None:
    settings, memory_id = settings_for(real_cluster, tmp_path), ""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    async with Process(tmp_path / "first", settings) as first, Process(tmp_path / "second", settings) as second:
        for gateway, turn_input, reply in zip(
            (first, second, first), TURNS, ("First answer.", "Second answer.", "Third answer."), strict=True
        ):
            llm.taken()
            llm.replies(reply)
            answer = await ask(gateway, agents["bedrock_flow_upgraded"].agent_id, turn_input, memory_id)
            outputs = answer["inference_results"][0]["output"]
            memory_id = next(output["result"] for output in outputs if output["name"] == "memory_id")
    assert texts_in_order(llm.taken()[0]) == IN_ORDER


@pytest.mark.usefixtures("unified_on")
@pytest.mark.parametrize("name", ["v2_bedrock", "v2_openai"])
async def test_a_v2_agent_doubles_no_message_of_a_client_that_sends_all(
    real_cluster: str, unified_agents: dict[str, str], llm: LLM, tmp_path: Path, name: str
) -> None:
    conversation: list[Any] = []
    memory_id = ""
    async with Process(tmp_path, settings_for(real_cluster, tmp_path)) as gateway:
        for number in range(3):
            conversation.append({"role": "user", "content": [{"type": "text", "text": f"Question {number}?"}]})
            llm.taken()
            llm.replies(f"Answer {number}.")
            answer = await ask(gateway, unified_agents[name], conversation, memory_id)
            memory_id = answer["memory_id"]
            conversation.append(answer["message"])
            sent = json.dumps(llm.taken()[0])
            parts = [f"{kind} {n}" for n in range(number + 1) for kind in ("Question", "Answer")][:-1]
            assert [sent.count(part) for part in parts] == [1] * len(parts)
            assert sorted(parts, key=sent.index) == parts


def holding(api: Api, *words: str) -> list[Any]:
    """Return the documents of all memory indices that hold one of these words."""
    api.must("POST", "/.plugins-ml-memory-*,.plugins-ml-am-*/_refresh?expand_wildcards=all&ignore_unavailable=true")
    search = "/.plugins-ml-memory-*,.plugins-ml-am-*/_search?expand_wildcards=all&ignore_unavailable=true&size=10000"
    found = api.must("GET", search)["hits"]
    assert found["total"]["value"] == len(found["hits"])  # else some are not looked at
    hits = found["hits"]
    return [hit for hit in hits if any(word in json.dumps(hit) for word in words)]


async def cluster_copies(gateway: Process, outcome: str) -> int:
    _, admin = await gateway.ports()
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{admin}/metrics") as response:
        found = re.search(rf'mlc_gateway_cluster_copies_total{{outcome="{outcome}"}} (\d+)', await response.text())
    return int(found[1]) if found else 0


@pytest.mark.usefixtures("unified_on")
@pytest.mark.parametrize("when", ["after_turn", "with_session"])
@pytest.mark.parametrize("name", ["v2_bedrock", "v2_openai", "bedrock_conv_tools_upgraded"])
async def test_nothing_of_a_deleted_session_is_left_in_the_cluster(
    api: Api,
    real_cluster: str,
    agents: dict[str, Agent],
    unified_agents: dict[str, str],
    llm: LLM,
    tmp_path: Path,
    name: str,
    when: str,
) -> None:
    agent_id = unified_agents[name] if name in unified_agents else agents[name].agent_id
    settings = settings_for(real_cluster, tmp_path)
    settings["memory"]["cluster_copies"] = when
    memory_id, secret = "", uuid4().hex
    data = b64encode(b64decode(IMAGE["source"]["data"]) + secret.encode()).decode()
    image_block = {**IMAGE, "source": {**IMAGE["source"], "data": data}}
    async with Process(tmp_path, settings) as gateway:
        for number in range(4):
            llm.replies(f"{secret}, answer {number}.")
            text = {"type": "text", "text": f"{secret}, question {number}?"}
            answer = await ask(gateway, agent_id, [text, image_block] if not number else [text], memory_id)
            memory_id = answer.get("memory_id") or answer["inference_results"][0]["output"][0]["result"]
        if when == "with_session":
            assert holding(api, secret)
            data_port, _ = await gateway.ports()
            assert (await fetch(f"http://127.0.0.1:{data_port}{MEMORY}/{memory_id}", "DELETE"))[0] == 200
        async with asyncio.timeout(60):
            while await cluster_copies(gateway, "deleted") + await cluster_copies(gateway, "left") < 4:
                pass
        assert await cluster_copies(gateway, "left") == 0
    assert holding(api, secret, data) == []


async def test_a_session_goes_on_beyond_the_fifth_document(
    real_cluster: str, agents: dict[str, Agent], llm: LLM, tmp_path: Path
) -> None:
    memory_id = ""
    async with Process(tmp_path, settings_for(real_cluster, tmp_path)) as gateway:
        for number in range(7):
            llm.taken()
            llm.replies(f"Answer {number}.")
            question = [{"type": "text", "text": f"Question {number}?"}, DOCUMENT]
            answer = await ask(gateway, agents["bedrock_conv_tools_upgraded"].agent_id, question, memory_id)
            memory_id = answer["inference_results"][0]["output"][0]["result"]
            sent = json.dumps(llm.taken()[0])
            assert sent.count('"document":') == min(number + 1, 5)
            assert sent.count("(Here was the document") == max(0, number - 4)


@pytest.mark.usefixtures("unified_on")
@pytest.mark.parametrize("provider", ["bedrock", "openai"])
async def test_a_v2_agent_goes_on_with_a_session_in_a_container(
    api: Api, real_cluster: str, unified_agents: dict[str, str], llm: LLM, tmp_path: Path, provider: str
) -> None:
    """The gateway is taken away, and the agent itself is run on the session."""
    settings = settings_for(real_cluster, tmp_path)
    settings["memory"] = {"store": "opensearch", "opensearch": {"kind": "container"}}
    call = {"toolUse": {"toolUseId": "c1", "name": "zoom", "input": {"by": 2}}}
    result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "a dot of red"}]}}
    first = [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": "Well?"},
    ]
    async with Process(tmp_path, settings) as gateway:
        llm.replies("First answer.")
        memory_id = (await ask(gateway, unified_agents[f"v2_{provider}"], first, ""))["memory_id"]
    found = api.must("POST", "/_plugins/_ml/memory_containers/_search", {"query": {"match_all": {}}, "size": 100})
    [container] = [hit["_id"] for hit in found["hits"]["hits"] if hit["_source"]["name"] == "mlc-gateway"]
    agent_id = register_unified(api, llm.url, unified_body("direct", "conversational_v2", provider, container))
    llm.taken()
    llm.replies("Second answer.")
    body = {"input": "And now?", "parameters": {"memory_id": memory_id}}
    answer = api.must("POST", f"/_plugins/_ml/agents/{agent_id}/_execute", body)
    assert answer["message"]["content"] == [{"text": "Second answer."}]
    sent = json.dumps(llm.taken()[0])
    parts = ["What is this?", IMAGE["source"]["data"], "zoom", "a dot of red", "Well?", "First answer.", "And now?"]
    assert [sent.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=sent.index) == parts
    async with Process(tmp_path, settings) as gateway:  # and back
        llm.replies("Third answer.")
        answer = await ask(gateway, unified_agents[f"v2_{provider}"], "Sure?", memory_id)
        sent = json.dumps(llm.taken()[0])
        parts += ["Second answer.", "Sure?"]
        assert [sent.count(part) for part in parts] == [1] * len(parts)
        assert sorted(parts, key=sent.index) == parts
        data_port, _ = await gateway.ports()
        assert (await fetch(f"http://127.0.0.1:{data_port}{MEMORY}/{memory_id}", "DELETE"))[0] == 200
    assert [hit for hit in holding(api, memory_id) if "memory-working" in hit["_index"]] == []


@pytest.mark.usefixtures("unified_on")
def test_sessions_of_v2_agents_are_imported(
    api: Api,
    real_cluster: str,
    unified_agents: dict[str, str],
    container: str,
    llm: LLM,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent_id, memory_id = unified_agents["v2_bedrock"], ""
    for question, answer in (([{"type": "text", "text": "What is this?"}, IMAGE], "A dot."), ("Sure?", "Yes.")):
        llm.replies(answer)
        _, answered = api.execute(agent_id, {"input": question, "parameters": {"memory_id": memory_id}})
        memory_id = answered["memory_id"]
    place = Place(tmp_path)
    commands = Commands(place, capsys)
    arguments = ("--url", real_cluster, "--agent", agent_id, "--container", container)
    first = commands.json("import-cluster", *arguments, memory_id)
    assert (first["imported"], first["turns"], first["failed"]) == (1, 2, {})
    session_key = SessionKey(Owner(agent_id), first["sessions"][memory_id])
    assert place.texts(session_key) == ["What is this?", "A dot.", "Sure?", "Yes."]
    assert commands.json("import-cluster", *arguments, memory_id)["present"] == 1
    assert memory_id in commands.json("import-cluster", *arguments)["sessions"]
    code, out = commands("import-cluster", *arguments, "none")
    assert (code, "has no session none" in json.loads(out)["failed"]["none"]) == (1, True)
