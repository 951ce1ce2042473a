"""Bodies that the cluster changes after it has filled them in: they are proved as they are sent, or it is said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery.refusal import refuse_cluster_limits
from gateway.errors import UndeliverableContent
from gateway.mlcommons.expansion import RenderFailure
from gateway.mlcommons.profile import AgentProfile, Model
from gateway.mlcommons.sent_body import sent_body
from tests.delivery.cases import IMAGE
from tests.delivery.simulated_cluster import Sent, cluster_of

TEXT = "say ${parameters.nosuch}"
SKIP = "skip_validating_missing_parameters"
PROCESSORS = '[{"type":"jsonpath_filter","path":"$"}]'
SIGNED = "fc_signed-bedrock_upgraded"


def sent(
    parameters: dict[str, str], version: str = "3.8.0", name: str = "fc-openai_tutorial", given: Any = TEXT
) -> Sent:
    return cluster_of(version).send(name, {"input": given, "parameters": parameters})


@pytest.mark.parametrize(
    ("parameters", "version", "skips", "proved"),
    [
        ({}, "3.8.0", False, True),
        ({"input_processors": PROCESSORS}, "3.8.0", True, False),
        ({"input_processors": PROCESSORS}, "3.4.0", True, False),
        ({"input_processors": "[]"}, "3.8.0", False, True),
        ({"_response_format_json": '{"type":"json_object"}'}, "3.8.0", True, True),
        ({"_toolConfig_additions_json": "{}"}, "3.8.0", True, True),
        ({"_response_format_json": "{}"}, "3.4.0", False, True),
        ({"_other_json": "{}"}, "3.8.0", False, True),
    ],
)
def test_a_body_that_may_be_written_again_is_not_looked_through_for_placeholders(
    parameters: dict[str, str], version: str, skips: bool, proved: bool
) -> None:
    made = sent(parameters, version).rewritten
    assert made is not None
    assert (made.plan.parameters.get(SKIP) == "true", made.plan.proved) == (skips, proved)
    assert ("LLM_NOT_READ" in {notice.code for notice in made.plan.notices}) == (not proved)


def test_2_19_takes_these_parameters_for_any_others() -> None:
    made = sent({"input_processors": PROCESSORS, "stream": "true"}, "2.19.0", "conv-d").rewritten
    assert made is not None
    assert made.plan.proved


@pytest.mark.parametrize("place", ["agent", "connector"])
def test_an_agent_with_a_parameter_stream_is_never_answered(place: str) -> None:
    profile: AgentProfile = cluster_of("3.8.0").profile("fc-openai_tutorial")
    assert profile.llm is not None
    connector = profile.llm.connector
    own = {"stream": "false"}
    changed = (
        replace(profile, parameters={**profile.parameters, **own})
        if place == "agent"
        else replace(profile, llm=Model("m", replace(connector, parameters={**connector.parameters, **own})))
    )
    with pytest.raises(UndeliverableContent) as refused:
        refuse_cluster_limits(changed, {})
    (problem,) = refused.value.problems
    assert (problem.place, problem.code) == (f"agents/{profile.id}", "STREAM_UNSUPPORTED")
    refuse_cluster_limits(changed, {}, streaming=True)
    refuse_cluster_limits(profile, {})  # its remedy


def test_what_a_stream_of_bedrock_drops_is_refused_and_arrives_without_a_stream() -> None:
    blocks = [{"type": "text", "text": TEXT}, IMAGE, {"type": "text", "text": "(end)"}]
    old, new = cluster_of("3.4.0"), cluster_of("3.8.0")
    assert new.send(SIGNED, {"input": blocks}, streaming=True).error is None  # images from 3.5 on
    refused = old.send(SIGNED, {"input": blocks}, streaming=True).error
    assert isinstance(refused, UndeliverableContent)
    assert [problem.place for problem in refused.problems] == ["input[1]"]
    unstreamed = old.send(SIGNED, {"input": blocks})
    assert unstreamed.executed is not None
    assert IMAGE["source"]["data"] in unstreamed.executed.llm_bodies[0]


@pytest.mark.parametrize(
    ("part", "made"),
    [
        ({"text": "a", "cachePoint": {}}, [{"text": "a"}]),
        ({"document": {"name": "d"}}, []),
        ({"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}}, []),
        (
            {"toolResult": {"toolUseId": "t", "content": [{"text": "a"}, {"text": "b"}], "status": "error"}},
            [{"toolResult": {"toolUseId": "t", "content": [{"text": "a"}]}}],
        ),
        (
            {"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": None, "b": 2**31, "c": [1, True]}}},
            [{"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": "null", "b": float(2**31), "c": [1, True]}}}],
        ),
        ({"toolResult": {"toolUseId": "t", "content": [{"json": {}}]}}, None),
        ({"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": 10**400}}}, None),
    ],
)
def test_the_request_that_the_cluster_makes_for_a_stream_of_bedrock(part: Any, made: list[Any] | None) -> None:
    profile: AgentProfile = cluster_of("3.8.0").profile(SIGNED)
    assert profile.llm is not None
    body = {"messages": [{"role": "user", "content": [part]}], "inferenceConfig": {"maxTokens": 1}}
    values = {"stream": "true", "_llm_interface": "bedrock/converse/claude"}
    if made is None:
        with pytest.raises(RenderFailure):
            sent_body(profile.llm, values, profile, "", body)
    else:
        expected = {"messages": [{"role": "user", "content": made}]}
        assert sent_body(profile.llm, values, profile, "", body)[1] == expected
