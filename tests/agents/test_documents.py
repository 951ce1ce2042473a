import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.documents import (
    needed,
    needed_connector,
    read_model,
    read_profile,
    read_unified_api,
    read_version,
)
from gateway.agents.recognition import connector_hints, provider_of
from gateway.agents.rules import Rule
from gateway.errors import Problem, UnresolvedAgent
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool
from gateway.providers import registry
from gateway.providers.base import Claim, ConnectorHints
from gateway.providers.openai_chat import OpenAIChat

from .recorded import agent_id, recorded

CLAUDE = "us.anthropic.claude-3-7-sonnet-20250219-v1:0"
FILTER = "$.output.message.content[0].text"
ASSISTANT = "You are a helpful assistant."

CONNECTOR_B = Connector(
    id="fnXu_6EBm8w0PCMjYWLP",
    protocol="http",
    url="http://127.0.0.1:18080/openai/v1/chat/completions",
    request_body='{"model":"${parameters.model}","messages":${parameters.messages}}',
    parameters={"model": "gpt-4o"},
)
CONNECTOR_D = Connector(
    id="hnXu_6EBm8w0PCMjZ2Jy",
    protocol="http",
    url="http://127.0.0.1:18080/bedrock/model/${parameters.model}/converse",
    request_body='{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}',
    parameters={"model": "claude-3"},
)
TUTORIAL_BODY = (
    '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": [${parameters._chat_history:-}'
    '{"role":"user","content":[{"text":"${parameters.prompt}"}]}${parameters._interactions:-}]'
    "${parameters.tool_configs:-} }"
)
TUTORIAL_PARAMETERS = {"service_name": "bedrock", "model": CLAUDE, "region": "us-east-1"}
AUTO_BEDROCK = Connector(
    id="",
    protocol="aws_sigv4",
    url="https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse",
    request_body=(
        '{"system": [{"text": "${parameters.system_prompt}"}], "messages": [${parameters._chat_history:-}'
        "${parameters.body}${parameters._interactions:-}]${parameters.tool_configs:-} }"
    ),
    parameters={**TUTORIAL_PARAMETERS, "system_prompt": ASSISTANT},
)


def tutorial(connector_id: str, model_id: str) -> Model:
    url = "http://127.0.0.1:18083/model/${parameters.model}/converse"
    return Model(model_id, Connector(connector_id, "aws_sigv4", url, TUTORIAL_BODY, TUTORIAL_PARAMETERS))


GOLDEN = [
    AgentProfile(
        id="p3Xu_6EBm8w0PCMjfmLM",
        name="conv-b",
        type="conversational",
        version=(2, 19, 0),
        generation=Generation.TEXT,
        app_type="my_app",
        memory_type="conversation_index",
        llm=Model("gHXu_6EBm8w0PCMjYmLt", CONNECTOR_B),
        llm_parameters={
            "max_iteration": "5",
            "stop_when_no_tool_found": "true",
            "response_filter": "$.choices[0].message.content",
        },
        tools=(
            Tool("CatIndexTool", "CatIndexTool"),
            Tool(
                "MLModelTool",
                "ask_llm",
                parameters={
                    "response_filter": "$.choices[0].message.content",
                    "model_id": "gHXu_6EBm8w0PCMjYmLt",
                    "prompt": "Q: ${parameters.question}",
                },
                model=Model("gHXu_6EBm8w0PCMjYmLt", CONNECTOR_B),
            ),
        ),
        provider="openai/v1/chat/completions",
        provider_source="connector",
        unified_api=False,
    ),
    AgentProfile(
        id="wnXu_6EBm8w0PCMjj2Li",
        name="flow-d-config",
        type="flow",
        version=(2, 19, 0),
        generation=Generation.TEXT,
        tools=(
            Tool(
                "MLModelTool",
                "llm",
                parameters={"response_filter": FILTER, "model_id": "iHXu_6EBm8w0PCMjaGKp"},
                config={"prompt": "PINNED ${parameters.question}"},
                model=Model("iHXu_6EBm8w0PCMjaGKp", CONNECTOR_D),
            ),
        ),
        provider="bedrock/converse",
        provider_source="connector",
        unified_api=False,
    ),
    AgentProfile(
        id="zZz0_6EBqnFV9lEs0hmj",
        name="br_conv",
        type="conversational",
        version=(3, 4, 0),
        generation=Generation.FUNCTION_CALLING,
        app_type="test",
        memory_type="conversation_index",
        parameters={"_llm_interface": "bedrock/converse/claude"},
        llm=tutorial("ppz0_6EBqnFV9lEsuBkq", "rJz0_6EBqnFV9lEsvRnz"),
        llm_parameters={"max_iteration": "5", "system_prompt": ASSISTANT, "prompt": "${parameters.question}"},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        provider="bedrock/converse",
        provider_source="_llm_interface",
        unified_api=False,
    ),
    AgentProfile(
        id="qeoCAKIBmjUj_f3tDXRb",
        name="leg_flow",
        type="flow",
        version=(3, 6, 0),
        generation=Generation.FUNCTION_CALLING,
        app_type="test",
        tools=(
            Tool(
                "MLModelTool",
                "llm",
                parameters={
                    "response_filter": FILTER,
                    "model_id": "beoBAKIBmjUj_f3t1HRi",
                    "system_prompt": "sp",
                    "prompt": "Human: ${parameters.question}",
                },
                model=tutorial("auoBAKIBmjUj_f3t0nT9", "beoBAKIBmjUj_f3t1HRi"),
            ),
        ),
        provider="bedrock/converse",
        provider_source="connector",
        unified_api=True,
    ),
    AgentProfile(
        id="9ern_6EBmjUj_f3tOXHk",
        name="u_bedrock_conv",
        type="conversational",
        version=(3, 6, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm=Model("9Orn_6EBmjUj_f3tOXGn", AUTO_BEDROCK),
        llm_parameters={"system_prompt": ASSISTANT},
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="K-oAAKIBmjUj_f3ta3Iq",
        name="v2_bedrock",
        type="conversational_v2",
        version=(3, 6, 0),
        generation=Generation.UNIFIED_V2,
        memory_type="agentic_memory",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm=Model("KuoAAKIBmjUj_f3tanLE", AUTO_BEDROCK),
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="b_cHAKIBmxshbEQ7LC19",
        name="u_openai_per",
        type="plan_execute_and_reflect",
        version=(3, 8, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={
            "max_iteration": "5",
            "executor_agent_id": "bvcHAKIBmxshbEQ7LC1s",
            "_llm_interface": "openai/v1/chat/completions",
        },
        llm=Model(
            "bfcHAKIBmxshbEQ7LC1Z",
            Connector(
                id="",
                protocol="http",
                url="https://api.openai.com/v1/chat/completions",
                request_body=(
                    '{"model":"${parameters.model}","messages":[${parameters._chat_history:-}${parameters.body}'
                    "${parameters._interactions:-}]${parameters.tool_configs:-},"
                    '"max_completion_tokens":${parameters.max_tokens:-4096},'
                    '"temperature":${parameters.temperature:-1.0}${parameters.top_p_field:-}}'
                ),
                parameters={"model": "gpt-4o", "system_prompt": ASSISTANT},
            ),
        ),
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="openai/v1/chat/completions",
        provider="openai/v1/chat/completions",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="gPcHAKIBmxshbEQ7Mi0Q",
        name="u_conversational_flow",
        type="conversational_flow",
        version=(3, 8, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
]


def profile_of(version: str, name: str, **changes: Any) -> AgentProfile:
    docs = recorded(version)
    id_ = agent_id(docs, name)
    numbers = tuple(map(int, version.split(".")))
    arguments = {"unified_api": numbers >= (3, 5), **changes}
    return read_profile(id_, docs["agents"][id_], docs["models"], docs["connectors"], numbers, **arguments)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: f"{'.'.join(map(str, p.version))}-{p.name}")
def test_recorded_documents_make_this_whole_profile(golden: AgentProfile) -> None:
    assert profile_of(".".join(map(str, golden.version)), golden.name) == golden


@pytest.mark.parametrize(
    ("version", "name", "provider", "source"),
    [
        ("2.19.0", "flow-a", "bedrock/converse", "connector"),
        ("2.19.0", "cflow-d", "bedrock/converse", "connector"),
        ("3.4.0", "br_per_tut", "bedrock/converse", "_llm_interface"),
        ("3.4.0", "oa_conv_up", "openai/v1/chat/completions", "_llm_interface"),
        ("3.4.0", "react_old", "openai/v1/chat/completions", "connector"),
        ("3.8.0", "v2_gemini", "gemini/v1beta/generatecontent", "model.model_provider"),
        ("3.8.0", "agui", "bedrock/converse", "model.model_provider"),
    ],
)
def test_provider_and_its_source(version: str, name: str, provider: str, source: str) -> None:
    profile = profile_of(version, name)
    assert (profile.provider, profile.provider_source) == (provider, source)


def unknown_agent() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    agent = {"name": "mine", "type": "conversational", "llm": {"model_id": "m"}}
    action = {"action_type": "predict", "url": "https://llm.example/complete", "request_body": "${parameters.prompt}"}
    return agent, {"m": {"connector_id": "c"}}, {"c": {"protocol": "http", "actions": [action]}}


def test_a_rule_tells_the_provider_only_where_nothing_else_does() -> None:
    rules = [Rule("other*", "bedrock/converse"), Rule("min?", "gemini/v1beta/generatecontent"), Rule("*", "never")]
    profile = read_profile("id-1", *unknown_agent(), (2, 19, 0), rules)
    assert (profile.provider, profile.provider_source) == ("gemini/v1beta/generatecontent", "rule")
    recognised = profile_of("3.4.0", "react_old", rules=rules)
    assert (recognised.provider, recognised.provider_source) == ("openai/v1/chat/completions", "connector")


COHERE = (
    '{"model":"command-a-03-2025","messages":[{"role":"user","content":"${parameters.prompt}"}],'
    '"response_format":{"type":"text"},"frequency_penalty":0.1,"presence_penalty":0.1}'
)
COHERE_URLS = [
    "https://api.cohere.com/v2/chat",
    "https://bedrock-runtime.us-east-1.amazonaws.com/model/cohere.command-r-plus-v1:0/invoke",
]


def agent_with(url: str, body: str, tool_url: str = "") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """An agent with an LLM at `url`, and an LLM tool at `tool_url`."""
    agent: dict[str, Any] = {"name": "mine", "type": "conversational", "llm": {"model_id": "m"}}
    if tool_url:
        agent["tools"] = [{"type": "MLModelTool", "parameters": {"model_id": "t"}}]

    def connector(url: str) -> dict[str, Any]:
        return {"protocol": "http", "actions": [{"action_type": "predict", "url": url, "request_body": body}]}

    models = {"m": {"connector_id": "c"}, "t": {"connector_id": "d"}}
    return agent, models, {"c": connector(url), "d": connector(tool_url)}


@pytest.mark.parametrize("url", COHERE_URLS)
def test_a_connector_of_coheres_is_not_taken_for_openai(url: str) -> None:
    assert read_profile("id-1", *agent_with(url, COHERE), (2, 19, 0)).provider == ""
    profile = read_profile("id-1", *agent_with(url, COHERE), (2, 19, 0), [Rule("mine", "openai/v1/chat/completions")])
    assert profile.provider_source == "rule"


def test_the_llm_of_a_tool_does_not_tell_the_provider_of_the_agents_llm() -> None:
    documents = agent_with(COHERE_URLS[0], COHERE, "https://api.openai.com/v1/chat/completions")
    assert read_profile("id-1", *documents, (2, 19, 0)).provider == ""


@pytest.fixture
def two_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second provider that claims every URL of chat completions."""

    class Acme(OpenAIChat):
        name = "acme/v1/chat"

        def claims(self, connector: ConnectorHints) -> Claim | None:
            claim = super().claims(connector)
            return replace(claim, reason="it is Acme's") if claim else None

    found = registry.Registry()
    found._providers[Acme.name] = Acme()
    monkeypatch.setattr(registry, "installed", lambda: found)


@pytest.mark.usefixtures("two_claims")
def test_a_connector_that_two_providers_claim_is_refused_with_both_names() -> None:
    documents = agent_with("https://x/v1/chat/completions", "{}")
    with pytest.raises(UnresolvedAgent) as refusal:
        read_profile("id-1", *documents, (2, 19, 0))
    (problem,) = refusal.value.problems
    assert (problem.place, problem.code) == ("connectors/c", "PROVIDER_AMBIGUOUS")
    assert problem.received == "acme/v1/chat, openai/v1/chat/completions"
    assert "'acme/v1/chat' (it is Acme's) and 'openai/v1/chat/completions' (its URL ends in" in problem.reason
    assert "`agents.rules[].provider`" in problem.help
    ruled = read_profile("id-1", *documents, (2, 19, 0), [Rule("mine", "openai/v1/chat/completions")])
    assert (ruled.provider, ruled.provider_source) == ("openai/v1/chat/completions", "rule")
    llm = ruled.llm
    assert llm is not None
    assert provider_of(llm.connector, "otherwise") == "otherwise"


def test_nothing_tells_the_provider() -> None:
    profile = read_profile("id-1", *unknown_agent(), (2, 19, 0), [Rule("mine", provider=None)])
    assert (profile.provider, profile.provider_source) == ("", "")


def test_needed_models_in_order_of_use_and_once_each() -> None:
    docs = recorded("2.19.0")
    assert needed(docs["agents"][agent_id(docs, "conv-b")]) == ("gHXu_6EBm8w0PCMjYmLt",)
    tools = [{"type": "MLModelTool", "parameters": {"model_id": m}} for m in "bcab"]
    tools.insert(1, {"type": "SearchIndexTool", "parameters": {"model_id": "not an LLM"}})
    assert needed({"type": "conversational", "llm": {"model_id": "a"}, "tools": tools}) == ("a", "b", "c")
    assert needed({"type": "FLOW", "llm": {"model_id": "a"}, "tools": tools}) == ("b", "c", "a")


def test_needed_connector() -> None:
    docs = recorded("2.19.0")
    assert needed_connector(docs["models"]["fHXu_6EBm8w0PCMjYGLR"]) == "enXu_6EBm8w0PCMjYGI-"
    assert needed_connector(docs["models"]["CHXz_6EBm8w0PCMjDmUi"]) is None
    assert needed_connector({"algorithm": "TEXT_EMBEDDING"}) is None


def test_default_interface_of_older_claude_models_requires_inputs() -> None:
    docs = recorded("2.19.0")
    embedded = docs["models"]["CHXz_6EBm8w0PCMjDmUi"]["connector"]
    model = read_model("A3Xz_6EBm8w0PCMjC2VH", docs["models"], {"AHXz_6EBm8w0PCMjCWXv": embedded}, "")
    assert model.required_inputs == ("inputs",)


@pytest.mark.parametrize(
    ("schema", "required"),
    [
        ({"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": "string"}}}}}, ("a",)),
        (
            {"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": ["null", "string"]}}}}},
            ("a",),
        ),
        ({"properties": {"parameters": {"required": ["a"], "properties": {"a": {"type": "array"}}}}}, ()),
        ({"properties": {"parameters": {"required": ["a"]}}}, ("a",)),
        ({"properties": {"text_docs": {"type": "array"}}}, ()),
        ('{"properties":{"parameters":{"required":["a"]}}}', ("a",)),
        ({}, ()),
        ([], ()),
    ],
)
def test_required_inputs_of_an_interface(schema: Any, required: tuple[str, ...]) -> None:
    models = {"m": {**recorded("2.19.0")["models"]["CHXz_6EBm8w0PCMjDmUi"], "interface": {"input": schema}}}
    assert read_model("m", models, {}, "").required_inputs == required


def test_values_that_are_no_strings_become_strings() -> None:
    agent, models, connectors = unknown_agent()
    agent["parameters"] = {"n": 5, "f": True, "list": ["a"], "none": None, "s": "text"}
    profile = read_profile("id-1", agent, models, connectors, (3, 4, 0))
    assert profile.parameters == {"n": "5", "f": "true", "list": '["a"]', "s": "text"}


def test_hints_hold_the_url_with_known_parameters_filled_in() -> None:
    url = "https://${parameters.endpoint}/v1/${parameters.path:-chat/completions}?k=${parameters.later}"
    hints = connector_hints(Connector("c", "http", url, "{}", {"endpoint": "api.openai.com"}))
    assert hints.url == "https://api.openai.com/v1/chat/completions?k=${parameters.later}"


PREDICT = {"action_type": "PREDICT", "url": "http://h/", "request_body": "{}"}


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"agent": {"type": 7}}, [("agents/x.type", "the agent has no type")]),
        ({"agent": {"llm": None}}, [("agents/x.llm.model_id", "the agent names no LLM")]),
        (
            {"agent": {"llm": []}},
            [("agents/x.llm", "llm is not an object"), ("agents/x.llm.model_id", "the agent names no LLM")],
        ),
        ({"agent": {"parameters": "p"}}, [("agents/x.parameters", "parameters are not an object")]),
        ({"agent": {"tools": {}}}, [("agents/x.tools", "tools is not an array")]),
        ({"agent": {"tools": [{"type": "A"}, 3]}}, [("agents/x.tools[1]", "a tool has no type")]),
        (
            {"agent": {"tools": [{"type": "MLModelTool"}]}},
            [("agents/x.tools[0].parameters.model_id", "an MLModelTool names no model")],
        ),
        (
            {
                "agent": {
                    "tools": [{"type": "MLModelTool", "parameters": {"model_id": "m"}, "config": {"model_id": "n"}}]
                }
            },
            [("agents/x.tools[0].parameters.model_id", "an MLModelTool names two models")],
        ),
        ({"models": {}}, [("agents/x.llm.model_id", "the model m does not exist")]),
        ({"models": {"m": {"algorithm": "X"}}}, [("models/m", "the model has no connector, so it is no remote LLM")]),
        ({"models": {"m": {"connector_id": "d"}}}, [("models/m.connector_id", "the connector d does not exist")]),
        (
            {"models": {"m": {"connector_id": "c", "interface": {"input": "{"}}}},
            [("models/m.interface.input", "the model's input interface is not JSON")],
        ),
        ({"connectors": {"c": {}}}, [("connectors/c.actions", "the connector has no predict action")]),
        (
            {"connectors": {"c": {"actions": [{**PREDICT, "action_type": "BATCH_PREDICT"}]}}},
            [("connectors/c.actions", "the connector has no predict action")],
        ),
        (
            {"connectors": {"c": {"actions": [{"action_type": "x"}, {**PREDICT, "request_body": None}]}}},
            [("connectors/c.actions[1].request_body", "the predict action has no request_body")],
        ),
        (
            {"models": {"m": {"connector": {"actions": [{**PREDICT, "url": 1}]}}}},
            [("models/m.connector.actions[0].url", "the predict action has no url")],
        ),
        (
            {"connectors": {"c": {"actions": [PREDICT], "parameters": []}}},
            [("connectors/c.parameters", "parameters are not an object")],
        ),
    ],
)
def test_every_unreadable_part_is_named(changes: dict[str, Any], problems: list[tuple[str, str]]) -> None:
    agent, models, connectors = unknown_agent()
    agent |= changes.get("agent", {})
    with pytest.raises(UnresolvedAgent) as caught:
        read_profile("x", agent, changes.get("models", models), changes.get("connectors", connectors), (2, 19, 0))
    assert [(p.place, p.reason) for p in caught.value.problems] == problems


def test_a_model_that_is_missing_is_reported_once_for_each_place_that_names_it() -> None:
    agent, _, connectors = unknown_agent()
    agent["tools"] = [{"type": "MLModelTool", "parameters": {"model_id": "m"}}]
    with pytest.raises(UnresolvedAgent) as caught:
        read_profile("x", agent, {}, connectors, (2, 19, 0))
    assert [p.place for p in caught.value.problems] == [
        "agents/x.llm.model_id",
        "agents/x.tools[0].parameters.model_id",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(p for key, value in items for p in _paths(value, (*path, key)))]


@given(st.data())
def test_any_damage_gives_a_profile_or_an_unresolved_agent(data: st.DataObject) -> None:
    docs = copy.deepcopy(recorded("2.19.0"))
    id_ = agent_id(docs, "conv-b")
    used = {"agents": {id_: docs["agents"][id_]}}
    used["models"] = {"gHXu_6EBm8w0PCMjYmLt": docs["models"]["gHXu_6EBm8w0PCMjYmLt"]}
    used["connectors"] = {CONNECTOR_B.id: docs["connectors"][CONNECTOR_B.id]}
    *parents, last = data.draw(st.sampled_from([path for path in _paths(used) if len(path) > 2]))
    place: Any = used
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON)
    problems: tuple[Problem, ...] = ()
    profile = None
    try:
        profile = read_profile(id_, used["agents"][id_], used["models"], used["connectors"], (2, 19, 0))
    except UnresolvedAgent as unresolved:
        problems = unresolved.problems
    if profile is None:
        assert problems
        assert all(problem.place and problem.reason for problem in problems)
    else:
        assert all(isinstance(v, str) for m in profile.models for v in m.connector.parameters.values())


@pytest.mark.parametrize("version", ["3.4.0", "3.6.0", "3.8.0"])
def test_version_of_a_recorded_root(version: str) -> None:
    assert read_version(recorded(version)["root"]) == tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    ("root", "version"),
    [
        ({"version": {"number": "3.0.0-SNAPSHOT", "distribution": "opensearch"}}, (3, 0, 0)),
        ({"version": {"number": "2.19", "distribution": "opensearch"}}, (2, 19, 0)),
        ({"version": {"number": "7.10.2"}}, None),
        ({"version": {"number": 2, "distribution": "opensearch"}}, None),
        ({"version": "2.19.0"}, None),
        (None, None),
    ],
)
def test_a_version_is_believed_only_from_opensearch(root: Any, version: tuple[int, ...] | None) -> None:
    assert read_version(root) == version


FLAG = "plugins.ml_commons.unified_agent_api_enabled"


def nested(value: Any) -> dict[str, Any]:
    return {"plugins": {"ml_commons": {"unified_agent_api_enabled": value}}}


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({"defaults": nested("false")}, False),
        ({"persistent": nested("true"), "defaults": nested("false")}, True),
        ({"transient": nested("false"), "persistent": nested("true")}, False),
        ({"persistent": {FLAG: "true"}}, True),
        ({"defaults": {FLAG: False}}, False),
        ({"defaults": {"plugins": "x"}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_unified_api_setting(settings: Any, on: bool | None) -> None:
    assert read_unified_api(settings) is on
