"""A conversation that ends with the assistant reaches models that are known to continue it, without a setting."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from gateway.execute.rewrite import RewriteOptions
from gateway.providers.base import MappingOptions
from tests.delivery.cases import CASES, turn
from tests.delivery.simulated_cluster import Sent
from tests.delivery.unseen import UnseenCluster
from tests.delivery.upgrades import upgrade
from tests.oracle import Oracle, Outcome

PREFILL = CASES["ends with assistant"]
LAST = PREFILL.input[-1]["content"]


@cache
def cluster(*, upgraded: bool = False) -> UnseenCluster:
    made = UnseenCluster("3.4.0")
    if upgraded:
        upgrade(made)
    return made


def refusal(sent: Sent) -> list[tuple[str, str]]:
    assert sent.error is not None
    return [(problem.place, problem.code) for problem in sent.error.problems]


@pytest.mark.parametrize(
    ("agent", "upgraded"),
    [
        ("flow-converse_agent", False),
        ("flow-converse_inputs", False),
        ("conversational_flow-invoke_chat", False),
        ("chat-invoke_system", False),
        ("flow-invoke_image_slot", True),
    ],
)
def test_it_arrives_as_it_is(agent: str, upgraded: bool) -> None:
    sent = cluster(upgraded=upgraded).send(agent, PREFILL.body)
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200  # the simulated services check the model's id
    last: dict[str, Any] = json.loads(sent.executed.llm_bodies[0])["messages"][-1]
    assert (last["role"], last["content"][0]["text"]) == ("assistant", LAST)
    assert Oracle(cluster(upgraded=upgraded)).judge(agent, {}, (), sent).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("agent", ["flow-converse_agent", "conversational_flow-invoke_chat"])
@pytest.mark.parametrize(
    "model", ["us.anthropic.claude-opus-4-6-v1", "meta.llama3-1-70b-instruct-v1:0", "another-model"]
)
def test_the_model_of_this_request_decides(agent: str, model: str) -> None:
    sent = cluster().send(agent, {**PREFILL.body, "parameters": {"model": model}})
    assert refusal(sent) == [("input[1]", "ASSISTANT_LAST")]


def test_a_nova_model_continues_the_turn() -> None:
    sent = cluster().send("flow-converse_agent", {**PREFILL.body, "parameters": {"model": "us.amazon.nova-pro-v1:0"}})
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200
    last = json.loads(sent.executed.llm_bodies[0])["messages"][-1]
    assert (last["role"], last["content"][0]["text"]) == ("assistant", LAST)


def test_the_operator_may_allow_it_for_all_models() -> None:
    body = {**PREFILL.body, "parameters": {"model": "another-model"}}
    sent = cluster().send(
        "flow-converse_agent", body, policy=RewriteOptions(MappingOptions(allow_prefill=True)), strict=False
    )
    assert sent.error is None


@pytest.mark.parametrize("text", ["Three books. ", "Three books:\n"])
def test_text_that_ends_in_white_space_is_refused_as_the_services_do(text: str) -> None:
    sent = cluster().send("flow-converse_agent", {"input": [PREFILL.input[0], turn("assistant", text)]})
    assert refusal(sent) == [("input[1]", "ASSISTANT_LAST")]


def test_function_calling_is_left_out_as_a_tools_call_would_be_a_second_assistant_turn() -> None:
    sent = cluster().send("calling-converse_agent", PREFILL.body)
    assert refusal(sent) == [("input[1]", "ASSISTANT_LAST")]
