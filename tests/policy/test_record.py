"""What the record of an exchange says of policies."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.observe.record import Usage
from tests.execute.stub_cluster import V1, V2
from tests.policy.conftest import Start, v2_answer
from tests.policy.test_guardrails import Webhook, guardrail, replacing
from tests.policy.test_guardrails import webhook as webhook  # a fixture
from tests.policy.test_policy_run import events
from tests.recording.memory_sink import MemorySink

INSPECTOR: dict[str, Any] = {"enabled": True}


def verdicts(record: Any) -> list[tuple[str, str, str, str]]:
    return [(one["name"], one["stage"], one["verdict"], one["code"]) for one in record.guardrails]


STREAM = 200, b"".join(events())


@pytest.mark.parametrize(
    ("agent", "path", "answer", "usage"),
    [
        (V2, "_execute", v2_answer(), Usage(11, 7, pytest.approx(0.000138), "USD")),
        (V1, "_execute/stream", STREAM, Usage(1055, 70, pytest.approx(0.004215), "USD")),
    ],
    ids=["V2", "stream"],
)
async def test_a_record_has_the_usage_and_its_cost(
    start: Start, agent: str, path: str, answer: Any, usage: Usage
) -> None:
    sink = MemorySink()
    policy = {"prices": [{"input": 3.0, "output": 15.0}]}
    place = await start(policy, sinks=sink, inspector=INSPECTOR)
    place.cluster.answers = [answer]
    assert (await place.execute(agent, {"input": "hi"}, path=path)).status == 200
    [record] = await sink.wait_for()
    assert record.usage == usage


async def test_without_policies_a_record_has_the_usage_without_a_cost(start: Start) -> None:
    sink = MemorySink()
    place = await start({}, sinks=sink, inspector=INSPECTOR)
    await place.execute(V2, {"input": "hi"})
    [record] = await sink.wait_for()
    assert record.usage == Usage(11, 7)


async def test_a_record_has_what_guardrails_did(start: Start, webhook: Webhook) -> None:
    sink = MemorySink()
    place = await start(guardrail(webhook, answers=True), sinks=sink, inspector=INSPECTOR)
    webhook.verdict = replacing("4111", "[card]")
    await place.execute(V2, {"input": "is 4111 a card"})
    [record] = await sink.wait_for()
    assert verdicts(record) == [("pii", "input", "change", ""), ("pii", "answer", "allow", "")]
    assert record.guardrails[0]["seconds"] >= 0
    assert record.delivery is not None
    assert record.delivery.notices == ("GUARDRAIL_CHANGED",)


@pytest.mark.parametrize("stage", ["input", "answer"])
async def test_a_record_of_a_refusal_has_it(start: Start, webhook: Webhook, stage: str) -> None:
    sink = MemorySink()
    place = await start(guardrail(webhook, answers=True), sinks=sink, inspector=INSPECTOR)
    place.cluster.answers = [v2_answer()]
    webhook.verdict = lambda document: (
        {"verdict": "refuse", "reason": "no", "code": "r1"} if document["stage"] == stage else {"verdict": "allow"}
    )
    assert (await place.execute(V2, {"input": "hi"})).status == 403
    [record] = await sink.wait_for()
    assert verdicts(record)[-1] == ("pii", stage, "refuse", "r1")
    assert record.error is not None
    assert record.error.type == "GuardrailRefused"
