"""For any valid conversation and agent, the LLM receives exactly that, or the client a 400 with the place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from gateway.execute.rewrite import RewriteOptions
from gateway.unified.model import AgentInput, InputType, Media, ToolResult
from tests.conftest import examples
from tests.delivery.simulated_cluster import cluster_of
from tests.delivery.v2_agents import v2_cluster_of
from tests.matrix import V2_VERSION, VERSIONS
from tests.native_oracle import judge_native
from tests.oracle import Oracle, Outcome
from tests.strategies import conversations, hostile_text, spelled, spoken_text

ORACLES = {version: Oracle(cluster_of(version)) for version in VERSIONS}
AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """An execute body, and the content of its memory."""
    conversation = draw(
        conversations(
            tools=draw(st.booleans()),
            system=draw(st.booleans()),
            kinds=draw(
                st.sampled_from([(), ("image",), ("image", "document"), ("image", "document", "video", "audio")])
            ),
            roles=("user", "User", "reviewer"),
        ).filter(is_within_limits)
    )
    value = draw(spelled(conversation))
    assert isinstance(value, str) or conversation.type is not InputType.TEXT
    parameters: dict[str, Any] = {}
    if draw(st.integers(0, 4)) == 0:
        parameters["system_prompt"] = draw(st.sampled_from(["Say little.", 'In "brief" $']))
    if draw(st.integers(0, 6)) == 0:
        parameters["prompt"] = draw(st.sampled_from(["<${parameters.question}>", "${parameters.question}?"]))
    if draw(st.integers(0, 6)) == 0:
        parameters["question"] = draw(hostile_text())
    pairs = draw(st.just(()) | st.lists(st.tuples(spoken_text(), spoken_text()), min_size=1, max_size=2).map(tuple))
    return {"input": value, **({"parameters": parameters} if parameters else {})}, pairs


def is_within_limits(conversation: AgentInput) -> bool:
    """Tell if Bedrock takes as many documents and images. The gateway does not count them (reference/providers)."""
    contents = [block for message in conversation.messages for block in message.content]
    results = [block for result in contents if isinstance(result, ToolResult) for block in result.content]
    kinds = Counter(block.kind for block in (*contents, *results) if isinstance(block, Media))
    return kinds["document"] <= 5 and kinds["image"] <= 20


def arrives_or_is_refused(
    agent: tuple[str, str], request: tuple[dict[str, Any], tuple[tuple[str, str], ...]], describe: bool
) -> None:
    (version, name), (body, pairs) = agent, request
    place, oracle = cluster_of(version), ORACLES[version]
    sent = place.send(name, body, pairs, RewriteOptions(describe=describe))
    verdict = oracle.judge(name, body.get("parameters", {}), pairs, sent)
    if "MEDIA_DESCRIBED" in verdict.notices:
        assert describe
        assert place.send(name, body, pairs).error is not None
    place.forget()
    event(f"{verdict.outcome.value} {verdict.strategy}")
    assert verdict.outcome in (Outcome.ARRIVED, Outcome.REFUSED), (verdict, sent.rewritten)
    if sent.error is not None:
        assert sent.error.status == 400
        assert all(problem.place and problem.reason and problem.code for problem in sent.error.problems)


@examples(150, suppress_health_check=SUPPRESSED)
@given(st.sampled_from(AGENTS), requests(), st.booleans())
def test_a_conversation_arrives_whole_or_is_refused_with_its_place(agent: Any, request: Any, describe: bool) -> None:
    arrives_or_is_refused(agent, request, describe)


def arrives_natively_or_is_refused(agent: str, request: tuple[dict[str, Any], Any], describe: bool) -> None:
    body, _ = request
    body = {**body, "parameters": {**body.get("parameters", {})}}
    body["parameters"].pop("prompt", None)  # which these agents don't have
    cluster = v2_cluster_of(V2_VERSION)
    sent = cluster.send(agent, body, policy=RewriteOptions(describe=describe))
    verdict = judge_native(cluster, agent, sent, body["parameters"])
    cluster.forget()
    event(f"natively {verdict.outcome.value}")
    assert verdict.outcome in (Outcome.ARRIVED, Outcome.REFUSED), (verdict, sent.rewritten)
    if sent.error is not None:
        assert sent.error.status == 400
        assert all(problem.place and problem.reason and problem.code for problem in sent.error.problems)


NATIVE_AGENTS = sorted(v2_cluster_of(V2_VERSION).agents)


@examples(150, suppress_health_check=SUPPRESSED)
@given(st.sampled_from(NATIVE_AGENTS), requests(), st.booleans())
def test_a_conversation_arrives_natively_or_is_refused(agent: str, request: Any, describe: bool) -> None:
    arrives_natively_or_is_refused(agent, request, describe)


@pytest.mark.slow(60)
@examples(5000, suppress_health_check=SUPPRESSED)
@given(st.sampled_from(NATIVE_AGENTS), requests(), st.booleans())
def test_many_conversations_arrive_natively_or_are_refused(agent: str, request: Any, describe: bool) -> None:
    arrives_natively_or_is_refused(agent, request, describe)


@pytest.mark.slow(60)
@examples(10_000, suppress_health_check=SUPPRESSED)
@given(st.sampled_from(AGENTS), requests(), st.booleans())
def test_many_conversations_arrive_whole_or_are_refused(agent: Any, request: Any, describe: bool) -> None:
    arrives_or_is_refused(agent, request, describe)
