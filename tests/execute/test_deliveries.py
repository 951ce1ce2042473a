"""What a request's `Forward` and `Steps` say of its delivery."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError
from gateway.execute.deliveries import model_name
from gateway.execute.handler import Handler
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model
from gateway.observe.record import Delivery
from gateway.ports import ExecuteCall, Forward, Steps
from tests.delivery.simulated_cluster import cluster_of
from tests.execute.test_template_cache import TAKES_MESSAGES, handler_of

HEADERS = CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json", "Authorization": "Basic YTpi"}))
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


AGENT = cluster_of("2.19.0").agents[TAKES_MESSAGES]


def call(body: Any) -> ExecuteCall:
    target = f"/_plugins/_ml/agents/{AGENT}/_execute"
    return ExecuteCall(AGENT, "POST", target, HEADERS, json.dumps(body).encode(), "id", False, steps=Steps(0.0))


def names(steps: Steps | None) -> list[str]:
    assert steps is not None
    return [name for name, _, _ in steps.taken]


def known(forward: Forward | None) -> Delivery:
    assert forward is not None
    assert forward.delivery is not None
    return forward.delivery


@pytest.fixture
def handler() -> Handler:
    return handler_of("2.19.0")[0]


async def test_a_rewritten_request_has_its_plan_and_steps(handler: Handler) -> None:
    sent = call({"input": MESSAGES})
    delivery = known(await handler(sent))
    assert (delivery.input_type, delivery.type, delivery.generation) == ("messages", "flow", "text")
    assert delivery.strategy
    assert delivery.strategy != "native"
    assert delivery.provider
    assert delivery.model
    assert names(sent.steps) == ["decode", "resolve", "plan"]


async def test_a_legacy_request_is_described_without_reading_the_agent(handler: Handler) -> None:
    question = call({"parameters": {"question": "hi"}})
    assert known(await handler(question)) == Delivery(input_type="question")
    await handler(call({"input": "hi"}))  # reads the agent
    delivery = known(await handler(question))
    assert (delivery.input_type, delivery.type, delivery.strategy) == ("question", "flow", "")
    assert names(question.steps) == ["decode", "decode"]


async def test_a_request_without_input_and_question_has_no_input_type(handler: Handler) -> None:
    assert known(await handler(call({"parameters": {"a": "b"}}))).input_type == ""


async def test_a_refusal_leaves_what_was_known(handler: Handler) -> None:
    reserved = call({"input": "hi", "parameters": {"gw_a": "1"}})
    with pytest.raises(GatewayError):
        await handler(reserved)
    assert reserved.steps is not None
    assert reserved.steps.delivery is not None
    assert reserved.steps.delivery.type == "flow"
    assert reserved.steps.delivery.strategy == ""


@pytest.mark.parametrize(
    ("connector", "llm_parameters", "name"),
    [
        (Connector("c", "http", "https://llm.example/", "", {"model": "gpt"}), {}, "gpt"),
        (Connector("c", "http", "https://llm.example/", "", {"model": "gpt"}), {"model": "other"}, "other"),
        (Connector("c", "http", "https://llm.example/model/claude/converse", ""), {}, "claude"),
        (Connector("c", "http", "https://llm.example/v1/models/gemini-2:generateContent", ""), {}, "gemini-2"),
        (Connector("c", "http", "https://llm.example/model/${parameters.m}/converse", ""), {}, ""),
        (Connector("c", "http", "https://llm.example/v1/chat/completions", ""), {}, ""),
    ],
)
def test_the_model_is_named_by_parameters_or_url(
    connector: Connector, llm_parameters: dict[str, str], name: str
) -> None:
    profile = AgentProfile("a", "a", "conversational", (3, 4, 0), Generation.FUNCTION_CALLING)
    assert model_name(profile) == ""
    profile = replace(profile, llm=Model("m", connector), llm_parameters=llm_parameters)
    assert model_name(profile) == name
