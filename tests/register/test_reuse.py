"""One agent for one registration: retries, keys, several gateways, and one that is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.register.reuse import identify
from gateway.simulator.server import Simulator
from tests.faulty_cluster import Fault, FaultyCluster, orphans
from tests.lifecycle.process import Process, until
from tests.register.deployment import ML, QUICK, REGISTER, SECRETS, Deployment, basic, deploy

KEY = {"Idempotency-Key": "deploy-17"}
VERSIONS = ("2.19.0", "3.4.0")


async def test_a_registration_sent_again_gets_the_agent_that_is_there() -> None:
    async with deploy() as deployment:
        status, first = await deployment.register()
        again, second, headers = await deployment.call("POST", REGISTER, deployment.body())
        assert (status, again, first) == (200, 200, second)
        assert headers["X-MLC-Gateway-Notice"] == "REGISTRATION_REUSED"
        assert deployment.counts == (1, 1, 0)


async def test_another_body_or_caller_or_key_is_another_registration() -> None:
    async with deploy() as deployment:
        ids = set()
        for body, headers in (
            ({}, {}),
            ({"name": "other"}, {}),
            ({}, basic("anna")),
            ({}, basic("berta")),
            ({}, KEY),
            ({}, {"Idempotency-Key": "other"}),
            ({}, KEY | basic("anna")),
        ):
            status, document = await deployment.register(deployment.body(**body), headers)
            assert status == 200
            ids.add(document["agent_id"])
        assert len(ids) == 7
        assert deployment.counts == (7, 7, 0)


async def test_order_of_members_and_a_new_password_make_no_other_registration() -> None:
    async with deploy() as deployment:
        body = deployment.body()
        first = await deployment.register(body, basic("anna", "old"))
        turned = dict(reversed(body.items()))
        assert await deployment.register(turned, basic("anna", "new")) == first


async def test_a_key_holds_for_one_body() -> None:
    async with deploy() as deployment:
        assert (await deployment.register(headers=KEY))[0] == 200
        status, document = await deployment.register(deployment.body(name="other"), KEY)
        assert status == 422
        assert document["error"]["type"] == "IdempotencyKeyReused"
        assert deployment.counts == (1, 1, 0)


@pytest.mark.parametrize(("key", "count"), [({}, 2), (KEY, 1)])
async def test_without_a_key_only_the_last_minutes_count(key: dict[str, str], count: int) -> None:
    async with deploy() as deployment:
        await deployment.register(headers=key)
        for agent in deployment.simulator.core.resources.agents.values():
            agent["created_time"] -= 301_000
        assert (await deployment.register(headers=key))[0] == 200
        assert deployment.counts == (count, count, 0)
        assert deployment.orphans == []


async def test_reuse_can_be_switched_off() -> None:
    async with deploy(over={"registration": {**QUICK, "retry_window": 0}}) as deployment:
        await deployment.register()
        await deployment.register()
        assert deployment.counts == (2, 2, 0)
        assert deployment.front.calls("POST", f"{ML}/agents/_search") == []
        await deployment.register(headers=KEY)
        await deployment.register(headers=KEY)
        assert deployment.counts == (3, 3, 0)


async def test_equal_registrations_at_once_share_one_attempt() -> None:
    async with deploy() as deployment:
        answers = await asyncio.gather(*(deployment.register() for _ in range(5)))
        assert len({document["agent_id"] for _, document in answers}) == 1
        assert len(deployment.front.calls("POST", REGISTER)) == 1


async def test_one_key_and_two_bodies_at_once_is_refused_for_one() -> None:
    async with deploy() as deployment:
        bodies = [deployment.body(), deployment.body(name="other")]
        answers = await asyncio.gather(*(deployment.register(body, KEY) for body in bodies))
        assert sorted(status for status, _ in answers) == [200, 422]
        assert deployment.counts == (1, 1, 0)


async def test_an_agent_whose_model_is_gone_is_replaced() -> None:
    async with deploy() as deployment:
        _, first = await deployment.register()
        deployment.simulator.core.resources.models.clear()
        _, second = await deployment.register()
        assert second != first
        assert list(deployment.simulator.core.resources.agents) == [second["agent_id"]]
        assert deployment.orphans == []


@pytest.mark.parametrize(("key", "status"), [({}, 200), (KEY, 500)])
async def test_where_no_search_is_allowed_a_key_can_not_be_kept(key: dict[str, str], status: int) -> None:
    async with deploy() as deployment:
        deployment.front.faults.append(Fault("error", "POST", f"{ML}/agents/_search", times=99))
        got, _, headers = await deployment.call("POST", REGISTER, deployment.body(), key)
        assert got == status
        if status == 200:
            assert headers["X-MLC-Gateway-Notice"] == "REUSE_NOT_CHECKED"
        assert deployment.counts == (int(status == 200), int(status == 200), 0)


async def test_a_strangers_model_is_not_tidied_away() -> None:
    async with deploy() as deployment:
        deployment.front.faults += [
            Fault("error", "POST", REGISTER),
            Fault("error", "DELETE", f"{ML}/models/", times=99),
        ]
        await deployment.register()
        deployment.front.faults.clear()
        [model_id] = deployment.simulator.core.resources.models
        flow = {
            "name": "mine",
            "type": "flow",
            "tools": [{"type": "MLModelTool", "parameters": {"model_id": model_id}}],
        }
        assert (await deployment.register(flow))[0] == 200
        assert (await deployment.register())[0] == 200
        assert model_id in deployment.simulator.core.resources.models
        assert deployment.counts == (2, 2, 0)


@pytest.mark.parametrize(
    ("version", "kind"),
    [("2.19.0", "conversational"), ("3.4.0", "conversational"), ("3.4.0", "plan_execute_and_reflect")],
)
async def test_two_gateways_at_once_with_one_key_give_one_agent(version: str, kind: str) -> None:
    over = {"registration": {"timeout": 60, "visible_within": 60}}
    async with deploy(version, over, refresh_seconds=0.3) as one, deploy(version, over) as two:
        url = f"http://127.0.0.1:{two.gateway.data_port}"
        two.front.upstream = one.simulator.url  # both have the same cluster
        async with aiohttp.ClientSession(url) as other:
            body = one.body(type=kind)

            async def through_other() -> tuple[int, Any]:
                async with other.post(REGISTER, json=body, headers=KEY) as response:
                    return response.status, await response.json()

            answers = await asyncio.gather(one.register(body, KEY), through_other())
        assert [status for status, _ in answers] == [200, 200]
        assert answers[0][1] == answers[1][1]
        assert one.orphans == []
        assert one.counts[:2] == (1 if kind == "conversational" else 2, 1)
        assert len(one.front.calls("POST", REGISTER)) == len(two.front.calls("POST", REGISTER)) == 1


def process_settings(url: str) -> dict[str, Any]:
    return {"upstream": {"url": url}, "registration": {"timeout": 60, "visible_within": 60}, "logs": {"level": "debug"}}


KILLED = [
    pytest.param(version, path, marks=() if (version, path) == ("2.19.0", REGISTER) else pytest.mark.slow)
    for path in (f"{ML}/models/_register", REGISTER, f"{ML}/agents/_search")
    for version in VERSIONS
]
"""Each step on each version; all but one are marked slow."""


@pytest.mark.slow
@pytest.mark.parametrize(("version", "path"), KILLED)
async def test_a_gateway_is_killed_between_two_steps(tmp_path: Path, version: str, path: str) -> None:
    async with Simulator(version, refresh_seconds=0.1) as simulator, FaultyCluster(simulator.url) as front:
        deployment = Deployment(simulator, front, None, None, None)  # type: ignore[arg-type]
        body, nth = deployment.body(), 2 if path.endswith("_search") else 1
        front.faults.append(Fault("stall", "POST", path, nth=nth))
        async with Process(tmp_path, process_settings(front.url)) as gateway, aiohttp.ClientSession() as client:
            data, _ = await gateway.ports()
            request = asyncio.create_task(client.post(f"http://127.0.0.1:{data}{REGISTER}", json=body))
            await until(lambda: front.faults[0].matched == nth)
            gateway.process.kill()
            await gateway.ended()
            with pytest.raises(aiohttp.ClientError):
                await request
            output = [*gateway.printed, *map(str, gateway.events)]
        assert len(simulator.core.resources.models) == int(not path.endswith("models/_register"))
        async with Process(tmp_path, process_settings(front.url)) as gateway, aiohttp.ClientSession() as client:
            data, _ = await gateway.ports()
            async with client.post(f"http://127.0.0.1:{data}{REGISTER}", json=body) as answer:
                assert answer.status == 200, await answer.text()
                agent_id = (await answer.json())["agent_id"]
            output += [*gateway.printed, *map(str, gateway.events)]
        assert list(simulator.core.resources.agents) == [agent_id]
        assert len(simulator.core.resources.models) == 1
        assert orphans(simulator.core) == []
        assert not any(secret in line for line in output for secret in SECRETS)


def test_a_password_is_no_part_of_the_tag_and_a_token_is() -> None:
    body = b'{"model": {"credential": {"key": "guess"}}}'

    def tag(authorization: str) -> str:
        return identify({"Authorization": authorization}, body).tag

    assert tag("Basic YTpi") == tag("Basic YTpj")
    assert len({tag("Basic YTpi"), tag("Bearer one"), tag("Bearer two")}) == 3
    assert len(tag("Basic not base64")) == 32
