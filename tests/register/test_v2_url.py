"""`conversational_v2` with `model.url`: the address is set in the model that the cluster makes, or nothing remains."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.simulator.server import Simulator
from gateway.simulator.settings import UNIFIED_API
from tests.faulty_cluster import Fault, FaultyCluster, Kind
from tests.lifecycle.process import Process, until
from tests.register.deployment import ML, REGISTER, SECRETS, Deployment, deploy
from tests.register.test_reuse import process_settings
from tests.register.test_steps import KINDS

KEY = {"Idempotency-Key": "deploy-17"}
ON = {"persistent": {UNIFIED_API: True}}
STEPS = {
    "agent": ("POST", REGISTER),
    "read the agent": ("GET", f"{ML}/agents/"),
    "read the model": ("GET", f"{ML}/models/"),
    "set the address": ("PUT", f"{ML}/models/"),
}


def body_of(deployment: Deployment, **more: Any) -> dict[str, Any]:
    deployment.simulator.core.settings.change(ON)
    memory = {"type": "agentic_memory", "memory_container_id": "c"}
    return deployment.body(type="conversational_v2", memory=memory, tools=[], **more)


def left(deployment: Deployment) -> tuple[int, int, int]:
    """Return the numbers of agents, models and model groups."""
    resources = deployment.simulator.core.resources
    return len(resources.agents), len(resources.models), len(resources.groups)


async def runs(deployment: Deployment, agent_id: str) -> None:
    """Check that the agent's model answers at the address that was registered."""
    before = len(deployment.simulator.received)
    status, answer = await deployment.execute(agent_id, "hello")
    assert (status, answer.get("stop_reason")) == (200, "end_turn"), answer
    assert "hello" in json.dumps(deployment.simulator.received[before])


@pytest.mark.parametrize("version", ["3.6.0", "3.8.0"])
async def test_every_execute_reaches_the_address(version: str) -> None:
    async with deploy(version) as deployment:
        status, document, headers = await deployment.call("POST", REGISTER, body_of(deployment))
        assert status == 200, document
        assert "X-MLC-Gateway-Notice" not in headers
        await runs(deployment, document["agent_id"])
        agent = deployment.simulator.core.resources.agents[document["agent_id"]]
        assert agent["type"] == "conversational_v2"
        assert left(deployment) == (1, 1, 1)
        assert not any(secret in deployment.shown() for secret in SECRETS)
        path = f"{ML}/agents/{document['agent_id']}?cascade=true"
        assert (await deployment.call("DELETE", path))[0] == 200
        assert left(deployment) == (0, 0, 0)


async def test_the_path_of_the_provider_is_added() -> None:
    async with deploy("3.8.0") as deployment:
        body = body_of(deployment, model=deployment.model(url=f"{deployment.simulator.llm_url}/bedrock"))
        body["model"]["url"] = "http://127.0.0.1:9"
        assert (await deployment.register(body))[0] == 200
        [model] = deployment.simulator.core.resources.models.values()
        [action] = model["connector"]["actions"]
        assert action["url"] == "http://127.0.0.1:9/model/${parameters.model}/converse"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_fails_once(step: str, kind: Kind) -> None:
    method, path = STEPS[step]
    async with deploy("3.6.0") as deployment:
        body = body_of(deployment)
        deployment.front.faults.append(Fault(kind, method, path))
        status, document = await deployment.register(body)
        assert deployment.front.faults[0].matched
        if status != 200:
            assert left(deployment) == (0, 0, 0), document
        deployment.front.faults.clear()
        again, registered = await deployment.register(body)
        assert again == 200
        if status == 200:
            assert registered == document
        assert left(deployment) == (1, 1, 1)
        await runs(deployment, registered["agent_id"])


@pytest.mark.parametrize(("method", "path"), [STEPS["read the model"], STEPS["set the address"]])
async def test_a_step_that_always_fails_leaves_nothing(method: str, path: str) -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(Fault("error", method, path, times=99))
        status, document = await deployment.register(body_of(deployment))
        assert status == 500
        assert document["error"]["type"] == "RegistrationFailed"
        remaining = (0, 0, 1) if method == "GET" else (0, 0, 0)  # the model's group can't be known
        assert left(deployment) == remaining


async def test_an_agent_that_can_not_be_read_is_removed_and_its_model_is_named() -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(Fault("error", "GET", f"{ML}/agents/", times=99))
        status, document = await deployment.register(body_of(deployment))
        assert status == 500
        [problem] = [one for one in document["error"]["problems"] if one["code"] == "LEFT_BEHIND"]
        assert "models called Auto-generated model for " in problem["help"]
        assert left(deployment)[0] == 0


async def test_an_address_that_the_cluster_does_not_trust_is_refused_with_the_call_that_allows_it() -> None:
    async with deploy("3.6.0") as deployment:
        reason = "Connector URL is not matching the trusted connector endpoint regex"
        refused = json.dumps({"error": {"reason": reason}}).encode()
        deployment.front.faults.append(Fault("error", "PUT", f"{ML}/models/", status=400, body=refused))
        status, document = await deployment.register(body_of(deployment))
        assert (status, document["error"]["message"]) == (
            400,
            f"The cluster refused to set the address of the model: {reason}",
        )
        assert "trusted_connector_endpoints_regex" in document["error"]["help"]
        assert "127" in document["error"]["help"]
        assert left(deployment) == (0, 0, 0)


@pytest.mark.parametrize("path", ["DELETE /agents/", "DELETE /models/", "DELETE /model_groups/"])
async def test_what_can_not_be_undone_is_named_with_the_calls_that_remove_it(path: str) -> None:
    async with deploy("3.6.0") as deployment:
        method, kind = path.split()
        deployment.front.faults += [
            Fault("error", "PUT", f"{ML}/models/", times=99),
            Fault("error", method, ML + kind, times=99),
        ]
        status, document = await deployment.register(body_of(deployment))
        assert status == 500
        problems = [one for one in document["error"]["problems"] if one["code"] == "LEFT_BEHIND"]
        assert len(problems) == sum(left(deployment))
        deployment.front.faults.clear()
        for problem in problems:
            for method, target in (one.split() for one in problem["help"].removeprefix("Remove it with ").split(", ")):
                assert (await deployment.call(method, target))[0] in (200, 409)
        assert left(deployment) == (0, 0, 0)


async def test_two_gateways_at_once_with_one_key_give_one_agent() -> None:
    over = {"registration": {"timeout": 60, "visible_within": 60}}
    async with deploy("3.6.0", over, refresh_seconds=0.3) as one, deploy("3.6.0", over) as two:
        two.front.upstream = one.simulator.url  # both have the same cluster
        body = body_of(one)
        first, second = await asyncio.gather(one.register(body, KEY), two.register(body, KEY))
        assert first[0] == 200
        assert first == second
        assert left(one)[:2] == (1, 1)
        await runs(one, first[1]["agent_id"])


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("GET", marks=pytest.mark.slow), "PUT"])
async def test_a_gateway_is_killed_before_the_address_is_set(tmp_path: Path, method: str) -> None:
    async with Simulator("3.6.0", refresh_seconds=0.1) as simulator, FaultyCluster(simulator.url) as front:
        deployment = Deployment(simulator, front, None, None, None)  # type: ignore[arg-type]
        body = body_of(deployment)
        front.faults.append(Fault("stall", method, f"{ML}/models/"))
        async with Process(tmp_path, process_settings(front.url)) as gateway, aiohttp.ClientSession() as client:
            data, _ = await gateway.ports()
            request = asyncio.create_task(client.post(f"http://127.0.0.1:{data}{REGISTER}", json=body))
            await until(lambda: front.faults[0].matched == 1)
            gateway.process.kill()
            await gateway.ended()
            with pytest.raises(aiohttp.ClientError):
                await request
        [agent_id] = simulator.core.resources.agents
        async with Process(tmp_path, process_settings(front.url)) as gateway, aiohttp.ClientSession() as client:
            data, _ = await gateway.ports()
            async with client.post(f"http://127.0.0.1:{data}{REGISTER}", json=body) as answer:
                assert (answer.status, await answer.json()) == (200, {"agent_id": agent_id})
        assert left(deployment) == (1, 1, 1)
        status, executed, sent = simulator.core.execute(agent_id, {"input": "hello"})
        assert (status, executed["stop_reason"], len(sent)) == (200, "end_turn", 1)
        [action] = next(iter(simulator.core.resources.models.values()))["connector"]["actions"]
        assert action["url"] == body["model"]["url"]


async def test_a_registration_that_is_forwarded_is_sent_again_while_others_are_in_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.register.calls._BUSY_PAUSES", (0.001, 0.01))
    async with deploy("3.6.0") as deployment:
        body = body_of(deployment)
        del body["model"]["url"]
        error = {"root_cause": [{"type": "version_conflict_engine_exception", "reason": "busy"}], "reason": "busy"}
        refusal = json.dumps({"error": error, "status": 409}).encode()
        deployment.front.faults.append(Fault("error", "POST", REGISTER, status=409, body=refusal, times=4))
        status, document = await deployment.register(body)
        assert (status, list(document)) == (200, ["agent_id"])
        calls = deployment.front.calls("POST", REGISTER)
        assert [json.loads(call.body) for call in calls] == [body] * 5
        deployment.front.faults.append(Fault("error", "POST", REGISTER, status=409, body=refusal, times=99))
        assert (await deployment.register(body))[0] == 409
        assert len(deployment.front.calls("POST", REGISTER)) == 5 + 12
