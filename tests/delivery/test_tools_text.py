"""Tool calls and results as text, where the connector can't carry them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.execute.rewrite import RewriteOptions
from tests.delivery.cases import CALL, CASES, IMAGE, RESULT, text, turn
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.oracle import Oracle, Outcome

OLD, NEW = "2.19.0", "3.4.0"
TOOLS, LAST = CASES["tool call and result"], CASES["tool result last"]


def notices(cluster: SimulatedCluster, agent: str, value: Any) -> list[tuple[str, str]]:
    """Return code and place of each notice of an input that arrived."""
    sent = cluster.send(agent, {"input": value})
    verdict = Oracle(cluster).judge(agent, {}, (), sent)
    assert verdict.outcome is Outcome.ARRIVED, verdict
    assert sent.rewritten is not None
    return [(notice.code, notice.place) for notice in sent.rewritten.plan.notices]


@pytest.mark.parametrize(
    ("version", "agent"),
    [
        (OLD, "flow-a"),  # takes whole messages, without declarations
        (OLD, "conv-d"),  # takes one text
        (OLD, "cflow-f"),  # has a place for earlier turns
        (OLD, "flow-c"),  # completes a text
        (NEW, "flow-anthropic_messages"),
    ],
)
def test_they_arrive_and_the_first_one_s_place_is_reported(version: str, agent: str) -> None:
    assert ("TOOLS_AS_TEXT", "input[1].content[0]") in notices(cluster_of(version), agent, TOOLS.input)


@pytest.mark.parametrize("agent", ["flow-a", "conv-d"])
def test_a_result_at_the_end_is_the_question(agent: str) -> None:
    cluster = cluster_of(OLD)
    assert ("TOOLS_AS_TEXT", "input[1].content[0]") in notices(cluster, agent, LAST.input)
    body = cluster.send(agent, LAST.body).executed
    assert body is not None
    last = json.loads(body.llm_bodies[0])["messages"][-1]["content"][-1]["text"]
    assert '{"toolResult":{"toolUseId":"t1","content":[{"text":"sunny"},{"text":"25 C"}]}}' in last


def test_a_failed_call_and_json_keep_their_form() -> None:
    failed = {"toolResult": {"toolUseId": "t1", "content": [{"json": {"code": 7}}], "status": "error"}}
    cluster = cluster_of(OLD)
    sent = cluster.send("flow-a", {"input": [turn("user", "a"), turn("assistant", CALL), turn("user", failed)]})
    assert sent.executed is not None
    written = json.loads(sent.executed.llm_bodies[0])["messages"]
    texts = [part["text"] for message in written for part in message["content"]]
    assert json.loads(texts[1]) == CALL
    assert json.dumps(failed, separators=(",", ":")) in texts[2]


@pytest.mark.parametrize(
    ("version", "agent"), [(OLD, "flow-b"), (NEW, "fc-bedrock_tutorial"), (NEW, "per-bedrock_upgraded")]
)
def test_a_connector_that_carries_them_gets_them_as_they_are(version: str, agent: str) -> None:
    assert "TOOLS_AS_TEXT" not in dict(notices(cluster_of(version), agent, TOOLS.input))


def asked_after(*content: Any) -> list[Any]:
    """A conversation with a tool's result of this content."""
    result = {"toolResult": {"toolUseId": "t1", "content": list(content)}}
    return [turn("user", "a"), turn("assistant", CALL), turn("user", result), turn("assistant", "b"), turn("user", "c")]


def test_a_result_with_media_is_refused_and_each_remedy_helps() -> None:
    cluster, value = SimulatedCluster(OLD), asked_after(text("seen:"), IMAGE)
    # A parameter of this name is in the way of the upgrade.
    for connector in cluster.core.resources.connectors.values():
        connector["parameters"]["tools_member"] = "taken"
    error = cluster.send("flow-a", {"input": value}).error
    assert error is not None
    assert {problem.code for problem in error.problems} == {"TOOLS_NEED_UPGRADE"}
    for remedy in ("leave the media out of the tools' results", "`agents.rules[].delivery: describe`"):
        assert all(remedy in problem.help for problem in error.problems)
    assert notices(cluster, "flow-a", asked_after(text("seen:"))) == [("TOOLS_AS_TEXT", "input[1].content[0]")]
    described = cluster.send("flow-a", {"input": value}, policy=RewriteOptions(describe=True))
    assert Oracle(cluster).judge("flow-a", {}, (), described).outcome is Outcome.ARRIVED


def test_the_oracle_knows_the_text() -> None:
    """A conversation whose tool blocks are text already arrives as such, and nothing is reported."""
    blocks = [json.dumps(block, separators=(",", ":")) for block in (CALL, RESULT)]
    value = [turn("user", "a"), turn("assistant", blocks[0]), turn("user", text(blocks[1]), text("b"))]
    assert notices(cluster_of(OLD), "flow-a", value) == []


@pytest.mark.parametrize("agent", ["flow-a", "cflow-e", "flow-c"])
def test_a_signature_that_a_text_can_t_have_is_reported(agent: str) -> None:
    call = {"functionCall": {"id": "t1", "name": "weather", "args": {}}, "thoughtSignature": "c2ln"}
    value = [turn("user", text("hi")), turn("assistant", call), turn("user", RESULT), turn("user", text("so?"))]
    rewritten = cluster_of(OLD).send(agent, {"input": value}).rewritten
    assert rewritten is not None
    reported = [(notice.code, notice.place) for notice in rewritten.plan.notices]
    assert ("TOOLS_AS_TEXT", "input[1].content[0]") in reported
    assert ("SIGNATURE_LEFT_OUT", "input[1].content[0]") in reported
