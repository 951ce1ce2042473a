"""A conversation stays with its target: with several gateways, restarts of each, and reloads in any order."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gateway.app import Gateway
from gateway.observe.logs import configure
from tests.conftest import examples, settings_for, share
from tests.routing.conftest import ML, Answered, Place, clusters

GATEWAY_MEMORY = {"agent": "*", "memory": "gateway"}
AGENTS = {"cluster": ("conv-b", "fc-openai_upgraded"), "gateway": ("flow-b", "flow-openai_messages")}


@pytest.mark.parametrize("memory", ["cluster", "gateway"])
async def test_conversations_stay_with_two_gateways_and_restarts_of_each(place: Place, memory: str) -> None:
    rules = [GATEWAY_MEMORY] if memory == "gateway" else []
    old, new = AGENTS[memory]
    gateways = [await place.start(place.route(old, new), rules=rules) for _ in range(2)]
    begun: list[tuple[str, str, int]] = []
    for number in range(share(200)):
        answered = await place.ask(old, f"I am {number}.", gateway=gateways[number % 2])
        begun.append((answered.memory_id, answered.ran, number))
    assert len({ran for _, ran, _ in begun}) == 2
    for turn in range(4):  # each gateway is restarted between the turns, with other weights
        gateways[turn % 2] = await place.start(place.route(old, new, (turn, 3 - turn)), rules=rules)
        for id, ran, number in begun:
            again = await place.ask(old, f"Turn {turn}.", id, gateway=gateways[(number + turn) % 2])
            assert (again.status, again.ran, again.memory_id) == (200, ran, id)
            received = (place.new if again.on else place.old).simulator.received
            assert f"I am {number}." in json.dumps(received[-1])


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("reload"), st.integers(0, 1), st.sampled_from([(1, 0), (1, 1), (0, 1), (5, 95)])),
        st.tuples(st.just("begin"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("go on"), st.integers(0, 1), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=12,
)


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=_steps)
async def test_reloads_in_any_order_move_no_conversation(
    start_gateway: Any, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    """Two gateways with one store; each conversation has the cluster's memory or the gateway's."""
    async with clusters(start_gateway, tmp_path_factory.mktemp("routes")) as place:
        rules = [{"agent": place.old.agents["flow-b"], "memory": "gateway"}]
        rules += [{"agent": place.new.agents["flow-openai_messages"], "memory": "gateway"}]

        def routes(weights: tuple[float, float]) -> list[dict[str, Any]]:
            return [place.route(old, new, weights) for old, new in AGENTS.values()]

        gateways = [await place.start(*routes((1, 1)), rules=rules) for _ in range(2)]
        begun: list[tuple[str, str, str]] = []
        for kind, which, what in steps:
            gateway = gateways[which]
            if kind == "reload":
                over = {**place.settings, "agents": {"routes": routes(what), "rules": rules}}
                await gateway.reload(settings_for(place.old.front.url, over), configure("error", "json"))
            elif kind == "begin":
                agent = AGENTS["gateway" if what else "cluster"][0]
                answered = await place.ask(agent, f"I am {len(begun)}.", gateway=gateway)
                begun.append((agent, answered.memory_id, answered.ran))
            elif begun:
                number = what % len(begun)
                agent, id, ran = begun[number]
                again = await place.ask(agent, "Who am I?", id, gateway=gateway)
                assert (again.status, again.ran, again.memory_id) == (200, ran, id)
                received = (place.new if again.on else place.old).simulator.received
                assert f"I am {number}." in json.dumps(received[-1])
        for gateway in gateways:
            await gateway.stop()


@pytest.mark.slow(30)
async def test_weights_hold_over_conversations(place: Place) -> None:
    """Each begins with a request of its own, and its next turn goes to the same target, by another gateway."""
    old, new = AGENTS["cluster"]
    gateways = [await place.start(place.route(old, new, (90, 10))) for _ in range(2)]
    random.seed(2026)  # what is drawn is not left to chance here
    count, ran = share(20_000), Counter[str]()
    for number in range(count):
        begun = await place.ask(old, "Hello.", gateway=gateways[number % 2])
        ran[begun.ran] += 1
        if number % 20 == 0:
            again = await place.ask(old, "And?", begun.memory_id, gateway=gateways[1 - number % 2])
            assert (again.status, again.ran) == (200, begun.ran)
    assert abs(ran[place.new.agents[new]] / count - 0.1) < 0.02


async def test_a_request_that_is_no_strict_json_stays_with_its_conversation(place: Place) -> None:
    """The cluster may run what the gateway passes on as it is."""
    toward_new = await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    begun = await place.ask("conv-b", {"parameters": {"question": "My name is Nia."}})
    legacy = {"parameters": {"question": "What is my name?", "memory_id": begun.memory_id, "context": None}}
    await place.start(place.route("conv-b", "fc-openai_upgraded", (1, 0)))
    again = await place.ask("conv-b", legacy)
    assert again.on == "new"
    assert b"gwr-" not in place.new.front.calls("POST", f"{ML}/agents/.*/_execute")[-1].body
    lines = f"parameters:\n  question: And?\n  memory_id: {begun.memory_id}\n".encode()
    before = place.old.runs, place.new.runs
    refused = await send_raw(place, lines, toward_new)
    assert (refused.status, (place.old.runs, place.new.runs)) == (400, before)
    home = await send_raw(place, lines.replace(begun.memory_id.encode(), b"of-the-old-cluster"), toward_new)
    assert (home.on, home.ran) == ("", place.old.agents["conv-b"])


async def send_raw(place: Place, body: bytes, gateway: Gateway) -> Answered:
    """Send a body that is YAML to the route of conv-b."""
    url = f"http://127.0.0.1:{gateway.data_port}{ML}/agents/{place.old.agents['conv-b']}/_execute"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=body, headers={"Content-Type": "application/yaml"}) as got,
    ):
        return Answered(got.status, await got.json(), got.headers)


@pytest.mark.parametrize(
    "name", ["parent_interaction_id", "regenerate_interaction_id", "executor_agent_memory_id", "session_id"]
)
async def test_every_id_of_a_conversation_keeps_it_where_it_is(place: Place, name: str) -> None:
    """An answer may be made once more by its own id, and a plan go on by that of its executor."""
    await place.start(place.route("conv-b", "fc-openai_upgraded", (0, 1)))
    asked = {"parameters": {"question": "Once more.", name: "an-id-of-the-old-agent"}}
    assert (await place.ask("conv-b", asked)).ran == place.old.agents["conv-b"]
    assert place.new.runs == 0


async def test_a_thread_of_ag_ui_stays_with_its_caller(place: Place) -> None:
    """Its body names the conversation beside `parameters`, and has all messages."""
    await place.start(place.route("conv-b", "fc-openai_upgraded"))
    ran: set[str] = set()
    for turn in range(12):
        body = {"threadId": "t", "runId": str(turn), "messages": [{"role": "user", "content": "Hi."}], "tools": []}
        ran.add((await place.ask("conv-b", body, headers={"Authorization": "Bearer one"})).ran)
    assert len(ran) == 1


@pytest.mark.parametrize("callers", ["checked", "trusted"])
async def test_a_session_of_a_user_stays_with_a_target_whoever_checks_callers(place: Place, callers: str) -> None:
    """Users who are known by name on one target, and by their whole credentials on another one."""
    rules = [GATEWAY_MEMORY]
    toward_new, toward_old = [
        await place.start(place.route("flow-b", "flow-openai_messages", weights, callers=callers), rules=rules)
        for weights in ((0, 1), (1, 0))
    ]
    alice = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
    for begin, go_on in ((toward_new, toward_old), (toward_old, toward_new)):
        begun = await place.ask("flow-b", "My name is Nia.", gateway=begin, headers=alice)
        again = await place.ask("flow-b", "What is it?", begun.memory_id, gateway=go_on, headers=alice)
        assert (again.status, again.ran, again.memory_id) == (200, begun.ran, begun.memory_id)
