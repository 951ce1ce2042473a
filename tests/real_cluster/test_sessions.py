"""The gateway's sessions beside the memory of a real 3.6.0: conversations are imported, and reads are told apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.memory.model import Owner, SessionKey
from gateway.memory.owner import new_session_id
from tests.conftest import StartGateway
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import assistant, image, turn, user

from .agents import Api

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
