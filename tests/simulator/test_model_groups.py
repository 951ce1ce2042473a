"""Models that are registered at the same time, and the model groups that this leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import RestFailure
from gateway.simulator.model_groups import MAX_TASKS
from gateway.simulator.server import Simulator
from tests.simulator.test_search import CONNECTOR, ML, ask, reason

VERSIONS = {"2.19.0": 500, "3.6.0": 409}
"""The status of a conflict on each version."""


def model(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "function_name": "remote", "connector": CONNECTOR, **more}


async def register_at_once(simulator: Simulator, bodies: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Register models so that each has read its group before the first of them writes."""
    waiting, everyone = 0, asyncio.Event()

    async def wait_for_everyone() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == len(bodies):
            everyone.set()
        await everyone.wait()

    simulator.pause = wait_for_everyone
    async with aiohttp.ClientSession(simulator.url) as client:

        async def register(body: dict[str, Any]) -> tuple[int, Any]:
            async with client.post(f"{ML}/models/_register?deploy=true", json=body) as response:
                return response.status, await response.json()

        return await asyncio.gather(*map(register, bodies))


@pytest.mark.parametrize(("version", "status"), VERSIONS.items())
async def test_of_ten_at_once_in_one_group_one_succeeds(version: str, status: int) -> None:
    async with Simulator(version) as simulator:
        simulator.core.resources.register_model(model("shared"), deploy=True)
        answers = await register_at_once(simulator, [model("shared")] * 10)
        assert Counter(found for found, _ in answers) == {200: 1, status: 9}
        causes = {body["error"]["root_cause"][0]["type"] for found, body in answers if found != 200}
        assert causes == {"version_conflict_engine_exception"}
        assert len(simulator.core.resources.models) == 2
        [group] = simulator.core.resources.groups.values()
        assert group["latest_version"] == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_ten_at_once_with_names_of_their_own_succeed(version: str) -> None:
    async with Simulator(version) as simulator:
        answers = await register_at_once(simulator, [model(f"model {number}") for number in range(10)])
        assert {status for status, _ in answers} == {200}
        assert len(simulator.core.resources.groups) == 10


async def test_ten_at_once_with_one_new_name_get_a_group_each() -> None:
    async with Simulator("3.6.0") as simulator:
        answers = await register_at_once(simulator, [model("new")] * 10)
        assert {status for status, _ in answers} == {200}
        assert [group["latest_version"] for group in simulator.core.resources.groups.values()] == [1] * 10


def test_one_more_than_may_run_is_refused_and_leaves_an_empty_group() -> None:
    resources = ClusterCore("3.6.0").resources
    for number in range(MAX_TASKS):
        resources.begin_model(model(f"model {number}"))
    with pytest.raises(RestFailure) as refused:
        resources.begin_model(model("one more"))
    assert refused.value.body["error"]["type"] == "m_l_limit_exceeded_exception"
    assert [(group["name"], group["latest_version"]) for group in resources.groups.values()] == [("one more", 0)]
    resources.end_model()
    resources.begin_model(model("one more"))


def test_a_group_is_deleted_when_it_is_empty() -> None:
    core = ClusterCore("3.6.0")
    made = ask(core, "POST", f"{ML}/model_groups/_register", {"name": "g", "description": "zz tag0"})
    group_id = made.body["model_group_id"]
    again = ask(core, "POST", f"{ML}/model_groups/_register", {"name": "g"})
    assert (again.status, reason(again).endswith(f"model group with ID: {group_id}.")) == (400, True)
    found = ask(core, "POST", f"{ML}/model_groups/_search", {"query": {"match": {"description": "tag0"}}})
    assert [hit["_id"] for hit in found.body["hits"]["hits"]] == [group_id]
    model_id = core.resources.register_model(model("m", model_group_id=group_id), deploy=False)["model_id"]
    assert ask(core, "GET", f"{ML}/model_groups/{group_id}").body["latest_version"] == 1
    kept = ask(core, "DELETE", f"{ML}/model_groups/{group_id}")
    assert (kept.status, len(core.resources.groups)) == (409, 1)
    core.resources.delete_model(model_id)
    for result in ("deleted", "not_found"):
        assert ask(core, "DELETE", f"{ML}/model_groups/{group_id}").body["result"] == result
    assert ask(core, "GET", f"{ML}/model_groups/{group_id}").status == 404
    lost = ask(core, "POST", f"{ML}/models/_register", model("m", model_group_id=group_id))
    assert (lost.status, reason(lost)) == (500, f"Model Group Response is empty for {group_id}")
