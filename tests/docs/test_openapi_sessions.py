"""Answers for the gateway's own sessions match their schemas in `openapi.yaml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.memory.owner import message_id
from tests.conftest import StartGateway
from tests.docs.test_openapi import OPERATOR, SEARCH, SESSION
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.test_rest import AGENT, BOB, CONTAINER, ML, NOT_FOUND, WithSessions, store
from tests.memory.test_rest import SESSION as ID
from tests.openapi import validate_answer
from tests.wire import RecordingUpstream

__all__ = ["store"]

QUERY = {"query": {"term": {"namespace.session_id": ID}}}
ADMIN = "/memory/sessions"
PATHS: dict[str, tuple[str, str]] = {
    "showMemory": ("GET", f"{ML}/memory/{ID}"),
    "deleteMemory": ("DELETE", f"{ML}/memory/{ID}"),
    "listMessages": ("GET", f"{ML}/memory/{ID}/messages?max_results=1"),
    "showMessage": ("GET", f"{ML}/memory/message/{message_id(ID, 2)}"),
    "listTraces": ("GET", f"{ML}/memory/message/{message_id(ID, 2)}/traces"),
    "showContainerSession": ("GET", f"{CONTAINER}/sessions/{ID}"),
    "deleteContainerSession": ("DELETE", f"{CONTAINER}/sessions/{ID}"),
    "showWorkingMemory": ("GET", f"{CONTAINER}/working/{message_id(ID, 4)}"),
    "searchWorkingMemory": ("GET", f"{CONTAINER}/working/_search"),
    "searchWorkingMemoryByPost": ("POST", f"{CONTAINER}/working/_search"),
    "listSessions": ("GET", f"{ADMIN}?agent={AGENT}"),
    "showSession": ("GET", f"{ADMIN}/{ID}"),
    "deleteSession": ("DELETE", f"{ADMIN}/{ID}"),
    "listSessionMessages": ("GET", f"{ADMIN}/{ID}/messages?limit=1"),
    "pinSession": ("PUT", f"{ADMIN}/{ID}/pin"),
    "unpinSession": ("DELETE", f"{ADMIN}/{ID}/pin"),
}


def test_every_operation_is_tested() -> None:
    assert {*PATHS, "exportSession"} == {*SESSION, *SEARCH, *OPERATOR}


@pytest.mark.parametrize("id_", PATHS)
async def test_an_answer_matches_its_schema(
    start_gateway: StartGateway, store: InMemoryStore, tmp_path: Path, id_: str
) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken-of-the-tests")
    method, path = PATHS[id_]
    body: Any = QUERY if id_ in SEARCH else None
    async with RecordingUpstream([NOT_FOUND]) as upstream:
        over = {"listen": {"admin_token": {"file": str(token)}}}
        gateway = await start_gateway(upstream.url, WithSessions(store), over)
        port, login = gateway.data_port, BOB.decode().partition(": ")[2]
        if id_ in OPERATOR:
            port, login = gateway.admin_port, "Bearer t0ken-of-the-tests"
        url, headers = f"http://127.0.0.1:{port}{path}", {"Authorization": login}
        async with aiohttp.request(method, url, json=body, headers=headers) as response:
            document = json.loads(await response.read())
    assert response.status == 200
    validate_answer(id_, document)
