"""How a real 3.6.0 fills in templates, and what it remembers (facts.md, 3.4.0 and "Rendering, in detail")."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from .agents import MODEL, WIRES, Agent, Api, agent_body, connect, register
from .llm import LLM, Failure, ToolCall
from .speech import (
    DNE,
    Execute,
    cflow_prompt,
    dumps,
    flow_prompt,
    history,
    image,
    message,
    past,
    prompted,
    system,
    text,
    turns,
)
from .test_facts import arrived, memory_of, refused

pytestmark = pytest.mark.real_cluster

SKIP = {"skip_validating_missing_parameters": "true"}


@pytest.mark.parametrize("kind", ["flow", "cflow", "conv_tools"])
@pytest.mark.parametrize("question", ['{"a":1}', '["x"]', '{a:"b"}', '["x",]', ' ["x"]', '["a\tb"]'])
def test_lenient_json_in_question_goes_in_raw_and_its_quotes_break_the_payload(
    execute: Execute, kind: str, question: str
) -> None:
    refused(execute(f"bedrock_{kind}_tutorial", question=question), 400, "Invalid payload")


@pytest.mark.parametrize("kind", ["flow", "cflow"])
def test_lenient_json_in_question_can_rewrite_the_request(execute: Execute, kind: str) -> None:
    question = f"""['a"}},{dumps(image("bedrock"))},{{"text":"']"""
    prompt = flow_prompt if kind == "flow" else cflow_prompt
    before, _, after = prompt("['a|']").partition("|")
    parts = [text("bedrock", before), image("bedrock"), text("bedrock", after)]
    assert arrived(execute(f"bedrock_{kind}_tutorial", question=question)) == [message("bedrock", "user", *parts)]


@pytest.mark.parametrize("question", ["{", '["x" "y"]', "42", '"hi"', "null", '["x"],[2]', '["x"]//c', '{"a":1,"a":2}'])
def test_text_that_is_no_lenient_json_is_escaped(execute: Execute, question: str) -> None:
    assert arrived(execute("bedrock_conv_tools_tutorial", question=question)) == [prompted("bedrock", question)]


def test_placeholder_is_expanded_in_question_chat_history_and_body(execute: Execute) -> None:
    question = "tell ${parameters.model}"
    expanded = f"tell {MODEL}"
    assert arrived(execute("bedrock_conv_tools_tutorial", question=question)) == [prompted("bedrock", expanded)]
    result = execute(
        "bedrock_conv_tools_tutorial", question="q", _chat_history=history([prompted("bedrock", question)])
    )
    assert arrived(result) == [prompted("bedrock", expanded), prompted("bedrock", "q")]
    for body in (prompted("bedrock", question), dumps(prompted("bedrock", question))):
        assert arrived(execute("bedrock_conv_tools_upgraded", question="q", body=body)) == [
            prompted("bedrock", expanded)
        ]


def test_placeholder_unknown_is_refused(execute: Execute) -> None:
    result = execute("bedrock_conv_tools_tutorial", question="${parameters.nosuch}")
    refused(result, 400, "Some parameter placeholder not filled in payload: nosuch")


@pytest.mark.parametrize("kind", ["flow", "cflow", "per"])
def test_placeholder_of_itself_is_an_infinite_loop(execute: Execute, kind: str) -> None:
    # A conversational agent on 3.6 never answers at all (3.4 did, with the same 500), so it is not asked here.
    result = execute(f"bedrock_{kind}_tutorial", question="x ${parameters.question}")
    refused(result, 500, "Infinite loop in property interpolation")


def test_placeholder_of_a_credential_is_never_expanded(execute: Execute) -> None:
    question = "x ${credential.access_key}"
    assert arrived(execute("bedrock_conv_tools_tutorial", question=question)) == [prompted("bedrock", question)]


def test_placeholder_default(execute: Execute) -> None:
    result = execute("bedrock_conv_tools_tutorial", question="x ${parameters.nosuch:-given}")
    assert arrived(result) == [prompted("bedrock", "x given")]


def test_unicode_escaped_dollar_is_safe_in_a_raw_json_string_not_in_an_object(execute: Execute) -> None:
    question = "a ${parameters.model} b"
    raw = dumps(prompted("bedrock", question)).replace("$", "\\u0024")
    result = execute("bedrock_conv_tools_upgraded", question="q", body=raw)
    assert arrived(result) == [prompted("bedrock", question)]
    result = execute("bedrock_conv_tools_tutorial", question="q", _chat_history=f"{raw}, ")
    assert arrived(result) == [prompted("bedrock", question), prompted("bedrock", "q")]
    result = execute("bedrock_conv_tools_upgraded", question="q", body=prompted("bedrock", question))
    assert arrived(result) == [prompted("bedrock", f"a {MODEL} b")]


def test_two_dollars_are_literal_on_flow_one_pass_not_on_conversational(execute: Execute) -> None:
    question = "a $${parameters.model} b"
    result = execute("bedrock_flow_tutorial", question=question, **SKIP)
    assert arrived(result) == [prompted("bedrock", flow_prompt("a ${parameters.model} b"))]
    result = execute("bedrock_conv_tools_tutorial", question=question, **SKIP)
    assert arrived(result) == [prompted("bedrock", f"a {MODEL} b")]


def test_dollar_that_ends_a_value_escapes_the_next_placeholder(execute: Execute) -> None:
    result = execute("bedrock_flow_tutorial", question="${parameters.a}${parameters.b}", a="x$", b="y")
    refused(result, 400, "Some parameter placeholder not filled in payload: b")


def test_unclosed_placeholder_needs_the_skip_flag(execute: Execute) -> None:
    question = "a ${parameters.x"
    refused(
        execute("bedrock_flow_tutorial", question=question), 400, "Some parameter placeholder not filled in payload"
    )
    result = execute("bedrock_flow_tutorial", question=question, **SKIP)
    assert arrived(result) == [prompted("bedrock", flow_prompt(question))]


def test_nameless_placeholder_needs_the_skip_flag(execute: Execute) -> None:
    question = "a ${parameters.} b"
    assert execute("bedrock_flow_tutorial", question=question)[0] == 500
    result = execute("bedrock_flow_tutorial", question=question, **SKIP)
    assert arrived(result) == [prompted("bedrock", flow_prompt(question))]


def test_payload_limits_nesting_and_duplicate_keys(execute: Execute) -> None:
    def nested(levels: int) -> str:
        return '{"role":"user","content":[{"toolUse":{"input":' + '{"a":' * levels + "1" + "}" * levels + "}}]}"

    assert execute("bedrock_conv_tools_upgraded", question="q", body=nested(200))[0] == 200
    refused(execute("bedrock_conv_tools_upgraded", question="q", body=nested(400)), 400, "Invalid payload")
    doubled = '{"role":"user","role":"user","content":[{"text":"x"}]}'
    refused(execute("bedrock_conv_tools_upgraded", question="q", body=doubled), 400, "Invalid payload")


def test_objects_keep_nulls_and_special_characters(execute: Execute) -> None:
    given = {"n": None, "b": True, "i": 1, "f": 1.5, "html": "<a href='x'>&=</a>", "far": "\u2028"}
    turn = message("bedrock", "user", {"toolUse": {"toolUseId": "i", "name": "n", "input": given}})
    assert arrived(execute("bedrock_conv_tools_upgraded", question="q", body=turn)) == [turn]


def test_no_escape_params_of_the_caller_replace_the_agents_own(execute: Execute) -> None:
    result = execute("bedrock_conv_tools_tutorial", question="q", prompt="p", no_escape_params="prompt")
    refused(result, 400, "Invalid payload")
    result = execute("bedrock_conv_tools_tutorial", question="q", prompt="p", no_escape_params=f"{DNE},prompt")
    assert arrived(result) == [prompted("bedrock", "p")]


# --- memory


def test_chat_history_is_overwritten_by_memory_unless_message_history_limit_is_0(execute: Execute) -> None:
    name = "bedrock_conv_tools_tutorial"
    memory_id = memory_of(execute(name, question="one")[1])
    remembered = [prompted("bedrock", "one"), message("bedrock", "assistant", text("bedrock", "the answer"))]
    mine = {"memory_id": memory_id, "_chat_history": history(past("bedrock"))}
    assert arrived(execute(name, question="two", **mine)) == [*remembered, prompted("bedrock", "two")]
    result = execute(name, question="three", message_history_limit=0, **mine)
    assert arrived(result) == [*past("bedrock"), prompted("bedrock", "three")]


def test_memory_stores_question_not_prompt_or_body(api: Api, execute: Execute) -> None:
    sent = {"prompt": "the prompt", "body": prompted("bedrock", "the body")}
    memory_id = memory_of(execute("bedrock_conv_tools_upgraded", question="the question", **sent)[1])
    (stored,) = api.must("GET", f"/_plugins/_ml/memory/{memory_id}/messages")["messages"]
    assert (stored["input"], stored["response"]) == ("the question", "the answer")


def test_memory_replays_expand_a_stored_placeholder(api: Api, execute: Execute) -> None:
    name = "bedrock_conv_tools_tutorial"
    memory_id = memory_of(execute(name, question="in ${parameters.region}")[1])
    (stored,) = api.must("GET", f"/_plugins/_ml/memory/{memory_id}/messages")["messages"]
    assert stored["input"] == "in ${parameters.region}"
    replayed, *_ = arrived(execute(name, question="next", memory_id=memory_id))
    assert replayed == prompted("bedrock", "in us-east-1")


def test_memory_id_empty_starts_anew_and_unknown_is_404(execute: Execute) -> None:
    assert memory_of(execute("bedrock_conv_tools_tutorial", question="q", memory_id="")[1])
    assert execute("bedrock_conv_tools_tutorial", question="q", memory_id="nosuch")[0] == 404


def test_interactions_are_lost_once_a_tool_ran_chat_history_and_prompt_survive(execute: Execute, llm: LLM) -> None:
    llm.replies(ToolCall("ListIndexTool", {"indices": []}))
    mine = {"_chat_history": history(past("bedrock")), "prompt": "the prompt"}
    added = message("bedrock", "user", text("bedrock", "added"))
    status, body, received = execute(
        "bedrock_conv_tools_tutorial", question="q", _interactions=f", {dumps(added)}", **mine
    )
    assert (status, len(received)) == (200, 2), body
    first, second = map(turns, received)
    assert first == [*past("bedrock"), prompted("bedrock", "the prompt"), added]
    assert second[:3] == [*past("bedrock"), prompted("bedrock", "the prompt")]
    assert [list(block) for turn in second[3:] for block in turn["content"]] == [["toolUse"], ["toolResult"]]


# --- what an agent, its tools, connector and model add of their own


def _variant(api: Api, agents: dict[str, Agent], **changes: Any) -> str:
    """A function-calling Bedrock agent on the upgraded connector, with changes to its registration."""
    model_id = agents["bedrock_conv_tools_upgraded"].documents["agent"]["llm"]["model_id"]
    return register(api, agent_body("variant", "conv_tools", WIRES["bedrock"], model_id) | changes)


def test_agent_without_a_prompt_parameter_needs_one(api: Api, agents: dict[str, Agent], llm: LLM) -> None:
    llm_block = {"model_id": agents["bedrock_conv_tools_upgraded"].documents["agent"]["llm"]["model_id"]}
    agent_id = _variant(api, agents, llm=llm_block | {"parameters": {"system_prompt": "s"}})
    status, answer = api.execute(agent_id, {"parameters": {"question": "q"}})
    assert (status, llm.taken()) == (400, [])
    assert answer["error"]["details"].endswith("not filled in payload: tool_descriptions, tool_names")
    status, answer = api.execute(agent_id, {"parameters": {"question": "q", "prompt": "${parameters.question}"}})
    assert status == 200, answer
    assert turns(llm.taken()[0]) == [prompted("bedrock", "q")]


def test_model_tool_inside_a_conversational_agent_inherits_the_requests_body(
    api: Api, agents: dict[str, Agent], llm: LLM
) -> None:
    wire = WIRES["bedrock"]
    model_id = agents["bedrock_conv_tools_upgraded"].documents["agent"]["llm"]["model_id"]
    parameters = {
        "model_id": model_id,
        "prompt": "the tool's own",
        "system_prompt": "s",
        "response_filter": wire.filter,
    }
    schema = '{"type":"object","properties":{"input":{"type":"string"}}}'
    tool = {"type": "MLModelTool", "name": "helper", "description": "helps", "parameters": parameters}
    agent_id = _variant(api, agents, tools=[tool | {"attributes": {"input_schema": schema}}])
    llm.replies(ToolCall("helper", {"input": "x"}))
    body = message("bedrock", "user", text("bedrock", "the client's"), image("bedrock"))
    status, answer = api.execute(agent_id, {"parameters": {"question": "q", "body": body}})
    assert status == 200, answer
    _, tools_call, _ = llm.taken()
    assert turns(tools_call) == [body]


def test_conversational_sets_system_prompt_over_the_connectors_own(api: Api, llm: LLM) -> None:
    own = msgspec.structs.replace(
        WIRES["bedrock"], parameters=WIRES["bedrock"].parameters | {"system_prompt": "the connector's own"}
    )
    _, model_id = connect(api, llm.url, "bedrock", "tutorial", own)
    body = agent_body("own system", "conv_tools", own, model_id)
    del body["llm"]["parameters"]["system_prompt"]
    api.execute(register(api, body), {"parameters": {"question": "q"}})
    assert system(llm.taken()[0]) == "You are a helpful assistant."


def test_system_prompt_of_the_caller_wins(execute: Execute) -> None:
    status, body, received = execute("bedrock_conv_tools_tutorial", question="q", system_prompt='Be "brief".\nok')
    assert status == 200, body
    assert system(received[0]) == 'Be "brief".\nok'


def test_connector_for_claude_v2_gets_an_interface_that_requires_inputs(api: Api, llm: LLM) -> None:
    old = msgspec.structs.replace(
        WIRES["bedrock"], parameters=WIRES["bedrock"].parameters | {"model": "anthropic.claude-v2"}
    )
    _, model_id = connect(api, llm.url, "bedrock", "tutorial", old)
    interface = api.must("GET", f"/_plugins/_ml/models/{model_id}")["interface"]
    assert '"inputs"' in interface["input"]
    agent_id = register(api, agent_body("old model", "conv_tools", old, model_id))
    status, answer = api.execute(agent_id, {"parameters": {"question": "q"}})
    assert (status, llm.taken()) == (400, []), answer
    assert "inputs" in str(answer)


# --- errors


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        ("", 400, "request body is required"),
        ("[1]", 400, "parsing_exception"),
        ('"x"', 400, "parsing_exception"),
        ("null", 400, "parsing_exception"),
        ('{"input": "x"', 400, "json_e_o_f_exception"),
        ('{"parameters": [1]}', 500, "null_pointer_exception"),
    ],
)
def test_malformed_bodies(api: Api, agents: dict[str, Agent], llm: LLM, sent: str, status: int, reason: str) -> None:
    got, answer = api.execute(agents["bedrock_conv_tools_tutorial"].agent_id, sent)
    assert (got, llm.taken()) == (status, [])
    assert reason in str(answer)


def test_unknown_agent_is_404(api: Api, agents: dict[str, Agent]) -> None:
    status, answer = api.execute("nosuch", {"parameters": {"question": "q"}})
    assert (status, answer["error"]["details"]) == (404, "Failed to find agent with the provided agent id: nosuch")


def test_question_missing_is_a_500(execute: Execute) -> None:
    refused(execute("bedrock_conv_tools_tutorial", foo="x"), 500, "NullPointerException")


@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("kind", ["flow", "conv_tools"])
def test_llm_errors_pass_with_their_status(execute: Execute, llm: LLM, kind: str, status: int) -> None:
    llm.replies(Failure(status, {"message": "no"}))
    got, answer, _ = execute(f"openai_{kind}_tutorial", question="q")
    assert (got, answer["error"]["details"]) == (status, 'Error from remote service: {"message": "no"}')


def test_stream_needs_another_transport(api: Api, agents: dict[str, Agent]) -> None:
    path = f"/_plugins/_ml/agents/{agents['bedrock_conv_tools_tutorial'].agent_id}/_execute/stream"
    status, answer = api.call("POST", path, {"parameters": {"question": "q"}})
    assert status == 500
    assert answer["error"]["reason"].startswith("The engine does not support HTTP streaming")
