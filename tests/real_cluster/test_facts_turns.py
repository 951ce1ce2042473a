"""What later turns of a conversation get on a real 3.6.0 (facts.md, "What memory keeps from turn to turn")."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from .agents import Agent, Api
from .llm import LLM, Failure
from .speech import DNE

pytestmark = pytest.mark.real_cluster

Turn = Callable[..., tuple[int, str]]
PLANNED = '{"steps":[],"result":"done"}'
LEGACY = ["conv_react", "conv_tools", "cflow", "per"]


@pytest.fixture
def turn(api: Api, agents: dict[str, Agent], unified_agents: dict[str, str], llm: LLM) -> Turn:
    """Runs a turn of an agent in one memory; returns status and the first body the LLM got, as text.

    After a turn that failed, it waits until the memory holds it: the cluster writes it after its answer.
    """
    memory: dict[str, str] = {}
    turns = 0

    def run(name: str, question: str, fails: bool = False, **parameters: Any) -> tuple[int, str]:
        agent_id = unified_agents.get(name) or agents[f"bedrock_{name}_tutorial"].agent_id
        llm.replies(Failure(500, {"message": "boom"}) if fails else PLANNED if "per" in name else "done")
        nonlocal turns
        turns += 1
        status, answer = api.execute(agent_id, {"parameters": {"question": question, **memory, **parameters}})
        if status == 200:
            output = answer["inference_results"][0]["output"]
            if output[0]["name"] == "memory_id":
                memory["memory_id"] = output[0]["result"]
        elif memory:
            wait_for_failure(api, memory["memory_id"], turns, answered=name != "v1_bedrock")
        bodies = llm.taken()
        return status, json.dumps(bodies[0]) if bodies else ""

    return run


def wait_for_failure(api: Api, memory_id: str, number: int, answered: bool) -> None:
    """Wait until a memory holds `number` turns and, if `answered`, the last one's failure."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        messages = api.must("GET", f"/_plugins/_ml/memory/{memory_id}/messages?max_results=50")["messages"]
        if len(messages) == number and (messages[-1].get("response") or not answered):
            return
        time.sleep(0.05)
    raise AssertionError(f"{number} turns never came: {messages}")


@pytest.mark.parametrize("name", LEGACY)
def test_a_failed_turn_is_replayed_with_its_failure(turn: Turn, name: str) -> None:
    assert turn(name, "one")[0] == 200
    assert turn(name, "two", fails=True)[0] == 500
    status, body = turn(name, "three")
    assert status == 200
    assert "two" in body
    assert "Agent execution failed: Error from remote service" in body


@pytest.mark.parametrize("name", [*LEGACY, "v1_bedrock"])
def test_a_stored_placeholder_fails_each_later_turn(turn: Turn, name: str) -> None:
    assert turn(name, "one")[0] == 200
    assert turn(name, "two ${parameters.nope}")[0] == 400
    assert turn(name, "three")[0] == 400
    assert turn(name, "four", nope="filled")[0] == 200


def test_a_failed_turn_of_a_unified_agent_is_replayed_without_an_answer(turn: Turn) -> None:
    assert turn("v1_bedrock", "one")[0] == 200
    assert turn("v1_bedrock", "two", fails=True)[0] == 500
    messages = json.loads(turn("v1_bedrock", "three")[1])["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]


@pytest.mark.parametrize("name", ["v1_bedrock", "v1_openai", "v1_gemini"])
@pytest.mark.parametrize(
    ("dollars", "now", "later"),
    [
        (1, "READ", "READ"),
        (2, "HELPER", "READ"),
        (3, "${parameters.gw_x:-READ}", "OTHER"),
        (4, "$${parameters.gw_x:-READ}", "${parameters.gw_x:-READ}"),
    ],
)
def test_dollars_on_unified_agents(turn: Turn, name: str, dollars: int, now: str, later: str) -> None:
    raw = {"no_escape_params": f"{DNE},gw_x", "skip_validating_missing_parameters": "true"}
    question = "$" * dollars + "{parameters.gw_x:-READ}"
    assert f'"{now}"' in turn(name, question, gw_x="HELPER", **raw)[1]
    assert f'"{later}"' in turn(name, "next", gw_x="OTHER", **raw)[1]


@pytest.mark.parametrize(("name", "passes"), [("flow", 1), ("cflow", 1), ("conv_tools", 8), ("conv_react", 9)])
def test_as_many_dollars_as_passes(turn: Turn, name: str, passes: int) -> None:
    image = '{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo="}}}'
    sent = {"gw_us": f'look"}},{image},{{"text":"end', "no_escape_params": f"{DNE},gw_us"}
    sent["message_history_limit"] = "0"

    def ask(dollars: int) -> tuple[int, str]:
        return turn(name, "${parameters.gw_u:-look}", gw_u="$" * dollars + "{parameters.gw_us}", **sent)

    for enough in {passes, min(2, passes)}:
        content = json.loads(ask(enough)[1])["messages"][-1]["content"]
        assert json.loads(image) in content
    if passes > 1:
        (text,) = json.loads(ask(1)[1])["messages"][-1]["content"]
        assert "iVBORw0KGgo=" in text["text"]
    assert ask(passes + 1)[0] == 400


def test_the_limit_of_a_unified_agent_counts_messages(turn: Turn) -> None:
    for number in range(6):
        turn("v1_bedrock", f"q{number}")
    counted = {}
    for limit in (None, "0", "1"):
        given = {} if limit is None else {"message_history_limit": limit}
        counted[limit] = len(json.loads(turn("v1_bedrock", "next", **given)[1])["messages"])
    assert counted == {None: 11, "0": 15, "1": 2}
