"""Registrations at the same time: each makes its agent, whatever the cluster refuses meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.register import calls, reuse
from tests.faulty_cluster import Fault
from tests.lifecycle.process import until
from tests.register.deployment import ML, REGISTER, deploy

MODELS, GROUPS = f"{ML}/models/_register", f"{ML}/model_groups/_register"
MANY = 50
CONFLICT, LIMIT = "version_conflict_engine_exception", "m_l_limit_exceeded_exception"
KEY = {"Idempotency-Key": "deploy-17"}


@pytest.fixture(autouse=True)
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tags cost little, and pauses between tries be short."""
    monkeypatch.setattr(reuse, "_COST", {"n": 2, "r": 8, "p": 1})
    monkeypatch.setattr(calls, "_BUSY_PAUSES", (0.001, 0.01))


def refusal(cause: str, path: str, status: int, times: int) -> Fault:
    """Return a refusal as a cluster sends it while other registrations are running."""
    error = {"root_cause": [{"type": cause, "reason": "busy"}], "type": "status_exception", "reason": "busy"}
    body = json.dumps({"error": error, "status": status}).encode()
    return Fault("error", "POST", path, status=status, body=body, times=times)


@pytest.mark.parametrize("version", ["3.6.0", pytest.param("2.19.0", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_many_registrations_at_once_make_one_agent_each(version: str) -> None:
    async with deploy(version) as deployment:
        bodies = [deployment.body(name=f"agent {number}") for number in range(MANY)]
        answers = await asyncio.gather(*map(deployment.register, bodies))
        assert [status for status, _ in answers] == [200] * MANY
        assert len({document["agent_id"] for _, document in answers}) == MANY
        assert deployment.counts == (MANY, MANY, 0)
        assert len(deployment.simulator.core.resources.groups) == MANY
        assert deployment.orphans == []


@pytest.mark.slow
async def test_many_quick_executes_at_once_leave_nothing() -> None:
    async with deploy("3.6.0") as deployment:
        body = {"model": deployment.model(), "input": "hello"}
        answers = await asyncio.gather(*(deployment.call("POST", f"{ML}/agents/_execute", body) for _ in range(MANY)))
        assert [status for status, _, _ in answers] == [200] * MANY
        assert not [headers for _, _, headers in answers if "X-MLC-Cleanup" in headers]
        assert deployment.counts == (0, 0, 0)
        assert deployment.simulator.core.resources.groups == {}


@pytest.mark.parametrize("path", [GROUPS, MODELS, REGISTER])
@pytest.mark.parametrize(("cause", "status"), [(CONFLICT, 500), (CONFLICT, 409), (LIMIT, 500)])
async def test_a_step_is_sent_again_while_others_are_in_its_way(cause: str, status: int, path: str) -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(refusal(cause, path, status, times=8))
        assert (await deployment.register())[0] == 200
        assert len(deployment.front.calls("POST", path)) == 9
        assert deployment.counts == (1, 1, 0)
        assert deployment.orphans == []


async def test_the_number_of_tries_is_bounded() -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(refusal(CONFLICT, MODELS, 409, times=99))
        status, document = await deployment.register()
        assert (status, document["error"]["reason"]) == (409, "The cluster refused to make the model: busy")
        assert len(deployment.front.calls("POST", MODELS)) == 12
        assert deployment.simulator.core.resources.groups == {}


async def test_another_refusal_is_not_tried_again() -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(refusal("status_exception", MODELS, 500, times=99))
        assert (await deployment.register())[0] == 500
        assert len(deployment.front.calls("POST", MODELS)) == 1
        assert deployment.orphans == []


@pytest.mark.parametrize("path", [GROUPS, MODELS, REGISTER])
@pytest.mark.parametrize("kind", ["error", "masked"])
async def test_an_overloaded_cluster_may_have_made_what_it_rejects(kind: Any, path: str) -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(Fault(kind, "POST", path, status=429))
        assert (await deployment.register())[0] == 200
        assert len(deployment.front.calls("POST", path)) == (2 if kind == "error" else 1)
        assert deployment.counts == (1, 1, 0)
        assert len(deployment.simulator.core.resources.groups) == 1
        assert deployment.orphans == []


async def test_what_an_overloaded_cluster_does_not_remove_is_removed_later() -> None:
    over = {"registration": {"timeout": 60, "visible_within": 60}}
    async with deploy("3.6.0", over) as deployment:
        _, document = await deployment.register()
        for path in ("models", "model_groups"):
            deployment.front.faults.append(Fault("error", "DELETE", f"{ML}/{path}/", status=429, times=2))
        path = f"{ML}/agents/{document['agent_id']}?cascade=true"
        _, _, headers = await deployment.call("DELETE", path)
        assert "left behind" not in headers["X-MLC-Cleanup"]
        assert deployment.counts == (0, 0, 0)
        assert deployment.simulator.core.resources.groups == {}


async def test_a_caller_who_may_not_make_model_groups_leaves_that_to_the_cluster() -> None:
    async with deploy("3.6.0") as deployment:
        deployment.front.faults.append(refusal("security_exception", GROUPS, 403, times=99))
        assert (await deployment.register())[0] == 200
        [group] = deployment.simulator.core.resources.groups.values()
        assert group["name"].startswith("Auto-generated model for ")
        assert deployment.orphans == []


async def test_an_attempt_whose_group_another_gateway_removed_gets_the_agent_of_that_one() -> None:
    over = {"registration": {"timeout": 60, "visible_within": 60}}
    async with deploy("3.6.0", over) as one, deploy("3.6.0", over) as two:
        two.front.upstream = one.simulator.url  # both have the same cluster
        body = one.body()
        fault = Fault("late", "POST", GROUPS, until=asyncio.Event())
        two.front.faults.append(fault)
        second = asyncio.create_task(two.register(body, KEY))
        await until(lambda: len(one.simulator.core.resources.groups) == 1)
        first = await one.register(body, KEY)
        assert fault.until is not None
        fault.until.set()
        assert first[0] == 200
        assert await second == first
        assert one.counts == (1, 1, 0)
        assert len(one.simulator.core.resources.groups) == 1
        assert one.orphans == []


async def test_an_attempt_whose_group_another_registration_removed_is_refused_the_key_of_that_one() -> None:
    async with deploy("3.6.0") as deployment:
        fault = Fault("late", "POST", GROUPS, until=asyncio.Event())
        deployment.front.faults.append(fault)
        second = asyncio.create_task(deployment.register(headers=KEY))
        await until(lambda: len(deployment.simulator.core.resources.groups) == 1)
        first = await deployment.register(deployment.body(name="other"), KEY)
        assert fault.until is not None
        fault.until.set()
        assert first[0] == 200
        status, document = await second
        assert (status, document["error"]["type"]) == (422, "IdempotencyKeyReused")
        assert deployment.counts == (1, 1, 0)
        assert len(deployment.simulator.core.resources.groups) == 1
        assert deployment.orphans == []
