"""Copies of runs: what they send, that nobody waits for them, and when there are none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.config.schema import Mirror
from gateway.mlcommons.profile import AgentProfile, Generation, Tool
from gateway.observe.record import ExchangeRecord
from gateway.routing.mirrors import other_tools
from tests.faulty_cluster import Fault
from tests.recording.memory_sink import MemorySink
from tests.routing.conftest import ML, Place

RECORDED = {"inspector": {"enabled": True}}
OLD, NEW = "flow-b", "flow-openai_upgraded"
GATEWAY_MEMORY = {"agent": "*", "memory": "gateway"}


def mirrored(place: Place, old: str = OLD, new: str = NEW, tools: Any = "none", **mirror: Any) -> dict[str, Any]:
    """Return a route whose requests the old agent answers, with copies for the new one."""
    agent = place.new.agents[new]
    return place.route(old, new, (1, 0), mirror={"agent": agent, "tools": tools, **mirror})


async def two_records(sink: MemorySink) -> tuple[ExchangeRecord, ExchangeRecord]:
    """Return the records of a run and its copy."""
    records = await sink.wait_for(2)
    original, copy = sorted(records, key=lambda record: bool(record.mirror_of))
    return original, copy


async def test_a_copy_runs_on_the_new_target_and_is_recorded_beside_the_original(place: Place) -> None:
    sink = MemorySink()
    await place.start(mirrored(place), sinks=sink, **RECORDED)
    answered = await place.ask(OLD, [{"type": "text", "text": "Hello."}])
    assert (answered.status, answered.ran) == (200, place.old.agents[OLD])
    original, copy = await two_records(sink)
    assert (original.agent_id, original.cluster, original.route) == (place.old.agents[OLD], "", place.old.agents[OLD])
    assert (copy.agent_id, copy.cluster, copy.route) == (place.new.agents[NEW], "new", place.old.agents[OLD])
    assert (original.mirror_of, copy.mirror_of) == ("", original.id)
    assert copy.started >= original.started + original.seconds
    assert copy.request.body.text == original.request.body.text
    assert "Hello." in json.dumps(place.new.simulator.received)
    await place.copied(1)
    assert await place.metric("mlc_gateway_mirrors_total", outcome="ran") == 1
    assert await place.metric("mlc_gateway_route_runs_total") == 1


async def test_a_copy_is_in_no_session_and_goes_on_with_none(place: Place) -> None:
    """The first turn is copied; later ones are not, as the new target does not know the conversation."""
    sink = MemorySink()
    await place.start(mirrored(place), rules=[GATEWAY_MEMORY], sinks=sink, **RECORDED)
    begun = await place.ask(OLD, "My name is Nia.")
    await two_records(sink)
    assert (await place.ask(OLD, "What is my name?", begun.memory_id)).status == 200
    await sink.wait_for(3)
    assert (place.old.runs, place.new.runs) == (2, 1)
    stored = await place.send("GET", f"{ML}/memory/{begun.memory_id}/messages")
    assert len(stored.body["messages"]) == 2
    assert await place.metric("mlc_gateway_session_turns_total") == 2


async def test_nobody_waits_for_a_target_that_is_stalled(place: Place) -> None:
    gateway = await place.start(mirrored(place, most_at_a_time=2))
    stall = asyncio.Event()
    place.new.front.faults.append(Fault("stall", "POST", f"{ML}/agents/", times=99, until=stall))
    for number in range(5):
        assert (await place.ask(OLD, f"Hello {number}.")).status == 200
    assert await place.metric("mlc_gateway_mirrors_total", outcome="dropped") == 3
    await gateway.stop()  # which drops those that run
    assert place.old.runs == 5


async def test_a_copy_that_fails_is_counted_and_harms_nobody(place: Place) -> None:
    sink = MemorySink()
    await place.start(mirrored(place), sinks=sink, **RECORDED)
    place.new.front.faults.append(Fault("refused", "POST", f"{ML}/agents/", times=9))
    assert (await place.ask(OLD, "Hello.")).status == 200
    original, copy = await two_records(sink)
    assert (original.status, copy.status) == (200, 502)
    await place.copied(1)
    assert await place.metric("mlc_gateway_mirrors_total", outcome="failed") == 1


async def test_an_agent_with_other_tools_than_those_named_runs_no_copies(place: Place) -> None:
    await place.start(mirrored(place, new="fc-openai_upgraded"))
    assert (await place.ask(OLD, "Hello.")).status == 200
    await place.copied(1)
    assert await place.metric("mlc_gateway_mirrors_total", outcome="dropped") == 1
    assert place.new.runs == 0
    sink = MemorySink()
    await place.start(mirrored(place, new="fc-openai_upgraded", tools=["ListIndexTool"]), sinks=sink, **RECORDED)
    assert (await place.ask(OLD, "Hello.")).status == 200
    await two_records(sink)
    assert place.new.runs == 1


async def test_only_a_share_is_copied(place: Place) -> None:
    sink = MemorySink()
    await place.start(mirrored(place, ratio=0.0), sinks=sink, **RECORDED)
    for _ in range(3):
        assert (await place.ask(OLD, "Hello.")).status == 200
    await sink.wait_for(3)
    assert place.new.front.seen == []


async def test_a_copy_takes_no_slot_and_no_budget_of_the_client(place: Place) -> None:
    sink = MemorySink()
    budget = {"agent": "*", "tokens": 1, "unknown": "count", "unknown_amount": 5}
    over = {"admission": {"total": 1, "queue": 0}, "policy": {"budgets": [budget]}}
    await place.start(mirrored(place), sinks=sink, **RECORDED, **over)
    assert (await place.ask(OLD, "Hello.")).status == 200
    _, copy = await two_records(sink)
    assert copy.status == 200
    assert (await place.ask(OLD, "Hello.")).status == 429


async def test_a_copy_has_no_header_that_was_for_the_gateway_only(place: Place) -> None:
    """Those that `Connection` lists (RFC 9110, 7.6.1), also where the copy goes to the same cluster."""
    sink = MemorySink()
    own, other = place.old.agents[OLD], place.old.agents["flow-d"]
    targets = [{"agent": own, "weight": 1}, {"agent": other, "weight": 0}]
    route = {"agent": own, "targets": targets, "mirror": {"agent": other, "tools": "none"}}
    await place.start(route, sinks=sink, **RECORDED)
    headers = {"Connection": "keep-alive, X-Private", "X-Private": "secret", "X-Public": "sent"}
    assert (await place.ask(OLD, "Hello.", headers=headers)).status == 200
    await two_records(sink)
    first, copy = place.old.front.calls("POST", rf"{ML}/agents/[^/]+/_execute")
    for run in (first, copy):
        assert (run.headers["X-Public"], "X-Private" in run.headers) == ("sent", False)


@pytest.mark.parametrize("status", [401, 403])
async def test_whom_the_cluster_refuses_gets_no_copy(place: Place, status: int) -> None:
    """A target with `callers: trusted` would run it for anybody."""
    sink = MemorySink()
    route = {**mirrored(place), "targets": place.route(OLD, NEW, (1, 0), callers="trusted")["targets"]}
    await place.start(route, sinks=sink, **RECORDED)
    place.old.front.faults.append(Fault("error", "POST", f"{ML}/agents/", status=status))
    assert (await place.ask(OLD, "Hello.")).status == status
    assert (await place.ask(OLD, "Hello.")).status == 200
    await sink.wait_for(3)  # the second run and its copy
    await place.copied(1)
    assert place.new.runs == 1
    assert await place.metric("mlc_gateway_mirrors_total") == 1


@pytest.mark.parametrize(
    ("tools", "named", "others"),
    [
        ([Tool("MLModelTool", "llm")], "none", []),
        ([Tool("SearchIndexTool", "")], "none", ["SearchIndexTool"]),
        ([Tool("SearchIndexTool", "find"), Tool("MLModelTool", "llm")], ["find"], []),
        ([Tool("SearchIndexTool", "find"), Tool("WriteTool", "write")], ["SearchIndexTool"], ["write"]),
    ],
)
def test_which_tools_are_not_declared_harmless(tools: list[Tool], named: Any, others: list[str]) -> None:
    profile = AgentProfile("a", "a", "flow", (2, 19, 0), Generation.TEXT, tools=tuple(tools))
    assert other_tools(profile, Mirror(tools=named)) == others


@pytest.mark.parametrize(
    ("parameters", "named", "others"),
    [
        ({"mcp_connectors": '[{"mcp_connector_id": "c"}]'}, "none", ["mcp_connectors"]),
        ({"mcp_connectors": '[{"mcp_connector_id": "c"}]'}, ["mcp_connectors"], []),
        ({"mcp_connectors": "[]", "max_iteration": "5"}, "none", []),
        ({"executor_agent_id": "e"}, ["ListIndexTool"], ["executor_agent_id"]),
        ({"executor_agent_id": "e"}, ["executor_agent_id"], []),
    ],
)
def test_tools_that_an_agent_has_from_elsewhere_are_not_harmless(
    parameters: Any, named: Any, others: list[str]
) -> None:
    """An MCP server has tools of its own, as has the agent that runs a planner's steps."""
    profile = AgentProfile("a", "a", "conversational", (3, 8, 0), Generation.TEXT, parameters=parameters)
    assert other_tools(profile, Mirror(tools=named)) == others
