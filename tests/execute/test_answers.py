"""What is read of an agent's answer: recorded ones of every type and version, and anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.execute.output import unified_answer, with_memory_id
from gateway.execute.run_answer import RunAnswer, read_answer
from gateway.execute.run_events import (
    AnswerReader,
    CallArguments,
    CallEnd,
    CallStart,
    RunEnded,
    RunEvent,
    RunFailed,
    SessionNamed,
    TextDelta,
    ToolResult,
)
from gateway.memory.model import Message, Metadata, Usage
from gateway.mlcommons.profile import AgentProfile
from gateway.providers.registry import provider
from tests.agents.recorded import profile_of

RECORDINGS = Path(__file__).parents[1] / "recordings"
STREAMS = json.loads((Path(__file__).parent / "recorded" / "streams_3.8.0.json").read_text("utf-8"))

FLOW = profile_of("2.19.0", "flow-a")
CFLOW = profile_of("2.19.0", "cflow-d")
REACT = profile_of("2.19.0", "conv-b")
CALLING = profile_of("3.4.0", "br_conv")
CALLING_OPENAI = profile_of("3.4.0", "oa_conv_up")
PLANNER = profile_of("3.4.0", "br_per_tut")
V1 = profile_of("3.6.0", "u_bedrock_conv")
V2 = profile_of("3.6.0", "v2_bedrock")
AG_UI = profile_of("3.8.0", "agui")
INDICES = "<list of indices>"
ARGUMENTS = {"question": 'tool arg "q"', "input": "x", "index": "*"}


def recorded(version: str, file: str, name: str) -> Any:
    lines = (RECORDINGS / version / file).read_text("utf-8").strip().split("\n")
    return next(one for one in map(json.loads, lines) if one["name"] == name)["answer"]


def without_filter(profile: AgentProfile) -> AgentProfile:
    """The same agent, where nothing takes the text out of the LLM's response."""

    def plain(parameters: Any) -> dict[str, str]:
        return {name: value for name, value in parameters.items() if name != "response_filter"}

    def plain_model(model: Any) -> Any:
        connector = msgspec.structs.replace(model.connector, parameters=plain(model.connector.parameters))
        return msgspec.structs.replace(model, connector=connector)

    tools = [
        msgspec.structs.replace(tool, parameters=plain(tool.parameters), model=tool.model and plain_model(tool.model))
        for tool in profile.tools
    ]
    return msgspec.structs.replace(
        profile,
        parameters=plain(profile.parameters),
        llm=profile.llm and plain_model(profile.llm),
        llm_parameters=plain(profile.llm_parameters),
        tools=tuple(tools),
    )


def text_message(text: str, usage: Usage | None = None) -> Message:
    return Message("assistant", ({"text": text},), Metadata(usage=usage))


def call(id: str, name: str, arguments: Any, text: str = "", usage: Usage | None = None) -> Message:
    use = {"toolUse": {"toolUseId": id, "name": name, "input": arguments}}
    return Message("assistant", (*([{"text": text}] if text else []), use), Metadata(usage=usage))


def result(id: str, output: str, status: str = "success") -> Message:
    return Message("user", ({"toolResult": {"toolUseId": id, "status": status, "content": [{"text": output}]}},))


def plain(text: str, memory_id: str = "") -> RunAnswer:
    return RunAnswer(text, (text_message(text),), memory_id=memory_id)


ONE_CALL = Usage(11, 7, 18)
RECORDED: dict[str, tuple[AgentProfile, tuple[str, str, str], RunAnswer]] = {
    "flow": (FLOW, ("2.19.0", "04_execute_basic.jsonl", "flow_c_question"), plain("FAKE-ANSWER-61")),
    "flow of two tools": (FLOW, ("2.19.0", "04_execute_basic.jsonl", "flow_2tools"), plain("FAKE-ANSWER-150")),
    "flow, whole response of the LLM": (
        without_filter(FLOW),
        ("2.19.0", "04_execute_basic.jsonl", "flow_raw"),
        RunAnswer("FAKE-ANSWER-151", (text_message("FAKE-ANSWER-151", ONE_CALL),), ONE_CALL, "end_turn"),
    ),
    "flow, without names": (FLOW, ("2.19.0", "07_errors.jsonl", "filter_path"), plain("FAKE-ANSWER-330")),
    "not JSON": (FLOW, ("2.19.0", "07_errors.jsonl", "yaml_content_type"), RunAnswer()),
    "conversational_flow": (
        CFLOW,
        ("2.19.0", "04_execute_basic.jsonl", "cflow_c_question"),
        plain("FAKE-ANSWER-62", "0XXu_6EBm8w0PCMjnWJ5"),
    ),
    "conversational": (
        REACT,
        ("2.19.0", "04_execute_basic.jsonl", "conv_c_question"),
        plain("FAKE-ANSWER-63", "1HXu_6EBm8w0PCMjn2K7"),
    ),
    "conversational, verbose without steps": (
        REACT,
        ("2.19.0", "06_hazards_tricks.jsonl", "conv_d_verbose"),
        plain("FAKE-ANSWER-283", "tnXx_6EBm8w0PCMjfGSo"),
    ),
    "conversational, whole response of the LLM": (
        without_filter(CALLING),
        ("2.19.0", "06_hazards_tricks.jsonl", "conv_raw"),
        plain(
            recorded("2.19.0", "06_hazards_tricks.jsonl", "conv_raw")["inference_results"][0]["output"][2]["dataAsMap"][
                "response"
            ],
            "vnXx_6EBm8w0PCMjfWTw",
        ),
    ),
    "function calling, verbose": (
        CALLING,
        ("3.4.0", "3.4.0.jsonl", "br_conv.verbose"),
        RunAnswer(
            "final answer after tool (call 58)",
            (
                call("call_57_1", "ListIndexTool", ARGUMENTS, "let me use a tool", ONE_CALL),
                result("call_57_1", INDICES),
                text_message("final answer after tool (call 58)"),
            ),
            memory_id="OZz1_6EBqnFV9lEsgBr8",
        ),
    ),
    "in the background": (
        CALLING,
        ("3.4.0", "3.4.0.jsonl", "async"),
        RunAnswer(memory_id="Apz3_6EBqnFV9lEskBsJ"),
    ),
    "planner": (
        PLANNER,
        ("3.4.0", "3.4.0.jsonl", "br_per_tut.full_question"),
        plain("PER final result", "Bpz3_6EBqnFV9lEs2xuU"),
    ),
    "unified V1": (
        V1,
        ("3.6.0", "31_memory_unified_v1.jsonl", "v1_br.default.turn1"),
        plain("fake answer 56", "Jk8oAqIBdpGTQLLwFiHs"),
    ),
    "unified V2": (
        V2,
        ("3.8.0", "35_conversational_v2_own_model.jsonl", "max_iteration.execute"),
        RunAnswer(
            "let me use a tool",
            (text_message("let me use a tool"),),
            Usage(22, 14, 36),
            "max_iterations",
            "5bItAqIB1lGlp6pEdAry",
        ),
    ),
}


@pytest.mark.parametrize("case", RECORDED)
def test_a_recorded_answer(case: str) -> None:
    profile, where, expected = RECORDED[case]
    assert read_answer(profile, json.dumps(recorded(*where)).encode()) == expected


def test_a_react_agent_shows_its_steps() -> None:
    body = json.dumps(recorded("2.19.0", "04_execute_basic.jsonl", "conv_d_react_tool_then_final")).encode()
    answer = read_answer(REACT, body)
    id = answer.messages[0].content[0]["toolUse"]["toolUseId"]
    assert answer.messages == (
        call(id, "CatIndexTool", {"input": "[]"}),
        result(id, INDICES),
        text_message("There are indices."),
    )
    assert answer.text == "There are indices."


def legacy(*outputs: Any) -> bytes:
    return json.dumps({"inference_results": [{"output": outputs}]}).encode()


def verbose(*texts: str) -> bytes:
    return legacy({"name": "memory_id", "result": "m"}, *({"name": "response", "result": text} for text in texts))


def react(action: Any, action_input: Any) -> str:
    return json.dumps({"thought": "t", "action": action, "action_input": action_input})


def test_calls_of_two_runs_never_share_an_id() -> None:
    bodies = (verbose(react("A", "1"), "x", react("A", "2"), "x", end) for end in ("one", "two"))
    messages = [message for body in bodies for message in read_answer(REACT, body).messages]
    ids = [block["toolUse"]["toolUseId"] for m in messages for block in m.content if "toolUse" in block]
    assert len(ids) == len(set(ids)) == 4


def test_the_action_of_a_react_agent_is_the_tool_that_the_cluster_runs() -> None:
    tool = REACT.tools[0].key
    first = read_answer(REACT, verbose(react(f"Use {tool.upper()}!", '{"a": 1}'), "x", "end")).messages[0]
    assert (first.content[0]["toolUse"]["name"], first.content[0]["toolUse"]["input"]) == (tool, {"a": 1})


def test_a_failed_tool_is_an_error() -> None:
    failure = "Failed to run the tool CatIndexTool with the error message no permissions."
    answer = read_answer(REACT, verbose(react("CatIndexTool", ""), failure, "Sorry."))
    id = answer.messages[0].content[0]["toolUse"]["toolUseId"]
    assert answer.messages[1] == result(id, failure, "error")


def test_a_step_without_output_is_left_out() -> None:
    assert read_answer(REACT, verbose(react("A", ""), "stopped")).messages == (text_message("stopped"),)


def test_only_the_call_that_the_cluster_ran_is_in_the_conversation() -> None:
    uses = [{"toolUse": {"toolUseId": id, "name": "ListIndexTool", "input": {}}} for id in ("a", "b")]
    response = {"output": {"message": {"role": "assistant", "content": uses}}}
    answer = read_answer(CALLING, verbose(json.dumps(response), "x", "end"))
    assert answer.messages == (call("a", "ListIndexTool", {}), result("a", "x"), text_message("end"))


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_call_without_a_name_is_left_out(name: Any) -> None:
    message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": name, "input": {}}}]}
    response = json.dumps({"output": {"message": message}})
    assert read_answer(CALLING, verbose(response, "x", "end")).messages == (text_message("end"),)


def test_outputs_of_tools_in_the_additional_info() -> None:
    data = {"response": "Two.", "additional_info": {"ListIndexTool.output": ["one", "two"], "other": "x"}}
    answer = read_answer(CALLING, legacy({"name": "response", "dataAsMap": data}))
    calls, results, final = answer.messages
    assert calls.metadata.extra == {"tool_input": "unknown"}
    ids = [block["toolUse"]["toolUseId"] for block in calls.content]
    assert [block["toolUse"]["name"] for block in calls.content] == ["ListIndexTool", "ListIndexTool"]
    assert results.content == (*result(ids[0], "one").content, *result(ids[1], "two").content)
    assert final == text_message("Two.")


@pytest.mark.parametrize("profile", [REACT, CALLING, PLANNER, V1], ids=lambda profile: profile.id)
def test_ids_whose_names_the_client_filtered_out_are_no_answer(profile: AgentProfile) -> None:
    """As ``?filter_path=inference_results.output.result`` leaves them."""
    assert read_answer(profile, legacy({"result": "memory"}, {"result": "interaction"})) == RunAnswer()
    found = read_answer(profile, legacy({"result": "memory"}, {"dataAsMap": {"response": "Two."}}))
    assert (found.text, found.messages) == ("Two.", (text_message("Two."),))


@pytest.mark.parametrize("profile", [FLOW, CFLOW], ids=lambda profile: profile.id)
def test_the_last_output_of_a_flow_is_its_answer_without_its_name_too(profile: AgentProfile) -> None:
    assert read_answer(profile, legacy({"result": "memory"}, {"result": "Two."})).text == "Two."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Agent reached maximum iterations (10) without completing the task. Last thought: hm", "max_iterations"),
        ("Max Steps Limit (20) Reached. Use memory_id with same task to restart.", "max_iterations"),
        ("It says: Agent reached maximum iterations (10) without completing the task", ""),
    ],
)
def test_an_agent_that_was_stopped_at_its_limit(text: str, reason: str) -> None:
    answer = read_answer(CALLING, legacy({"name": "response", "dataAsMap": {"response": text}}))
    assert (answer.text, answer.stop_reason) == (text, reason)


def test_a_flow_whose_llm_calls_a_tool_of_the_client() -> None:
    message = {
        "role": "assistant",
        "content": [{"text": "Let me see."}, {"toolUse": {"toolUseId": "t", "name": "rain"}}],
    }
    body = legacy(
        {"name": "response", "result": json.dumps({"output": {"message": message}, "stopReason": "tool_use"})}
    )
    answer = read_answer(without_filter(FLOW), body)
    assert answer == RunAnswer("Let me see.", (call("t", "rain", {}, "Let me see."),), stop_reason="tool_use")


def test_text_that_looks_like_a_response_is_text_where_the_cluster_takes_the_text_out() -> None:
    example = json.dumps({"output": {"message": {"role": "assistant", "content": [{"text": "an example"}]}}})
    assert read_answer(CALLING, legacy({"name": "response", "dataAsMap": {"response": example}})).text == example


@pytest.mark.parametrize(
    "name", ["openai/v1/chat/completions", "gemini/v1beta/generatecontent", "anthropic/v1/messages", "cohere/v2/chat"]
)
def test_every_provider_is_read(name: str) -> None:
    responses = {
        "openai/v1/chat/completions": {
            "choices": [{"message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3.0, "completion_tokens": 5.0},
        },
        "gemini/v1beta/generatecontent": {
            "candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "MAX_TOKENS"}],
            "usageMetadata": {"promptTokenCount": 3.0, "candidatesTokenCount": 5.0},
        },
        "anthropic/v1/messages": {
            "type": "message",
            "content": [{"type": "text", "text": "a"}],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 3.0, "output_tokens": 5.0},
        },
        "cohere/v2/chat": {
            "message": {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            "finish_reason": "MAX_TOKENS",
            "usage": {"tokens": {"input_tokens": 3.0, "output_tokens": 5.0}},
        },
    }
    profile = msgspec.structs.replace(without_filter(FLOW), provider=provider(name).name)
    body = legacy({"name": "response", "result": json.dumps(responses[name])})
    usage = Usage(3, 5, 8)
    assert read_answer(profile, body) == RunAnswer("a", (text_message("a", usage),), usage, "max_tokens")
    unknown = msgspec.structs.replace(profile, provider="")
    assert read_answer(unknown, body) == read_answer(profile, body)


STREAMED = {
    "text": (
        CALLING_OPENAI,
        "stream.leg.question",
        RunAnswer("fake answer 426 ", (text_message("fake answer 426 "),), memory_id="6TQFAKIByH5265j2WvGy"),
    ),
    "tool": (
        CALLING_OPENAI,
        "stream.leg.tool",
        RunAnswer(
            "final answer after tool (call 428) ",
            (
                call("call_427_1", "ListIndexTool", ARGUMENTS),
                result("call_427_1", INDICES),
                text_message("final answer after tool (call 428) "),
            ),
            memory_id="7DQFAKIByH5265j2YvEl",
        ),
    ),
    "unified V1": (
        V1,
        "stream.unified.input_params",
        RunAnswer("fake answer 1 ", (text_message("fake answer 1 "),), memory_id="-jQFAKIByH5265j29fH2"),
    ),
    "error of the cluster": (CALLING_OPENAI, "stream.leg.input", RunAnswer(failed=True)),
    "error of the LLM": (CALLING_OPENAI, "stream.leg.fail400", RunAnswer(failed=True)),
    "AG-UI, tool of the agent": (
        AG_UI,
        "agui.frontend_tool",
        RunAnswer(
            "final answer after tool (call 431) ",
            (
                call("call_430_1", "ListIndexTool", ARGUMENTS),
                result("call_430_1", INDICES),
                text_message("final answer after tool (call 431) "),
            ),
        ),
    ),
    "AG-UI, tool of the client": (
        AG_UI,
        "agui.frontend_tool_call",
        RunAnswer("", (call("call_4_1", "show_alert", {"message": 'hi "there"'}),), stop_reason="tool_use"),
    ),
    "AG-UI, error": (AG_UI, "agui.text", RunAnswer(failed=True)),
    "AG-UI, sent input": (
        AG_UI,
        "agui.input_field",
        RunAnswer("fake answer 8 ", (text_message("fake answer 8 "),), memory_id="BzQFAKIByH5265j2_PIs"),
    ),
}


def streamed(profile: AgentProfile, body: bytes, size: int) -> RunAnswer:
    reader = AnswerReader(profile)
    for begin in range(0, len(body), size):
        reader.feed(body[begin : begin + size])
    return reader.answer()


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("case", STREAMED)
def test_a_recorded_stream(case: str, size: int) -> None:
    profile, name, expected = STREAMED[case]
    body = STREAMS[name].encode()
    assert streamed(profile, body, size) == expected
    assert streamed(profile, body.replace(b"\n", b"\r\n"), size) == expected


EVENTS: dict[str, list[RunEvent]] = {
    "tool": [
        SessionNamed("7DQFAKIByH5265j2YvEl"),
        CallStart("call_427_1", "ListIndexTool"),
        CallArguments("call_427_1", '{"question":"tool arg \\"q\\"","input":"x","index":"*"}'),
        CallEnd("call_427_1"),
        ToolResult("call_427_1", INDICES),
        *map(TextDelta, ["final ", "answer ", "after ", "tool ", "(call ", "428) "]),
        RunEnded(),
    ],
    "AG-UI, tool of the client": [
        CallStart("call_4_1", "show_alert"),
        CallArguments("call_4_1", '{"message": "hi \\"there\\""}'),
        CallEnd("call_4_1"),
        RunEnded(),
    ],
    "AG-UI, error": [RunFailed("", "Memory [t1] not found")],
    "error of the cluster": [RunFailed("", "Expected RemoteInferenceInputDataSet for agent execution")],
    "error of the LLM": [
        RunFailed(
            "",
            'Error from remote service: {"error": {"message": "fake openai error 400", '
            '"type": "invalid_request_error", "param": null, "code": null}}',
        ),
        RunEnded(),
    ],
}


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("case", EVENTS)
def test_the_events_of_a_recorded_stream(case: str, size: int) -> None:
    profile, name, _ = STREAMED[case]
    body, reader = STREAMS[name].encode(), AnswerReader(profile)
    pieces = (body[begin : begin + size] for begin in range(0, len(body), size))
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS[case]


START = {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f"}
ARGS = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"}
END = {"type": "TOOL_CALL_END", "toolCallId": "c"}
RESULT = {"type": "TOOL_CALL_RESULT", "toolCallId": "c", "content": "x"}
FINISHED = {"type": "RUN_FINISHED"}
BEGUN = [CallStart("c", "f"), CallArguments("c", "{}"), CallEnd("c")]
AGAIN = [CallStart("c_2", "f"), CallArguments("c_2", "{}"), CallEnd("c_2")]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([START, ARGS, FINISHED], [*BEGUN, RunEnded()]),
        ([START, ARGS, RESULT, FINISHED], [*BEGUN, ToolResult("c", "x"), RunEnded()]),
        ([START, START, ARGS, END, END, ARGS, START, FINISHED], [*BEGUN, RunEnded()]),
        ([ARGS, END, RESULT, FINISHED, FINISHED], [RunEnded()]),
        ([START, ARGS, END, RESULT, RESULT], [*BEGUN, ToolResult("c", "x")]),
        (
            [START, ARGS, END, RESULT, START, ARGS, RESULT, FINISHED],
            [*BEGUN, ToolResult("c", "x"), *AGAIN, ToolResult("c_2", "x"), RunEnded()],
        ),
    ],
    ids=["not ended", "result before the end", "twice", "not begun", "two results", "the same id again"],
)
def test_each_call_of_an_ag_ui_stream_has_one_beginning_and_one_end(sent: list[Any], expected: list[RunEvent]) -> None:
    reader = AnswerReader(AG_UI)
    assert [event for one in sent for event in reader.feed(b"data: %b\n\n" % json.dumps(one).encode())] == expected


def test_a_stream_without_its_last_event_has_failed() -> None:
    body = STREAMS["stream.leg.question"].encode()
    answer = streamed(CALLING_OPENAI, body[: body.rindex(b"data:")], 64)
    assert answer == RunAnswer(memory_id="6TQFAKIByH5265j2WvGy", failed=True)


def test_a_stream_that_is_too_long_is_not_collected() -> None:
    body = STREAMS["stream.leg.question"].encode()
    reader = AnswerReader(CALLING_OPENAI, most=len(body) - 1)
    reader.feed(body)
    reader.feed(body)
    assert reader.answer() == RunAnswer(failed=True)


def test_the_unified_form_is_that_of_a_v2_agent() -> None:
    native = recorded("3.8.0", "35_conversational_v2_own_model.jsonl", "max_iteration.execute")
    run = read_answer(V2, json.dumps(native).encode())
    assert json.loads(unified_answer(run, run.memory_id)) == native


def test_counts_that_are_not_reported_are_not_in_the_unified_form() -> None:
    run = RunAnswer("Hi.", (call("a", "t", {}), result("a", "x"), text_message("Hi.")), memory_id="m")
    assert json.loads(unified_answer(run, "gws-1")) == {
        "stop_reason": "end_turn",
        "message": {"role": "assistant", "content": [{"text": "Hi."}]},
        "memory_id": "gws-1",
        "metrics": {"total_usage": {}},
    }
    assert json.loads(unified_answer(RunAnswer(""), ""))["message"]["content"] == [{"text": ""}]


MEMORY = b'{"name":"memory_id","result":"gws-1"}'
WITH_ID = {
    "conversational": (
        b'{"took":1.0, "inference_results":[{"output":[{"name":"memory_id","result":"m"},'
        b'{"name":"parent_message_id", "result":"p"},{"name":"response","dataAsMap":{"response":"\\u00e9 \\/"}}]}]}',
        b'{"took":1.0,"inference_results":[{"output":[%b,'
        b'{"name":"parent_message_id", "result":"p"},{"name":"response","dataAsMap":{"response":"\\u00e9 \\/"}}]}]}'
        % MEMORY,
    ),
    "flow": (
        b'{"inference_results":[{"output":[{"name":"response","result":"a"}],"x":1e0},7]}',
        b'{"inference_results":[{"output":[%b,{"name":"response","result":"a"}],"x":1e0},7]}' % MEMORY,
    ),
    "unified": (
        b'{"stop_reason":"end_turn","message":{"content":[ ]},"memory_id":"m","metrics":{"a":1.0}}',
        b'{"stop_reason":"end_turn","message":{"content":[ ]},"memory_id":"gws-1","metrics":{"a":1.0}}',
    ),
    "in the background": (b'{"task_id": "t", "response": {"memory_id": "m"}}',) * 2,
    "error": (b'{"error": {"reason": "no"}, "status": 400}',) * 2,
    "no outputs": (b'{"inference_results": [7]}',) * 2,
    "text": (b"--- a\n",) * 2,
    "nothing": (b"",) * 2,
}


@pytest.mark.parametrize("case", WITH_ID)
def test_the_id_of_a_session_in_an_answer(case: str) -> None:
    body, expected = WITH_ID[case]
    assert with_memory_id(body, "gws-1") == expected


MEMBERS = ("inference_results", "output", "name", "result", "dataAsMap", "response", "content", "is_last", "message")
MORE = ("additional_info", "A.output", "metrics", "total_usage", "inputTokens", "memory_id", "text", "type", "delta")
TEXTS = ("response", "memory_id", "{", "[{", '{"action": "a"}', '[{"function":1}]', "TOOL_CALL_START", "RUN_FINISHED")
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(TEXTS)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from((*MEMBERS, *MORE, "toolCallId", "choices", "error")), inner, max_size=4)
    ),
)


def output_of(value: Any) -> bytes:
    return json.dumps({"inference_results": [{"output": value}]}).encode()


@pytest.mark.parametrize("profile", [FLOW, REACT, CALLING, PLANNER, V1, V2, AG_UI], ids=lambda profile: profile.type)
@given(value=anything, outputs=st.lists(anything, max_size=4), junk=st.binary(max_size=20))
def test_anything_is_read_or_not(profile: AgentProfile, value: Any, outputs: Any, junk: bytes) -> None:
    bodies = [json.dumps(value).encode(), output_of(outputs), json.dumps({"message": value}).encode(), junk]
    deep = b'{"inference_results":' + b"[" * 100_000
    for body in (*bodies, deep):
        run = read_answer(profile, body)
        json.loads(unified_answer(run, "m"))
        with_memory_id(body, "gws-1")
    reader = AnswerReader(profile)
    for body in bodies:
        reader.feed(b"data: " + body + b"\n\n")
    json.loads(unified_answer(reader.answer(), "m"))
