"""The code of `docs/internals/extending.md`, run as it stands there: an input is delivered by it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.delivery import search
from gateway.execute.deliveries import DELIVERY, NOTICE
from gateway.ports import Answer, Forward
from gateway.providers import registry
from gateway.simulator.core import ClusterCore
from gateway.simulator.server import Simulator
from tests.agents.recorded import profile_of
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE, PNG
from tests.docs.pages import files_of
from tests.policy.conftest import v2_answer

FILES = files_of("internals/extending.md")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's provider, installed as a package of a third party would be."""
    (tmp_path / "acme.py").write_text(FILES["acme.py"])
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(FILES["entry_points.txt"])
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("acme", None)


class Llm:
    """An LLM of no known provider, which takes anything."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.received.append(await request.json())
        return web.json_response({"text": "fine"})


@pytest.fixture
async def llm() -> AsyncIterator[tuple[Llm, str]]:
    endpoint = Llm()
    app = web.Application()
    app.router.add_post("/{tail:.*}", endpoint.answer)
    async with TestServer(app) as server:
        yield endpoint, str(server.make_url("")).rstrip("/")


def _agent(core: ClusterCore, url: str, body: str, parameters: dict[str, str]) -> str:
    """A flow agent with a connector of its own; its id."""
    action = {"action_type": "predict", "method": "POST", "url": url, "headers": {}, "request_body": body}
    connector = {
        "name": "c", "version": "1", "protocol": "http", "parameters": parameters,
        "credential": {"key": "x"}, "actions": [action],
    }  # fmt: skip
    made = core.resources.create_connector(connector)
    model = core.resources.register_model({"name": "m", "function_name": "remote", **made}, deploy=True)
    asked = {"model_id": model["model_id"], "prompt": "Asked: ${parameters.question}", "response_filter": "$.text"}
    tools = [{"type": "MLModelTool", "name": "llm", "parameters": asked}]
    return str(core.resources.register_agent({"name": "a", "type": "flow", "tools": tools})["agent_id"])


async def test_the_answer_stage(tmp_path: Path) -> None:
    (tmp_path / "length.py").write_text(FILES["length.py"])
    spec = importlib.util.spec_from_file_location("length", tmp_path / "length.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    forward = Forward().through(module.Length(profile_of("3.6.0", "v2_bedrock")))
    body = json.dumps(v2_answer("three")[1]).encode()
    assert forward.holds
    assert await forward.finish(Answer(200, {"X-A": "b"}, body)) == Answer(
        200, {"X-A": "b", "X-Answer-Length": "5"}, body
    )
    assert await forward.finish(Answer(200, {}, b""), streamed=True) == Answer(200, {}, b"")


async def _execute(start_gateway: StartGateway, simulator: Simulator, agent: str, value: Any) -> tuple[int, Any, Any]:
    gateway = await start_gateway(simulator.url)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
        answer = await client.post(f"/_plugins/_ml/agents/{agent}/_execute", json={"input": value})
        return answer.status, answer.headers, await answer.json()


@pytest.mark.usefixtures("installed")
async def test_a_third_partys_provider_delivers(start_gateway: StartGateway, llm: tuple[Llm, str]) -> None:
    endpoint, url = llm
    value = [{"type": "text", "text": "what is this?"}, IMAGE]
    async with Simulator("2.19.0") as simulator:
        agent = _agent(simulator.core, f"{url}/acme/v1/chat", '{"turns":${parameters.turns}}', {})
        status, headers, _ = await _execute(start_gateway, simulator, agent, value)
    assert status == 200
    assert headers[DELIVERY] == "strategy=wrap; provider=acme/v1/chat; input=content_blocks"
    parts = [{"text": "Asked: what is this?"}, {"png": PNG}]
    assert endpoint.received == [{"turns": [{"role": "user", "parts": parts}]}]


@pytest.mark.usefixtures("installed")
async def test_what_it_can_not_express_is_refused(start_gateway: StartGateway, llm: tuple[Llm, str]) -> None:
    endpoint, url = llm
    value = [{"type": "video", "source": {"type": "url", "format": "mp4", "data": "https://example.org/a.mp4"}}]
    async with Simulator("2.19.0") as simulator:
        agent = _agent(simulator.core, f"{url}/acme/v1/chat", '{"turns":${parameters.turns}}', {})
        status, _, answer = await _execute(start_gateway, simulator, agent, value)
    assert (status, answer["error"]["problems"][0]["code"]) == (400, "MEDIA_KIND_UNSUPPORTED")
    assert endpoint.received == []


TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]
NOTED = '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}],"note":"${parameters.transcript}"}'


@pytest.mark.parametrize("added", [False, True])
async def test_a_strategy_delivers_once_its_row_is_there(
    start_gateway: StartGateway, llm: tuple[Llm, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: bool
) -> None:
    if added:
        file = tmp_path / "transcript.py"
        file.write_text(FILES["transcript.py"])
        spec = importlib.util.spec_from_file_location("transcript", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(search, "STRATEGIES", (*search.STRATEGIES[:-2], module.transcript, *search.STRATEGIES[-2:]))
    endpoint, url = llm
    async with Simulator("2.19.0") as simulator:
        agent = _agent(simulator.core, f"{url}/model/x/converse", NOTED, {"transcript": ""})
        status, headers, answer = await _execute(start_gateway, simulator, agent, TALK)
    assert status == 200, answer
    if not added:
        assert headers[NOTICE] == "HISTORY_IN_QUESTION"
        return
    assert headers[NOTICE] == "TRANSCRIPT"
    assert headers[DELIVERY] == "strategy=transcript; provider=bedrock/converse; input=messages"
    message = {"role": "user", "content": [{"text": "Asked: three"}]}
    assert endpoint.received == [{"messages": [message], "note": "user: one\nassistant: two"}]


def test_every_file_of_the_page_is_used() -> None:
    assert sorted(FILES) == ["acme.py", "entry_points.txt", "length.py", "transcript.py"]
