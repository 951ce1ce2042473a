"""The property of `test_branches` through the whole gateway: the calls that the LLM gets are compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from gateway.app import Gateway, build
from gateway.config.memory import Window
from gateway.memory.model import Owner, SessionKey
from gateway.memory.reading import read_messages
from gateway.memory.stores.sqlite import SqliteStore
from gateway.observe.logs import configure
from gateway.simulator.fixtures import FLOW_PROMPT, seed_core
from gateway.simulator.llm.endpoints import Reply
from gateway.simulator.server import Simulator
from tests.conftest import examples, settings_for
from tests.properties.test_branches import CHANGES, Chat, Json, Said, converse
from tests.properties.test_branches_in_stores import Loop

WINDOWS = (Window(), Window(turns=2))


class Deployment:
    """A simulated cluster, gateways with two windows before it, and the store of their sessions."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self.run = loop.run
        self.path = directory / "sessions.sqlite3"
        self.simulator = Simulator("3.4.0")
        self.gateways: dict[Window, Gateway] = {}

    async def start(self) -> None:
        await self.simulator.start()
        self.agent_id = seed_core(self.simulator.core, self.simulator.llm_url)["flow-openai_messages"]
        for window in WINDOWS:
            memory = {"sqlite": {"path": str(self.path)}, "window": {"turns": window.turns}}
            over = {"memory": memory, "agents": {"rules": [{"agent": "*", "memory": "gateway"}]}}
            gateway = build(settings_for(self.simulator.url, over), None, configure("error", "json"))
            await gateway.start()
            self.gateways[window] = gateway
        self.client = aiohttp.ClientSession()
        self.store = SqliteStore(self.path)
        await self.store.start()

    async def stop(self) -> None:
        await self.client.close()
        await self.store.close()
        for gateway in self.gateways.values():
            await gateway.stop()
        await self.simulator.stop()

    async def ask(self, window: Window, messages: list[Json], memory_id: str) -> tuple[int, Any, list[Any]]:
        """Run the agent. Return status and body of the answer, and what the LLM got."""
        port, before = self.gateways[window].data_port, len(self.simulator.received)
        url = f"http://127.0.0.1:{port}/_plugins/_ml/agents/{self.agent_id}/_execute"
        body = {"input": messages, "parameters": {"memory_id": memory_id}}
        async with self.client.post(url, json=body) as response:
            return response.status, await response.json(), self.simulator.received[before:]

    async def stored(self, memory_id: str) -> Any:
        key = SessionKey(Owner(self.agent_id), memory_id)
        return [stored async for stored in read_messages(self.store, key)]


class GatewayChat(Chat):
    """A client of the gateway. It sends its whole conversation each time, changed or not."""

    def __init__(self, data: st.DataObject, window: Window, deployment: Deployment) -> None:
        super().__init__(data, window)
        self._deployment = deployment
        self._memory_id = ""

    def send(self) -> None:
        change = self.draw(st.sampled_from(CHANGES)) if len(self.known) > 1 else "go on"
        sent = self._changed(change)
        event(change)
        written = [self._written(message, is_new=at >= len(self.known)) for at, message in enumerate(sent)]
        answer, fails = self._word(), self.draw(st.integers(0, 5)) == 0
        run = self._deployment.run
        self._deployment.simulator.script([Reply(500, "{}") if fails else answer])
        status, body, [received] = run(self._deployment.ask(self.window, written, self._memory_id))
        assert (status >= 400) is fails, body
        self.check(change, sent, written, [_said_to_openai(message) for message in received["messages"]])
        if not fails:
            outputs = body["inference_results"][0]["output"]
            self._memory_id = next(output["result"] for output in outputs if output["name"] == "memory_id")
        if self._memory_id:
            self.stored = run(self._deployment.stored(self._memory_id))
        self.answer: Said | None = None if fails else ("assistant", [answer], [])
        self.learn(written)


def _said_to_openai(message: Json) -> Said:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [_without_prompt(part["text"]).strip() for part in parts if part["type"] == "text"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return message["role"], texts, [url.partition("base64,")[2] for url in urls]


def _without_prompt(text: str) -> str:
    """Return a text without the agent's prompt, which stands around the last one."""
    before, after = FLOW_PROMPT.split("${parameters.question}")
    return text.removeprefix(before).removesuffix(after) if text.startswith(before) else text


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    loop = Loop()
    deployment = Deployment(loop, tmp_path_factory.mktemp("sessions"))
    loop.run(deployment.start())
    yield deployment
    loop.run(deployment.stop())
    loop.stop()


@pytest.mark.slow(60)
@examples(1_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), window=st.sampled_from(WINDOWS))
def test_the_llm_gets_what_the_client_sent(deployment: Deployment, data: st.DataObject, window: Window) -> None:
    converse(GatewayChat(data, window, deployment))
