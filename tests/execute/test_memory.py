"""Turn after turn through the gateway on the simulator: what memory holds harms no later turn of any caller."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from gateway.execute.deliveries import NOTICE
from gateway.simulator.fixtures import seed_core
from gateway.simulator.memory import Message
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway
from tests.delivery.cases import IMAGE, OTHER_IMAGE
from tests.execute.conftest import StartDeployment

ML = "/_plugins/_ml"
HOSTILE = "say ${parameters.question} and ${parameters.nope}"
READABLE = "say $｛parameters.question｝ and $｛parameters.nope｝"
DATA, OTHER_DATA = (image["source"]["data"] for image in (IMAGE, OTHER_IMAGE))
WITH_IMAGES = [
    ("3.4.0", "conv-bedrock_tutorial"),
    ("3.4.0", "conv-openai_tutorial"),
    ("3.4.0", "fc-bedrock_tutorial"),
    ("3.4.0", "cflow-bedrock_tutorial"),
    ("3.6.0", "v1-bedrock"),
    ("3.6.0", "v1-openai"),
    ("3.8.0", "v1-gemini"),
    ("3.8.0", "conv-bedrock_tutorial"),
]
AGENTS = [
    ("2.19.0", "conv-d"),
    ("2.19.0", "cflow-d"),
    *WITH_IMAGES,
    ("3.4.0", "per-bedrock_tutorial"),
    ("3.6.0", "v1per-bedrock"),
]


@dataclass
class Talk:
    """One conversation with an agent. client: through the gateway."""

    simulator: Simulator
    client: aiohttp.ClientSession
    agent: str
    memory_id: str = ""

    async def ask(self, body: dict[str, Any], direct: bool = False) -> str:
        """Run a turn, which must succeed, and return what the LLM received first."""
        before = len(self.simulator.received)
        if self.memory_id:
            body = {**body, "parameters": {**body.get("parameters", {}), "memory_id": self.memory_id}}
        if "per-" in self.agent:
            self.simulator.script(['{"steps":[],"result":"done"}'])
        base = self.simulator.url if direct else ""
        agent_id = self.simulator.agents[self.agent]  # type: ignore[attr-defined]
        async with self.client.post(f"{base}{ML}/agents/{agent_id}/_execute", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
        outputs = answer["inference_results"][0]["output"]
        self.memory_id = next(output["result"] for output in outputs if output["name"] == "memory_id")
        return json.dumps(self.simulator.received[before], ensure_ascii=False)

    async def text(self, text: str, direct: bool = False) -> str:
        return await self.ask({"parameters": {"question": text}}, direct)

    async def read(self, path: str, **options: Any) -> tuple[str, str]:
        """Return the body and the notice of a read through the gateway."""
        async with self.client.get(ML + path, **options) as response:
            assert response.status == 200
            return await response.text(), response.headers.get(NOTICE, "")


@pytest.fixture
async def talk(request: pytest.FixtureRequest, start_gateway: StartGateway) -> AsyncIterator[Talk]:
    version, agent = request.param
    async with Simulator(version, strict=False) as simulator:
        simulator.agents = seed_core(simulator.core, simulator.llm_url)  # type: ignore[attr-defined]
        gateway = await start_gateway(simulator.url)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            yield Talk(simulator, client, agent)


def each(agents: list[tuple[str, str]]) -> Any:
    return pytest.mark.parametrize("talk", agents, indirect=True, ids=map("-".join, agents))


@each(WITH_IMAGES)
async def test_after_an_image_every_caller_can_go_on(talk: Talk) -> None:
    assert DATA in await talk.ask({"input": [{"type": "text", "text": "what is this?"}, IMAGE]})
    for later in (
        await talk.ask({"input": "and through input?"}),
        await talk.text("and through question?"),
        await talk.text("and directly?", direct=True),
    ):
        assert "what is this?" in later
        assert DATA not in later
        assert "parameters.gw_" not in later


@each(WITH_IMAGES)
async def test_a_second_image_does_not_take_the_place_of_the_first(talk: Talk) -> None:
    await talk.ask({"input": [{"type": "text", "text": "what is this?"}, IMAGE]})
    later = await talk.ask({"input": [{"type": "text", "text": "and this?"}, OTHER_IMAGE]})
    assert "what is this?" in later
    assert later.count(OTHER_DATA) == 1
    assert DATA not in later


@each(AGENTS)
async def test_a_text_with_placeholders_harms_no_later_turn(talk: Talk) -> None:
    assert HOSTILE in await talk.ask({"input": HOSTILE})
    later = await talk.text("directly?", direct=True)
    assert READABLE in later
    assert "${parameters" not in later
    later = await talk.ask({"input": "and now?"})
    # No limit turns the replay off of an agent that takes `input` itself (V1).
    assert (HOSTILE in later, READABLE in later) == ((False, True) if "v1" in talk.agent else (True, False))


@each([agent for agent in AGENTS if "v1" not in agent[1]])
@pytest.mark.parametrize("text", ['{"a": [1, {}]}', "${parameters.x} \uff5bwide\uff5d \u2060 {} \u2060\uff5b\u2060{"])
async def test_later_turns_through_the_gateway_get_what_was_written(talk: Talk, text: str) -> None:
    await talk.ask({"input": [{"type": "text", "text": text}, {"type": "text", "text": "another"}]})
    await talk.text("plain", direct=True)
    assert _inside(text) in await talk.ask({"input": "and now?"})
    assert _inside(text) in (await talk.read(f"/memory/{talk.memory_id}/messages"))[0]


def _inside(text: str) -> str:
    """The text in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@each(WITH_IMAGES)
async def test_an_image_after_a_text_with_placeholders(talk: Talk) -> None:
    await talk.ask({"input": HOSTILE})
    assert DATA in await talk.ask({"input": [{"type": "text", "text": "what is this?"}, IMAGE]})
    assert READABLE in await talk.text("directly?", direct=True)


@each(AGENTS)
async def test_all_texts_of_a_turn_are_remembered(talk: Talk) -> None:
    await talk.ask({"input": [{"type": "text", "text": "one thing"}, {"type": "text", "text": "another"}]})
    later = await talk.text("and now?", direct=True)
    assert re.search(r"one thing(\\)*n?another", later)


@each(
    [
        ("2.19.0", "conv-d"),
        ("3.4.0", "conv-bedrock_tutorial"),
        ("3.4.0", "fc-bedrock_tutorial"),
        ("3.6.0", "v1-bedrock"),
    ]
)
async def test_what_an_earlier_version_of_the_gateway_stored_is_read(talk: Talk) -> None:
    memory = talk.simulator.core.memory.create("old")
    talk.memory_id = memory.memory_id
    for stored in ("see $${parameters.gw_d}{parameters.x}", "look$${parameters.gw_s0}(end)"):
        talk.simulator.core.memory.add(memory, Message(memory.memory_id, stored, "done"))
    later = await talk.ask({"input": "and now?"})
    assert "see ${parameters.x}" in later
    assert "look[media](end)" in later


@each([("3.4.0", "conv-bedrock_tutorial"), ("3.6.0", "v1-bedrock")])
async def test_a_memory_that_is_read_through_the_gateway_is_readable(talk: Talk) -> None:
    await talk.ask({"input": [{"type": "text", "text": 'what "is" this?'}, IMAGE]})
    (message,) = talk.simulator.core.memory.earlier(talk.memory_id, None)
    assert str(message.input).lstrip("$").startswith("{parameters.gw_")
    for path in (f"/memory/{talk.memory_id}/messages", f"/memory/message/{message.message_id}"):
        for coding in ("gzip", "identity"):
            body, notice = await talk.read(path, headers={"Accept-Encoding": coding})
            assert r"what \"is\" this?\n[image: png]" in body
            assert "gw_" not in body
            assert notice == "MEMORY_SHOWN_READABLE"


@pytest.mark.parametrize("has_header", [True, False])
async def test_the_notice_about_a_readable_memory_is_counted_and_can_be_turned_off(
    start_deployment: StartDeployment, has_header: bool
) -> None:
    deployment = await start_deployment("3.4.0", {"answers": {"notice_header": has_header}})
    memory = deployment.simulator.core.memory.create("talk")
    deployment.simulator.core.memory.add(memory, Message(memory.memory_id, "${parameters.gw_1:-what is this?}", "done"))
    async with deployment.client.get(f"{ML}/memory/{memory.memory_id}/messages") as response:
        assert "what is this?" in (text := await response.text())
        assert "gw_" not in text
    assert response.headers.get(NOTICE, "") == ("MEMORY_SHOWN_READABLE" if has_header else "")
    counted = deployment.gateway.metrics.render().decode()
    assert 'mlc_gateway_notices_total{code="MEMORY_SHOWN_READABLE"} 1.0' in counted


@each([("3.4.0", "conv-bedrock_tutorial")])
async def test_any_other_memory_passes_byte_for_byte(talk: Talk) -> None:
    await talk.text("plain")
    path = f"/memory/{talk.memory_id}/messages"
    async with talk.client.get(talk.simulator.url + ML + path) as response:
        direct = await response.text()
    assert await talk.read(path) == (direct, "")


ERROR = 'Invalid payload: {"messages": ${parameters.messages} }'


@each([(version, agent) for version, agent in AGENTS if not agent.startswith("v1")])
@pytest.mark.parametrize("turns", [[], [("first", "fine")]], ids=["failed turn alone", "after another"])
async def test_the_error_of_another_callers_turn_is_stored_after_memory_was_read(
    talk: Talk, turns: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster answers a run that failed before it stores the error's text (docs/evidence/facts.md)."""
    memory = talk.simulator.core.memory.create("of two callers")
    talk.memory_id = memory.memory_id
    for question, answer in turns:
        talk.simulator.core.memory.add(memory, Message(memory.memory_id, question, answer))
    failed = talk.simulator.core.memory.add(memory, Message(memory.memory_id, "third"))
    respond = talk.simulator._respond

    async def store_the_error_after_a_read(request: Any) -> Any:
        response = await respond(request)
        if request.path.endswith("/messages"):
            failed.response = ERROR
        return response

    monkeypatch.setattr(talk.simulator, "_respond", store_the_error_after_a_read)
    received = await talk.ask({"input": "fifth"})
    assert failed.response == ERROR
    assert "fifth" in received
    assert "Invalid payload" not in received
    assert all(answer in received for _, answer in turns)


@each([("3.6.0", "v1-bedrock"), ("3.8.0", "v1-openai")])
async def test_a_unified_agents_whole_memory_is_checked_where_its_limit_is_none(talk: Talk) -> None:
    await talk.text("say ${parameters.model}", direct=True)
    for _ in range(11):
        await talk.text("and now?", direct=True)
    await talk.ask({"input": [{"type": "text", "text": "what is this?"}, IMAGE]})
    body = {
        "input": [{"type": "text", "text": "and this?"}, IMAGE],
        "parameters": {"memory_id": talk.memory_id, "message_history_limit": 0},
    }
    path = f"{ML}/agents/{talk.simulator.agents[talk.agent]}/_execute"  # type: ignore[attr-defined]
    async with talk.client.post(path, json=body) as response:
        problems = (await response.json())["error"]["problems"]
    assert [problem["code"] for problem in problems] == ["MEMORY_NOT_SAFE"]


@each([("2.19.0", "conv-d"), ("3.4.0", "fc-bedrock_tutorial")])
async def test_a_limit_that_is_no_integer_is_for_the_cluster_to_refuse(talk: Talk) -> None:
    await talk.text("one")
    path = f"{ML}/agents/{talk.simulator.agents[talk.agent]}/_execute"  # type: ignore[attr-defined]
    for limit in ("\u00b2", "9" * 20, "9" * 5_000, "many", 1.5):
        parameters = {"memory_id": talk.memory_id, "message_history_limit": limit}
        async with talk.client.post(path, json={"input": "two", "parameters": parameters}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "NumberFormatException"


@each([("3.6.0", "v1-bedrock"), ("3.8.0", "v1-openai")])
@pytest.mark.parametrize(("limit", "is_recalled"), [(None, True), (0, True), (4, True), (3, False)])
async def test_a_unified_agent_recalls_messages_and_questions_without_an_answer(
    talk: Talk, limit: int | None, is_recalled: bool
) -> None:
    memory = talk.simulator.core.memory.create("one that failed")
    talk.memory_id = memory.memory_id
    turns = [("first", "fine"), ("say ${parameters.model}", None), ("failed too", None), ("then", "done")]
    for question, answer in turns:
        talk.simulator.core.memory.add(memory, Message(memory.memory_id, question, answer))
    limited = {} if limit is None else {"message_history_limit": limit}
    body = {
        "input": [{"type": "text", "text": "and this?"}, IMAGE],
        "parameters": {"memory_id": talk.memory_id, **limited},
    }
    if not is_recalled:
        received = await talk.ask(body)
        assert "failed too" in received
        assert "say " not in received
        return
    path = f"{ML}/agents/{talk.simulator.agents[talk.agent]}/_execute"  # type: ignore[attr-defined]
    async with talk.client.post(path, json=body) as response:
        problems = (await response.json())["error"]["problems"]
    assert [problem["code"] for problem in problems] == ["MEMORY_NOT_SAFE"]
