"""`POST …/agents/_execute`: an agent made for one run, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.delivery.cases import IMAGE
from tests.faulty_cluster import Fault, Kind
from tests.register.deployment import ML, SECRETS, Place, left_alone, placed

QUICK = f"{ML}/agents/_execute"
VERSIONS = ("2.19.0", "3.4.0")
KINDS: tuple[Kind, ...] = ("error", "refused", "stall", "lost", "late", "truncated")


def quick(place: Place, said: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": place.model(), "input": said, **more}


@pytest.mark.parametrize("version", VERSIONS)
async def test_it_runs_and_leaves_nothing(version: str) -> None:
    async with placed(version) as place:
        for said in ("hello", [{"type": "text", "text": "what is this?"}, IMAGE]):
            status, document, headers = await place.call("POST", QUICK, quick(place, said))
            assert status == 200
            outputs = document["inference_results"][0]["output"]
            assert "simulated model's answer" in json.dumps(outputs)
            assert "provider=bedrock/converse" in headers["X-MLC-Gateway-Delivery"]
            assert "X-MLC-Cleanup" not in headers
            assert place.counts == (0, 0, 0)
        assert IMAGE["source"]["data"] in json.dumps(place.simulator.received[-1])
        assert not any(secret in place.shown() for secret in SECRETS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_tools_parameters_and_type_count(version: str) -> None:
    async with placed(version) as place:
        body = quick(place, type="flow", tools=[], parameters={"system_prompt": "Speak Latin."})
        status, _, _ = await place.call("POST", QUICK, body)
        assert status == 200
        assert "Speak Latin." in json.dumps(place.simulator.received)


async def test_many_at_once_do_not_disturb_each_other() -> None:
    async with placed() as place:
        said = [f"question {number}" for number in range(10)]
        answers = await asyncio.gather(*(place.call("POST", QUICK, quick(place, one)) for one in said))
        assert {status for status, _, _ in answers} == {200}
        received = json.dumps(place.simulator.received)
        assert all(received.count(f"{one}") == 1 for one in said)
        assert place.counts == (0, 0, 0)


@pytest.mark.parametrize("body", [b"{}", b'{"input": "x"}', b'{"model": {}}', b'{"model": null, "input": "x"}', b"no"])
async def test_what_is_none_passes(body: bytes) -> None:
    async with placed() as place:
        async with place.client.post(QUICK, data=body, headers={"Content-Type": "application/json"}) as response:
            assert response.status >= 400
        [seen] = place.front.seen
        assert seen.body == body


async def test_problems_have_their_place_and_nothing_is_made() -> None:
    async with placed() as place:
        status, document, _ = await place.call("POST", QUICK, quick(place, model={"model_id": "m"}))
        assert status == 400
        assert {"model.model_provider"} <= {problem["field"] for problem in document["error"]["problems"]}
        status, document, _ = await place.call("POST", QUICK + "?async=true", quick(place))
        assert (status, document["error"]["details"]["field"]) == (400, "?async")
        assert place.counts == (0, 0, 0)


async def test_an_input_that_is_wrong_is_told_and_nothing_stays() -> None:
    async with placed() as place:
        status, document, _ = await place.call("POST", QUICK, quick(place, [{"type": "image"}]))
        assert (status, document["error"]["type"]) == (400, "ValidationException")
        assert place.counts == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [f"{ML}/models/_register", f"{ML}/agents/_register", f"{ML}/agents/[^/]+/_execute"])
async def test_a_step_fails_once(kind: Kind, path: str) -> None:
    async with placed("3.4.0") as place:
        place.front.faults.append(Fault(kind, "POST", path))
        status, document, _ = await place.call("POST", QUICK, quick(place))
        if status != 200:
            told = json.dumps(document)
            assert all(one.split()[1].rstrip(":") in told or "OUTCOME_UNKNOWN" in told for one in place.orphans)
        else:
            assert place.counts == (0, 0, 0)


async def test_what_can_not_be_removed_is_told_in_a_header() -> None:
    async with placed() as place:
        place.front.faults.append(Fault("error", "DELETE", f"{ML}/agents/", times=9))
        status, _, headers = await place.call("POST", QUICK, quick(place))
        assert status == 200
        [agent_id] = place.simulator.core.resources.agents
        assert headers["X-MLC-Cleanup"] == f"left behind; by hand: DELETE {ML}/agents/{agent_id}"


@pytest.mark.parametrize("path", [f"{ML}/models/_register", f"{ML}/agents/_register", f"{ML}/agents/[^/]+/_execute"])
async def test_a_client_that_goes_away_leaves_nothing(path: str) -> None:
    async with placed("3.4.0") as place:
        place.front.faults.append(Fault("late", "POST", path))
        await left_alone(place, place.call("POST", QUICK, quick(place)))
        await place.gateway.stop()
        assert place.counts == (0, 0, 0)
