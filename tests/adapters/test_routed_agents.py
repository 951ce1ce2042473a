"""Agents with routes through the adapters: which target answers, and that a conversation stays with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from gateway.app import Gateway
from tests.adapters.conftest import ANSWER
from tests.faulty_cluster import Fault
from tests.routing.conftest import ML, Place, place

__all__ = ["place"]
PORT = {"listen": {"data_port": 0, "admin_port": 0, "adapters_port": 0}}
GATEWAY_MEMORY = {"agent": "*", "memory": "gateway"}


def client_of(gateway: Gateway, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.adapters_port}/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_read_as_that_of_the_agent_that_ran(place: Place, stream: bool) -> None:
    """The route's own agent is of another provider, or is gone."""
    route = place.route("flow-b", "flow-bedrock_messages", (0, 1))
    gone = {"agent": "gone-from-there", "targets": route["targets"][1:]}
    gateway = await place.start(route, gone, **PORT)
    async with client_of(gateway) as client:
        for model in ("flow-b", place.old.agents["flow-b"], "gone-from-there"):
            messages: Any = [{"role": "user", "content": f"I am {model}."}]
            if stream:
                pieces = await client.chat.completions.create(model=model, messages=messages, stream=True)
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in pieces])
            else:
                text = (await client.chat.completions.create(model=model, messages=messages)).choices[0].message.content
            assert text == ANSWER
            assert f"I am {model}." in json.dumps(place.new.simulator.received[-1])
    assert (place.old.runs, place.new.runs) == (0, 3)


async def test_a_conversation_of_responses_stays_with_its_target(place: Place) -> None:
    toward_new, toward_old = [
        await place.start(place.route("flow-b", "flow-bedrock_messages", weights), rules=[GATEWAY_MEMORY], **PORT)
        for weights in ((0, 1), (1, 0))
    ]
    async with client_of(toward_new) as one, client_of(toward_old) as other:
        begun = await one.responses.create(model="flow-b", input="My name is Nia.")
        again = await other.responses.create(model="flow-b", input="And?", previous_response_id=begun.id)
        assert again.output_text == ANSWER
        assert "Nia" in json.dumps(place.new.simulator.received[-1])
        assert (place.old.runs, place.new.runs) == (0, 2)


@pytest.mark.parametrize("status", [401, 403])
async def test_who_may_not_run_agents_learns_nothing_of_an_agent_of_another_cluster(place: Place, status: int) -> None:
    """The account with which the gateway reads that agent is not the caller's."""
    gateway = await place.start(place.route("flow-b", "flow-bedrock_messages", (0, 1)), **PORT)
    place.old.front.faults.append(Fault("masked", "", f"{ML}/agents/", status=status, times=99))
    async with client_of(gateway) as client:
        with pytest.raises(APIStatusError, match="may not read"):
            await client.models.retrieve(place.old.agents["flow-b"])
    assert place.new.front.seen == []


async def test_a_conversation_that_the_client_keeps_stays_with_its_target(place: Place) -> None:
    """From its first message on, also where agents would give it an id, which the client does not get."""
    gateway = await place.start(place.route("conv-b", "conv-openai_messages"), **PORT)
    ran: list[set[str]] = []
    for number in range(12):
        ran.append(set())
        messages: Any = []
        async with client_of(gateway, f"{number}") as client:
            for turn in range(2):
                messages.append({"role": "user", "content": f"Turn {turn}."})
                before = place.new.runs
                answer = await client.chat.completions.create(model=place.old.agents["conv-b"], messages=messages)
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                ran[-1].add("new" if place.new.runs > before else "old")
    assert all(len(targets) == 1 for targets in ran)
    assert len(set.union(*ran)) == 2
