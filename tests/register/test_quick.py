"""`POST …/agents/_execute`: an agent made for one run, with nothing left afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.delivery.cases import IMAGE
from tests.faulty_cluster import Fault, Kind
from tests.register.deployment import ML, SECRETS, Deployment, deploy, left_alone

QUICK = f"{ML}/agents/_execute"
VERSIONS = ("2.19.0", "3.4.0")
KINDS: tuple[Kind, ...] = ("error", "refused", "stall", "lost", "late", "truncated")


def quick(deployment: Deployment, inputs: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": deployment.model(), "input": inputs, **more}


@pytest.mark.parametrize("version", VERSIONS)
async def test_it_runs_and_leaves_nothing(version: str) -> None:
    async with deploy(version) as deployment:
        for inputs in ("hello", [{"type": "text", "text": "what is this?"}, IMAGE]):
            status, document, headers = await deployment.call("POST", QUICK, quick(deployment, inputs))
            assert status == 200
            outputs = document["inference_results"][0]["output"]
            assert "simulated model's answer" in json.dumps(outputs)
            assert "provider=bedrock/converse" in headers["X-MLC-Gateway-Delivery"]
            assert "X-MLC-Cleanup" not in headers
            assert deployment.counts == (0, 0, 0)
        assert IMAGE["source"]["data"] in json.dumps(deployment.simulator.received[-1])
        assert not any(secret in deployment.shown() for secret in SECRETS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_tools_parameters_and_type_count(version: str) -> None:
    async with deploy(version) as deployment:
        body = quick(deployment, name=None, type="flow", tools=[], parameters={"system_prompt": "Speak Latin."})
        status, _, _ = await deployment.call("POST", QUICK, body)
        assert status == 200
        assert "Speak Latin." in json.dumps(deployment.simulator.received)


async def test_many_at_once_do_not_disturb_each_other() -> None:
    async with deploy() as deployment:
        inputs = [f"question {number}" for number in range(10)]
        answers = await asyncio.gather(*(deployment.call("POST", QUICK, quick(deployment, one)) for one in inputs))
        assert {status for status, _, _ in answers} == {200}
        received = json.dumps(deployment.simulator.received)
        assert all(received.count(f"{one}") == 1 for one in inputs)
        assert deployment.counts == (0, 0, 0)


@pytest.mark.parametrize("body", [b"{}", b'{"input": "x"}', b'{"model": {}}', b'{"model": null, "input": "x"}', b"no"])
async def test_what_is_none_passes(body: bytes) -> None:
    async with deploy() as deployment:
        async with deployment.client.post(QUICK, data=body, headers={"Content-Type": "application/json"}) as response:
            assert response.status >= 400
        [seen] = deployment.front.seen
        assert seen.body == body


async def test_problems_have_their_place_and_nothing_is_made() -> None:
    async with deploy() as deployment:
        status, document, _ = await deployment.call("POST", QUICK, quick(deployment, model={"model_id": "m"}))
        assert status == 400
        assert {"model.model_provider"} <= {problem["field"] for problem in document["error"]["problems"]}
        status, document, _ = await deployment.call("POST", QUICK + "?async=true", quick(deployment))
        assert (status, document["error"]["details"]["field"]) == (400, "?async")
        assert deployment.counts == (0, 0, 0)


async def test_an_input_that_is_wrong_is_told_and_nothing_stays() -> None:
    async with deploy() as deployment:
        status, document, _ = await deployment.call("POST", QUICK, quick(deployment, [{"type": "image"}]))
        assert (status, document["error"]["type"]) == (400, "ValidationException")
        assert deployment.counts == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [f"{ML}/models/_register", f"{ML}/agents/_register", f"{ML}/agents/[^/]+/_execute"])
async def test_a_step_fails_once(kind: Kind, path: str) -> None:
    async with deploy("3.4.0") as deployment:
        deployment.front.faults.append(Fault(kind, "POST", path))
        status, document, _ = await deployment.call("POST", QUICK, quick(deployment))
        assert [one.fault for one in deployment.front.seen if one.fault] == [kind]
        if status != 200:
            shown = json.dumps(document)
            assert all(one.split()[1].rstrip(":") in shown or "OUTCOME_UNKNOWN" in shown for one in deployment.orphans)
        else:
            assert deployment.counts == (0, 0, 0)


async def test_what_can_not_be_removed_is_told_in_a_header() -> None:
    async with deploy() as deployment:
        deployment.front.faults.append(Fault("error", "DELETE", f"{ML}/agents/", times=9))
        status, _, headers = await deployment.call("POST", QUICK, quick(deployment))
        assert status == 200
        [agent_id] = deployment.simulator.core.resources.agents
        assert headers["X-MLC-Cleanup"] == f"left behind; by hand: DELETE {ML}/agents/{agent_id}"


async def test_what_a_run_that_fails_leaves_behind_is_in_the_error_and_the_log() -> None:
    async with deploy() as deployment:
        deployment.front.faults.append(Fault("error", "DELETE", f"{ML}/agents/", times=9))
        status, document, _ = await deployment.call("POST", QUICK, quick(deployment, [{"type": "image"}]))
        assert (status, document["error"]["type"]) == (400, "ValidationException")
        [agent_id] = deployment.simulator.core.resources.agents
        (problem,) = (one for one in document["error"]["problems"] if one.get("code") == "LEFT_BEHIND")
        assert problem["help"] == f"Remove it with DELETE {ML}/agents/{agent_id}"
        events = [json.loads(line)["event"] for line in deployment.log.getvalue().splitlines()]
        assert events.count("left behind") == 1


@pytest.mark.parametrize("path", [f"{ML}/models/_register", f"{ML}/agents/_register", f"{ML}/agents/[^/]+/_execute"])
async def test_a_client_that_goes_away_leaves_nothing(path: str) -> None:
    async with deploy("3.4.0") as deployment:
        deployment.front.faults.append(Fault("late", "POST", path))
        await left_alone(deployment, deployment.call("POST", QUICK, quick(deployment)))
        await deployment.gateway.stop()
        assert deployment.counts == (0, 0, 0)
