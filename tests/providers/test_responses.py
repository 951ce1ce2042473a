"""`read_response`: the answers that the recordings and the vendors' documentation show, and anything else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.base import LlmResponse, ToolCall, Usage
from gateway.providers.registry import provider, providers

BEDROCK, OPENAI, GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"
ANTHROPIC, INVOKE, NOVA = "anthropic/v1/messages", "bedrock-invoke/anthropic", "amazon-nova/invoke"
COHERE = "cohere/v2/chat"
RAIN = ToolCall("t1", "rain", {"city": "Bern"})


def converse(*parts: Any, **usage: int) -> Any:
    return {"output": {"message": {"role": "assistant", "content": list(parts)}}, "usage": usage}


def chat(usage: Any = None, **message: Any) -> Any:
    return {"choices": [{"message": {"role": "assistant", **message}}], **({"usage": usage} if usage else {})}


def gemini(*parts: Any, **usage: int) -> Any:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}}], "usageMetadata": usage}


def message(*parts: Any, **usage: int) -> Any:
    return {"type": "message", "role": "assistant", "content": list(parts), **({"usage": usage} if usage else {})}


def cohere(**message: Any) -> Any:
    usage = {"billed_units": {"input_tokens": 1, "output_tokens": 5}, "tokens": {"input_tokens": 3, "output_tokens": 5}}
    return {"id": "c", "message": {"role": "assistant", **message}, "usage": usage}


FUNCTION = {"id": "t1", "type": "function", "function": {"name": "rain", "arguments": '{"city":"Bern"}'}}
CASES = {
    "bedrock text": (
        BEDROCK,
        converse({"text": "a"}, {"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "b"}),
        LlmResponse("ab"),
    ),
    "bedrock call": (
        BEDROCK,
        converse(
            {"text": "Let me see."},
            {"toolUse": {"toolUseId": "t1", "name": "rain", "input": {"city": "Bern"}}},
            inputTokens=3,
            cacheReadInputTokens=4,
            outputTokens=5,
        ),
        LlmResponse("Let me see.", (RAIN,), Usage(7, 5)),
    ),
    "nova on InvokeModel": (
        NOVA,
        converse({"text": "a"}, inputTokens=3, cacheReadInputTokenCount=4, cacheWriteInputTokenCount=0, outputTokens=5),
        LlmResponse("a", (), Usage(7, 5)),
    ),
    "both names of the cached tokens": (
        BEDROCK,
        converse({"text": "a"}, inputTokens=3, cacheReadInputTokens=4, cacheReadInputTokenCount=4, outputTokens=5),
        LlmResponse("a", (), Usage(7, 5)),
    ),
    "openai text": (
        OPENAI,
        chat({"prompt_tokens": 3, "completion_tokens": 5}, content="a"),
        LlmResponse("a", (), Usage(3, 5)),
    ),
    "openai refusal": (OPENAI, chat(content=None, refusal="No."), LlmResponse("No.")),
    "openai call": (OPENAI, chat(content=None, tool_calls=[FUNCTION]), LlmResponse("", (RAIN,))),
    "openai arguments that are no JSON": (
        OPENAI,
        chat(content=None, tool_calls=[{"id": "t1", "function": {"name": "rain", "arguments": "{"}}]),
        LlmResponse("", (ToolCall("t1", "rain", "{"),)),
    ),
    "cohere text": (
        COHERE,
        cohere(content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]),
        LlmResponse("a", (), Usage(3, 5)),
    ),
    "cohere call": (
        COHERE,
        cohere(tool_plan="I look.", tool_calls=[FUNCTION]),
        LlmResponse("I look.", (RAIN,), Usage(3, 5)),
    ),
    "gemini text": (
        GEMINI,
        gemini(
            {"text": "hm", "thought": True},
            {"text": "a"},
            promptTokenCount=3,
            candidatesTokenCount=4,
            thoughtsTokenCount=1,
        ),
        LlmResponse("a", (), Usage(3, 5)),
    ),
    "gemini call": (
        GEMINI,
        gemini({"functionCall": {"name": "rain", "args": {"city": "Bern"}}, "thoughtSignature": "x"}),
        LlmResponse("", (ToolCall("", "rain", {"city": "Bern"}, "x"),)),
    ),
    "anthropic text": (
        ANTHROPIC,
        message({"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "a"}),
        LlmResponse("a"),
    ),
    "anthropic call": (
        ANTHROPIC,
        message(
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "rain", "input": {"city": "Bern"}},
            input_tokens=3,
            cache_read_input_tokens=2,
            cache_creation_input_tokens=2,
            output_tokens=5,
        ),
        LlmResponse("Let me see.", (RAIN,), Usage(7, 5)),
    ),
    "counts that a cluster wrote as 3.0": (
        OPENAI,
        chat({"prompt_tokens": 3.0, "completion_tokens": 5.0}, content="a"),
        LlmResponse("a", (), Usage(3, 5)),
    ),
    "counts of another type": (OPENAI, chat({"prompt_tokens": True}, content="a"), LlmResponse("a")),
    "gemini counts of its own tools": (
        GEMINI,
        gemini({"text": "a"}, promptTokenCount=3, toolUsePromptTokenCount=2, candidatesTokenCount=4),
        LlmResponse("a", (), Usage(5, 4)),
    ),
    "gemini out of tokens while it thinks": (
        GEMINI,
        {
            "candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}],
            "usageMetadata": {"promptTokenCount": 3, "thoughtsTokenCount": 9},
        },
        LlmResponse("", (), Usage(3, 9), "max_tokens"),
    ),
    "gemini filtered": (
        GEMINI,
        {"candidates": [{"finishReason": "SAFETY"}], "usageMetadata": {"promptTokenCount": 3}},
        LlmResponse("", (), Usage(3, 0), "content_filtered"),
    ),
    "anthropic error": (ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error"}}, None),
    "gemini blocked": (GEMINI, {"promptFeedback": {"blockReason": "SAFETY"}}, None),
    "bedrock error": (BEDROCK, {"message": "Too many requests"}, None),
    "openai error": (OPENAI, {"error": {"message": "no"}}, None),
    "cohere error": (COHERE, {"id": "c", "message": "invalid api token"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_response(case: str) -> None:
    name, response, expected = CASES[case]
    assert provider(name).read_response(response) == expected


def stopped(name: str, reason: Any, *parts: Any) -> str | None:
    """Return the stop reason that is read of a response of text, or of `parts`."""
    response: Any = {
        BEDROCK: {**converse(*(parts or [{"text": "a"}])), "stopReason": reason},
        OPENAI: {"choices": [{"message": {"role": "assistant", "content": "a"}, "finish_reason": reason}]},
        GEMINI: {"candidates": [{"content": {"parts": list(parts or [{"text": "a"}])}, "finishReason": reason}]},
        ANTHROPIC: {**message({"type": "text", "text": "a"}), "stop_reason": reason},
        COHERE: {**cohere(content=[{"type": "text", "text": "a"}]), "finish_reason": reason},
    }[name]
    found = provider(name).read_response(response)
    assert found is not None
    return found.stop_reason


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        (BEDROCK, {"end_turn": "end_turn", "tool_use": "tool_use", "guardrail_intervened": "guardrail_intervened"}),
        (OPENAI, {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"}),
        (OPENAI, {"content_filter": "content_filtered", "new": "new"}),
        (GEMINI, {"STOP": "end_turn", "MAX_TOKENS": "max_tokens", "SAFETY": "content_filtered", "OTHER": "OTHER"}),
        (ANTHROPIC, {"end_turn": "end_turn", "stop_sequence": "stop_sequence", "refusal": "content_filtered"}),
        (COHERE, {"COMPLETE": "end_turn", "STOP_SEQUENCE": "stop_sequence", "TOOL_CALL": "tool_use", "ERROR": "ERROR"}),
        *((name, {None: "", 7: ""}) for name in (BEDROCK, OPENAI, GEMINI, ANTHROPIC, COHERE)),
    ],
)
def test_stop_reasons_have_the_names_of_bedrock(name: str, reasons: dict[Any, str]) -> None:
    assert {reason: stopped(name, reason) for reason in reasons} == reasons


def test_gemini_stops_for_a_tool_without_saying_so() -> None:
    assert stopped(GEMINI, "STOP", {"functionCall": {"name": "rain"}}) == "tool_use"


def test_no_provider_reads_another_ones_response() -> None:
    same = {ANTHROPIC: [ANTHROPIC, INVOKE], BEDROCK: [NOVA, BEDROCK], NOVA: [NOVA, BEDROCK]}
    for name, response, expected in CASES.values():
        if expected is not None:
            readers = [p.name for p in providers() if p.read_response(response) is not None]
            assert readers == same.get(name, [name])


MEMBERS = (
    *("output", "message", "content", "choices", "tool_calls", "function", "arguments", "candidates", "parts"),
    *("usage", "usageMetadata", "promptTokenCount", "inputTokens", "toolUse", "functionCall", "text", "type"),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["text", "message", "tool_use"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
)


@pytest.mark.parametrize("name", [p.name for p in providers()])
@given(response=anything)
def test_anything_is_read_or_not(name: str, response: Any) -> None:
    found = provider(name).read_response(response)
    assert found is None or isinstance(found.text, str)
