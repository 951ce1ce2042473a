"""Sessions that agents have made, read and deleted on the data port, the admin port and the command line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app import Gateway
from gateway.cli import run
from gateway.memory.owner import agent_of
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.delivery.cases import IMAGE
from tests.lifecycle.process import Process
from tests.sessions.conftest import RULE, Cluster, StartCluster

BOB = {"Authorization": "Basic Ym9iOnNlY3JldA=="}
TOKEN = {"Authorization": "Bearer t0ken-of-the-tests"}
EVE = {"Authorization": "Basic ZXZlOnNlY3JldA=="}
MEMORY = "/_plugins/_ml/memory"


async def fetch(port: int, path: str, method: str = "GET", headers: Any = None) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers) as response:
        return response.status, await response.json()


async def operated(cluster: Cluster, tmp_path: Path) -> Gateway:
    """Start another gateway, whose admin port has a token."""
    return await cluster.start({"listen": {"admin_token": token_in(tmp_path)}})


def token_in(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "token"
    file.write_text("t0ken-of-the-tests")
    return {"file": str(file)}


async def two_turns(cluster: Cluster, agent: str = "conv-b") -> str:
    """Let bob ask about an image, then something else. Return the session's id."""
    cluster.simulator.script(["A red dot.", "Red."])
    picture = [{"type": "text", "text": "What is this?"}, IMAGE]
    first = await cluster.ask(agent, {"input": picture}, headers=BOB)
    assert first.status == 200, first.body
    await cluster.ask(agent, {"input": "Which colour?"}, first.memory_id, BOB)
    return first.memory_id


@pytest.mark.parametrize(("version", "agent"), [("2.19.0", "conv-b"), ("3.6.0", "v1-bedrock")])
async def test_a_client_reads_its_conversation(version: str, agent: str, start_cluster: StartCluster) -> None:
    cluster = await start_cluster(version)
    id = await two_turns(cluster, agent)
    assert agent_of(id) == cluster.agents[agent]
    other = await cluster.start()  # another gateway that shares the store
    for gateway in cluster.gateways:
        status, document = await fetch(gateway.data_port, f"{MEMORY}/{id}/messages", headers=BOB)
        assert status == 200
        shown = [(message["input"], message["response"]) for message in document["messages"]]
        assert shown == [("What is this?", "A red dot."), ("Which colour?", "Red.")]
        content = document["messages"][0]["additional_info"]["messages"][0]["content"]
        assert content[1]["image"]["source"]["bytes"] == IMAGE["source"]["data"]
    assert (await fetch(other.data_port, f"{MEMORY}/{id}", headers=BOB))[1]["name"] == "What is this?"


async def test_another_caller_reads_nothing_and_deletes_nothing(start_cluster: StartCluster) -> None:
    cluster = await start_cluster()
    id = await two_turns(cluster)
    port = cluster.gateways[-1].data_port
    for headers in (EVE, None):
        for path in (f"{MEMORY}/{id}", f"{MEMORY}/{id}/messages", f"{MEMORY}/message/{id}-1"):
            assert (await fetch(port, path, headers=headers))[0] == 404
        assert (await fetch(port, f"{MEMORY}/{id}", "DELETE", headers))[0] == 404
    assert (await fetch(port, f"{MEMORY}/{id}", headers=BOB))[0] == 200


async def test_a_deleted_session_is_gone_everywhere(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = await start_cluster()
    id = await two_turns(cluster)
    gateway = await operated(cluster, tmp_path)
    assert await fetch(gateway.data_port, f"{MEMORY}/{id}", "DELETE", BOB) == (200, {"success": True})
    assert (await fetch(gateway.data_port, f"{MEMORY}/{id}", headers=BOB))[0] == 404
    assert (await fetch(gateway.admin_port, f"/memory/sessions/{id}", headers=TOKEN))[0] == 404
    assert (await fetch(gateway.admin_port, "/memory/sessions", headers=TOKEN))[1] == {"sessions": []}
    rows = sqlite3.connect(tmp_path / "sessions.sqlite3").iterdump()
    assert not any("What is this?" in row for row in rows)


async def test_the_operator_sees_all_owners(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = await start_cluster()
    ids = {await two_turns(cluster)}
    cluster.simulator.script(["Hello."])
    ids.add((await cluster.ask("conv-b", {"input": "Hi"}, headers=EVE)).memory_id)
    port = (await operated(cluster, tmp_path)).admin_port
    document = (await fetch(port, f"/memory/sessions?agent={cluster.agents['conv-b']}", headers=TOKEN))[1]
    assert {one["id"] for one in document["sessions"]} == ids
    assert len({one["caller"] for one in document["sessions"]}) == 2


async def test_a_reload_to_another_store_shows_that_store(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = await start_cluster()
    await two_turns(cluster)
    gateway = await operated(cluster, tmp_path)
    assert len((await fetch(gateway.admin_port, "/memory/sessions", headers=TOKEN))[1]["sessions"]) == 1
    await gateway.reload(_with_store(gateway, tmp_path / "other.sqlite3"), gateway.log)
    assert (await fetch(gateway.admin_port, "/memory/sessions", headers=TOKEN))[1] == {"sessions": []}


def _with_store(gateway: Gateway, path: Path) -> Any:
    memory = gateway.settings.memory
    return replace(gateway.settings, memory=replace(memory, sqlite=replace(memory.sqlite, path=str(path))))


@pytest.mark.slow
async def test_several_workers_show_the_same_sessions(tmp_path: Path) -> None:
    """The supervisor's admin port, and each worker's data port."""
    simulator = Simulator("2.19.0")
    await simulator.start()
    agent_id = seed_core(simulator.core, simulator.llm_url)["conv-b"]
    settings = {
        "upstream": {"url": simulator.url},
        "listen": {"workers": 2, "admin_token": token_in(tmp_path)},
        "memory": {"sqlite": {"path": str(tmp_path / "sessions.sqlite3")}},
        "agents": {"rules": [RULE]},
    }
    try:
        async with Process(tmp_path, settings) as gateway:
            port, admin = await gateway.ports(2)
            url = f"http://127.0.0.1:{port}/_plugins/_ml/agents/{agent_id}/_execute"
            ids = set()
            for number in range(6):  # each over a connection of its own, so that both workers get some
                async with aiohttp.ClientSession() as client, client.post(url, json={"input": str(number)}) as response:
                    [id] = [
                        output["result"]
                        for output in (await response.json())["inference_results"][0]["output"]
                        if output["name"] == "memory_id"
                    ]
                ids.add(id)
                assert (await fetch(port, f"{MEMORY}/{id}"))[1]["name"] == str(number)
            document = (await fetch(admin, "/memory/sessions?limit=10", headers=TOKEN))[1]
            assert {one["id"] for one in document["sessions"]} == ids
            pinned = (await fetch(admin, f"/memory/sessions/{min(ids)}/pin", "PUT", TOKEN))[1]
            assert (pinned["id"], pinned["pinned"]) == (min(ids), True)
            assert (await fetch(admin, "/memory/sessions/gws-nope", headers=TOKEN))[0] == 404
            assert (await fetch(admin, "/memory/sessions"))[0] == 401
    finally:
        await simulator.stop()


async def test_the_commands_see_what_a_running_gateway_stores(
    start_cluster: StartCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = await start_cluster()
    id = await two_turns(cluster)
    config = tmp_path / "gateway.yaml"
    upstream = {"url": cluster.simulator.url}
    config.write_text(json.dumps({"memory": cluster.settings["memory"], "upstream": upstream}))
    assert await asyncio.to_thread(run, ["memory", "show", "-c", str(config), id]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["role"] for one in document["messages"]] == ["user", "assistant"] * 2
    assert await asyncio.to_thread(run, ["memory", "delete", "-c", str(config), id]) == 0
    assert capsys.readouterr().out == f"{id}: deleted\n"
    assert (await fetch(cluster.gateways[-1].data_port, f"{MEMORY}/{id}", headers=BOB))[0] == 404


async def test_a_deletion_says_what_may_be_left_in_a_cluster_that_is_not_there(
    start_cluster: StartCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": "with_session"})
    id = (await cluster.ask("conv-b", {"input": "One."})).memory_id
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps({"memory": cluster.settings["memory"], "upstream": {"url": "http://127.0.0.1:9"}}))
    assert await asyncio.to_thread(run, ["memory", "delete", "-c", str(config), id]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{id}: deleted\n"
    assert "conversation left in the cluster" in printed.err
    assert printed.err.endswith("1 of the cluster's conversations may be left, as above.\n")
