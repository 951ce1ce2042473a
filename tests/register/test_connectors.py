"""Connectors made by registrations: every kind of input arrives at their agents without an upgrade."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_input
from gateway.mlcommons.template import substitute
from gateway.providers.registry import connectors
from gateway.register.documents import model_body
from gateway.simulator.core import ClusterCore
from gateway.unified.request import read_execute
from tests.delivery.cases import CASES, DOCUMENT, IMAGE, OTHER_IMAGE, VIDEO, Case, text, turn
from tests.oracle import Oracle, Outcome, Verdict
from tests.register.simulated_cluster import (
    AGENTS,
    ANTHROPIC,
    BEDROCK,
    COHERE,
    GEMINI,
    INVOKE,
    OPENAI,
    TAG,
    TARGETS,
    RegisteredCluster,
    block,
    golden,
    profile_of,
    read,
    registered_cluster,
)
from tests.register.simulated_cluster import PROVIDERS as PROVIDER_NAMES

INPUTS: Mapping[str, Case] = {
    "text": CASES["plain text"],
    "image": Case([text("What is this?"), IMAGE]),
    "document": Case([text("Sum up."), DOCUMENT]),
    "video": Case([VIDEO, text("What happens?")]),
    "conversation with images and system text": Case(
        [
            turn("system", "Speak French."),
            turn("user", text("What is this?"), IMAGE),
            turn("assistant", "A dot."),
            turn("user", text("And this?"), OTHER_IMAGE),
        ]
    ),
    "tool history": CASES["tool call and result"],
}
SIMULATED = [(version, name) for version in ("2.19.0", "3.4.0", "3.6.0") for name in AGENTS[version]]


@cache
def oracle_of(version: str) -> Oracle:
    """Return the judge of a version's cluster, made once."""
    return Oracle(registered_cluster(version))


def judged(version: str, name: str, case: Case) -> Verdict:
    sent = registered_cluster(version).send(name, case.body, case.pairs)
    return oracle_of(version).judge(name, case.parameters, case.pairs, sent)


def describe_verdict(verdict: Verdict) -> str:
    """Return the strategy by which it arrived, or the code of the refusal."""
    return f"refused: {verdict.detail}" if verdict.outcome is Outcome.REFUSED else verdict.strategy


@pytest.mark.parametrize(("version", "name"), SIMULATED)
def test_every_kind_of_input_arrives_or_is_refused_for_the_provider_s_sake(version: str, name: str) -> None:
    verdicts = {key: judged(version, name, case) for key, case in INPUTS.items()}
    assert {v.outcome for v in verdicts.values()} <= {Outcome.ARRIVED, Outcome.REFUSED}, verdicts
    assert {key: describe_verdict(verdict) for key, verdict in verdicts.items()} == golden(
        "arrivals.json", version, name
    )


@pytest.mark.parametrize(
    ("version", "name"),
    [pytest.param(*row, marks=() if number % 6 == 0 else pytest.mark.slow) for number, row in enumerate(SIMULATED)],
)
def test_nothing_of_the_matrix_is_lost_or_broken(version: str, name: str) -> None:
    verdicts = {key: judged(version, name, case) for key, case in CASES.items()}
    assert {v.outcome for v in verdicts.values()} <= {Outcome.ARRIVED, Outcome.REFUSED}, verdicts
    refused = {key: verdict.detail for key, verdict in verdicts.items() if verdict.outcome is Outcome.REFUSED}
    assert refused == _refusals(version, name)


def _refusals(version: str, name: str) -> dict[str, str]:
    """Return the inputs that the provider or its model does not accept."""
    provider = name.partition("-")[0]
    refused = {}
    if provider in ("anthropic", "invoke", "gemini", "cohere") or (
        name == "bedrock-conversational" and version != "2.19.0"
    ):
        refused["ends with assistant"] = "ASSISTANT_LAST"
    if provider in ("openai", "anthropic", "invoke", "cohere"):
        refused["video"] = "MEDIA_KIND_UNSUPPORTED"
    if provider == "cohere":
        refused["PDF"] = "MEDIA_FORMAT_UNSUPPORTED"
    return refused


@pytest.mark.parametrize("short", PROVIDER_NAMES)
def test_the_same_arrives_at_an_agent_without_tools(short: str) -> None:
    cluster = RegisteredCluster("3.4.0")
    name = f"{short}-conversational"
    cluster.make("3.4.0", name, tools=[])
    found = {}
    for key, case in INPUTS.items():
        sent = cluster.send(name, case.body, case.pairs)
        found[key] = describe_verdict(Oracle(cluster).judge(name, case.parameters, case.pairs, sent))
    assert found == golden("arrivals.json", "3.4.0", name)


@pytest.mark.parametrize("name", AGENTS["3.6.0"])
def test_on_3_6_with_the_unified_api_off(name: str) -> None:
    profile = profile_of(name, "3.6.0")
    found = {}
    for key, case in INPUTS.items():
        request = read_execute(json.dumps(case.body).encode())
        assert request.input is not None
        try:
            found[key] = rewrite_input(profile, request, request.input, RewriteOptions(), "t1").plan.strategy
        except UndeliverableContent as refusal:
            found[key] = f"refused: {refusal.problems[0].code}"
    assert found == golden("arrivals.json", "3.6.0", name)


def request_body(provider: str, calling: bool, **parameters: Any) -> Any:
    """Return the parsed template with its connector's parameters, and empty run-time slots."""
    spec = read({"name": "x", "model": block(provider, model_parameters=parameters)}).model
    assert spec is not None
    connector = connectors()[provider].document(spec, calling)
    filled = substitute(connector["actions"][0]["request_body"], {**connector["parameters"], "prompt": PROMPT})
    return json.loads(filled)


PROMPT = "What is on the shelf?"
SYSTEM = "You are a helpful assistant."
BODIES: Mapping[str, tuple[str, dict[str, Any], Any]] = {
    "bedrock": (
        BEDROCK,
        {},
        {
            "system": [{"text": SYSTEM}],
            "messages": [{"role": "user", "content": [{"text": PROMPT}]}],
            "inferenceConfig": {"maxTokens": 4096, "temperature": 1.0},
        },
    ),
    "bedrock never sends both": (
        BEDROCK,
        {"temperature": 0.2, "top_p": 0.9, "max_tokens": 100, "system_prompt": 'Say "no".\n'},
        {
            "system": [{"text": 'Say "no".\n'}],
            "messages": [{"role": "user", "content": [{"text": PROMPT}]}],
            "inferenceConfig": {"maxTokens": 100, "topP": 0.9},
        },
    ),
    "openai": (
        OPENAI,
        {"temperature": "0.5", "top_p": 0.9},
        {
            "model": "gpt-4o",
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}],
            "max_completion_tokens": 4096,
            "temperature": 0.5,
            "top_p": 0.9,
        },
    ),
    "openai reasons": (
        OPENAI,
        {"reasoning_effort": "low", "temperature": 0.5},
        {
            "model": "gpt-4o",
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}],
            "max_completion_tokens": 4096,
            "reasoning_effort": "low",
        },
    ),
    "anthropic": (
        ANTHROPIC,
        {"system_prompt": 'Say "no".'},
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 4096,
            "temperature": 1.0,
            "system": [{"type": "text", "text": 'Say "no".'}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
        },
    ),
    "invoke, without model, never both": (
        INVOKE,
        {"temperature": 0.2, "top_p": 0.9},
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 4096,
            "top_p": 0.9,
            "system": [{"type": "text", "text": SYSTEM}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
        },
    ),
    "cohere": (
        COHERE,
        {"top_p": 0.9},
        {
            "model": "command-a-vision-07-2025",
            "stream": False,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}],
            "max_tokens": 4096,
            "temperature": 1.0,
            "p": 0.9,
        },
    ),
    "gemini": (
        GEMINI,
        {"top_p": 0.9},
        {
            "systemInstruction": {"parts": [{"text": SYSTEM}]},
            "contents": [{"role": "user", "parts": [{"text": PROMPT}]}],
            "generationConfig": {"maxOutputTokens": 4096, "temperature": 1.0, "topP": 0.9},
        },
    ),
}


@pytest.mark.parametrize("calling", [True, False], ids=["function calling", "prompt engineered"])
@pytest.mark.parametrize("case", BODIES)
def test_the_request_body_with_the_parameters_in_place(case: str, calling: bool) -> None:
    provider, parameters, wanted = BODIES[case]
    assert request_body(provider, calling, **parameters) == wanted


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("", "https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse"),
        ("https://vpce-1.example.com", "https://vpce-1.example.com/model/${parameters.model}/converse"),
        ("https://vpce-1.example.com/", "https://vpce-1.example.com/model/${parameters.model}/converse"),
        ("http://10.0.0.7:8080/own/path", "http://10.0.0.7:8080/own/path"),
    ],
)
def test_the_address(url: str, address: str) -> None:
    registration = read({"name": "x", "model": block(BEDROCK, **({"url": url} if url else {}))})
    body = model_body(registration, TARGETS["2.19.0"], TAG)
    assert body["connector"]["actions"][0]["url"] == address


def test_the_slash_of_an_arn_stays_inside_its_path_segment() -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-x"
    body = model_body(read({"name": "x", "model": block(BEDROCK, model_id=arn)}), TARGETS["2.19.0"], TAG)
    assert body["connector"]["parameters"]["model"] == arn.replace("/", "%2F")
    assert body["name"] == f"Auto-generated model for {arn}"


def test_names_have_only_what_3_x_allows_in_them() -> None:
    body = model_body(read({"name": "x", "model": block(OPENAI, model_id="ft:gpt-4o+me~1;x")}), TARGETS["3.6.0"], TAG)
    names = [body["name"], body["description"], body["connector"]["name"], body["connector"]["description"]]
    assert names[0] == "Auto-generated model for ft:gpt-4o-me-1-x"
    assert [name for name in names if not re.fullmatch(r"[A-Za-z0-9 .,!?():@\-_/'\"]*", name)] == []
    assert body["connector"]["parameters"]["model"] == "ft:gpt-4o+me~1;x"


def test_a_model_with_a_preset_schema_is_made_without_it() -> None:
    resources = ClusterCore("2.19.0").resources
    registration = read({"name": "x", "model": block(BEDROCK, model_id="anthropic.claude-3-sonnet-20240229-v1:0")})
    body = model_body(registration, TARGETS["2.19.0"], TAG)
    made, preset = resources.register_model(body, True), resources.register_model({**body, "interface": None}, True)
    assert resources.model(preset["model_id"])["interface"]
    assert not resources.model(made["model_id"])["interface"]


def test_there_is_a_connector_for_every_provider_of_the_rfc() -> None:
    assert sorted(connectors()) == [ANTHROPIC, INVOKE, BEDROCK, COHERE, GEMINI, OPENAI]
