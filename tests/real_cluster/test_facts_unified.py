"""What `input` does on a real 3.6.0 (facts.md, "3.5 and later"), asked without the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from .agents import MODEL, Agent, Api
from .llm import LLM, Failure, ToolCall
from .speech import DNE, PNG, PROVIDERS, dumps, history, image, message, past, prompted, system, text, turns
from .test_facts import splice, spliced
from .unified import SETTING, unified_body

pytestmark = pytest.mark.real_cluster

IMAGE = {"type": "image", "source": {"type": "base64", "format": "png", "data": PNG}}
BLOCKS = [{"type": "text", "text": "look"}, IMAGE, {"type": "text", "text": "done"}]
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "q1"}, IMAGE]},
    {"role": "assistant", "content": [{"type": "text", "text": "a1"}]},
    {"role": "user", "content": [{"type": "text", "text": "q2"}]},
]
INPUTS = {"text": "hello", "blocks": BLOCKS, "messages": MESSAGES}
LEGACY = ["flow", "cflow", "conv_react", "conv_tools", "per"]


def mapped(provider: str, kind: str) -> list[dict[str, Any]]:
    """`INPUTS[kind]` in the provider's format."""
    if kind == "text":
        return [message(provider, "user", text(provider, "hello"))]
    if kind == "blocks":
        return [message(provider, "user", text(provider, "look"), image(provider), text(provider, "done"))]
    return [*past(provider), message(provider, "user", text(provider, "q2"))]


def refused(result: tuple[int, Any], llm: LLM, status: int, reason: str) -> None:
    got, answer = result
    assert (got, llm.taken()) == (status, []), answer
    assert reason in str(answer)


# --- the setting is off, as shipped


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", ["v1_bedrock", "v2_bedrock", *LEGACY])
def test_off_input_is_400_on_any_agent(
    api: Api, agents: dict[str, Agent], unified_agents: dict[str, str], llm: LLM, name: str, kind: str
) -> None:
    agent_id = unified_agents.get(name) or agents[f"bedrock_{name}_tutorial"].agent_id
    result = api.execute(agent_id, {"input": INPUTS[kind]})
    refused(result, llm, 400, "Standardized input cannot be used if unified agent API is not enabled")


def test_off_registering_a_unified_agent_is_400(api: Api, llm: LLM) -> None:
    result = api.call("POST", "/_plugins/_ml/agents/_register", unified_body("x", "conversational", "bedrock", None))
    refused(result, llm, 400, "Unified agent API is not enabled")


def test_off_unified_v1_still_takes_question_and_v2_does_not(
    api: Api, unified_agents: dict[str, str], llm: LLM
) -> None:
    status, answer = api.execute(unified_agents["v1_bedrock"], {"parameters": {"question": "q"}})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "q")]
    result = api.execute(unified_agents["v2_bedrock"], {"parameters": {"question": "q"}})
    refused(result, llm, 500, "V2 agents require executor-provided memory")


def test_setting_is_dynamic(api: Api, agents: dict[str, Agent], unified_on: None, llm: LLM) -> None:
    shown = api.must("GET", "/_cluster/settings?flat_settings=true")["persistent"]
    assert shown[SETTING] == "true"


# --- on: legacy agents


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("type_", LEGACY)
def test_on_legacy_agent_answers_input_with_500_null_pointer(
    api: Api, agents: dict[str, Agent], unified_on: None, llm: LLM, type_: str, kind: str
) -> None:
    result = api.execute(agents[f"bedrock_{type_}_tutorial"].agent_id, {"input": INPUTS[kind]})
    refused(result, llm, 500, "NullPointerException")


@pytest.mark.parametrize("type_", ["flow", "conv_tools"])
def test_on_legacy_agent_ignores_input_beside_question(
    api: Api, agents: dict[str, Agent], unified_on: None, llm: LLM, type_: str
) -> None:
    body = {"input": "from input", "parameters": {"question": "from question"}}
    status, answer = api.execute(agents[f"openai_{type_}_tutorial"].agent_id, body)
    (received,) = llm.taken()
    assert status == 200, answer
    assert "from question" in dumps(turns(received))
    assert "from input" not in dumps(received)


def test_on_legacy_agent_takes_the_3_4_bodies(api: Api, agents: dict[str, Agent], unified_on: None, llm: LLM) -> None:
    before, turn = past("bedrock"), message("bedrock", "user", *spliced("bedrock"))
    forms: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
        ("tutorial", {}, [prompted("bedrock", "q")]),
        ("tutorial", {"prompt": splice("bedrock"), "no_escape_params": f"{DNE},prompt"}, [turn]),
        ("tutorial", {"_chat_history": history(before)}, [*before, prompted("bedrock", "q")]),
        ("upgraded", {"body": turn}, [turn]),
    ]
    for template, parameters, expected in forms:
        agent_id = agents[f"bedrock_conv_tools_{template}"].agent_id
        status, answer = api.execute(agent_id, {"parameters": {"question": "q", **parameters}})
        assert status == 200, answer
        assert turns(llm.taken()[0]) == expected


# --- on: unified V1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_on_unified_v1_takes_text(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str
) -> None:
    for question in ('hello "quoted" \\ back\nline é 漢字', '{"a": 1}'):
        status, answer = api.execute(unified_agents[f"v1_{provider}"], {"input": question})
        assert status == 200, answer
        assert turns(llm.taken()[0]) == [prompted(provider, question)]


@pytest.mark.parametrize("kind", ["blocks", "messages"])
@pytest.mark.parametrize("name", ["v1_bedrock", "v1_openai", "v1_gemini", "per_bedrock", "per_openai"])
def test_on_unified_v1_refuses_blocks_and_messages(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, name: str, kind: str
) -> None:
    result = api.execute(unified_agents[name], {"input": INPUTS[kind]})
    refused(result, llm, 400, "V1 agents with unified agent interface only support TEXT input type")


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_on_unified_plan_execute_and_reflect_takes_text(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str
) -> None:
    llm.replies('{"steps": [], "result": "done"}')
    status, answer = api.execute(unified_agents[f"per_{provider}"], {"input": "the words"})
    assert status == 200, answer
    assert "the words" in dumps(turns(llm.taken()[0]))


def test_on_unified_v1_input_wins_over_question(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM
) -> None:
    body = {"input": "from input", "parameters": {"question": "from question"}}
    status, answer = api.execute(unified_agents["v1_bedrock"], body)
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "from input")]


def test_on_unified_v1_input_text_with_chat_history(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM
) -> None:
    body = {"input": "last", "parameters": {"_chat_history": history(past("bedrock"))}}
    status, answer = api.execute(unified_agents["v1_bedrock"], body)
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [*past("bedrock"), prompted("bedrock", "last")]


@pytest.mark.parametrize("provider", ["bedrock", "gemini"])
def test_on_unified_v1_gw_text_workaround_delivers_an_image(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str
) -> None:
    parameters = {"gw_text": splice(provider), "no_escape_params": f"{DNE},gw_text"}
    body = {"input": "${parameters.gw_text}", "parameters": parameters}
    status, answer = api.execute(unified_agents[f"v1_{provider}"], body)
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [message(provider, "user", *spliced(provider))]


# --- on: conversational_v2


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_on_v2_takes_text_blocks_and_messages(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str, kind: str
) -> None:
    status, answer = api.execute(unified_agents[f"v2_{provider}"], {"input": INPUTS[kind]})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == mapped(provider, kind)
    assert answer["stop_reason"] == "end_turn"
    assert answer["message"] == {"role": "assistant", "content": [{"text": "the answer"}]}
    assert answer["metrics"] == {"total_usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}}
    assert answer["memory_id"]


@pytest.mark.parametrize("kind", INPUTS)
def test_on_v2_gemini_reaches_the_llm_whole_and_answers_500(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, kind: str
) -> None:
    status, answer = api.execute(unified_agents["v2_gemini"], {"input": INPUTS[kind]})
    assert turns(llm.taken()[0]) == mapped("gemini", kind)
    assert status == 500
    assert answer["error"]["details"] == "parseToUnifiedMessage is not yet supported for Gemini model provider"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_on_v2_question_is_500(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str
) -> None:
    result = api.execute(unified_agents[f"v2_{provider}"], {"parameters": {"question": "q"}})
    refused(result, llm, 500, "V2 agents require executor-provided memory. Use runV2() instead.")


def test_on_v2_ignores_its_system_prompt(api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM) -> None:
    api.execute(unified_agents["v2_bedrock"], {"input": "hi"})
    assert system(llm.taken()[0]) == "You are a helpful assistant"


def test_on_v2_parallel_tool_calls_return_one_result(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM
) -> None:
    uses = [{"toolUse": {"toolUseId": f"c{i}", "name": "ListIndexTool", "input": {}}} for i in (1, 2)]
    asked = {"output": {"message": {"role": "assistant", "content": uses}}, "stopReason": "tool_use"}
    llm.replies(Failure(200, asked))
    api.execute(unified_agents["v2_bedrock"], {"input": "list twice"})
    _, second = llm.taken()
    results = [block for turn in turns(second) for block in turn["content"] if "toolResult" in block]
    assert [one["toolResult"]["toolUseId"] for one in results] == ["c2"]


def test_on_v2_does_not_validate(api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM) -> None:
    ends_in_assistant = MESSAGES[:2]
    status, answer = api.execute(unified_agents["v2_bedrock"], {"input": ends_in_assistant})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == past("bedrock")


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_on_v2_tool_call_runs_and_comes_back(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, provider: str
) -> None:
    llm.replies(ToolCall("ListIndexTool", {"indices": []}))
    status, answer = api.execute(unified_agents[f"v2_{provider}"], {"input": "list"})
    assert status == 200, answer
    first, second = llm.taken()
    assert turns(second)[: len(turns(first))] == turns(first)
    assert len(turns(second)) == len(turns(first)) + 2


# --- on: what the cluster does to a placeholder in native input


@pytest.mark.parametrize(
    ("name", "as_blocks"),
    [("v1_bedrock", False), ("v1_openai", False), ("v2_bedrock", False), ("v2_bedrock", True), ("v2_openai", True)],
)
def test_on_native_input_is_expanded_and_a_helper_parameter_guards_it(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, name: str, as_blocks: bool
) -> None:
    guards = {"gw_p": "${parameters.", "skip_validating_missing_parameters": "true"}
    for question, parameters, arrives in [
        ("tell ${parameters.model}", {}, f"tell {MODEL if 'bedrock' in name else 'gpt-4o'}"),
        ("tell ${parameters.gw_p}model}", guards, "tell ${parameters.model}"),
    ]:
        given = [{"type": "text", "text": question}] if as_blocks else question
        status, answer = api.execute(unified_agents[name], {"input": given, "parameters": parameters})
        assert status == 200, answer
        ((turn,),) = [turns(body) for body in llm.taken()]
        content = turn["content"]
        assert (content if isinstance(content, str) else content[0]["text"]) == arrives


# --- on: memory of V2


def test_memory_container_keeps_v2_turns_as_working_memories(
    api: Api, unified_agents: dict[str, str], container: str, unified_on: None, llm: LLM
) -> None:
    _, answer = api.execute(unified_agents["v2_bedrock"], {"input": "remember this"})
    query = {"query": {"term": {"namespace.session_id": answer["memory_id"]}}, "sort": [{"message_id": "asc"}]}
    path = f"/_plugins/_ml/memory_containers/{container}/memories/working/_search"
    found = [hit["_source"] for hit in api.must("GET", path, query)["hits"]["hits"]]
    messages = [one["structured_data_blob"]["message"] for one in found]
    assert [(one["role"], one["content"][0]["text"]) for one in messages] == [
        ("user", "remember this"),
        ("assistant", "the answer"),
    ]
    assert {(one["payload_type"], one["metadata"]["type"]) for one in found} == {
        ("conversational", "structured_message")
    }


def test_v2_remembers_by_memory_id_and_an_unknown_one_starts_a_session(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM
) -> None:
    agent_id = unified_agents["v2_bedrock"]
    _, first = api.execute(agent_id, {"input": "one"})
    llm.taken()
    api.execute(agent_id, {"input": "two", "parameters": {"memory_id": first["memory_id"]}})
    messages = [("user", "one"), ("assistant", "the answer"), ("user", "two")]
    assert turns(llm.taken()[0]) == [message("bedrock", role, text("bedrock", question)) for role, question in messages]
    status, answer = api.execute(agent_id, {"input": "three", "parameters": {"memory_id": "nosuch"}})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "three")]


# --- on: registration


@pytest.mark.parametrize(
    ("type_", "memory", "reason"),
    [
        ("conversational/v2", {"type": "conversation_index"}, "Invalid Agent Type"),
        ("conversational_v2", None, "require memory configuration"),
        ("conversational_v2", {"type": "conversation_index"}, "not compatible with conversation_index memory"),
    ],
)
def test_on_v2_registration_rules(
    api: Api, unified_on: None, llm: LLM, type_: str, memory: dict[str, str] | None, reason: str
) -> None:
    body = unified_body("x", type_, "bedrock", None) | {"memory": memory}
    body = {key: value for key, value in body.items() if value is not None}
    refused(api.call("POST", "/_plugins/_ml/agents/_register", body), llm, 400, reason)


# --- on: input that is wrong


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (None, 400, "Invalid input format. Expected string or array."),
        (42, 400, "Invalid input format. Expected string or array."),
        (True, 400, "Invalid input format. Expected string or array."),
        ({"type": "text", "text": "x"}, 400, "Invalid input format. Expected string or array."),
        ([], 400, "Input type not supported. Expected String, List<ContentBlock>, or List<Message>"),
        ([1], 500, "null_pointer_exception"),
        ([{"role": "user", "content": "plain"}], 500, "null_pointer_exception"),
        ([{"role": None, "content": BLOCKS}], 500, "null_pointer_exception"),
        ([BLOCKS[0], MESSAGES[0]], 400, "index 1"),
    ],
    ids=["null", "number", "bool", "object", "empty array", "numbers", "string content", "null role", "mixed"],
)
def test_on_wrong_input(
    api: Api,
    unified_agents: dict[str, str],
    unified_on: None,
    llm: LLM,
    given: Any,
    status: int,
    reason: str,
) -> None:
    refused(api.execute(unified_agents["v2_bedrock"], {"input": given}), llm, status, reason)


def test_on_empty_text_is_400_on_v1_and_sent_on_by_v2(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM
) -> None:
    result = api.execute(unified_agents["v1_bedrock"], {"input": ""})
    refused(result, llm, 400, "Text input cannot be null or empty")
    status, answer = api.execute(unified_agents["v2_bedrock"], {"input": ""})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "")]


@pytest.mark.parametrize("status", [400, 429, 500])
def test_on_v2_llm_errors_pass_with_their_status(
    api: Api, unified_agents: dict[str, str], unified_on: None, llm: LLM, status: int
) -> None:
    llm.replies(Failure(status, {"message": "no"}))
    got, answer = api.execute(unified_agents["v2_bedrock"], {"input": "x"})
    assert got == status, answer
    assert len(llm.taken()) == 1
