"""Tools of the client: declared to the LLM of a flow that hands its calls out; elsewhere left out, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.delivery.client_tools import obstacle
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import RewriteOptions, rewrite_native
from gateway.migrate.upgrade import Offer, offers
from gateway.mlcommons.generations import Generation
from gateway.providers import registry
from gateway.unified.model import ClientTools, ToolSpec
from gateway.unified.request import read_execute
from tests.delivery.simulated_cluster import Sent, SimulatedCluster
from tests.delivery.upgrades import documents_of
from tests.providers.sdk import bedrock
from tests.providers.sdk.closed import adapter

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WARMTH = {"name": "warmth", "description": 'How "warm" ${parameters.question} {it} is.', "parameters": SCHEMA}
TIME = {"type": "function", "function": {"name": "time"}}
NONE = {"type": "object", "properties": {}}
OPENAI = {
    "tools": [
        {"type": "function", "function": WARMTH},
        {"type": "function", "function": {"name": "time", "parameters": NONE}},
    ]
}
ANTHROPIC = {
    "tools": [
        {"name": "warmth", "description": WARMTH["description"], "input_schema": SCHEMA},
        {"name": "time", "input_schema": NONE},
    ]
}
CONVERSE = {
    "toolConfig": {
        "tools": [
            {"toolSpec": {"name": "warmth", "description": WARMTH["description"], "inputSchema": {"json": SCHEMA}}},
            {"toolSpec": {"name": "time", "inputSchema": {"json": NONE}}},
        ]
    }
}
GEMINI = {
    "tools": [
        {
            "functionDeclarations": [
                {"name": "warmth", "description": WARMTH["description"], "parametersJsonSchema": SCHEMA},
                {"name": "time", "description": "", "parametersJsonSchema": NONE},
            ]
        }
    ]
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "2.19.0 a": CONVERSE, "2.19.0 b": OPENAI, "2.19.0 d": CONVERSE, "2.19.0 e": GEMINI, "2.19.0 e2": GEMINI,
    "2.19.0 f": CONVERSE, "2.19.0 g": OPENAI, "2.19.0 h": CONVERSE, "2.19.0 i": ANTHROPIC, "2.19.0 j": ANTHROPIC,
    "3.4.0 bedrock_tutorial": CONVERSE, "3.4.0 openai_tutorial": OPENAI, "3.4.0 bedrock_upgraded": CONVERSE,
    "3.4.0 openai_messages": OPENAI, "3.4.0 gemini_contents": GEMINI, "3.4.0 gemini_text": GEMINI,
    "2.19.0 k": OPENAI, "3.4.0 cohere_messages": OPENAI,
    "3.4.0 anthropic_messages": ANTHROPIC, "3.8.0 openai_messages": OPENAI, "3.8.0 openai_upgraded": OPENAI,
}  # fmt: skip
"""Version and template → what the LLM gets of the tools, after an upgrade for tools."""
AT_ONCE = ["3.4.0 bedrock_tutorial", "3.4.0 openai_tutorial", "3.4.0 bedrock_upgraded", "3.8.0 openai_upgraded"]
"""Those whose template has a slot for tools already, into which the cluster inserts a parameter raw."""


@cache
def clusters(version: str, upgraded: bool) -> SimulatedCluster:
    """Return a cluster with a flow for each template, whose answer is the LLM's whole response.

    Where connectors are upgraded, it has no other agents, as an upgrade is proved for each that uses the connector.
    """
    cluster = SimulatedCluster(version)
    if upgraded:
        cluster.core.resources.agents.clear()
        cluster.agents.clear()
    for template in list(cluster.templates):
        asked = {"model_id": cluster.model(template)}
        if cluster.templates[template].interface:
            asked["system_prompt"] = "Be brief."
        cluster.register({"name": f"raw-{template}", "type": "flow", "tools": [tool(**asked)]})
    if upgraded:
        for found in offers(documents_of(cluster), cluster.agents.values(), "0" * 32, for_tools=True):
            if isinstance(found, Offer):
                document = cluster.core.resources.connectors[found.key.partition("/")[2]]
                document["parameters"], document["actions"] = found.new["parameters"], found.new["actions"]
        for model_id in cluster.core.resources.models:
            cluster.core.resources.undeploy_models([model_id])
        cluster.profile = cache(cluster._profile)
    return cluster


def tool(**parameters: str) -> dict[str, Any]:
    return {"type": "MLModelTool", "name": "llm", "parameters": {"prompt": "${parameters.question}", **parameters}}


def send(case: str, upgraded: bool = True, **beside: Any) -> Sent:
    version, template = case.split()
    body = {"input": "hello", "tools": [WARMTH, TIME], **beside}
    return clusters(version, upgraded).send(f"raw-{template}", body)


def arrived(sent: Sent) -> dict[str, Any]:
    assert sent.error is None, sent.error.problems
    assert sent.executed is not None
    assert sent.executed.status == 200, sent.executed.body
    body: dict[str, Any] = json.loads(sent.executed.llm_bodies[0])
    return body


def codes(sent: Sent) -> list[str]:
    assert sent.rewritten is not None
    return [notice.code for notice in sent.rewritten.plan.notices]


def of_tools(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("tools", "toolConfig", "tool_choice") if name in body}


@pytest.mark.parametrize("case", FORMS)
def test_the_llm_gets_them_after_an_upgrade(case: str) -> None:
    sent = send(case)
    assert of_tools(arrived(sent)) == FORMS[case]
    assert "TOOLS_LEFT_OUT" not in codes(sent)


@pytest.mark.parametrize("case", FORMS)
def test_before_it_they_are_left_out_with_a_notice_unless_there_is_a_slot(case: str) -> None:
    sent = send(case, upgraded=False)
    assert of_tools(arrived(sent)) == (FORMS[case] if case in AT_ONCE else {})
    assert ("TOOLS_LEFT_OUT" in codes(sent)) is (case not in AT_ONCE)


@pytest.mark.parametrize("case", [case for case in FORMS if case not in AT_ONCE])
def test_required_ones_are_refused_and_the_remedy_delivers_them(case: str) -> None:
    error = send(case, upgraded=False, tool_choice="required").error
    assert error is not None
    (problem,) = error.problems
    assert (problem.code, problem.place) == ("TOOLS_REQUIRED", "tool_choice")
    # Where the slot takes one member, as on 2.x, only Converse's has room for the choice.
    is_deliverable = case.split()[0] != "2.19.0" or FORMS[case] is CONVERSE
    assert ("--for-tools`" in problem.help) is is_deliverable
    if is_deliverable:
        assert of_tools(arrived(send(case, tool_choice="required")))
    else:
        assert "leave `tool_choice` out" in problem.help
        assert of_tools(arrived(send(case))) == FORMS[case]


CHOICES = [
    (CONVERSE, {"toolConfig": {**CONVERSE["toolConfig"], "toolChoice": {"any": {}}}},
        {"toolConfig": {**CONVERSE["toolConfig"], "toolChoice": {"tool": {"name": "time"}}}}),
    (OPENAI, {**OPENAI, "tool_choice": "required"},
        {**OPENAI, "tool_choice": {"type": "function", "function": {"name": "time"}}}),
    (ANTHROPIC, {**ANTHROPIC, "tool_choice": {"type": "any"}},
        {**ANTHROPIC, "tool_choice": {"type": "tool", "name": "time"}}),
    (GEMINI, {**GEMINI, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        {**GEMINI, "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["time"]}}}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "any_of_them", "one"), CHOICES)
def test_the_choice_reaches_the_llm(form: Any, any_of_them: Any, one: Any) -> None:
    case = next(case for case, known in FORMS.items() if known is form and case.startswith("3."))
    assert of_tools(arrived(send(case, tool_choice="required"))) == any_of_them
    assert of_tools(arrived(send(case, tool_choice={"type": "function", "function": {"name": "time"}}))) == one
    assert of_tools(arrived(send(case, tool_choice="auto"))) == form
    assert of_tools(arrived(send(case, tool_choice="none"))) == {}


def test_a_call_comes_back_and_its_result_is_the_next_input() -> None:
    """With the tools of earlier calls that are not offered again declared, where the API requires that."""
    conversation = [
        {"role": "user", "content": "How warm?"},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "old", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "20"}]}}]},
    ]
    sent = clusters("3.4.0", True).send("raw-bedrock_tutorial", {"input": conversation, "tools": [WARMTH]})
    specs = [spec["toolSpec"]["name"] for spec in arrived(sent)["toolConfig"]["tools"]]
    assert specs == ["warmth", "old"]
    assert "TOOLS_DECLARED" in codes(sent)
    offered = clusters("3.4.0", True).send("raw-bedrock_tutorial", {"input": conversation, "tools": [{"name": "old"}]})
    assert len(arrived(offered)["toolConfig"]["tools"]) == 1
    assert "TOOLS_DECLARED" not in codes(offered)


@pytest.mark.parametrize("agent", ["conv-bedrock_tutorial", "fc-openai_tutorial", "per-bedrock_tutorial"])
def test_agents_that_run_their_own_tools(agent: str) -> None:
    cluster = clusters("3.4.0", False)
    sent = cluster.send(agent, {"input": "hello", "tools": [WARMTH]})
    assert WARMTH["name"] not in json.dumps(arrived(sent))
    assert "TOOLS_LEFT_OUT" in codes(sent)
    error = cluster.send(agent, {"input": "hello", "tools": [WARMTH], "tool_choice": "required"}).error
    assert error is not None
    assert "runs its own tools only" in error.problems[0].reason


def changed(case: str, **parameters: str) -> str:
    profile = clusters("3.4.0", False).profile("raw-openai_tutorial")
    (own,) = profile.tools
    assert own.model is not None
    match case:
        case "filter":
            own = replace(own, parameters={**own.parameters, "response_filter": "$.a"})
        case "post":
            connector = replace(own.model.connector, post_process=True)
            own = replace(own, model=replace(own.model, connector=connector))
        case "last":
            return obstacle(replace(profile, tools=(own, replace(own, type="ListIndexTool", model=None))), parameters)
        case "two":
            return obstacle(replace(profile, tools=(replace(own, name="first"), own)), parameters)
    return obstacle(replace(profile, tools=(own,)), parameters)


def test_what_keeps_a_flow_from_handing_calls_out() -> None:
    assert changed("") == ""
    assert "response_filter" in changed("filter")
    assert "response_filter" in changed("", response_filter="$.a")
    assert "post_process_function" in changed("post")
    assert "last tool" in changed("last")
    assert "last tool" in changed("two")
    assert "selected_tools" in changed("", selected_tools="x")


def test_a_name_that_the_api_does_not_take() -> None:
    sent = send("3.4.0 openai_tutorial", tools=[{"name": "a name"}])
    assert of_tools(arrived(sent)) == {}
    (notice,) = [one for one in sent.rewritten.plan.notices if one.code == "TOOLS_LEFT_OUT"]  # type: ignore[union-attr]
    assert "'a name'" in notice.reason


def test_cohere_can_t_name_the_tool_so_it_is_declared_alone() -> None:
    sent = send("3.4.0 cohere_messages", tool_choice={"name": "time"})
    assert of_tools(arrived(sent)) == {"tools": OPENAI["tools"][1:], "tool_choice": "REQUIRED"}


def test_strict_reaches_openai_and_is_reported_elsewhere() -> None:
    strict = {"type": "function", "name": "warmth", "parameters": SCHEMA, "strict": True}
    sent = send("3.4.0 openai_tutorial", tools=[strict])
    assert arrived(sent)["tools"][0]["function"]["strict"] is True
    assert "TOOL_NOT_STRICT" not in codes(sent)
    assert "TOOL_NOT_STRICT" in codes(send("3.4.0 bedrock_tutorial", tools=[strict]))


def test_an_agent_that_takes_input_itself_gets_the_body_without_them() -> None:
    profile = replace(clusters("3.8.0", False).profile("v1-openai"), unified_api=True)
    assert profile.generation is Generation.UNIFIED_V1
    written = {"input": "hello", "tools": [WARMTH], "tool_choice": "auto", "x": 1}
    request = read_execute(json.dumps(written).encode())
    assert request.input is not None
    sent = rewrite_native(profile, request, request.input, False, "t", RewriteOptions())
    assert json.loads(b"".join(sent.body or ())) == {"input": "hello", "x": 1}
    assert [notice.code for notice in sent.plan.notices] == ["TOOLS_LEFT_OUT"]
    required = read_execute(json.dumps({**written, "tool_choice": "any"}).encode())
    assert required.input is not None
    with pytest.raises(UndeliverableContent, match="must call one"):
        rewrite_native(profile, required, required.input, False, "t", RewriteOptions())


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40
) | st.sampled_from(["${parameters.question}", "}],[{", "$", '"', "\\", ":-"])


@given(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), st.sampled_from(list(FORMS)))
def test_any_description_and_schema_arrive_exactly_or_are_left_out(
    description: str, properties: dict[str, str], case: str
) -> None:
    schema = {"type": "object", "properties": {name: {"description": text} for name, text in properties.items()}}
    sent = send(case, tools=[{"name": "f", "description": description, "parameters": schema}])
    provider = registry.provider(clusters(case.split()[0], True).profile(f"raw-{case.split()[1]}").provider)
    expected = provider.declare([ToolSpec("f", description, schema)], None)
    assert of_tools(arrived(sent)) == ({} if "TOOLS_LEFT_OUT" in codes(sent) else expected)


TOOLS = [ToolSpec("f", "does it", SCHEMA), ToolSpec("g", "", NONE)]


@pytest.mark.slow
def test_the_sdks_models_take_the_declarations() -> None:
    # Here, as the SDKs' imports take seconds.
    import cohere
    from anthropic.types import ToolChoiceToolParam, ToolParam
    from google.genai import types as gemini
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionNamedToolChoiceParam

    chosen = ClientTools(tuple(TOOLS), required=True, only="f")
    written = registry.provider("openai/v1/chat/completions").declare(TOOLS, chosen)
    adapter(ChatCompletionFunctionToolParam).validate_python(written["tools"], strict=True)
    adapter(ChatCompletionNamedToolChoiceParam).validate_python([written["tool_choice"]], strict=True)
    written = registry.provider("anthropic/v1/messages").declare(TOOLS, chosen)
    adapter(ToolParam).validate_python(written["tools"], strict=True)
    adapter(ToolChoiceToolParam).validate_python([written["tool_choice"]], strict=True)
    written = registry.provider("cohere/v2/chat").declare(TOOLS, None)
    [cohere.ToolV2.model_validate(tool) for tool in written["tools"]]
    written = registry.provider("gemini/v1beta/generatecontent").declare(TOOLS, chosen)
    gemini.Tool.model_validate(written["tools"][0])
    gemini.ToolConfig.model_validate(written["toolConfig"])
    messages = [{"role": "user", "content": [{"text": "a"}]}]
    bedrock.check({"messages": messages, **registry.provider("bedrock/converse").declare(TOOLS, chosen)})
