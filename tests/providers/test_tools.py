"""Tool calls without ids, which only the model can hold: paired by name, then order, under an id made up."""

import json
from typing import Any

import pytest

from gateway.providers.anthropic_messages import AnthropicMessages
from gateway.providers.base import Inexpressible, MappingOptions
from gateway.providers.bedrock_converse import BedrockConverse
from gateway.providers.capabilities import NEUTRAL_RESULT_TEXT, TOOL_ERROR_TEXT
from gateway.providers.cohere_chat import CohereChat
from gateway.providers.gemini import Gemini
from gateway.providers.openai_chat import OpenAIChat
from gateway.unified.model import AgentInput, ContentBlock, InputType, Media, Message, Text, ToolResult, ToolUse, Url

from .mapping import parse
from .test_golden import PROVIDERS


def conversation(*turns: tuple[str, tuple[ContentBlock, ...]]) -> AgentInput:
    return AgentInput(InputType.MESSAGES, tuple(Message(r, c, f"input[{i}]") for i, (r, c) in enumerate(turns)))


def result(text: str, id: str = "", name: str = "") -> ToolResult:
    return ToolResult(id, (Text(text, "input[2].content[0].content"),), False, "input[2].content[0]", name)


CALLS = (ToolUse("", "rain", {}, "input[1].content[0]"), ToolUse("", "snow", {}, "input[1].content[1]"))
GO: tuple[str, tuple[ContentBlock, ...]] = ("user", (Text("go", "input[0].content[0]"),))
BY_NAME = conversation(GO, ("assistant", CALLS), ("tool", (result("s", name="snow"), result("r", name="rain"))))
IN_ORDER = conversation(GO, ("assistant", CALLS), ("tool", (result("r"), result("s"))))
NOTICES = [("input[1].content[0]", "TOOL_ID_ADDED"), ("input[1].content[1]", "TOOL_ID_ADDED")]


TEXT, OUTPUT = Text("x", "input[2].content[0].content[0]"), {"type": "text", "text": "x"}
PNG = Media("image", "png", Url("https://example.com/a.png"), "input[2].content[0].content[1]")
SENT_PNG = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
FAILED = [
    (False, (), {}),
    (False, (TEXT, PNG), {"content": [OUTPUT, SENT_PNG]}),
    (True, (), {"content": [{"type": "text", "text": NEUTRAL_RESULT_TEXT}], "is_error": True}),
    (True, (TEXT,), {"content": [OUTPUT], "is_error": True}),
    (True, (TEXT, PNG), {"content": [{"type": "text", "text": TOOL_ERROR_TEXT}, OUTPUT, SENT_PNG]}),
]


def mapped(provider: Any, agent_input: AgentInput, *others: tuple[str, str]) -> list[dict[str, Any]]:
    request = provider.map(agent_input, MappingOptions())
    assert [(notice.place, notice.code) for notice in request.notices] == [*NOTICES, *others]
    messages: list[dict[str, Any]] = request.messages
    return messages


def test_gemini() -> None:
    calls, results = mapped(Gemini(), BY_NAME, ("input[2].content[0]", "BLOCKS_REORDERED"))[1:]
    assert [part["functionCall"]["id"] for part in calls["parts"]] == ["call_1", "call_2"]
    assert [(p["functionResponse"]["id"], p["functionResponse"]["response"]) for p in results["parts"]] == [
        ("call_1", {"output": "r"}),
        ("call_2", {"output": "s"}),
    ]
    assert [part["functionResponse"]["id"] for part in mapped(Gemini(), IN_ORDER)[2]["parts"]] == ["call_1", "call_2"]


def test_openai() -> None:
    calls, first, second = mapped(OpenAIChat(), BY_NAME)[1:]
    assert [call["id"] for call in calls["tool_calls"]] == ["call_1", "call_2"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["call_2", "call_1"]


def test_bedrock() -> None:
    calls, results = mapped(BedrockConverse(), BY_NAME)[1:]
    assert [part["toolUse"]["toolUseId"] for part in calls["content"]] == ["call_1", "call_2"]
    assert [part["toolResult"]["toolUseId"] for part in results["content"]] == ["call_2", "call_1"]


def test_anthropic() -> None:
    calls, results = mapped(AnthropicMessages(), BY_NAME)[1:]
    assert [part["id"] for part in calls["content"]] == ["call_1", "call_2"]
    assert [part["tool_use_id"] for part in results["content"]] == ["call_2", "call_1"]


@pytest.mark.parametrize(("failed", "parts", "expected"), FAILED)
def test_anthropics_failed_results(failed: bool, parts: tuple[Any, ...], expected: dict[str, Any]) -> None:
    """A result with `is_error` is not empty and holds text only."""
    results = ToolResult("t", parts, failed, "input[2].content[0]")
    call = ToolUse("t", "rain", {}, "input[1].content[0]")
    request = AnthropicMessages().map(conversation(GO, ("assistant", (call,)), ("user", (results,))), MappingOptions())
    assert request.messages[2]["content"] == [{"type": "tool_result", "tool_use_id": "t", **expected}]


def test_an_id_made_up_is_nobody_elses() -> None:
    calls = (ToolUse("", "rain", {}, "input[1].content[0]"), ToolUse("call_1", "snow", {}, "input[1].content[1]"))
    agent_input = conversation(GO, ("assistant", calls), ("tool", (result("s", id="call_1"), result("r"))))
    _, sent, results = Gemini().map(agent_input, MappingOptions()).messages
    assert [part["functionCall"]["id"] for part in sent["parts"]] == ["call_1-2", "call_1"]
    answers = [part["functionResponse"] for part in results["parts"]]
    assert [(answer["id"], answer["response"]) for answer in answers] == [
        ("call_1-2", {"output": "r"}),
        ("call_1", {"output": "s"}),
    ]


@pytest.mark.parametrize(
    "provider", [BedrockConverse(), OpenAIChat(), Gemini(), AnthropicMessages(), CohereChat()], ids=lambda p: p.name
)
def test_a_result_of_another_name_or_given_twice_is_refused(provider: Any) -> None:
    for results, problems in (
        ((result("r", name="hail"),), ["TOOL_RESULT_UNMATCHED", "TOOL_CALL_UNANSWERED", "TOOL_CALL_UNANSWERED"]),
        ((result("r"), result("s"), result("t")), ["TOOL_RESULT_UNMATCHED"]),
    ):
        with pytest.raises(Inexpressible) as refusal:
            provider.map(conversation(GO, ("assistant", CALLS), ("tool", results)), MappingOptions())
        assert [problem.code for problem in refusal.value.problems] == problems


@pytest.mark.parametrize(
    "provider", [BedrockConverse(), OpenAIChat(), Gemini(), AnthropicMessages(), CohereChat()], ids=lambda p: p.name
)
def test_long_ids_are_cut_where_problems_show_them(provider: Any) -> None:
    """Each unmatched result names several open calls, so whole ids would add up to many times the request."""
    calls = tuple(ToolUse(f"{n}" + "x" * 10_000, "rain", {}, f"input[1].content[{n}]") for n in range(5))
    results = tuple(result("r", id="y" * 10_000) for _ in range(5))
    with pytest.raises(Inexpressible) as refusal:
        provider.map(conversation(GO, ("assistant", calls), ("tool", results)), MappingOptions())
    assert len(refusal.value.problems) == 10
    assert all(len(problem.expected + problem.received) < 1000 for problem in refusal.value.problems)


BY_ITS_NAME = {"role": "user", "content": [{"functionResponse": {"name": "f", "response": {"output": ""}}}]}
EMPTY_RESULTS = [
    BY_ITS_NAME,
    *(
        {"role": "tool", "toolCallId": "c", **content}
        for content in ({}, {"content": None}, {"content": ""}, {"content": []})
    ),
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": ""}]},
    *(
        {"role": "user", "content": [block]}
        for block in (
            {"toolResult": {"toolUseId": "c"}},
            {"toolResult": {"toolUseId": "c", "content": []}},
            {"toolResult": {"toolUseId": "c", "content": [{"text": ""}]}},
            {"toolResult": {"toolUseId": "c", "content": "", "status": "error"}},
            {"type": "tool_result", "tool_use_id": "c"},
            {"type": "tool_result", "tool_use_id": "c", "content": "", "is_error": True},
            {"type": "tool-result", "toolCallId": "c", "output": {"type": "text", "value": ""}},
            {"type": "tool-result", "toolCallId": "c", "output": {"type": "error-text", "value": ""}},
            {"functionResponse": {"id": "c", "name": "f", "response": {"error": ""}}},
        )
    ),
]


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("result", EMPTY_RESULTS, ids=json.dumps)
def test_an_empty_result_in_any_spelling_is_one_that_the_api_takes(name: str, result: dict[str, Any]) -> None:
    provider, check = PROVIDERS[name]
    without_id = result == {
        "role": "user",
        "content": [{"functionResponse": {"name": "f", "response": {"output": ""}}}],
    }
    call = {"toolUse": {"name": "f", "input": {}, **({} if without_id else {"toolUseId": "c"})}}
    asked = parse([{"role": "user", "content": "go"}, {"role": "assistant", "content": [call]}, result])
    fields = provider.fields(provider.map(asked, MappingOptions()))
    check(fields)
    assert len(fields[provider.messages_field]) == 3
