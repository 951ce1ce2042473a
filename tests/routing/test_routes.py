"""Requests to a route reach one of its targets, and a conversation stays there."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
from typing import Any

import aiohttp
import pytest

from gateway.proxy.capture import HELD_ANSWER
from tests.faulty_cluster import Fault
from tests.routing.conftest import ML, PASSWORD, Place

GATEWAY_MEMORY = {"agent": "*", "memory": "gateway"}
ALICE = {"Authorization": "Basic " + base64.b64encode(b"alice:canary-of-alice").decode()}
EXECUTE = rf"{ML}/agents/(?!mlc-gateway-)[^/]+/_execute"


def of_turns(*texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": [{"type": "text", "text": text}]} for number, text in enumerate(texts)
    ]


async def test_the_weights_say_where_new_conversations_begin(place: Place) -> None:
    await place.start(place.route("flow-b", "flow-openai_messages", (1, 0)))
    first = await place.ask("flow-b", "Hello.")
    assert (first.status, first.ran, first.on) == (200, place.old.agents["flow-b"], "")
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)))
    second = await place.ask("flow-b", "Hello.")
    assert (second.status, second.ran, second.on) == (200, place.new.agents["flow-openai_messages"], "new")
    assert (place.old.runs, place.new.runs) == (1, 1)
    assert "Hello." in json.dumps(place.new.simulator.received)


async def test_a_conversation_of_a_clusters_memory_stays_where_it_began(place: Place) -> None:
    """Its id leads back, for every gateway, whatever the weights are then."""
    toward_new = await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    toward_old = await place.start(place.route("conv-b", "fc-openai_upgraded", (1, 0)))
    begun_new = await place.ask("conv-b", "My name is Nia.", gateway=toward_new)
    begun_old = await place.ask("conv-b", "My name is Ole.", gateway=toward_old)
    assert (begun_new.on, begun_old.on) == ("new", "")
    assert begun_new.memory_id.startswith("gwr-")
    assert not begun_old.memory_id.startswith("gwr-")
    for gateway in (toward_new, toward_old):
        for begun, name in ((begun_new, "Nia"), (begun_old, "Ole")):
            again = await place.ask("conv-b", "What is my name?", begun.memory_id, gateway=gateway)
            assert (again.status, again.ran, again.memory_id) == (200, begun.ran, begun.memory_id)
            received = (place.new if begun.on else place.old).simulator.received
            assert name in json.dumps(received[-1])


async def test_memory_paths_lead_to_the_cluster_that_holds_the_conversation(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    begun = await place.ask("conv-b", "My name is Nia.")
    id = begun.memory_id
    memory = await place.send("GET", f"{ML}/memory/{id}")
    assert (memory.status, memory.body["memory_id"]) == (200, id)
    messages = await place.send("GET", f"{ML}/memory/{id}/messages")
    [message, *_] = messages.body["messages"]
    assert message["memory_id"] == id
    assert message["message_id"].startswith("gwr-")
    one = await place.send("GET", f"{ML}/memory/message/{message['message_id']}")
    assert one.body["message_id"] == message["message_id"]
    traces = await place.send("GET", f"{ML}/memory/message/{message['message_id']}/traces")
    assert traces.status == 200
    deleted = await place.send("DELETE", f"{ML}/memory/{id}")
    assert deleted.status == 200
    gone = await place.send("GET", f"{ML}/memory/{id}")
    assert gone.status == 404
    assert not place.old.front.calls("", rf"{ML}/memory/")


async def test_a_memory_of_another_cluster_is_readable(place: Place) -> None:
    """As that of `upstream` is (`memory.readable`): a question with an image is stored in a form of the gateway's."""
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": png}}
    for readable in (True, False):
        await place.start(
            place.route("conv-b", "conv-bedrock_tutorial", (0, 1)),
            memory={**place.settings["memory"], "readable": readable},
        )
        begun = await place.ask("conv-b", [{"type": "text", "text": "What is this?"}, image])
        read = await place.send("GET", f"{ML}/memory/{begun.memory_id}/messages")
        assert ("gw_" in json.dumps(read.body)) is not readable
        assert read.headers.get("X-MLC-Gateway-Notice", "") == ("MEMORY_SHOWN_READABLE" if readable else "")
    assert await place.metric("mlc_gateway_notices_total", place.gateways[0], code="MEMORY_SHOWN_READABLE") == 1


async def test_a_read_of_a_memory_is_sent_again_as_one_of_upstream_is(place: Place) -> None:
    """A connection may be closed just as it is used again."""
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    marked = (await place.ask("conv-b", "My name is Nia.")).memory_id
    await place.start(place.route("conv-b", "fc-openai_upgraded", (1, 0)))
    own = (await place.ask("conv-b", "My name is Ole.")).memory_id
    for id, cluster in ((own, place.old), (marked, place.new)):
        assert (await place.send("GET", f"{ML}/memory/{id}")).status == 200
        cluster.front.faults.append(Fault("refused", "", f"{ML}/memory/"))
        assert (await place.send("GET", f"{ML}/memory/{id}")).status == 200


@pytest.mark.parametrize("coding", ["identity", "br"])
async def test_an_answer_whose_ids_get_no_marks_says_so(place: Place, coding: str) -> None:
    """It is larger than the gateway holds, or can't be read: its id would lead to the route's own agent."""
    large = coding == "identity"
    text = "x" * (2 * HELD_ANSWER if large else 1)
    body = json.dumps({"memory_id": "of-the-cluster", "response": text, "messages": []}).encode()
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    marked = (await place.ask("conv-b", "My name is Nia.")).memory_id
    fault = Fault("masked", "POST", EXECUTE, status=200, body=body, headers={"content-encoding": coding})
    place.new.front.faults.append(fault)
    place.new.front.faults.append(dataclasses.replace(fault, method="GET", path=f"{ML}/memory/"))
    path = f"{ML}/agents/{place.old.agents['conv-b']}/_execute"
    for method, target in (("POST", path), ("GET", f"{ML}/memory/{marked}/messages")):
        seen = await place.raw(method, target, {"input": "And now?"} if method == "POST" else None)
        assert (seen.status, seen.headers["X-MLC-Gateway-Notice"]) == (200, "ROUTE_IDS_UNMARKED")
        assert seen.body == body
    count = await place.metric("mlc_gateway_notices_total", code="ROUTE_IDS_UNMARKED")
    assert count == 2


async def test_all_notices_of_an_answer_that_can_not_be_held_are_shown(place: Place) -> None:
    """The session's, whose turn has no answer, and the route's."""
    body = json.dumps({"memory_id": "of-the-cluster", "response": "x" * 2 * HELD_ANSWER}).encode()
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)), rules=[GATEWAY_MEMORY])
    place.new.front.faults.append(Fault("masked", "POST", EXECUTE, status=200, body=body))
    answered = await place.ask("flow-b", "Hello.")
    notices = ", ".join(answered.headers.getall("X-MLC-Gateway-Notice")).split(", ")
    assert {"MEMORY_ANSWER_MISSING", "ROUTE_IDS_UNMARKED"} <= set(notices)


async def test_an_id_of_an_agent_that_is_no_target_any_more_is_refused(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    begun = await place.ask("conv-b", "One.")
    await place.start(place.route("conv-b", "fc-bedrock_upgraded", (1, 1)))
    refused = await place.ask("conv-b", "Two.", begun.memory_id)
    assert refused.status == 400
    [problem] = refused.body["error"]["problems"]
    assert problem["field"] == "parameters.memory_id"
    assert "Send no memory_id" in problem["help"]
    assert (await place.send("GET", f"{ML}/memory/{begun.memory_id}")).status == 404
    assert (await place.ask("conv-b", "Two.")).status == 200  # what the help says


async def test_an_unmarked_id_of_a_route_without_its_own_agent_is_refused(place: Place) -> None:
    route = place.route("conv-b", "fc-openai_upgraded", (0, 1))
    await place.start({**route, "targets": [*route["targets"][1:], {"agent": "another", "weight": 0}]})
    refused = await place.ask("conv-b", "Two.", "an-id-of-the-old-agent")
    assert (refused.status, place.new.runs) == (400, 0)


@pytest.mark.parametrize("kind", ["input", "parameters"])
async def test_a_session_of_the_gateway_goes_on_with_the_agent_that_answered_last(place: Place, kind: str) -> None:
    rules = [GATEWAY_MEMORY]
    old = await place.start(place.route("flow-b", "flow-openai_messages", (1, 0)), rules=rules)
    new = await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)), rules=rules)

    def body(text: str) -> dict[str, Any]:
        return {"input": text} if kind == "input" else {"parameters": {"question": text}}

    begun = await place.ask("flow-b", body("My name is Nia."), gateway=new)
    assert (begun.status, begun.on) == (200, "new")
    assert begun.memory_id.startswith(f"gws-{place.old.agents['flow-b']}-")
    again = await place.ask("flow-b", body("What is my name?"), begun.memory_id, gateway=old)
    assert (again.status, again.on, again.memory_id) == (200, "new", begun.memory_id)
    assert "Nia" in json.dumps(place.new.simulator.received[-1])
    # The session is the route's: with the new agent gone, the old one goes on with it.
    only_old = await place.start(
        {"agent": place.old.agents["flow-b"], "targets": [{"agent": place.old.agents["flow-b"], "weight": 1}]},
        rules=rules,
    )
    last = await place.ask("flow-b", body("And now?"), begun.memory_id, gateway=only_old)
    assert (last.status, last.on, last.memory_id) == (200, "", begun.memory_id)
    assert "Nia" in json.dumps(place.old.simulator.received[-1])
    stored = await place.send("GET", f"{ML}/memory/{begun.memory_id}/messages")
    assert len(stored.body["messages"]) == 3


async def test_the_copies_in_another_cluster_are_deleted_there(place: Place) -> None:
    """What a run left in the memory of another cluster is deleted with that cluster's credentials."""
    gateway = await place.start(
        place.route("cflow-b", "cflow-openai_messages", (0, 1)),
        rules=[GATEWAY_MEMORY],
        memory={**place.settings["memory"], "cluster_copies": "after_turn"},
    )
    assert (await place.ask("cflow-b", "Hi.", headers=ALICE)).status == 200
    await gateway._now.memory.copies.ended()  # type: ignore[union-attr]
    [deleted] = place.new.front.calls("DELETE", f"{ML}/memory/")
    assert deleted.status == 200
    assert base64.b64decode(deleted.headers["Authorization"].split()[1]).decode() == f"gateway:{PASSWORD}"


@pytest.mark.parametrize("stick_by", ["caller", "first_message"])
async def test_agents_without_memory_keep_a_caller_or_a_conversation(place: Place, stick_by: str) -> None:
    await place.start(place.route("flow-b", "flow-openai_messages", stick_by=stick_by))
    ran: dict[str, set[str]] = {}
    for number in range(12):
        who = {"Authorization": "Basic " + base64.b64encode(f"user-{number}:p".encode()).decode()}
        for texts in ((f"Hi {number}.",), (f"Hi {number}.", "Hello.", "And?")):
            answered = await place.ask("flow-b", of_turns(*texts), headers=who)
            ran.setdefault(f"user-{number}", set()).add(answered.ran)
    assert all(len(agents) == 1 for agents in ran.values())
    assert len(set.union(*ran.values())) == 2


async def test_a_target_that_fails_hands_over_to_the_next(place: Place) -> None:
    route = place.route("flow-b", "flow-openai_upgraded", (1, 0.000001), on_failure="next")
    await place.start(route, upstream={"url": place.old.front.url, "timeouts": {"execute": 0.5}})
    for kind in ("refused", "lost", "stall"):
        place.old.front.faults[:] = [Fault(kind, "POST", EXECUTE)]  # type: ignore[arg-type]
        answered = await place.ask("flow-b", "Hello.")
        assert (answered.status, answered.on) == (200, "new"), kind
        assert "ROUTE_HANDED_OVER" in answered.headers["X-MLC-Gateway-Notice"]
    gone = {**route, "targets": [{"agent": "gone", "weight": 1}, *route["targets"][1:]]}
    await place.start(gone)
    for body in ("Hello.", {"parameters": {"question": "Hello."}}):
        answered = await place.ask("flow-b", body)
        assert (answered.status, answered.on) == (200, "new")
        assert "ROUTE_HANDED_OVER" in answered.headers["X-MLC-Gateway-Notice"]


async def test_a_failure_stays_one_where_the_next_target_can_not_take_the_request(place: Place) -> None:
    """A 502 may be tried again; a 400 says that it is in vain."""
    own, next_one = place.old.agents["flow-b"], place.old.agents["flow-c"]  # flow-c takes no images
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
    image = [{"type": "image", "source": {"type": "base64", "format": "png", "data": png}}]
    targets = [{"agent": own, "weight": 1}, {"agent": next_one, "weight": 0.000001}]
    for fault in (Fault("lost", "POST", EXECUTE), Fault("lost", "GET", f"{ML}/agents/{own}", times=9)):
        place.old.front.faults[:] = [fault]
        await place.start({"agent": own, "targets": targets, "on_failure": "next"})
        assert (await place.ask("flow-b", image)).status == 502
    place.old.front.faults.clear()
    assert (await place.ask("flow-b", image)).status == 200


async def test_a_failure_is_the_answer_unless_the_settings_say_next(place: Place) -> None:
    await place.start(place.route("flow-b", "flow-openai_messages", (1, 0.000001)))
    place.old.front.faults.append(Fault("refused", "POST", EXECUTE))
    assert (await place.ask("flow-b", "Hello.")).status == 502
    assert place.new.runs == 0


async def test_a_conversation_that_the_next_target_does_not_know_is_not_handed_over(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (1, 0.000001), on_failure="next"))
    begun = await place.ask("conv-b", "One.")
    place.old.front.faults.append(Fault("refused", "POST", EXECUTE))
    assert (begun.status, (await place.ask("conv-b", "Two.", begun.memory_id)).status) == (200, 502)
    assert place.new.runs == 0


@pytest.mark.parametrize(("old", "new"), [("client", "upstream"), ("upstream", "client")])
async def test_each_cluster_gets_the_host_that_its_settings_name(place: Place, old: str, new: str) -> None:
    clusters = {"new": {**place.settings["clusters"]["new"], "host_header": new}}
    upstream = {"host_header": old, "url": place.old.front.url}
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)), clusters=clusters, upstream=upstream)
    answered = await place.ask("flow-b", "Hello.", headers={"Host": "of-the-client"})
    [run] = place.new.front.calls("POST", EXECUTE)
    own = place.new.front.url.removeprefix("http://")
    assert (answered.status, run.headers["Host"]) == (200, own if new == "upstream" else "of-the-client")


async def test_one_cluster_down_leaves_the_other_alone(place: Place) -> None:
    down = {**place.settings["clusters"]["new"], "url": "http://127.0.0.1:1"}
    gateway = await place.start(place.route("flow-b", "flow-openai_messages", (1, 0)), clusters={"new": down})
    assert (await place.ask("flow-b", "Hello.")).status == 200
    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{gateway.admin_port}"
        async with client.get(f"{url}/health/ready") as response:
            health = await response.json()
        async with client.get(f"{url}/metrics") as response:
            metrics = await response.text()
    assert (response.status, health["status"]) == (200, "ready")
    assert health["clusters"]["new"].startswith("The cluster can't be reached")
    assert 'cluster="new",node="127.0.0.1:1"' in metrics
    own, other = place.old.agents["flow-b"], place.new.agents["flow-openai_messages"]
    answered = f'mlc_gateway_route_runs_total{{agent="{own}",cluster="",outcome="answered",route="{own}"}} 1.0'
    shared = f'mlc_gateway_route_share{{agent="{other}",cluster="new",route="{own}"}} 0.0'
    assert answered in metrics
    assert shared in metrics


@pytest.mark.parametrize("only", [False, True])
async def test_tokens_of_a_target_are_counted(place: Place, only: bool) -> None:
    """Also of the only one."""
    own, resources = place.old.agents["cflow-c"], place.old.simulator.core.resources
    whole = copy.deepcopy(resources.agents[place.old.agents["cflow-b"]])
    for tool in whole["tools"]:
        tool["parameters"].pop("response_filter", None)  # which takes the tokens out of the answer
    agent = resources.register_agent(whole)["agent_id"]
    targets = [{"agent": agent, "weight": 1}] + ([] if only else [{"agent": own, "weight": 0}])
    await place.start({"agent": own, "targets": targets})
    assert (await place.ask("cflow-c", "Hello.")).ran == agent
    counted = [
        await place.metric("mlc_gateway_route_tokens_total", agent=agent, kind=kind) for kind in ("input", "output")
    ]
    assert counted == [11, 7]


async def test_a_cluster_that_is_down_is_named_by_its_setting(place: Place) -> None:
    down = {**place.settings["clusters"]["new"], "url": "http://127.0.0.1:1"}
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1)), clusters={"new": down})
    refused = await place.ask("flow-b", "Hello.")
    assert (refused.status, refused.body["error"]["message"]) == (502, "The cluster can't be reached.")
    assert "Check clusters.new.url, and that the cluster runs." in refused.body["error"]["help"]


async def test_who_may_not_run_agents_gets_no_run_elsewhere(place: Place) -> None:
    """`callers: checked` asks the cluster of `upstream`, before the first run; `trusted` asks nobody."""
    route = place.route("flow-b", "flow-openai_messages", (0, 1))
    await place.start(route)
    for status in (401, 403):
        place.old.front.faults[:] = [Fault("masked", "POST", f"{ML}/agents/mlc-gateway-", status=status)]
        refused = await place.ask("flow-b", "Hello.", headers=ALICE)
        assert (refused.status, refused.body["error"]["type"], place.new.runs) == (status, "CallerRefused", 0)
    [asked, _] = place.old.front.calls("POST", f"{ML}/agents/mlc-gateway-")
    assert asked.headers["authorization"] == ALICE["Authorization"]
    await place.start(place.route("flow-b", "flow-openai_messages", (0, 1), callers="trusted"))
    assert (await place.ask("flow-b", "Hello.", headers=ALICE)).status == 200


async def test_a_stream_gets_the_mark_in_its_ids(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    place.new.simulator.core.streams = True
    text = await place.stream("conv-b", "My name is Nia.")
    events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
    ids = {
        output["result"]
        for event in events
        for result in event["inference_results"]
        for output in result["output"]
        if output["name"] == "memory_id"
    }
    [id] = ids
    again = await place.ask("conv-b", "What is my name?", id)
    assert (again.on, again.memory_id) == ("new", id)


async def test_a_conversation_goes_on_where_a_stream_is_answered_whole(place: Place) -> None:
    """The request that is sent again, as the cluster has no streams, has the id that the cluster knows, too."""
    await place.start(place.route("conv-b", "v1-openai", (0, 1)))
    begun = await place.ask("conv-b", "My name is Nia.")
    path = f"{ML}/agents/{place.old.agents['conv-b']}/_execute/stream"
    url = f"http://127.0.0.1:{place.gateways[-1].data_port}{path}"
    body = {"input": "What is my name?", "parameters": {"memory_id": begun.memory_id}}
    async with aiohttp.ClientSession() as client, client.post(url, json=body) as got:
        assert (got.status, got.headers["X-MLC-Cluster"]) == (200, "new")
        text = await got.text()
    assert begun.memory_id in text
    assert "Nia" in json.dumps(place.new.simulator.received[-1])
    runs = place.new.front.calls("POST", EXECUTE)
    assert not any(b"gwr-" in run.body for run in runs)


async def test_an_answer_that_gets_marks_comes_in_no_coding_that_the_gateway_can_not_read(place: Place) -> None:
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    coding = {"Accept-Encoding": "zstd"}
    begun = await place.ask("conv-b", {"parameters": {"question": "Hello."}}, headers=coding)
    assert (begun.status, begun.memory_id[:4]) == (200, "gwr-")
    assert (await place.send("GET", f"{ML}/memory/{begun.memory_id}", headers=coding)).status == 200
    asked = [*place.new.front.calls("POST", EXECUTE), *place.new.front.calls("GET", f"{ML}/memory/")]
    assert [request.headers["Accept-Encoding"] for request in asked] == ["identity"] * 2


async def test_a_budget_for_the_id_that_clients_name_counts_the_runs_of_all_targets(place: Place) -> None:
    budget = {"agent": place.old.agents["flow-b"], "tokens": 1, "unknown": "count", "unknown_amount": 5}
    policy = {"budgets": [budget], "budget_store": "sqlite"}
    statuses = []
    for weights in ((0, 1), (1, 0), (0, 1)):
        await place.start(place.route("flow-b", "flow-openai_messages", weights), policy=policy)
        statuses.append((await place.ask("flow-b", "Hello.")).status)
    assert statuses == [200, 429, 429]
    assert (place.old.runs, place.new.runs) == (0, 1)


async def test_a_guardrail_for_the_id_that_clients_name_holds_for_every_target(place: Place) -> None:
    guardrail = {"name": "down", "agent": place.old.agents["flow-b"], "url": "http://127.0.0.1:1/"}
    route = place.route("flow-b", "flow-openai_messages", (0, 1))
    await place.start(route, policy={"guardrails": [guardrail]})
    assert (await place.ask("flow-b", "Hello.")).status == 503
    assert place.new.runs == 0


async def test_a_run_that_may_have_begun_before_another_target_took_over_counts_for_budgets(place: Place) -> None:
    budget = {"agent": place.old.agents["flow-b"], "tokens": 1500, "unknown": "count", "unknown_amount": 1000}
    route = place.route("flow-b", "flow-openai_messages", (1, 0.000001), on_failure="next")
    missing = Fault("masked", "POST", EXECUTE, status=404, body=b'{"error": "Failed to find agent"}')
    for fault, then in ((missing, 200), (Fault("lost", "POST", EXECUTE), 429)):
        await place.start(route, policy={"budgets": [budget]})
        place.old.front.faults[:] = [fault]
        first, second = [await place.ask("flow-b", "Hello.") for _ in range(2)]
        assert (first.status, first.on, second.status) == (200, "new", then)
