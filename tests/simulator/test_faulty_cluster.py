"""The faulty proxy itself: the effect of each fault on client and cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.simulator.server import Simulator
from tests.faulty_cluster import Fault, FaultyCluster, Kind, orphans
from tests.lifecycle.process import until
from tests.simulator.test_search import CONNECTOR, ML, TAG

REGISTER = f"{ML}/agents/_register"
AGENT = {"name": "a", "type": "flow"}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator("3.4.0") as running:
        yield running


@pytest.fixture
async def front(simulator: Simulator) -> AsyncIterator[FaultyCluster]:
    async with FaultyCluster(simulator.url) as front:
        yield front


async def post(front: FaultyCluster, body: Any = AGENT, seconds: float = 60) -> tuple[int, Any]:
    limit = aiohttp.ClientTimeout(total=seconds)
    async with (
        aiohttp.ClientSession() as session,
        session.post(front.url + REGISTER, json=body, timeout=limit) as answer,
    ):
        return answer.status, await answer.json()


async def test_passes_all_without_a_fault(simulator: Simulator, front: FaultyCluster) -> None:
    status, answer = await post(front)
    assert (status, [answer["agent_id"]]) == (200, list(simulator.core.resources.agents))
    status, _ = await post(front, {})
    assert status == 400
    assert [(seen.method, seen.path, seen.took_effect) for seen in front.seen] == [
        ("POST", REGISTER, True),
        ("POST", REGISTER, False),
    ]
    assert front.calls("POST", REGISTER)[1].body == b"{}"
    assert front.calls("GET") == []


async def test_an_error_has_no_effect(simulator: Simulator, front: FaultyCluster) -> None:
    front.faults.append(Fault("error", "POST", REGISTER))
    status, answer = await post(front)
    assert (status, answer["status"], simulator.core.resources.agents) == (500, 500, {})
    assert (await post(front))[0] == 200  # only the first one


@pytest.mark.parametrize(("kind", "effect"), [("refused", 0), ("lost", 1), ("truncated", 1)])
async def test_the_connection_is_cut(simulator: Simulator, front: FaultyCluster, kind: Kind, effect: int) -> None:
    front.faults.append(Fault(kind, "POST", REGISTER))
    with pytest.raises(aiohttp.ClientError):
        await post(front)
    assert len(simulator.core.resources.agents) == effect
    assert [(seen.fault, seen.took_effect) for seen in front.seen] == [(kind, bool(effect))]


async def test_a_stall_has_no_effect_and_no_answer(simulator: Simulator, front: FaultyCluster) -> None:
    front.faults.append(Fault("stall", path=REGISTER))
    waiting = asyncio.create_task(post(front))
    await until(lambda: bool(front.seen))
    assert not waiting.done()
    waiting.cancel()
    assert simulator.core.resources.agents == {}
    assert [(seen.fault, seen.took_effect) for seen in front.seen] == [("stall", False)]


async def test_a_late_answer_comes_after_its_effect(simulator: Simulator, front: FaultyCluster) -> None:
    front.faults.append(Fault("late", seconds=60))
    waiting = asyncio.create_task(post(front))
    await front.answered.wait()
    assert len(simulator.core.resources.agents) == 1
    assert not waiting.done()
    waiting.cancel()
    front.faults[:] = [Fault("late", seconds=0.01)]
    assert (await post(front))[0] == 200


async def test_the_nth_and_the_next_ones(front: FaultyCluster) -> None:
    front.faults.append(Fault("error", "POST", REGISTER, nth=2, times=2))
    assert [(await post(front))[0] for _ in range(4)] == [200, 500, 500, 200]


async def test_orphans_are_told(simulator: Simulator) -> None:
    core = simulator.core
    core.resources.refresh_seconds = 60  # what `_search` does not find yet is reported too
    tagged = {"name": "m", "description": f"d mlc-gateway {TAG}"}
    model = core.resources.register_model({**tagged, "connector": CONNECTOR}, deploy=True)["model_id"]
    connector = core.resources.create_connector(CONNECTOR)["connector_id"]
    core.resources.register_model({"name": "untagged", "connector": CONNECTOR}, deploy=True)
    assert orphans(core) == [f"model {model}: no agent uses it", f"connector {connector}: nothing uses it"]
    body = {"name": "p", "type": "plan_execute_and_reflect", "llm": {"model_id": model}}
    parameters = {"mlc_gateway_registration": TAG, "executor_agent_id": "elsewhere"}
    using = {**parameters, "mcp_connectors": f'[{{"mcp_connector_id":"{connector}"}}]'}
    core.settings.change({"persistent": {"plugins.ml_commons.mcp_connector_enabled": True}})
    agent = core.resources.register_agent({**body, "parameters": using})["agent_id"]
    assert orphans(core) == []
    core.resources.undeploy_models([model])
    core.resources.delete_model(model)
    [group] = [name for name, group in core.resources.groups.items() if group["name"] == "m"]
    assert f"model_group {group}: no model is in it" in orphans(core)
    core.resources.delete_group(group)
    assert orphans(core) == [f"agent {agent}: its model {model} is gone"]
    core.resources.delete_agent(agent)
    del parameters["executor_agent_id"]
    planner = core.resources.register_agent({**body, "llm": {"model_id": "x"}, "parameters": parameters})["agent_id"]
    executor = core.resources.agent(planner)["parameters"]["executor_agent_id"]
    core.resources.delete_agent(planner)
    shown = orphans(core)
    assert f"agent {executor}: its planner is gone" in shown
    assert f"connector {connector}: nothing uses it" in shown
