"""Hard-coded parts of a template that need a parameter of the caller's, which the gateway's callers don't send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery.call_model import fillable_parts
from gateway.providers import registry
from tests.delivery.cases import CASES, IMAGE, text
from tests.delivery.simulated_cluster import SimulatedCluster
from tests.delivery.unseen import UnseenCluster
from tests.delivery.upgrades import upgrade

AGENT = "flow-invoke_image_slot"
OWN = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QQ=="}}


@pytest.fixture(scope="module")
def upgraded() -> SimulatedCluster:
    cluster = UnseenCluster("2.19.0")
    upgrade(cluster)
    return cluster


def content(cluster: SimulatedCluster, value: Any, **parameters: str) -> Any:
    sent = cluster.send(AGENT, {"input": value, "parameters": parameters})
    assert sent.executed is not None, sent.error
    assert sent.executed.status == 200
    return json.loads(sent.executed.llm_bodies[0])["messages"][0]["content"]


def test_before_the_upgrade_the_agent_can_not_be_asked_and_the_advice_helps() -> None:
    error = UnseenCluster("2.19.0").send(AGENT, CASES["plain text"].body).error
    assert error is not None
    assert [problem.code for problem in error.problems] == ["AGENT_NOT_CALLABLE"]
    assert "mlc-gateway upgrade" in error.problems[0].help


def test_after_the_upgrade_the_image_slot_is_left_out(upgraded: SimulatedCluster) -> None:
    assert content(upgraded, "What is it?") == [{"type": "text", "text": "What is it?"}]
    assert [part["type"] for part in content(upgraded, [text("What is it?"), IMAGE])] == ["text", "image"]


def test_a_caller_who_fills_the_slot_has_it_sent(upgraded: SimulatedCluster) -> None:
    assert content(upgraded, "What is it?", image="QQ==") == [OWN, {"type": "text", "text": "What is it?"}]


def test_texts_are_never_left_out() -> None:
    provider = registry.provider("bedrock/converse")
    parts = [{"text": "${parameters.unknown}"}, {"image": {"x": "${parameters.unknown}"}}, {"image": "${parameters.a}"}]
    assert fillable_parts(provider, [{"role": "user", "content": parts}], {"a"}) == [
        {"role": "user", "content": [parts[0], parts[2]]}
    ]
