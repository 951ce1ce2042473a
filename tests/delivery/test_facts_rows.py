"""Every row of the recorded facts, on the simulator: what a direct request does, and what the gateway makes of it.

Each test's id begins with its row: the connector's letter of "What arrives", the text of "Text that must arrive
exactly", the letter of the 3.4 table, or the bullet of "Rendering, in detail".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.llm import Call, LlmEndpoints
from tests.delivery.cases import CASES, IMAGE, PNG, Case, text, turn
from tests.delivery.facts import ROWS
from tests.delivery.facts.modern import BRU, OAU
from tests.delivery.facts.rendering import LENIENT, NOT_JSON
from tests.delivery.facts.row import NEW, OLD, QUOTED, Row
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.oracle import Oracle, Outcome, Verdict


def received(body: str) -> Any:
    """The conversation in an LLM's request."""
    members = json.loads(body)
    return next(members[name] for name in ("messages", "contents", "prompt") if name in members)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.version} {row.id}")
def test_a_direct_request_does_what_the_row_says(row: Row) -> None:
    cluster = cluster_of(row.version)
    executed = cluster.ask(cluster.agents[row.agent], row.parameters, row.pairs)
    assert executed.status == row.status, executed.body
    if row.status != 200:
        assert executed.llm_bodies == []
    elif row.says:
        texts = json.dumps(received(executed.llm_bodies[0]), ensure_ascii=False)
        assert json.dumps(row.says, ensure_ascii=False)[1:-1] in texts
    else:
        assert received(executed.llm_bodies[0]) == row.turns


@pytest.mark.parametrize("value", LENIENT)
def test_rendering_lenient_json_goes_in_raw(value: str) -> None:
    cluster = cluster_of(OLD)
    executed = cluster.ask(cluster.agents["flow-content"], {"question": "q", "content": value})
    assert executed.llm_bodies == [f'{{"messages":[{{"role":"user","content":{value}}}]}}']


@pytest.mark.parametrize("value", NOT_JSON)
def test_rendering_what_is_not_lenient_json_goes_in_escaped(value: str) -> None:
    cluster = cluster_of(OLD)
    executed = cluster.ask(cluster.agents["flow-content"], {"question": "q", "content": value})
    assert executed.status == 400
    assert executed.body["error"]["details"].startswith("Invalid payload")


def test_rule_1_input_alone_is_a_400() -> None:
    for version in (OLD, NEW):
        cluster = cluster_of(version)
        executed = cluster.core.execute(
            cluster.agents["flow-d" if version == OLD else "fc-bedrock_tutorial"], {"input": "x"}
        )
        assert executed.status == 400
        assert executed.body["error"]["details"] == "Agent input data can not be empty."


# --- through the gateway -------------------------------------------------------------------------------------

T, M, H = CASES["plain text"], CASES["text, image"], CASES["images in every turn"]
TALK, TOOLS, SYSTEM = CASES["conversation"], CASES["tool call and result"], CASES["system first"]
JSONISH = CASES["lenient JSON, hostile"]


def judged(version: str, agent: str, case: Case) -> Verdict:
    cluster: SimulatedCluster = cluster_of(version)
    sent = cluster.send(agent, case.body, case.pairs)
    return Oracle(cluster).judge(agent, case.parameters, case.pairs, sent)


ARRIVES = [
    *(
        (OLD, f"{kind}-{name}", case, "wrap")
        for kind in ("flow", "cflow", "conv")
        for name in ("a", "b", "e2", "h")
        for case in (T, M, H)
    ),
    *((OLD, f"{kind}-{name}", T, "text") for kind in ("flow", "cflow", "conv") for name in QUOTED),
    *((OLD, f"{kind}-{name}", TALK, "text") for kind in ("cflow", "conv") for name in "cdegi"),
    *((OLD, f"{kind}-f", CASES["images in history"], "text") for kind in ("flow", "cflow", "conv")),
    *((OLD, "own-messages", case, "wrap") for case in (T, M, H)),
    *((OLD, f"bare-{name}", case, "messages") for name in ("a", "b", "e2") for case in (T, M, H)),
    *((OLD, "flow-content", case, "wrap") for case in (T, M)),
    *((OLD, "lister-a", case, "wrap") for case in (T, M, H)),
    *((OLD, f"flow-{name}", SYSTEM, strategy) for name, strategy in (("a", "wrap"), ("f", "text"), ("g", "text"))),
    *((OLD, f"{kind}-d", CASES[name], "text") for kind in ("flow", "cflow", "conv") for name in list(CASES)[:16]),
    *((OLD, f"{kind}-a", CASES[name], "wrap") for kind in ("flow", "cflow", "conv") for name in list(CASES)[:16]),
    *((NEW, f"fc-{name}", T, strategy) for name, strategy in (("bedrock_tutorial", "text"), (BRU, "messages"))),
    *((NEW, f"fc-{name}_tutorial", case, "splice") for name in ("bedrock", "openai") for case in (M, H)),
    *((NEW, f"fc-{name}", case, "messages") for name in (BRU, OAU) for case in (M, H, TOOLS)),
    (NEW, "fc-bedrock_tutorial", TOOLS, "text"),
    *(
        (NEW, f"{kind}-{name}_tutorial", case, "splice")
        for kind in ("flow", "cflow")
        for name in ("bedrock", "openai")
        for case in (M, H)
    ),
    *((NEW, f"{kind}-{name}", case, "wrap") for kind in ("flow", "cflow") for name in (BRU, OAU) for case in (M, H)),
    *((NEW, f"conv-{name}_tutorial", M, "splice") for name in ("bedrock", "openai")),
    *((NEW, f"{kind}-bedrock_messages", case, "wrap") for kind in ("flow", "cflow", "conv") for case in (M, H)),
    *((NEW, f"per-{name}", TALK, strategy) for name, strategy in (("bedrock_tutorial", "text"), (BRU, "wrap"))),
    (NEW, f"per-{BRU}", M, "wrap"),
    *((NEW, f"per-{name}_tutorial", case, "splice") for name in ("bedrock", "openai") for case in (M, H)),
    (OLD, "flow-a", TOOLS, "wrap"),
    *((OLD, f"flow-{name}", TOOLS, "text") for name in ("d", "f", "g", "content")),
    (OLD, "flow-content", TALK, "text"),
    *((OLD, f"flow-{name}", TALK, "text") for name in "cdegi"),
    *((NEW, f"{kind}-bedrock_tutorial", TOOLS, "text") for kind in ("flow", "cflow", "conv", "per")),
    *((NEW, f"{kind}-bedrock_tutorial", JSONISH, "text") for kind in ("flow", "cflow", "conv", "fc", "per")),
]

REFUSED = [
    *((OLD, f"{kind}-{name}", M, "MEDIA_NEEDS_UPGRADE") for kind in ("flow", "cflow", "conv") for name in "defgi"),
    *((OLD, f"{kind}-{name}", M, "PROVIDER_UNKNOWN") for kind in ("flow", "cflow", "conv") for name in "c"),
    (OLD, "flow-b", CASES["video"], "MEDIA_KIND_UNSUPPORTED"),
    (OLD, "flow-a", CASES["ends with assistant"], "ASSISTANT_LAST"),
]


def named(value: Any) -> str | None:
    return next((name for name, case in CASES.items() if case is value), None) if isinstance(value, Case) else None


@pytest.mark.parametrize(("version", "agent", "case", "strategy"), ARRIVES, ids=named)
def test_through_the_gateway_it_arrives(version: str, agent: str, case: Case, strategy: str) -> None:
    verdict = judged(version, agent, case)
    assert (verdict.outcome, verdict.strategy) == (Outcome.ARRIVED, strategy), verdict


@pytest.mark.parametrize(("version", "agent", "case", "code"), REFUSED, ids=named)
def test_through_the_gateway_it_is_refused(version: str, agent: str, case: Case, code: str) -> None:
    verdict = judged(version, agent, case)
    assert (verdict.outcome, verdict.detail) == (Outcome.REFUSED, code)


def test_f_media_in_the_current_turn_are_refused_on_bedrock_as_two_user_turns_are() -> None:
    assert judged(OLD, "flow-f", M).detail == "MEDIA_NEEDS_UPGRADE"


def test_a_neutral_text_on_function_calling_is_reported() -> None:
    verdict = judged(NEW, "fc-bedrock_tutorial", CASES["image, text"])
    assert verdict.outcome is Outcome.ARRIVED
    assert "NEUTRAL_TEXT_ADDED" in verdict.notices


def test_a_user_turn_split_on_openai_is_reported() -> None:
    assert "USER_TURN_SPLIT" in judged(NEW, "fc-openai_tutorial", M).notices


def test_system_without_a_slot_is_folded_and_reported() -> None:
    for name in ("flow-e2", "flow-h", "cflow-d"):
        verdict = judged(OLD, name, SYSTEM)
        assert verdict.outcome is Outcome.ARRIVED
        assert "SYSTEM_FOLDED" in verdict.notices


@pytest.mark.parametrize("name", ["conv-a", "conv-b", "conv-e2", "conv-h"])
def test_wrap_react_loop_carries_the_image_twice_and_the_observation(name: str) -> None:
    cluster = cluster_of(OLD)
    sent = cluster.send(name, M.body)
    assert sent.rewritten is not None
    assert sent.rewritten.body is not None
    endpoints = LlmEndpoints()
    endpoints.script(['{"thought":"t","action":"CatIndexTool","action_input":"[]"}', '{"final_answer":"done"}'])
    cluster.core.llm = endpoints
    executed = cluster.core.execute(cluster.agents[name], b"".join(sent.rewritten.body))
    assert executed.status == 200
    first, second = executed.llm_bodies
    assert PNG in first
    assert PNG in second
    assert "[output]" not in first
    assert "[output]" in second


def test_rendering_an_llm_tool_inherits_the_request_and_keeps_its_own_prompt() -> None:
    cluster = cluster_of(NEW)
    for name in ("fc_llm-bedrock_tutorial", f"fc_llm-{BRU}"):
        sent = cluster.send(name, M.body)
        assert sent.rewritten is not None
        assert sent.rewritten.body is not None
        endpoints = LlmEndpoints(strict=False)
        endpoints.script([Call("helper", {"question": "inner"}), "inner answer", "outer answer"])
        cluster.core.llm = endpoints
        executed = cluster.core.execute(cluster.agents[name], b"".join(sent.rewritten.body))
        assert executed.status == 200, executed.body
        assert any("Help with" in body for body in executed.llm_bodies[1:2])


def test_rendering_lookups_a_required_input_of_the_model_is_sent() -> None:
    cluster = SimulatedCluster(OLD)
    resources = cluster.core.resources
    model = cluster.model("d")
    required = {"type": "object", "properties": {"inputs": {"type": "string"}}, "required": ["inputs"]}
    schema = {"type": "object", "properties": {"parameters": required}, "required": ["parameters"]}
    resources.update_model(model, {"interface": {"input": json.dumps(schema)}})
    sent = cluster.send("flow-d", T.body)
    assert sent.rewritten is not None
    assert sent.rewritten.plan.parameters["inputs"] == "."
    assert Oracle(cluster).judge("flow-d", {"inputs": "."}, (), sent).outcome is Outcome.ARRIVED


def test_rendering_memory_replays_poisoned_turns_are_sent_by_the_gateway() -> None:
    for version, name in ((OLD, "cflow-d"), (OLD, "conv-a"), (NEW, "fc-bedrock_tutorial")):
        verdict = judged(version, name, CASES["poisoned memory"])
        assert verdict.outcome is Outcome.ARRIVED, verdict
        assert "MEMORY_RETOLD" in verdict.notices


def test_rendering_lookups_a_provider_of_another_format_takes_text() -> None:
    assert judged(OLD, "flow-c", Case([text("a"), text("b")])).notices == ("TEXT_JOINED",)
    assert judged(OLD, "flow-c", Case([text("a"), IMAGE])).detail == "PROVIDER_UNKNOWN"
    assert judged(OLD, "cflow-c", Case([turn("user", "a"), turn("assistant", "b"), turn("user", "c")])).outcome is (
        Outcome.ARRIVED
    )
