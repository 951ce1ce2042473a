"""What is recorded of runs and registrations, so that a person can read them: summaries, memory, steps, losses."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest
import structlog
from msgspec.structs import replace

from gateway.config.inspector import Inspector
from gateway.inspector.drawing import draw_exchange
from gateway.observe.metrics import Metrics
from gateway.recording.conversation import read_run
from gateway.recording.recorder import Recorder
from gateway.recording.store import Loss, StoreError
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway
from tests.execute.conftest import StartDeployment, start_deployment
from tests.inspector.temporary_store import TemporaryRecords
from tests.recording.memory_sink import MemorySink
from tests.recording.test_recorder import PassedExchange
from tests.register.deployment import ML, REGISTER, SECRETS
from tests.sessions.conftest import StartCluster, start_cluster
from tests.wire import PATIENCE

__all__ = ["start_cluster", "start_deployment"]
ON = {"inspector": {"enabled": True}}


async def test_a_run_has_a_summary(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    deployment = await start_deployment("2.19.0", ON, sinks=sink)
    await deployment.execute("flow-b", {"input": "Which bar\nis the highest?"})
    [record] = await sink.wait_for()
    assert record.summary is not None
    assert record.summary.question == "Which bar is the highest?"
    assert record.summary.answer == read_run(record).answered[-1].text != ""


async def test_a_secret_is_in_no_summary(start_deployment: StartDeployment) -> None:
    sink = MemorySink()
    deployment = await start_deployment("2.19.0", ON, sinks=sink)
    await deployment.execute("flow-b", {"input": "My password=hunter2-hunter2, is it good?"})
    [record] = await sink.wait_for()
    assert record.summary is not None
    assert record.summary.question.startswith("My password=[REDACTED")
    assert "hunter2" not in sink.text()


async def test_what_comes_from_memory_is_counted_and_marked(start_cluster: StartCluster) -> None:
    sink = MemorySink()
    cluster = await start_cluster("3.6.0")
    settings = {**cluster.settings, **ON}
    cluster.gateways.append(await cluster.start_gateway(cluster.simulator.url, None, settings, sinks=sink))
    cluster.simulator.script(["It is a cat.", "It is red."])
    first = await cluster.ask("fc-bedrock_upgraded", {"input": "What is on this picture?"})
    await cluster.ask("fc-bedrock_upgraded", {"input": "What colour has it?"}, first.memory_id)
    one, two = await sink.wait_for(2)
    assert one.conversation == two.conversation == first.memory_id
    assert one.delivery is not None
    assert two.delivery is not None
    assert (one.delivery.remembered, two.delivery.remembered) == (0, 2)
    records = TemporaryRecords()
    records.add([one, two])
    page = await asyncio.to_thread(draw_exchange, records, two, "overview", False, "")
    assert "2 earlier messages of" in page
    marked = re.findall(r">from memory</span></td>.*?<code class=\"path\">(.*?)</code>", page, re.DOTALL)
    assert marked == [f"parameters.gw_m{n}»{part}" for part in ("content[0].text", "role") for n in (0, 1)]
    records.close()


async def test_a_registration_shows_its_steps(start_gateway: StartGateway) -> None:
    sink = MemorySink()
    async with Simulator("2.19.0") as simulator:
        gateway = await start_gateway(simulator.url, None, {**ON, "registration": {"enabled": True}}, sinks=sink)
        model = {
            "model_id": "anthropic.claude",
            "model_provider": "bedrock/converse",
            "credential": {"access_key": SECRETS[0], "secret_key": SECRETS[1]},
            "model_parameters": {"region": "us-east-1"},
            "url": f"{simulator.llm_url}/bedrock/model/x/converse",
        }
        body = {"name": "guide", "type": "conversational", "model": model}
        async with aiohttp.ClientSession() as client:
            for _ in range(2):
                async with client.post(f"http://127.0.0.1:{gateway.data_port}{REGISTER}", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    agent_id = (await answer.json())["agent_id"]
            async with client.delete(f"http://127.0.0.1:{gateway.data_port}{ML}/agents/{agent_id}") as answer:
                assert answer.status == 200
        made, found, _ = await sink.wait_for(3)
    assert [step.name for step in made.steps] == [
        "read",
        "look up",
        "make model group",
        "make model",
        "make agent",
        "finish",
    ]
    assert [step.name for step in found.steps] == ["read", "look up"]
    assert made.summary is not None
    assert (made.summary.question, made.summary.answer) == ("Register guide", f"Made agent {agent_id}")
    assert not any(secret in sink.text() for secret in SECRETS)


# Losses


async def test_what_was_not_recorded_is_noted_with_its_reason() -> None:
    def fail() -> None:
        if not sink.losses:
            raise StoreError("the disk is full")

    sink = MemorySink(fail)
    metrics = Metrics()
    metrics.record_dropped("queue", 7)  # by an earlier recorder, which has noted it
    recorder = Recorder(Inspector(), sink, structlog.get_logger(), metrics)
    await recorder.start()
    metrics.record_dropped("queue", 3)
    recorder.add(PassedExchange(), 3.0)
    await recorder.stop(PATIENCE)
    noted = [replace(loss, last=0.0) for loss in sink.losses]
    assert noted == [Loss("queue", "", 3, 0.0), Loss("memory", "the disk is full", 1, 0.0)]
    assert all(loss.last > 1e9 for loss in sink.losses)


async def test_a_loss_that_can_not_be_noted_is_noted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, metrics, tries = MemorySink(), Metrics(), list[int]()
    note = sink.note_losses

    def note_at_second(losses: list[Loss]) -> None:
        tries.append(len(losses))
        if len(tries) == 1:
            raise StoreError("locked")
        note(losses)

    monkeypatch.setattr(sink, "note_losses", note_at_second)
    recorder = Recorder(Inspector(), sink, structlog.get_logger(), metrics)
    await recorder.start()
    metrics.record_dropped("queue", 3)
    recorder.add(PassedExchange(), 3.0)
    await sink.wait_for()
    recorder.add(PassedExchange(), 3.0)
    await recorder.stop(PATIENCE)
    assert tries == [1, 1]
    assert [loss.exchanges for loss in sink.losses] == [3]
