"""Whose a session is, one turn at a time, and what happens when something fails."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.memory.model import Owner, SessionKey
from gateway.memory.stores.registry import build_store
from gateway.memory.window import INTERRUPTED
from gateway.simulator.llm.endpoints import Reply
from tests.delivery.cases import IMAGE
from tests.faulty_cluster import Fault, FaultyCluster
from tests.memory.conversations import assistant, tool_use, turn, user
from tests.sessions.conftest import Cluster, StartCluster

AGENT = "flow-b"


def basic(name: str, password: str = "secret") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture
async def cluster(start_cluster: StartCluster) -> Cluster:
    return await start_cluster("2.19.0")


@pytest.fixture
async def tenants(start_cluster: StartCluster) -> Cluster:
    return await start_cluster("2.19.0", {"tenant_header": "X-Tenant"})


ALICE = {**basic("alice"), "X-Tenant": "red"}


async def test_a_new_password_finds_the_session(tenants: Cluster) -> None:
    first = await tenants.ask(AGENT, {"input": "One."}, headers=ALICE)
    second = await tenants.ask(AGENT, {"input": "Two."}, first.memory_id, {**basic("alice", "new"), "X-Tenant": "red"})
    assert (second.status, second.memory_id) == (200, first.memory_id)
    assert json.dumps(second.llm).count("One.") == 1


@pytest.mark.parametrize(
    ("agent", "headers"),
    [
        (AGENT, {**basic("bob"), "X-Tenant": "red"}),
        (AGENT, {**basic("alice"), "X-Tenant": "blue"}),
        (AGENT, {"X-Tenant": "red"}),
        ("flow-a", ALICE),
    ],
)
async def test_no_one_else_finds_a_session(tenants: Cluster, agent: str, headers: dict[str, str]) -> None:
    first = await tenants.ask(AGENT, {"input": "A secret."}, headers=ALICE)
    other = await tenants.ask(agent, {"input": "What was it?"}, first.memory_id, headers)
    unknown = await tenants.ask(agent, {"input": "What was it?"}, f"{first.memory_id[:-4]}0000", headers)
    assert (other.status, unknown.status) == (404, 404)
    assert other.body["error"]["type"] == "SessionNotFound"
    assert other.llm == unknown.llm == []
    mine = await tenants.ask(AGENT, {"input": "What was it?"}, first.memory_id, ALICE)
    assert json.dumps(mine.llm).count("A secret.") == 1


async def test_a_request_without_its_tenant_is_refused_until_it_names_one(tenants: Cluster) -> None:
    refused = await tenants.ask(AGENT, {"input": "Hi."}, headers=basic("alice"))
    assert (refused.status, refused.llm) == (400, [])
    [problem] = refused.body["error"]["problems"]
    assert problem["field"] == "header X-Tenant"
    assert "Send X-Tenant once" in problem["help"]
    first = await tenants.ask(AGENT, {"input": "Hi."}, headers=ALICE)
    assert first.status == 200
    path = f"/_plugins/_ml/memory/{first.memory_id}"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{tenants.gateways[-1].data_port}") as client:
        for headers, status in ((basic("alice"), 400), (ALICE, 200)):
            for read in (path, f"{path}/messages"):
                async with client.get(read, headers=headers) as response:
                    assert response.status == status


async def test_an_id_of_the_clusters_memory_is_refused_with_what_to_do(cluster: Cluster) -> None:
    answered = await cluster.ask(AGENT, {"input": "Hi."}, "p3Xu_6EBm8w0PCMjfmLM")
    assert answered.status == 404
    assert "mlc-gateway memory import-cluster --agent" in answered.body["error"]["help"]
    assert answered.llm == []


async def test_session_id_is_another_name_of_memory_id(cluster: Cluster) -> None:
    first = await cluster.ask(AGENT, {"input": "One."})
    second = await cluster.ask(AGENT, {"input": "Two.", "parameters": {"session_id": first.memory_id}})
    assert second.memory_id == first.memory_id
    both = {"memory_id": first.memory_id, "session_id": "gws-another"}
    refused = await cluster.ask(AGENT, {"input": "Three.", "parameters": both})
    assert refused.status == 400


async def test_the_cluster_does_not_see_the_session(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0", {"cluster_copies": "keep"})
    first = await cluster.ask("conv-b", {"input": "One."})
    await cluster.ask("conv-b", {"input": "Two."}, first.memory_id)
    memories = cluster.simulator.core.memory.memories.values()
    assert [len(memory.messages) for memory in memories] == [1, 1]
    assert first.memory_id not in cluster.simulator.core.memory.memories


async def test_an_agent_goes_on_with_the_sessions_of_the_one_it_replaces(cluster: Cluster) -> None:
    first = await cluster.ask(AGENT, {"input": "One."})
    aliases = {cluster.agents[AGENT]: cluster.agents["conv-b"]}
    await cluster.start({"agents": {**cluster.settings["agents"], "aliases": aliases}})
    second = await cluster.ask(AGENT, {"input": "Two."}, first.memory_id)
    third = await cluster.ask("conv-b", {"input": "Three."}, first.memory_id)
    assert (second.status, third.status) == (200, 200)
    assert second.memory_id == first.memory_id
    assert [json.dumps(third.llm).count(text) for text in ("One.", "Two.", "Three.")] == [1, 1, 1]


async def test_a_tool_call_of_a_run_that_was_killed_is_repaired_and_reported(cluster: Cluster) -> None:
    first = await cluster.ask(AGENT, {"input": "Hello."})
    store = build_store(cluster.gateways[0].settings.memory)
    await store.start()
    key = SessionKey(Owner(cluster.agents[AGENT]), first.memory_id)
    await store.append(key, turn(user("Zoom."), assistant(tool_use("c1", "zoom"))), 1)
    await store.close()
    after = await cluster.ask(AGENT, {"input": "And?"}, first.memory_id)
    assert (after.status, after.notices) == (200, "TOOL_ERROR_MARKED, MEMORY_REPAIRED")
    roles = [message["role"] for message in after.llm[0]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "user"]
    assert INTERRUPTED in json.dumps(after.llm)


async def test_a_stored_block_that_can_not_be_delivered_is_named(cluster: Cluster) -> None:
    first = await cluster.ask(AGENT, {"input": [{"type": "text", "text": "See:"}, IMAGE]})
    core = cluster.simulator.core
    model_id = next(id for id, doc in core.resources.models.items() if doc["name"] == "model-d")
    tool = core.resources.agent(cluster.agents[AGENT])["tools"][0]
    changed = {**tool, "parameters": {**tool["parameters"], "model_id": model_id}}
    core.resources.update_agent(cluster.agents[AGENT], {"tools": [changed]})
    await cluster.start()
    second = await cluster.ask(AGENT, {"input": "And?"}, first.memory_id)
    assert second.status == 400
    assert "memory[0].content[1]" in {problem["field"] for problem in second.body["error"]["problems"]}


# One turn at a time


@pytest.fixture
async def slow(start_cluster: StartCluster) -> AsyncIterator[tuple[Cluster, asyncio.Event, asyncio.Event]]:
    """A cluster whose run waits for the second event, once the first one is set."""
    cluster = await start_cluster("2.19.0", {"concurrent": "refuse"})
    started, goes_on = asyncio.Event(), asyncio.Event()
    post = cluster.simulator._post

    async def waiting_post(call: Any) -> Any:
        if "Slowly." in call.body.rsplit("user", 1)[-1]:
            started.set()
            await goes_on.wait()
        return await post(call)

    cluster.simulator._post = waiting_post  # type: ignore[method-assign]
    yield cluster, started, goes_on
    goes_on.set()


async def test_a_second_request_is_refused_while_the_first_one_runs(slow: Any) -> None:
    cluster, started, goes_on = slow
    first = await cluster.ask(AGENT, {"input": "Hello."})
    running = asyncio.create_task(cluster.ask(AGENT, {"input": "Slowly."}, first.memory_id))
    await started.wait()
    refused = await cluster.ask(AGENT, {"input": "Now."}, first.memory_id)
    assert (refused.status, refused.body["error"]["type"]) == (409, "SessionBusy")
    assert refused.body["error"]["help"] == "Wait for the answer to the other request, then send this one again."
    goes_on.set()
    assert (await running).status == 200
    third = await cluster.ask(AGENT, {"input": "Now."}, first.memory_id)
    assert json.dumps(third.llm).count("Slowly.") == 1


async def test_requests_of_one_session_wait_for_each_other(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0")
    first = await cluster.ask(AGENT, {"input": "Begin."})
    asked = [cluster.ask(AGENT, {"input": f"Question {n}."}, first.memory_id) for n in range(5)]
    answered = await asyncio.gather(*asked)
    assert {one.status for one in answered} == {200}
    last = await cluster.ask(AGENT, {"input": "End."}, first.memory_id)
    sent = json.dumps(last.llm)
    assert [sent.count(f"Question {n}.") for n in range(5)] == [1] * 5
    assert len(last.llm[0]["messages"]) == 13


async def test_two_gateways_lose_no_turn(slow: Any) -> None:
    cluster, started, goes_on = slow
    one, other = cluster.gateways[0], await cluster.start()
    first = await cluster.ask(AGENT, {"input": "Hello."}, gateway=one)
    running = asyncio.create_task(cluster.ask(AGENT, {"input": "Slowly."}, first.memory_id, gateway=one))
    await started.wait()
    quick = await cluster.ask(AGENT, {"input": "Quickly."}, first.memory_id, gateway=other)
    goes_on.set()
    late = await running
    assert (quick.notices, late.notices) == ("", "MEMORY_CONCURRENT")
    last = await cluster.ask(AGENT, {"input": "End."}, first.memory_id)
    sent = json.dumps(last.llm)
    assert sent.index("Hello.") < sent.index("Quickly.") < sent.index("Slowly.") < sent.index("End.")


# Failures


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_failed_turn_is_not_sent_again(cluster: Cluster, has_begun: bool) -> None:
    memory_id = (await cluster.ask(AGENT, {"input": "Hello."})).memory_id if has_begun else ""
    cluster.simulator.script([Reply(500, "{}")])
    failed = await cluster.ask(AGENT, {"input": "Fails."}, memory_id)
    assert failed.status == 500
    if not has_begun:
        store = build_store(cluster.gateways[0].settings.memory)
        await store.start()
        sessions = (await store.sessions()).sessions
        await store.close()
        assert (sessions, "gws-" in json.dumps(failed.body)) == ((), False)
        return
    after = await cluster.ask(AGENT, {"input": "Again."}, memory_id)
    assert after.status == 200
    assert "Fails." not in json.dumps(after.llm)
    assert json.dumps(after.llm).count("Hello.") == 1


async def test_system_text_is_kept_until_another_one_comes(cluster: Cluster) -> None:
    def with_system(text: str) -> dict[str, Any]:
        return {"input": [{"role": "system", "content": text}, {"role": "user", "content": "Hi."}]}

    memory_id = (await cluster.ask(AGENT, with_system("Be brief."))).memory_id
    second = await cluster.ask(AGENT, {"input": "And?"}, memory_id)
    assert json.dumps(second.llm).count("Be brief.") == 1
    cluster.simulator.script([Reply(500, "{}")])
    assert (await cluster.ask(AGENT, with_system("Be rude."), memory_id)).status == 500
    fourth = await cluster.ask(AGENT, with_system("Be long."), memory_id)
    fifth = await cluster.ask(AGENT, {"input": "And?"}, memory_id)
    for answered in (fourth, fifth):
        sent = json.dumps(answered.llm)
        assert [sent.count(text) for text in ("Be brief.", "Be rude.", "Be long.")] == [0, 0, 1]


async def test_a_client_that_leaves_leaves_a_failed_turn(slow: Any) -> None:
    cluster, started, goes_on = slow
    first = await cluster.ask(AGENT, {"input": "Hello."})
    running = asyncio.create_task(cluster.ask(AGENT, {"input": "Slowly."}, first.memory_id))
    await started.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    goes_on.set()
    while True:  # until the gateway has noticed
        after = await cluster.ask(AGENT, {"input": "Again."}, first.memory_id)
        if after.status != 409:
            break
    assert after.status == 200
    assert "Slowly." not in json.dumps(after.llm[-1])


async def test_a_refused_request_leaves_nothing(cluster: Cluster) -> None:
    first = await cluster.ask(AGENT, {"input": "Hello."})
    refused = await cluster.ask(AGENT, {"input": [{"role": "user", "content": []}]}, first.memory_id)
    assert refused.status == 400
    second = await cluster.ask(AGENT, {"input": "Again."}, first.memory_id)
    assert len(second.llm[0]["messages"]) == 3


@pytest.mark.parametrize("on_failure", ["refuse", "answer"])
async def test_a_store_that_can_not_be_used(start_cluster: StartCluster, tmp_path: Any, on_failure: str) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "sessions.sqlite3")
    cluster = await start_cluster("2.19.0", {"on_failure": on_failure})
    await cluster.start({"memory": {"sqlite": {"path": path}, "on_failure": on_failure}})
    answered = await cluster.ask(AGENT, {"input": "Hello."})
    if on_failure == "refuse":
        assert (answered.status, answered.body["error"]["type"]) == (503, "MemoryUnavailable")
        assert answered.llm == []
    else:
        assert (answered.status, answered.notices) == (200, "MEMORY_UNAVAILABLE")
        assert answered.memory_id == ""


async def test_agents_of_the_clusters_memory_stay_as_they_were(start_cluster: StartCluster) -> None:
    cluster = await start_cluster("2.19.0")
    await cluster.start({"agents": {"rules": [{"agent": "*", "memory": "cluster"}]}})
    first = await cluster.ask("conv-d", {"input": "One."})
    assert first.memory_id in cluster.simulator.core.memory.memories
    second = await cluster.ask("conv-d", {"parameters": {"question": "Two."}}, first.memory_id)
    assert second.memory_id == first.memory_id


@pytest.mark.parametrize("status", [302, 401])
async def test_a_redirect_or_a_refused_caller_leaves_the_session_as_it_was(
    start_cluster: StartCluster, status: int
) -> None:
    cluster = await start_cluster()
    async with FaultyCluster(cluster.simulator.url) as front:
        gateway = await cluster.start_gateway(front.url, None, cluster.settings)
        first = await cluster.ask(AGENT, {"input": "Hello."}, gateway=gateway)
        front.faults.append(Fault("error", "POST", r".*/_execute$", status=status))
        refused = await cluster.ask(AGENT, {"input": "Lost."}, first.memory_id, gateway=gateway)
        assert (refused.status, refused.notices) == (status, "")
        third = await cluster.ask(AGENT, {"input": "And now?"}, first.memory_id, gateway=gateway)
    assert third.status == 200
    assert "Hello." in json.dumps(third.llm)
    assert "Lost." not in json.dumps(third.llm)
