"""V2 agents: what no recording of the second round shows, as recorded on 3.8.0 in the first (`v2_…exec`, `v2mem`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.simulator.core import ClusterCore
from gateway.simulator.llm import answer_any
from gateway.simulator.llm.endpoints import Call, LlmEndpoints
from gateway.simulator.settings import UNIFIED_API
from tests.simulator.test_search import ML, ask, reason

MODELS: dict[str, dict[str, Any]] = {
    "bedrock": {"model_id": "m", "model_provider": "bedrock/converse", "credential": {"access_key": "a"}},
    "openai": {"model_id": "m", "model_provider": "openai/v1/chat/completions", "credential": {"openai_api_key": "a"}},
    "gemini": {
        "model_id": "m",
        "model_provider": "gemini/v1beta/generatecontent",
        "credential": {"gemini_api_key": "a"},
    },
}
MEMORY = {"type": "agentic_memory", "memory_container_id": "c"}


def source(kind: str, format_: str, data: str) -> dict[str, Any]:
    return {"type": kind, "format": format_, "data": data}


def core_of(version: str = "3.8.0", llm: Any = answer_any) -> ClusterCore:
    core = ClusterCore(version, llm)
    core.settings.change({"persistent": {UNIFIED_API: True}})
    return core


def register(core: ClusterCore, provider: str, **more: Any) -> str:
    body = {"name": "v2", "type": "conversational_v2", "model": MODELS[provider], "memory": MEMORY, **more}
    agent_id: str = core.register_agent(body)["agent_id"]
    return agent_id


def content_sent(provider: str, block: dict[str, Any]) -> Any:
    """Return the content that the model received for one block, or the error's details."""
    core = core_of()
    status, body, sent = core.execute(register(core, provider), {"input": [block]})
    if not sent:
        return status, body["error"]["details"]
    received = json.loads(sent[0])
    message = received["contents"][0] if provider == "gemini" else received["messages"][0]
    [content] = message["parts" if provider == "gemini" else "content"]
    return content


IMAGE = {"type": "image", "source": source("base64", "png", "iVBORw0=")}
AT_S3 = {"type": "image", "source": source("url", "png", "s3://bucket/a.png")}
DOCUMENT = {"type": "document", "source": source("base64", "pdf", "JVBERi0=")}
VIDEO = {"type": "video", "source": source("base64", "mp4", "AAAA")}
NO_OPENAI = "content is not supported in OpenAI Chat Completions API. "
BLOCKS = {
    ("bedrock", "image"): {"image": {"format": "png", "source": {"bytes": "iVBORw0="}}},
    ("bedrock", "at S3"): {"image": {"format": "png", "source": {"s3Location": "s3://bucket/a.png"}}},
    ("bedrock", "document"): {"document": {"format": "pdf", "name": "document", "source": {"bytes": "JVBERi0="}}},
    ("bedrock", "video"): {"video": {"format": "mp4", "source": {"bytes": "AAAA"}}},
    ("openai", "image"): {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}},
    ("openai", "at S3"): {"type": "image_url", "image_url": {"url": "s3://bucket/a.png"}},
    ("openai", "document"): (400, f"Document {NO_OPENAI}"),
    ("openai", "video"): (400, f"Video {NO_OPENAI}"),
    ("gemini", "image"): {"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}},
    ("gemini", "at S3"): {"fileData": {"mimeType": "image/png", "fileUri": "s3://bucket/a.png"}},
    ("gemini", "document"): {"fileData": {"mimeType": "pdf", "fileUri": "JVBERi0="}},
    ("gemini", "video"): {"fileData": {"mimeType": "video/mp4", "fileUri": "AAAA"}},
}
KINDS = {"image": IMAGE, "at S3": AT_S3, "document": DOCUMENT, "video": VIDEO}


@pytest.mark.parametrize(("provider", "kind"), BLOCKS)
def test_media(provider: str, kind: str) -> None:
    assert content_sent(provider, KINDS[kind]) == BLOCKS[provider, kind]


def test_audio_has_no_constant() -> None:
    status, details = content_sent("bedrock", {"type": "audio", "source": source("base64", "mp3", "SUQz")})
    assert (status, details.startswith("No enum constant ")) == (400, True)
    assert details.endswith(".ContentType.AUDIO")


def test_a_placeholder_in_a_text_is_filled_in() -> None:
    text = {"type": "text", "text": "x ${parameters.model} y"}
    assert content_sent("bedrock", text) == {"text": "x m y"}


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
def test_a_turn_with_a_tool_is_remembered(provider: str) -> None:
    endpoints = LlmEndpoints(strict=True)
    endpoints.script([Call("ListIndexTool", {"indices": ["a"]}), "so it is", "again"])
    core = core_of(llm=endpoints)
    agent_id = register(core, provider, tools=[{"type": "ListIndexTool"}])
    status, first, sent = core.execute(agent_id, {"input": "one"})
    assert (status, first["stop_reason"], first["message"]["content"]) == (200, "end_turn", [{"text": "so it is"}])
    assert len(sent) == 2
    again = {"input": "two", "parameters": {"memory_id": first["memory_id"]}}
    status, second, sent = core.execute(agent_id, again)
    assert (status, second["memory_id"]) == (200, first["memory_id"])
    roles = [message["role"] for message in json.loads(sent[0])["messages"]]
    result = "user" if provider == "bedrock" else "tool"
    assert roles == ["user", "assistant", result, "assistant", "user"]
    assert core.execute(agent_id, {"input": "x", "parameters": {"memory_id": "unknown"}}).body["memory_id"] != "unknown"


def test_before_3_5_and_with_the_api_off_there_are_none() -> None:
    body = {"name": "v2", "type": "conversational_v2", "model": MODELS["bedrock"], "memory": MEMORY}
    refused = ask(ClusterCore("3.4.0"), "POST", f"{ML}/agents/_register", body)
    assert (refused.status, reason(refused)) == (400, "conversational_v2 is not a valid Agent Type")
    refused = ask(ClusterCore("3.6.0"), "POST", f"{ML}/agents/_register", body)
    assert (refused.status, UNIFIED_API in reason(refused)) == (400, True)


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
@pytest.mark.parametrize(("dollars", "now", "later"), [(1, "READ", "READ"), (2, "READ", "READ"), (3, "HELPER", "READ")])
def test_a_text_is_filled_in_twice_before_the_template(provider: str, dollars: int, now: str, later: str) -> None:
    core = core_of("3.6.0")
    agent_id = register(core, provider)
    text = "$" * dollars + "{parameters.gw_x:-READ}"
    status, body, sent = core.execute(agent_id, {"input": text, "parameters": {"gw_x": "HELPER"}})
    assert status == 200
    assert f'"{now}"' in sent[0]
    _, _, sent = core.execute(agent_id, {"input": "next", "parameters": {"memory_id": body["memory_id"]}})
    assert f'"{later}"' in sent[0]


ESCAPED = "\\u0024{parameters.model}"


def conversation(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": "wait"}], "toolCalls": [call]},
        {"role": "tool", "toolCallId": "c1", "content": [{"type": "text", "text": "a dot"}]},
    ]


@pytest.mark.parametrize("provider", ["bedrock", "openai"])
@pytest.mark.parametrize(
    ("written", "received"),
    [
        ("${parameters.model}", "m"),
        ("${parameters.gw_x:-READ}", "READ"),
        ("$${parameters.gw_x:-READ}", "READ"),
        ("$$${parameters.gw_x:-READ}", "HELPER"),
        (ESCAPED, "${parameters.model}"),
    ],
)
def test_the_arguments_of_a_call_are_filled_in_too(provider: str, written: str, received: str) -> None:
    core = core_of("3.6.0")
    body = {"input": conversation(f'{{"a":"{written}"}}'), "parameters": {"gw_x": "HELPER"}}
    status, _, sent = core.execute(register(core, provider), body)
    assert status == 200
    message = json.loads(sent[0])["messages"][0]
    if provider == "bedrock":
        found = message["content"][1]["toolUse"]["input"]
    else:
        found = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert found == {"a": received}
