"""Reading a registration: what is accepted, and every problem with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.register.registration import McpServer, Registration, read_newer, read_registration
from gateway.unified.jsonstrings import WINDOW
from tests.register.simulated_cluster import ANTHROPIC, BEDROCK, COHERE, GEMINI, INVOKE, OPENAI, block, read
from tests.register.test_documents import RFC
from tests.strategies import json_values

SECRET = "a-secret-value"
SSE = {"url": "https://mcp.example.com"}


def problems(document: Any) -> dict[str, str]:
    """Return the reasons by place."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InvalidInput) as refused:
        read_registration(body)
    assert SECRET not in json.dumps(refused.value.body())
    return {problem.place: problem.reason for problem in refused.value.problems}


def in_model(**more: Any) -> dict[str, str]:
    """Return the problems of an OpenAI `model` block with `more` in it, without the block's own place."""
    document = {"name": "x", "model": {**block(OPENAI), **more}}
    return {place.removeprefix("model."): reason for place, reason in problems(document).items()}


def in_mcp(server: Any) -> dict[str, str]:
    return {place.removeprefix("mcp."): why for place, why in problems({"name": "x", "mcp": server}).items()}


def test_the_body_of_the_rfc() -> None:
    registration = read(RFC)
    assert registration.document == {name: value for name, value in RFC.items() if name != "model"}
    assert registration.type == registration.type_given == "conversational"
    assert registration.mcp == ()
    spec = registration.model
    assert spec is not None
    assert (spec.model_id, spec.provider) == ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", BEDROCK)
    assert (spec.parameters, spec.url) == ({}, "")
    revealed = {name: secret.reveal() for name, secret in spec.credential.items()}
    assert revealed == RFC["model"]["credential"]  # type: ignore[index]


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"x","type":"conversational","llm":{"model_id":"m0"}}',
        b'{"name":"x","model":null,"mcp":null}',
        b'{"name":"the \\"model\\" of an agent"}',
        b"no JSON at all",
        b"",
    ],
)
def test_what_has_neither_model_nor_mcp_is_none_of_our_business(body: bytes) -> None:
    assert read_registration(body) is None


def test_a_key_written_with_escapes_is_still_the_key() -> None:
    body = json.dumps({"name": "x", "model": block(OPENAI)}).replace('"model":', '"m\\u006fdel":').encode()
    assert b'"model"' not in body
    registration = read_registration(body)
    assert registration is not None
    assert registration.model is not None


def test_a_body_that_only_speaks_of_models_passes_even_where_it_is_not_strict() -> None:
    assert read_registration(b'{"name":"x","llm":{"model":1,"model":NaN}}') is None


OWN = {"name": "x", "llm": {"model_id": "m"}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({**OWN, "type": "conversational_v2"}, ("conversational_v2", "")),
        ({**OWN, "type": "Conversational/V2"}, ("conversational_v2", "")),
        ({**OWN, "type": "flow", "memory": {"type": "Agentic_Memory"}}, ("flow", "agentic_memory")),
        ({**OWN, "type": "flow", "memory": {"type": "remote_agentic_memory"}}, ("flow", "remote_agentic_memory")),
        ({**OWN, "type": "conversational"}, None),
        ({**OWN, "type": "conversational", "memory": {"type": "conversation_index"}}, None),
        ({**OWN, "type": "mine", "memory": {"type": "agentic_memory"}}, None),
        ({**OWN, "memory": {"type": "agentic_memory"}}, None),
        ({**OWN, "type": "flow", "description": "no agentic_memory"}, None),
        ({**OWN, "type": ["conversational_v2"], "memory": ["agentic_memory"]}, None),
        ({"name": "x", "type": "conversational_v2", "model": block(OPENAI)}, None),
        (["conversational_v2"], None),
    ],
)
def test_a_registration_that_asks_for_what_older_clusters_lack(document: Any, expected: Any) -> None:
    for body in (json.dumps(document).encode(), json.dumps(document).replace("_", "\\u005f").encode()):
        asked = read_newer(body)
        assert (asked and (asked.type, asked.memory_type)) == expected
    assert read_newer(b'{"type":"conversational_v2"') is None


@pytest.mark.parametrize("length", range(WINDOW - 40, WINDOW + 10))
def test_a_newer_type_is_found_wherever_it_is(length: int) -> None:
    body = b'{"name":"%b","type":"conversational_v2"}' % (b"x" * length)
    asked = read_newer(body)
    assert asked is not None
    assert asked.type == "conversational_v2"


@pytest.mark.parametrize("body", [b'{"model":', b'{"model":{},"model":{}}', b'["model"]', b'{"model":"\xff"}'])
def test_what_is_not_strict_json_is_refused(body: bytes) -> None:
    assert problems(body)


def test_strict_json_does_not_show_a_credential_either() -> None:
    body = b'{"name":"x","model":{"credential":{"openai_api_key":1e999777555333}}}'
    with pytest.raises(InvalidInput) as refused:
        read_registration(body)
    assert "1e9997" not in json.dumps(refused.value.body())


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        ("conversational/v2", "conversational_v2"),
        ("Conversational/V2", "conversational_v2"),
        ("conversational_v2", "conversational_v2"),
        ("FLOW", "flow"),
        ("plan_execute_and_reflect", "plan_execute_and_reflect"),
        ("", "conversational"),
    ],
)
def test_types(given: str, type_: str) -> None:
    registration = read({"name": "x", "type": given, "model": block(OPENAI)})
    assert (registration.type, registration.type_given) == (type_, given)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"model": {}}, {"name", "model.model_id", "model.model_provider", "model.credential"}),
        ({"name": " ", "model": []}, {"name", "model"}),
        ({"name": "x", "type": "chatty", "model": block(OPENAI)}, {"type"}),
        ({"name": "x", "type": 5, "model": block(OPENAI)}, {"type"}),
        ({"name": "x", "llm": {"model_id": "m"}, "model": block(OPENAI)}, {"llm"}),
        ({"name": "x", "parameters": [], "model": block(OPENAI)}, {"parameters"}),
        ({"name": "x", "tools": {}, "model": block(OPENAI)}, {"tools"}),
        (
            {"name": "x", "tools": ["a", {}, {"type": "A", "parameters": []}], "model": block(OPENAI)},
            {"tools[0]", "tools[1].type", "tools[2].parameters"},
        ),
        (
            {"name": "x", "tools": [{"type": "A"}, {"type": "B", "name": "A"}], "model": block(OPENAI)},
            {"tools[1].name"},
        ),
        ({"name": "x", "memory": "yes", "model": block(OPENAI)}, {"memory"}),
        ({"name": "x", "memory": {"type": "elephant"}, "model": block(OPENAI)}, {"memory.type"}),
        (
            {"name": "x", "model": block(BEDROCK), "parameters": {"mcp_connectors": "oops"}},
            {"parameters.mcp_connectors"},
        ),
        ({"name": "x", "model": block(BEDROCK), "parameters": {"mcp_connectors": "{}"}}, {"parameters.mcp_connectors"}),
        ({"name": "x", "model": block(BEDROCK), "parameters": {"mcp_connectors": 5}}, {"parameters.mcp_connectors"}),
    ],
)
def test_every_problem_has_its_place(document: dict[str, Any], expected: set[str]) -> None:
    assert set(problems(document)) == expected


@pytest.mark.parametrize("provider", [BEDROCK, OPENAI, GEMINI, "BEDROCK/Converse"])
def test_providers_in_any_case(provider: str) -> None:
    spec = read({"name": "x", "model": {**block(provider.lower()), "model_provider": provider}}).model
    assert spec is not None
    assert spec.provider == provider.lower()


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("bedrock/convers", BEDROCK),
        ("bedrock", BEDROCK),
        ("anthropic/messages", ANTHROPIC),
        ("bedrock-invoke", INVOKE),
        ("openai/chat/completions", OPENAI),
        ("openai", OPENAI),
        ("gemini/v1beta/generateContent2", GEMINI),
    ],
)
def test_an_unknown_provider_lists_the_known_ones_and_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read({"name": "x", "model": {**block(OPENAI), "model_provider": given}})
    (problem,) = refused.value.problems
    assert problem.place == "model.model_provider"
    assert problem.expected == f"one of {ANTHROPIC}, {INVOKE}, {BEDROCK}, {COHERE}, {GEMINI}, {OPENAI}"
    assert problem.help == f"Did you mean {near}?"


def test_unknown_members_of_the_model_block_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput) as refused:
        read({"name": "x", "model": {**block(OPENAI), "temperature": 1}})
    (problem,) = refused.value.problems
    assert problem.place == "model.temperature"
    assert problem.expected == "one of model_id, model_provider, credential, model_parameters, url"


@pytest.mark.parametrize(
    ("provider", "credential", "expected"),
    [
        (BEDROCK, {"access_key": SECRET}, {"secret_key"}),
        (BEDROCK, {"secret_key": SECRET}, {"access_key"}),
        (BEDROCK, {"session_token": SECRET}, {"access_key", "secret_key"}),
        (BEDROCK, {"access_key": SECRET, "secret_key": ""}, {"secret_key"}),
        (BEDROCK, {"access_key": SECRET, "secret_key": SECRET, "roleArn": SECRET}, {"roleArn"}),
        (BEDROCK, {"access_key": SECRET, "secret_key": SECRET, "token": SECRET}, {"token"}),
        (BEDROCK, {"openai_api_key": SECRET}, {"", "openai_api_key"}),
        (OPENAI, {"openai_api_key": 12345}, {"openai_api_key"}),
        (OPENAI, {}, {""}),
        (GEMINI, {"openai_api_key": SECRET}, {"", "openai_api_key"}),
        (GEMINI, [SECRET], {""}),
        (GEMINI, None, {""}),
    ],
)
def test_credentials(provider: str, credential: Any, expected: set[str]) -> None:
    found = problems({"name": "x", "model": {**block(provider), "credential": credential}})
    assert {place.removeprefix("model.credential").removeprefix(".") for place in found} == expected


@pytest.mark.parametrize(
    ("provider", "credential"),
    [
        (BEDROCK, {"access_key": "a", "secret_key": "b", "session_token": "c"}),
        (BEDROCK, {"roleArn": "arn:aws:iam::123456789012:role/r"}),
        (OPENAI, {"openai_api_key": "a"}),
        (GEMINI, {"gemini_api_key": "a"}),
        (ANTHROPIC, {"anthropic_api_key": "a"}),
        (COHERE, {"cohere_api_key": "a"}),
        (INVOKE, {"access_key": "a", "secret_key": "b", "session_token": "c"}),
    ],
)
def test_credentials_that_will_do(provider: str, credential: dict[str, str]) -> None:
    spec = read({"name": "x", "model": {**block(provider), "credential": credential}}).model
    assert spec is not None
    assert {name: secret.reveal() for name, secret in spec.credential.items()} == credential


def test_model_parameters_are_strings_as_on_the_cluster() -> None:
    given = {
        "region": "eu-west-1",
        "temperature": 0.7,
        "top_p": "0.95",
        "max_tokens": 100,
        "stop": ["a"],
        "deep": {"b": 1},
        "flag": True,
        "none": None,
        "system_prompt": "",
    }
    spec = read({"name": "x", "model": block(BEDROCK, model_parameters=given)}).model
    assert spec is not None
    assert spec.parameters == {
        "region": "eu-west-1",
        "temperature": "0.7",
        "top_p": "0.95",
        "max_tokens": "100",
        "stop": '["a"]',
        "deep": '{"b":1}',
        "flag": "true",
        "system_prompt": "",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in ("hot", -0.1, 2.1, True, [], "1.0, \"x\": 1", "NaN", "")),
        *(("top_p", value) for value in (1.5, -1, "", "0,5", "1e99")),
        *(("max_tokens", value) for value in (0, -1, 1.5, "many", "5 ", 10**12)),
        *(("region", value) for value in ("evil.example.com/#", "", 5.5, "US")),
        *((name, "x") for name in ("model", "body", "messages", "contents", "prompt", "service_name")),
        *((name, {"a": 1}) for name in ("system_prompt", "reasoning_effort")),
    ],
)  # fmt: skip
def test_a_model_parameter_that_would_break_the_request(name: str, value: Any) -> None:
    assert set(in_model(model_parameters={name: value})) == {f"model_parameters.{name}"}


@pytest.mark.parametrize("model_id", ["", " ", "two words", 'gpt"4', "gpt\\4", "${parameters.x}", "a\nb", 5, None])
def test_a_model_id_that_would_break_the_request(model_id: Any) -> None:
    assert set(in_model(model_id=model_id)) == {"model_id"}


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/x",
        "h/x",
        "https://",
        f"https://user:{SECRET}@h/x",
        f"https://{SECRET}@h/x",
        "https://h/a b",
        "https://[::1/x",
        "https://h:port:port/\n",
        5,
    ],
)
def test_an_address_that_will_not_do(url: Any) -> None:
    assert set(in_model(url=url)) == {"url"}
    assert set(in_mcp({"url": url})) == {"url"}


@pytest.mark.parametrize("url", ["https://h", "http://10.0.0.7:8080/x", "https://b.${parameters.region}.h/model"])
def test_an_address_that_will_do(url: str) -> None:
    spec = read({"name": "x", "model": block(BEDROCK, url=url)}).model
    assert spec is not None
    assert spec.url == url


# MCP


def test_one_server_or_a_list() -> None:
    assert read({"name": "x", "mcp": SSE}).mcp == (McpServer("MCP server", "https://mcp.example.com"),)
    assert len(read({"name": "x", "mcp": [SSE, SSE]}).mcp) == 2


def test_a_server_with_everything() -> None:
    server = {
        "name": "weather",
        "url": "https://mcp.example.com",
        "transport": "streamable_http",
        "endpoint": "/mcp",
        "headers": {"Authorization": "Bearer ${credential.key}", "X-Plain": "1"},
        "credential": {"key": SECRET},
        "tool_filters": ["get_.*"],
    }
    (found,) = read({"name": "x", "mcp": server}).mcp
    assert (found.name, found.protocol, found.endpoint) == ("weather", "mcp_streamable_http", "/mcp")
    assert found.headers == server["headers"]
    assert found.credential["key"].reveal() == SECRET
    assert found.tools == ("get_.*",)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, {"url"}),
        ("https://h", {"mcp"}),
        ([], {"mcp"}),
        ([5, {}], {"mcp[0]", "mcp[1].url"}),
        ({**SSE, "protocol": "stdio"}, {"protocol"}),
        ({**SSE, "protocol": "mcp_sse", "transport": "sse"}, {"transport"}),
        ({**SSE, "name": "wea;ther"}, {"name"}),
        ({**SSE, "endpoint": "events"}, {"endpoint"}),
        ({**SSE, "sse_endpoint": "events"}, {"endpoint"}),
        ({**SSE, "headers": {"A": "${credential.nothing}"}}, {"headers.A"}),
        ({**SSE, "headers": {"A": "x\r\nB: y"}}, {"headers.A"}),
        ({**SSE, "headers": {"A": 5}}, {"headers.A"}),
        ({**SSE, "credential": {"key": 5}}, {"credential.key"}),
        ({**SSE, "credential": SECRET}, {"credential"}),
        ({**SSE, "tools": "get"}, {"tools"}),
        ({**SSE, "tools": ["", 5, "ok"]}, {"tools[0]", "tools[1]"}),
        ({**SSE, "command": "npx"}, {"command"}),
    ],
)
def test_every_problem_of_a_server_has_its_place(server: Any, expected: set[str]) -> None:
    assert set(in_mcp(server)) == expected


def read_or_refused(document: dict[str, Any]) -> tuple[Registration | None, list[str]]:
    """Return what was read, or the places of the problems."""
    try:
        return read_registration(json.dumps(document).encode()), []
    except InvalidInput as refused:
        return None, [problem.place for problem in refused.problems]


@given(st.dictionaries(st.sampled_from(["name", "type", "model", "mcp", "llm", "tools", "memory"]), json_values()))
@example({"name": "x", "model": block(OPENAI)})
def test_any_body_is_read_or_refused_with_places(document: dict[str, Any]) -> None:
    registration, places = read_or_refused(document)
    ours = document.get("model") is not None or document.get("mcp") is not None
    assert (registration is not None or bool(places)) == ours


@given(
    json_values(),
    st.sampled_from(["model_id", "model_provider", "credential", "model_parameters", "url", "other"]),
)
def test_any_value_in_the_model_block_is_read_or_refused_there(value: Any, member: str) -> None:
    _, places = read_or_refused({"name": "x", "model": {**block(BEDROCK), member: value}})
    assert [place for place in places if not place.startswith(f"model.{member}")] == []
