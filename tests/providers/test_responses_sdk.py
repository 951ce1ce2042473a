"""`read_response` against the vendors' SDKs: both read the same text, tool calls, tokens and reason to stop.

Each test imports its SDK, as that takes up to a second, which every process that collects the tests would spend.
"""

from __future__ import annotations

import json
from typing import Any

import botocore.session
from botocore.parsers import create_parser

from gateway.providers.base import LlmResponse, ToolCall, Usage
from gateway.providers.registry import provider

ARGUMENTS = {"city": "Bern", "days": 2}


def test_bedrock() -> None:
    body = {
        "metrics": {"latencyMs": 412},
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "The user asks …", "signature": "s"}}},
                    {"text": "Let me see."},
                    {"toolUse": {"toolUseId": "tooluse_1", "name": "rain", "input": ARGUMENTS}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {
            "cacheReadInputTokens": 1024,
            "cacheWriteInputTokens": 256,
            "inputTokens": 30,
            "outputTokens": 42,
            "totalTokens": 1352,
        },
    }
    operation = botocore.session.Session().get_service_model("bedrock-runtime").operation_model("Converse")
    raw = {"status_code": 200, "headers": {}, "body": json.dumps(body).encode()}
    sdk = create_parser("rest-json").parse(raw, operation.output_shape)
    _, text, call = sdk["output"]["message"]["content"]
    usage = sdk["usage"]
    assert provider("bedrock/converse").read_response(body) == LlmResponse(
        text["text"],
        (ToolCall(call["toolUse"]["toolUseId"], call["toolUse"]["name"], call["toolUse"]["input"]),),
        Usage(usage["totalTokens"] - usage["outputTokens"], usage["outputTokens"]),
        sdk["stopReason"],
    )


def test_openai() -> None:
    from openai.types.chat import ChatCompletion

    function = {"name": "rain", "arguments": json.dumps(ARGUMENTS)}
    message = {
        "role": "assistant",
        "content": "Let me see.",
        "refusal": None,
        "annotations": [],
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1760000000,
        "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}],
        "usage": {
            "prompt_tokens": 1310,
            "completion_tokens": 42,
            "total_tokens": 1352,
            "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 16, "audio_tokens": 0},
        },
        "service_tier": "default",
        "system_fingerprint": "fp_1",
    }
    sdk = ChatCompletion.model_validate(body)
    assert sdk.usage is not None
    [call] = sdk.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert sdk.usage.total_tokens == sdk.usage.prompt_tokens + sdk.usage.completion_tokens
    assert provider("openai/v1/chat/completions").read_response(body) == LlmResponse(
        sdk.choices[0].message.content or "",
        (ToolCall(call.id, call.function.name, json.loads(call.function.arguments)),),
        Usage(sdk.usage.prompt_tokens, sdk.usage.completion_tokens),
        "tool_use",
    )


def test_gemini() -> None:
    from google.genai.types import GenerateContentResponse

    parts = [
        {"text": "The user asks …", "thought": True},
        {"text": "Let me see."},
        {"functionCall": {"id": "f1", "name": "rain", "args": ARGUMENTS}, "thoughtSignature": "c2lnbmF0dXJl"},
    ]
    body = {
        "candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 1290,
            "cachedContentTokenCount": 1024,
            "toolUsePromptTokenCount": 20,
            "candidatesTokenCount": 30,
            "thoughtsTokenCount": 12,
            "totalTokenCount": 1352,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1290}],
        },
        "modelVersion": "gemini-2.5-pro",
        "responseId": "r1",
    }
    sdk = GenerateContentResponse.model_validate(body)
    assert sdk.usage_metadata is not None
    [call] = sdk.function_calls or ()
    usage = sdk.usage_metadata
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    assert provider("gemini/v1beta/generatecontent").read_response(body) == LlmResponse(
        "Let me see.",
        (ToolCall(call.id or "", call.name or "", call.args, "c2lnbmF0dXJl"),),
        Usage((usage.total_token_count or 0) - output, output),
        "tool_use",
    )


def test_anthropic() -> None:
    from anthropic.types import Message

    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-20250514",
        "content": [
            {"type": "thinking", "thinking": "The user asks …", "signature": "s"},
            {"type": "text", "text": "Let me see.", "citations": None},
            {"type": "tool_use", "id": "toolu_1", "name": "rain", "input": ARGUMENTS},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 30,
            "cache_creation_input_tokens": 256,
            "cache_read_input_tokens": 1024,
            "output_tokens": 42,
            "service_tier": "standard",
        },
    }
    sdk = Message.model_validate(body)
    _, text, call = sdk.content
    assert text.type == "text"
    assert call.type == "tool_use"
    usage: Any = sdk.usage
    total = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    expected = LlmResponse(
        text.text, (ToolCall(call.id, call.name, call.input),), Usage(total, usage.output_tokens), sdk.stop_reason or ""
    )
    for name in ("anthropic/v1/messages", "bedrock-invoke/anthropic"):
        assert provider(name).read_response(body) == expected


def test_cohere() -> None:
    from cohere.v2.types import V2ChatResponse

    call = {"id": "rain_1", "type": "function", "function": {"name": "rain", "arguments": json.dumps(ARGUMENTS)}}
    body = {
        "id": "c14c80c3-18eb-4519-9460-6c92edd8cfb4",
        "finish_reason": "TOOL_CALL",
        "message": {"role": "assistant", "tool_plan": "I will look it up.", "tool_calls": [call]},
        "usage": {
            "billed_units": {"input_tokens": 18, "output_tokens": 42},
            "tokens": {"input_tokens": 1310, "output_tokens": 44},
            "cached_tokens": 1024,
        },
    }
    sdk = V2ChatResponse.model_validate(body)
    [read] = sdk.message.tool_calls or ()
    assert read.function is not None
    assert sdk.usage is not None
    assert sdk.usage.tokens is not None
    assert provider("cohere/v2/chat").read_response(body) == LlmResponse(
        sdk.message.tool_plan or "",
        (ToolCall(read.id, read.function.name or "", json.loads(read.function.arguments or "")),),
        Usage(int(sdk.usage.tokens.input_tokens or 0), int(sdk.usage.tokens.output_tokens or 0)),
        "tool_use",
    )
