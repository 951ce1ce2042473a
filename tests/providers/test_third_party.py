"""A provider of a third party, OpenAI Responses: found by entry point, mapped, recognised, and delivered to."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.execute.deliveries import DELIVERY
from gateway.providers import registry
from gateway.providers.base import ConnectorHints, Inexpressible, LlmResponse, MappingOptions, ToolCall, Usage
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway

from . import openai_responses
from .mapping import fill, parse
from .openai_responses import OpenAIResponses
from .sdk.closed import adapter

NAME = OpenAIResponses.name
PNG = {"type": "image", "source": {"type": "base64", "format": "png", "data": "iVBORw0KGgo="}}
SENT_PNG = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw0KGgo="}
CONVERSATION = [
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PNG]},
    {"role": "assistant", "content": "A dot."},
    {"role": "user", "content": "Sure?"},
]
SENT = [
    {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, SENT_PNG]},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A dot.", "annotations": []}],
    },
    {"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider as an entry point of an installed package."""
    point = EntryPoint(NAME, "tests.providers.openai_responses:OpenAIResponses", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    registry.installed.cache_clear()
    yield
    registry.installed.cache_clear()


def test_it_uses_the_public_interface_alone() -> None:
    tree = ast.parse(Path(str(openai_responses.__file__)).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {m for m in modules if m.startswith("gateway")} == {"gateway.providers.base", "gateway.unified.model"}


def mapped(value: Any) -> dict[str, Any]:
    agent_input = parse(value)
    provider = OpenAIResponses()
    fields: dict[str, Any] = fill(provider.fields(provider.map(agent_input, MappingOptions())), agent_input)
    _check_items(fields["input"])
    return fields


def _check_items(items: Any) -> None:
    """Check the input items against the openai SDK, which is slow to import and thus imported only here."""
    from openai.types.responses.easy_input_message_param import EasyInputMessageParam
    from openai.types.responses.response_function_tool_call_param import ResponseFunctionToolCallParam
    from openai.types.responses.response_input_item_param import FunctionCallOutput
    from openai.types.responses.response_output_message_param import ResponseOutputMessageParam

    kinds = EasyInputMessageParam | ResponseOutputMessageParam | ResponseFunctionToolCallParam | FunctionCallOutput
    adapter(kinds, least=0).validate_json(json.dumps(items), strict=True)


def test_a_conversation() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert mapped([system, *CONVERSATION]) == {"instructions": "Be brief.", "input": SENT}


def test_tool_calls_and_results() -> None:
    call = {"toolUse": {"toolUseId": "t1", "name": "rain", "input": {"city": "Bern"}}}
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "yes"}, PNG]}}
    turns = [("user", "Rain?"), ("assistant", [{"text": "I look."}, call]), ("user", [result, {"text": "And?"}])]
    items = mapped([{"role": role, "content": content} for role, content in turns])["input"]
    assert items[2:] == [
        {"type": "function_call", "call_id": "t1", "name": "rain", "arguments": '{"city": "Bern"}'},
        {
            "type": "function_call_output",
            "call_id": "t1",
            "output": [{"type": "input_text", "text": "yes"}, SENT_PNG],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    roles = [OpenAIResponses().role_of(item) for item in items]
    assert roles == ["user", "assistant", "assistant", "tool", "user"]


def test_what_it_cannot_carry_is_refused() -> None:
    video = {"type": "video", "source": {"type": "base64", "format": "mp4", "data": "AAAA"}}
    with pytest.raises(Inexpressible) as refused:
        mapped([video])
    assert [problem.code for problem in refused.value.problems] == ["MEDIA_KIND_UNSUPPORTED"]


@pytest.mark.usefixtures("installed")
def test_it_is_recognised() -> None:
    hints = ConnectorHints(url="https://api.openai.com/v1/responses")
    assert registry.recognise(hints) == NAME
    assert registry.recognise(ConnectorHints(model_provider="openai-responses")) == NAME
    assert registry.provider("openai").name == "openai/v1/chat/completions"
    assert sorted([*registry.BUILT_IN, NAME]) == registry.names()
    assert NAME not in registry.connectors()


def test_a_response() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "a", "annotations": []}]}
    call = {"type": "function_call", "call_id": "t1", "name": "rain", "arguments": "{}"}
    response = {
        "object": "response",
        "output": [message, call],
        "usage": {"input_tokens": 3, "output_tokens": 5},
    }
    expected = LlmResponse("a", (ToolCall("t1", "rain", {}),), Usage(3, 5))
    assert OpenAIResponses().read_response(response) == expected
    assert OpenAIResponses().read_response({"error": {}}) is None


@pytest.mark.usefixtures("installed")
async def test_a_conversation_is_delivered_to_an_agent(start_gateway: StartGateway) -> None:
    received: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        return web.json_response({"text": "fine"})

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    async with TestServer(app) as llm, Simulator("2.19.0") as simulator:
        agent = _agent(simulator, f"http://127.0.0.1:{llm.port}/v1/responses")
        gateway = await start_gateway(simulator.url)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            response = await client.post(f"/_plugins/_ml/agents/{agent}/_execute", json={"input": CONVERSATION})
            assert response.status == 200, await response.text()
            assert response.headers[DELIVERY] == f"strategy=wrap; provider={NAME}; input=messages"
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Asked: Sure?"}]}
    assert received == [{"model": "gpt-5", "input": [*SENT[:2], asked]}]


def _agent(simulator: Simulator, url: str) -> str:
    """A flow agent whose connector takes the list of input items; its id."""
    resources = simulator.core.resources
    body = '{"model":"gpt-5","input":${parameters.input}}'
    action = {"action_type": "predict", "method": "POST", "url": url, "headers": {}, "request_body": body}
    made = resources.create_connector(
        {"name": "c", "version": "1", "protocol": "http", "credential": {"key": "x"}, "actions": [action]}
    )
    model = resources.register_model({"name": "m", "function_name": "remote", **made}, deploy=True)
    asked = {"model_id": model["model_id"], "prompt": "Asked: ${parameters.question}", "response_filter": "$.text"}
    tools = [{"type": "MLModelTool", "name": "llm", "parameters": asked}]
    return str(resources.register_agent({"name": "a", "type": "flow", "tools": tools})["agent_id"])
