"""Every step of a registration and of its undoing fails in every way: nothing remains that is not reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import mostly_slow
from tests.faulty_cluster import Fault, Kind
from tests.register.deployment import ENABLE_MCP, ML, REGISTER, SECRETS, Deployment, deploy

KINDS: tuple[Kind, ...] = ("error", "refused", "stall", "lost", "late", "truncated")
ALIKE: tuple[Kind, ...] = ("refused", "late", "truncated")
"""Kinds that differ from another one only in the state of the connection."""
MCP = {"url": "http://127.0.0.1:9/sse", "headers": {"X-Key": "mcp-header-secret"}}
STEPS = {
    "version": ("GET", "/$"),
    "look first": ("POST", f"{ML}/agents/_search"),
    "connector": ("POST", f"{ML}/connectors/_create"),
    "model group": ("POST", f"{ML}/model_groups/_register"),
    "model": ("POST", f"{ML}/models/_register"),
    "agent": ("POST", REGISTER),
    "look for strays": ("POST", f"{ML}/models/_search"),
    "look for stray groups": ("POST", f"{ML}/model_groups/_search"),
}
VERSIONS = ("2.19.0", "3.4.0")
CASES = [
    *(("3.4.0", kind) for kind in KINDS if kind not in ALIKE),
    ("2.19.0", "lost"),
    *(pytest.param("3.4.0", kind, marks=pytest.mark.slow) for kind in ALIKE),
    *(pytest.param("2.19.0", kind, marks=pytest.mark.slow) for kind in KINDS if kind != "lost"),
]
"""Every version with every kind of fault. Those that differ little from another one are marked slow."""


async def prepared(deployment: Deployment, version: str, kind: str = "conversational") -> dict[str, Any]:
    """Return a registration with as many steps as the version has."""
    body = deployment.body(type=kind)
    if version.startswith("3"):
        deployment.simulator.core.settings.change(ENABLE_MCP)
        body["mcp"] = MCP
    return body


def named(document: dict[str, Any]) -> str:
    return json.dumps(document)


async def holds(deployment: Deployment, body: dict[str, Any], status: int, document: dict[str, Any]) -> None:
    """Check that a fault leaves all, nothing or a report, and that a retry makes one agent that runs."""
    agents, _, _ = deployment.counts
    if status == 200:
        assert agents >= 1
    for orphan in deployment.orphans:
        assert "OUTCOME_UNKNOWN" in named(document) or orphan.split()[1].rstrip(":") in named(document), orphan
    deployment.front.faults.clear()
    again, registered = await deployment.register(body)
    assert again == 200
    if status == 200:
        assert registered == {"agent_id": document["agent_id"]}
    assert deployment.orphans == []
    planner = body["type"] == "plan_execute_and_reflect"
    assert deployment.counts[:2] == (2 if planner else 1, 1)
    ran, answer = await deployment.execute(registered["agent_id"], "hello")
    assert ran == 200, answer
    shown = deployment.shown()
    assert not any(secret in shown for secret in (*SECRETS, "mcp-header-secret"))


@pytest.mark.parametrize(("version", "kind"), CASES)
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_fails_once(version: str, step: str, kind: Kind) -> None:
    method, path = STEPS[step]
    async with deploy(version) as deployment:
        body = await prepared(deployment, version)
        deployment.front.faults.append(Fault(kind, method, path))
        status, document = await deployment.register(body)
        assert deployment.front.faults[0].matched or (step, version) == ("connector", "2.19.0")
        await holds(deployment, body, status, document)


@pytest.mark.parametrize("kind", mostly_slow(KINDS, 3))
@pytest.mark.parametrize(
    ("method", "path"), [STEPS["model"], STEPS["agent"], ("GET", f"{ML}/agents/")], ids=["model", "agent", "parts"]
)
async def test_a_planner_has_an_executor_that_goes_with_it(method: str, path: str, kind: Kind) -> None:
    async with deploy("3.4.0") as deployment:
        body = await prepared(deployment, "3.4.0", "plan_execute_and_reflect")
        deployment.front.faults.append(Fault(kind, method, path))
        status, document = await deployment.register(body)
        assert deployment.front.faults[0].matched
        await holds(deployment, body, status, document)


@pytest.mark.parametrize(("version", "kind"), CASES)
@pytest.mark.parametrize(
    "path", ["POST /models/[^/]+/_undeploy", "DELETE /models/", "DELETE /model_groups/", "DELETE /connectors/"]
)
@pytest.mark.slow
async def test_undoing_fails_once(version: str, path: str, kind: Kind) -> None:
    async with deploy(version) as deployment:
        body = await prepared(deployment, version)
        method, path = path.split()
        deployment.front.faults += [Fault("error", "POST", REGISTER), Fault(kind, method, ML + path)]
        status, document = await deployment.register(body)
        assert status == 500
        if deployment.front.faults[1].matched and kind != "error":
            assert deployment.orphans == []
        await holds(deployment, body, status, document)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_can_not_be_undone_is_named_with_the_call_that_removes_it(version: str) -> None:
    async with deploy(version) as deployment:
        body = await prepared(deployment, version)
        deployment.front.faults += [Fault("error", "POST", REGISTER), Fault("error", "DELETE", ML, times=99)]
        status, document = await deployment.register(body)
        assert status == 500
        assert document["error"]["type"] == "RegistrationFailed"
        assert document["error"]["message"] == "The cluster refused to make the agent: injected by the test"
        [model_id] = deployment.simulator.core.resources.models
        left = [problem for problem in document["error"]["problems"] if problem["code"] == "LEFT_BEHIND"]
        call = f"POST {ML}/models/{model_id}/_undeploy, DELETE {ML}/models/{model_id}"
        assert left[0]["help"] == f"Remove it with {call}"
        assert len(left) == sum(deployment.counts) + 1  # the model's group
        deployment.front.faults.clear()
        for problem in left:
            for method, path in (one.split() for one in problem["help"].removeprefix("Remove it with ").split(", ")):
                assert (await deployment.call(method, path))[0] == 200
        assert deployment.counts == (0, 0, 0)
        assert deployment.orphans == []


async def test_a_refusal_is_the_clusters_own_with_its_status_and_without_the_credential() -> None:
    async with deploy("3.4.0") as deployment:
        body = deployment.body(name="x" * 2000)
        status, document = await deployment.register(body)
        assert status == 400
        assert document["error"]["reason"].startswith("The cluster refused to make the agent: Agent name")
        assert deployment.counts == (0, 0, 0)


async def test_a_lost_model_is_found_and_used() -> None:
    over = {"registration": {"timeout": 60, "visible_within": 60}}
    async with deploy("3.4.0", over, refresh_seconds=0.1) as deployment:
        deployment.front.faults.append(Fault("lost", "POST", f"{ML}/models/_register"))
        assert (await deployment.register())[0] == 200
        assert deployment.counts == (1, 1, 0)
        assert len(deployment.front.calls("POST", f"{ML}/models/_register")) == 1
