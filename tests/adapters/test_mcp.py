"""MCP with the official client over HTTP, in both revisions: tools, images, sessions, progress, cancelling, faults."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jsonschema
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import _streamable_http_modern
from sse_starlette import EventSourceResponse

from gateway.adapters import mcp as adapter
from gateway.adapters.errors import AdapterError
from gateway.adapters.mcp import OUTPUT_SCHEMA, input_schema, read_arguments, write_result
from gateway.adapters.run import RunResult
from gateway.app import build
from gateway.config.load import ConfigError, load
from gateway.config.schema import McpTool
from gateway.execute.run_events import RunEnded, TextDelta
from gateway.observe.logs import configure
from gateway.simulator.llm import Call
from tests.adapters.conftest import ANSWER, Deploy
from tests.adapters.test_listener import PORT, Broken, serving
from tests.adapters.test_openai_chat import raw_flow
from tests.conftest import StartGateway, settings_for
from tests.execute.stub_cluster import V1, Cluster
from tests.execute.test_stream_watch import STREAM

PNG = "iVBORw0KGgo="
ANN, BOB = {"Authorization": "Basic YW5uOng="}, {"Authorization": "Basic Ym9iOng="}
both = pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])


def tool(agent: str, name: str = "ask", **more: Any) -> dict[str, Any]:
    return {"name": name, "agent": agent, "description": "Answers questions.", **more}


def over(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"adapters": {"mcp": list(tools), **more.pop("adapters", {})}, **more}


@asynccontextmanager
async def client_of(url: str, mode: str, headers: Any = None) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


def refusal_of(result: Any) -> str:
    assert result.is_error
    assert result.structured_content is None
    return text_of(result)


@pytest.mark.parametrize(
    ("version", "agent", "streams", "mode"),
    [
        ("2.19.0", "conv-d", False, "2026-07-28"),
        ("2.19.0", "conv-d", False, "legacy"),
        ("3.4.0", "fc-openai_tutorial", False, "legacy"),
        ("3.4.0", "fc-openai_tutorial", True, "2026-07-28"),
        ("3.6.0", "v1-openai", False, "2026-07-28"),
        ("3.6.0", "v1-openai", True, "legacy"),
    ],
)
async def test_an_agent_is_a_tool(deploy: Deploy, version: str, agent: str, streams: bool, mode: str) -> None:
    async with deploy(version, over(tool(agent)), streams=streams) as deployed, client_of(deployed.url, mode) as client:
        assert client.protocol_version == (mode if mode != "legacy" else "2025-11-25")
        (listed,) = (await client.list_tools()).tools
        assert (listed.name, listed.description) == ("ask", "Answers questions.")
        assert listed.input_schema == input_schema(McpTool(**tool(agent)), False)
        result = await client.call_tool("ask", {"text": "say ${parameters.x}"})
        assert (text_of(result), result.is_error) == (ANSWER, False)
        jsonschema.validate(result.structured_content, OUTPUT_SCHEMA)
        assert result.structured_content["text"] == ANSWER
        assert "say ${parameters.x}" in json.dumps(deployed.asked)


@both
async def test_images_arrive_as_they_were_sent(deploy: Deploy, mode: str) -> None:
    url, data = "https://example.org/a.png", f"data:image/png;base64,{PNG}"
    images = [{"data": PNG, "mimeType": "image/png"}, {"url": data}, {"url": url}]
    async with (
        deploy("3.6.0", over(tool("flow-openai_messages"))) as deployed,
        client_of(deployed.url, mode) as client,
    ):
        result = await client.call_tool("ask", {"text": "What is it?", "images": images})
        assert not result.is_error
        _, *sent = deployed.asked["messages"][-1]["content"]
        assert [part["image_url"]["url"] for part in sent] == [data, data, url]


@both
async def test_an_image_of_more_than_four_mebibytes_is_no_exception(deploy: Deploy, mode: str) -> None:
    image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(5 << 20)).decode()
    async with (
        deploy("3.6.0", over(tool("flow-openai_messages"))) as deployed,
        client_of(deployed.url, mode) as client,
    ):
        result = await client.call_tool("ask", {"text": "?", "images": [{"data": image, "mimeType": "image/png"}]})
        assert not result.is_error, text_of(result)
        assert image in json.dumps(deployed.asked)


@both
async def test_an_image_that_can_t_arrive_is_refused_with_its_remedy(deploy: Deploy, mode: str) -> None:
    images = [{"data": PNG, "mimeType": "image/png"}]
    async with deploy("2.19.0", over(tool("conv-d"))) as deployed, client_of(deployed.url, mode) as client:
        refused = refusal_of(await client.call_tool("ask", {"text": "What is it?", "images": images}))
        assert "images[0]" in refused
        assert "mlc-gateway upgrade" in refused
        assert deployed.simulator.received == []


@both
async def test_a_session_is_the_caller_s_own(deploy: Deploy, mode: str) -> None:
    memory = {"agents": {"rules": [{"agent": "fc-*", "memory": "gateway"}]}}
    tools = over(tool("fc-openai_tutorial"), tool("flow-openai_messages", "other"), **memory)
    async with deploy("3.4.0", tools, streams=True) as deployed:

        async def asked(headers: Any, text: str, **more: str) -> str:
            async with client_of(deployed.url, mode, headers) as client:
                result = await client.call_tool("ask", {"text": text, **more})
                assert not result.is_error
            return json.dumps(deployed.asked)

        assert "apples" in await asked(ANN, "apples", session="one")
        assert "apples" in await asked(ANN, "pears", session="one")
        for other in (
            await asked(BOB, "plums", session="one"),
            await asked(ANN, "plums", session="two"),
            await asked(ANN, "plums"),
        ):
            assert "apples" not in other
            assert "pears" not in other
        assert "plums" not in await asked(ANN, "figs", session="one")
        async with client_of(deployed.url, mode, ANN) as client:
            schemas = {one.name: one.input_schema for one in (await client.list_tools()).tools}
            assert [name for name, schema in schemas.items() if "session" in schema["properties"]] == ["ask"]
            refused = refusal_of(await client.call_tool("other", {"text": "hi", "session": "one"}))
            assert "Leave `session` out" in refused


@both
async def test_progress_rises_and_has_the_text(deploy: Deploy, mode: str) -> None:
    seen: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with deploy("3.6.0", over(tool("v1-openai")), streams=True) as deployed:
        async with client_of(deployed.url, mode) as client:
            await client.call_tool("ask", {"text": "hi"}, progress_callback=note)
        numbers = [number for number, _ in seen]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= 3
        assert "".join(message or "" for _, message in seen[1:]) == ANSWER


async def test_progress_names_the_tools_that_the_agent_calls(deploy: Deploy) -> None:
    seen: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with deploy("3.6.0", over(tool("v1-openai")), streams=True) as deployed:
        deployed.simulator.script([Call("ListIndexTool", {"indices": ["a"]}, text="Looking.")])
        async with client_of(deployed.url, "2026-07-28") as client:
            result = await client.call_tool("ask", {"text": "hi"}, progress_callback=note)
        assert not result.is_error
        assert "The agent calls the tool ListIndexTool." in seen


@both
async def test_a_run_that_says_nothing_has_progress_too(start_gateway: StartGateway, mode: str) -> None:
    broken = Broken()
    broken.waits = True
    enough = asyncio.Event()
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if message == "The agent is still at work." and len(seen) > 3:
            enough.set()

    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1), adapters={"comment_seconds": 0.02})})
        async with client_of(f"http://127.0.0.1:{gateway.adapters_port}", mode) as client:
            call = asyncio.create_task(client.call_tool("ask", {"text": "hi"}, progress_callback=note))
            await asyncio.wait_for(enough.wait(), 30)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
    assert seen == sorted(set(seen))


@both
@pytest.mark.parametrize("size", [0, 200])
async def test_a_call_that_is_cancelled_ends_its_run(start_gateway: StartGateway, mode: str, size: int) -> None:
    broken = Broken()
    broken.waits, broken.size = True, size
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        async with client_of(f"http://127.0.0.1:{gateway.adapters_port}", mode) as client:
            call = asyncio.create_task(client.call_tool("ask", {"text": "hi"}))
            await asyncio.wait_for(broken.asked.wait(), 30)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.wait_for(broken.left.wait(), 30)
            assert [one.name for one in (await client.list_tools()).tools] == ["ask"]


@both
async def test_a_client_that_leaves_ends_its_run(start_gateway: StartGateway, mode: str) -> None:
    broken = Broken()
    broken.waits, broken.size = True, 200
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        call = {"name": "ask", "arguments": {"text": "hi"}}
        async with httpx2.AsyncClient(timeout=60) as http:
            headers, message = posted("tools/call", call, mode)
            url = f"http://127.0.0.1:{gateway.adapters_port}/mcp"
            request = asyncio.create_task(http.post(url, headers=headers, json=message))
            await asyncio.wait_for(broken.asked.wait(), 30)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await asyncio.wait_for(broken.left.wait(), 30)


@pytest.mark.parametrize("mode", ["2026-07-28", pytest.param("legacy", marks=pytest.mark.slow)])
async def test_a_silent_stream_has_comments(
    start_gateway: StartGateway, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 15 seconds, which is the SDK's constant."""
    assert _streamable_http_modern._SSE_PING_INTERVAL == EventSourceResponse.DEFAULT_PING_INTERVAL == 15
    monkeypatch.setattr(_streamable_http_modern, "_SSE_PING_INTERVAL", 0.02)
    monkeypatch.setattr(EventSourceResponse, "DEFAULT_PING_INTERVAL", 1)
    broken = Broken()
    broken.waits = True
    headers, message = posted("tools/call", {"name": "ask", "arguments": {"text": "hi"}}, mode)
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        url = f"http://127.0.0.1:{gateway.adapters_port}/mcp"
        async with (
            httpx2.AsyncClient(timeout=60) as http,
            http.stream("POST", url, headers=headers, json=message) as answer,
        ):
            assert answer.headers["x-accel-buffering"] == "no"
            seen = ""
            async for piece in answer.aiter_text():
                seen += piece
                if seen.count(": ping") == 2:
                    break


def posted(method: str, params: dict[str, Any], mode: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the headers and the body of a request, as a client of the revision sends it."""
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    if mode != "legacy":
        meta = {
            "io.modelcontextprotocol/protocolVersion": mode,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {**params, "_meta": meta}
        headers |= {"MCP-Protocol-Version": mode, "Mcp-Method": method, "Mcp-Name": params.get("name", "")}
    return headers, {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


async def test_a_call_is_cancelled_in_its_own_session_only(start_gateway: StartGateway) -> None:
    broken = Broken()
    broken.waits = True
    call = {"name": "ask", "arguments": {"text": "hi"}}
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{gateway.adapters_port}", timeout=60) as http:
            headers, message = posted("tools/call", call, "legacy")
            request = asyncio.create_task(http.post("/mcp", headers={**headers, "Mcp-Session-Id": "a"}, json=message))
            await asyncio.wait_for(broken.asked.wait(), 30)
            notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            for session in ({}, {"Mcp-Session-Id": "b"}):
                answer = await http.post("/mcp", headers={**headers, **session}, json=notification)
                assert answer.status_code == 202
            for id in ([7], None, "8"):
                other = {**notification, "params": {"requestId": id}}
                answer = await http.post("/mcp", headers={**headers, "Mcp-Session-Id": "a"}, json=other)
                assert answer.status_code in (202, 400)
            assert not broken.left.is_set()
            await http.post("/mcp", headers={**headers, "Mcp-Session-Id": "a"}, json=notification)
            assert "Request cancelled" in (await request).text
            await asyncio.wait_for(broken.left.wait(), 30)


async def test_each_handshake_has_its_revision_and_a_session_of_its_own(deploy: Deploy) -> None:
    sessions = set()
    async with deploy("2.19.0", over(tool("conv-d"))) as deployed, httpx2.AsyncClient() as http:
        for revision in ("2025-03-26", "2025-06-18", "2025-11-25"):
            info = {"name": "t", "version": "1"}
            params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": info}
            headers, message = posted("initialize", params, "legacy")
            answer = await http.post(f"{deployed.url}/mcp", headers=headers, json=message)
            (data,) = [line for line in answer.text.splitlines() if line.startswith("data: ")]
            assert json.loads(data.removeprefix("data: "))["result"]["protocolVersion"] == revision
            sessions.add(answer.headers["mcp-session-id"])
    assert len(sessions) == 3
    assert min(map(len, sessions)) >= 32


@both
@pytest.mark.parametrize("step", [61, pytest.param(17, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cuts", [False, True], ids=["ended", "cut"])
async def test_an_answer_that_ends_at_any_byte_is_an_error(
    start_gateway: StartGateway, mode: str, cuts: bool, step: int
) -> None:
    broken = Broken()
    broken.cuts = cuts
    async with serving(broken.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        async with client_of(f"http://127.0.0.1:{gateway.adapters_port}", mode) as client:
            for size in [*range(0, len(STREAM) - 5, step), len(STREAM) - 5]:
                broken.size = size
                assert "may have acted already" in refusal_of(await client.call_tool("ask", {"text": "hi"}))
            broken.size, broken.cuts = len(STREAM), False
            assert text_of(await client.call_tool("ask", {"text": "hi"})) == "It is größer."


@both
async def test_a_cluster_s_error_is_the_call_s(start_gateway: StartGateway, mode: str) -> None:
    cluster = Cluster()
    refused = {"error": {"type": "status_exception", "reason": "too many agents run"}, "status": 429}
    cluster.answers = [(429, refused), (401, {"error": {"type": "security_exception", "reason": "no"}, "status": 401})]
    async with serving(cluster.answer) as url:
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1))})
        async with client_of(f"http://127.0.0.1:{gateway.adapters_port}", mode) as client:
            told = refusal_of(await client.call_tool("ask", {"text": "hi"}))
            assert told.startswith("status_exception: too many agents run")
            assert "may have acted already" in told
            assert refusal_of(await client.call_tool("ask", {"text": "hi"})).startswith("security_exception: no")


@both
async def test_an_agent_that_is_not_there_is_listed_and_a_call_says_so(deploy: Deploy, mode: str) -> None:
    async with deploy("2.19.0", over(tool("nosuch"))) as deployed, client_of(deployed.url, mode) as client:
        assert [one.name for one in (await client.list_tools()).tools] == ["ask"]
        assert refusal_of(await client.call_tool("ask", {"text": "hi"})).startswith("AgentNotFound:")


async def test_a_gateway_that_is_full_says_when_to_try_again(start_gateway: StartGateway) -> None:
    broken = Broken()
    broken.waits = True
    async with serving(broken.answer) as url:
        limits = {"admission": {"total": 1, "queue": 0}}
        gateway = await start_gateway(url, None, {**PORT, **over(tool(V1), **limits)})
        base = f"http://127.0.0.1:{gateway.adapters_port}"
        async with client_of(base, "2026-07-28") as first, client_of(base, "2026-07-28") as second:
            call = asyncio.create_task(first.call_tool("ask", {"text": "hi"}))
            await asyncio.wait_for(broken.asked.wait(), 30)
            told = refusal_of(await second.call_tool("ask", {"text": "hi"}))
            assert told.startswith("Overloaded:")
            assert "Wait 1 s before the next try." in told
            assert "acted" not in told
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)


@both
async def test_a_wrong_call_is_an_error_that_the_llm_reads(deploy: Deploy, mode: str) -> None:
    calls: list[tuple[str, Any, str]] = [
        ("nosuch", {"text": "hi"}, "Unknown tool: 'nosuch'. The tools are: ask."),
        ("ask", {}, "`text` is missing"),
        ("ask", {"text": ""}, "`text` is missing"),
        ("ask", {"text": 1}, "$.text"),
        ("ask", {"txt": "hi"}, "unknown field `txt`"),
        ("ask", {"text": "hi", "images": [{}]}, "images[0]: an image needs"),
        ("ask", {"text": "hi", "images": [{"data": PNG}]}, "images[0]: an image needs"),
        ("ask", {"text": "hi", "images": [{"url": "https://a/b.png", "data": PNG}]}, "images[0]: an image needs"),
        ("ask", {"text": "hi", "images": [{"url": "x", "mimeType": "image/png"}]}, "images[0]: an image needs"),
    ]
    async with deploy("2.19.0", over(tool("conv-d"))) as deployed, client_of(deployed.url, mode) as client:
        for name, arguments, message in calls:
            assert message in refusal_of(await client.call_tool(name, arguments)), arguments
        assert deployed.simulator.received == []


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"text": "hi"}, True),
        ({"text": "hi", "images": [{"data": PNG, "mimeType": "image/png"}, {"url": "https://a/b"}]}, True),
        ({"text": "hi", "session": "s"}, True),
        ({}, False),
        ({"text": None}, False),
        ({"text": "hi", "images": {}}, False),
        ({"text": "hi", "images": ["https://a/b"]}, False),
        ({"text": "hi", "images": [{"url": "https://a/b", "name": "b"}]}, False),
        ({"text": "hi", "more": 1}, False),
    ],
)
def test_the_schema_says_what_is_accepted(arguments: Any, valid: bool) -> None:
    one = McpTool(**tool("a"))
    assert jsonschema.Draft202012Validator(input_schema(one, True)).is_valid(arguments) is valid
    if valid:
        read_arguments(arguments, one)
    else:
        with pytest.raises(AdapterError):
            read_arguments(arguments, one)


async def test_a_tool_may_have_a_text_of_its_own(deploy: Deploy) -> None:
    tools = over(tool("conv-d", text="Summarise today's alerts."))
    async with deploy("2.19.0", tools) as deployed, client_of(deployed.url, "2026-07-28") as client:
        (listed,) = (await client.list_tools()).tools
        assert "required" not in listed.input_schema
        assert not (await client.call_tool("ask")).is_error
        assert "Summarise today's alerts." in json.dumps(deployed.asked)
        assert not (await client.call_tool("ask", {"text": "And yesterday's?"})).is_error
        assert "And yesterday's?" in json.dumps(deployed.asked)
        assert "today" not in json.dumps(deployed.asked)


@both
async def test_calls_that_nobody_ran_and_tokens_are_told(deploy: Deploy, mode: str) -> None:
    """A flow whose answer is the LLM's whole response."""
    async with deploy("3.6.0", over(tool("flow-openai_raw"))) as deployed, client_of(deployed.url, mode) as client:
        raw_flow(deployed)
        deployed.simulator.script([Call("f", {"a": 1}, text="")])
        result = await client.call_tool("ask", {"text": "call it"})
        assert not result.is_error
        assert text_of(result) == 'The agent is not done. It asks for tools that nobody has run: f({"a":1})'
        document = result.structured_content
        assert document["openCalls"] == [{"name": "f", "arguments": '{"a":1}'}]
        assert document["usage"]["totalTokens"] > 0


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("max_tokens", "limit of tokens"),
        ("max_iterations", "limit of steps"),
        ("guardrail_intervened", "guardrail"),
        ("end_turn", ""),
    ],
)
def test_an_answer_that_is_not_whole_says_so(reason: str, told: str) -> None:
    run = RunResult()
    run.take(TextDelta("So far"))
    run.take(RunEnded(reason))
    result = write_result(run, ["ROLE_MAPPED", "STREAM_IN_ONE_PIECE"])
    assert text_of(result).startswith("So far")
    assert told in text_of(result)
    assert len(result.content) == (2 if told else 1)
    document = result.structured_content
    jsonschema.validate(document, OUTPUT_SCHEMA)
    assert document.get("stopReason") == (reason if told else None)
    assert [notice["code"] for notice in document["notices"]] == ["ROLE_MAPPED"]
    assert write_result(RunResult(), []).structured_content == {"text": ""}


@both
async def test_who_calls_reaches_the_cluster_and_a_key_nobody(
    start_gateway: StartGateway, mode: str, capfd: Any
) -> None:
    key = "canary-0123456789abcdef"
    keys = [{"key": {"env": "K"}, "authorization": {"env": "A"}}]
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("K", key)
        patch.setenv("A", "Basic YWRtaW46YWRtaW4=")
        async with serving(cluster.answer) as url:
            data = {"upstream": {"url": url}, **over(tool(V1), adapters={"keys": keys})}
            data["listen"] = {"data_port": 0, "admin_port": 0, "adapters_port": 0}
            gateway = build(load(None, dict(os.environ), data), log=configure("debug", "json"))
            await gateway.start()
            try:
                for bearer in (key, "other"):
                    headers = {"Authorization": f"Bearer {bearer}", "X-Tenant": "t"}
                    base = f"http://127.0.0.1:{gateway.adapters_port}"
                    async with client_of(base, mode, headers) as client:
                        await client.list_tools()
                        assert text_of(await client.call_tool("ask", {"text": "hi"})) == "ran"
            finally:
                await gateway.stop()
    heads = [*cluster.lookups, *cluster.executed]
    assert {head.get("Authorization") for head in heads} == {"Basic YWRtaW46YWRtaW4=", "Bearer other"}
    assert {head["X-Tenant"] for head in cluster.executed} == {"t"}
    assert not any(name.lower().startswith("mcp-") for head in heads for name in head)
    assert key not in str(heads) + "".join(capfd.readouterr())


@both
async def test_other_hosts_and_foreign_pages_are_refused(deploy: Deploy, mode: str) -> None:
    headers, message = posted("tools/list", {}, mode)
    async with (
        deploy("2.19.0", over(tool("conv-d"), adapters={"origins": ["https://app.example"]})) as deployed,
        httpx2.AsyncClient(base_url=deployed.url) as http,
    ):
        for more, status in (
            ({"Host": "evil.example"}, 403),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "localhost:1", "Origin": "https://app.example"}, 200),
        ):
            answer = await http.post("/mcp", headers={**headers, **more}, json=message)
            assert answer.status_code == status, more
            assert ("adapters." in answer.text) is (status == 403)


async def test_a_request_that_is_none_is_refused(deploy: Deploy) -> None:
    headers, message = posted("tools/list", {}, "legacy")
    limits = {"limits": {"body": 1000}, "listen": {"timeouts": {"body": 0.05}}}
    async with (
        deploy("2.19.0", over(tool("conv-d"), **limits)) as deployed,
        httpx2.AsyncClient(base_url=deployed.url) as http,
    ):
        long = {**message, "params": {"_meta": {"x": "y" * 1000}}}
        answer = await http.post("/mcp", headers=headers, json=long)
        assert (answer.status_code, answer.json()["id"]) == (413, None)
        assert "limits.body" in answer.json()["error"]["message"]
        answer = await http.post("/mcp", headers={**headers, "Content-Encoding": "gzip"}, json=message)
        assert answer.status_code == 415
        for body in (b"{", b"[]", b'"initialize"'):
            answer = await http.post("/mcp", headers={**headers, "Content-Type": "application/json"}, content=body)
            assert answer.status_code == 400
        for method in ("GET", "DELETE"):
            assert (await http.request(method, "/mcp", headers=headers)).status_code == 405
        reader, writer = await asyncio.open_connection("127.0.0.1", deployed.gateway.adapters_port)
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        writer.write(head)
        assert b" 408 " in await reader.readline()
        writer.close()


@both
async def test_a_fault_of_the_gateway_s_own_is_told_without_its_text(
    deploy: Deploy, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("secret-text")

    monkeypatch.setattr(adapter, "write_input", fail)
    async with deploy("2.19.0", over(tool("conv-d"))) as deployed, client_of(deployed.url, mode) as client:
        told = refusal_of(await client.call_tool("ask", {"text": "hi"}))
        assert told.startswith("InternalError: An internal error of the gateway")
        assert "secret-text" not in told


async def test_tools_can_be_reloaded_but_not_switched_on(deploy: Deploy) -> None:
    async with deploy("2.19.0", over(tool("conv-d"))) as deployed, client_of(deployed.url, "2026-07-28") as client:

        async def reload(*tools: dict[str, Any], **adapters: Any) -> None:
            listen = {"adapters_port": 0, "http": deployed.http_server}
            settings = settings_for(deployed.simulator.url, {**over(*tools, adapters=adapters), "listen": listen})
            await deployed.gateway.reload(settings, deployed.gateway.log)

        await reload(tool("flow-d", "b"), tool("conv-d", "a"))
        assert [one.name for one in (await client.list_tools()).tools] == ["a", "b"]
        assert text_of(await client.call_tool("b", {"text": "hi"})) == ANSWER
        await reload(tool("helper"), agents={"helper": deployed.agents["conv-d"]})
        assert text_of(await client.call_tool("ask", {"text": "hi"})) == ANSWER
        with pytest.raises(ConfigError, match=r"adapters\.mcp: can't change without a restart"):
            await reload()


@pytest.mark.parametrize(
    ("adapters", "problem"),
    [
        ({"mcp": [tool("a"), tool("b")]}, r"adapters\.mcp\[1\]\.name: is the name of adapters\.mcp\[0\], too"),
        ({"mcp": [tool("a")], "agents": {"b": "c"}}, r"adapters\.mcp\[0\]\.agent: is none of adapters\.agents.*b"),
        ({"mcp": [tool("a", "my tool")]}, r"adapters\.mcp\[0\]\.name: is not allowed here"),
        ({"mcp": [tool("a", "x" * 129)]}, r"adapters\.mcp\[0\]\.name: is not allowed here"),
        ({"mcp": [{"name": "a", "agent": "b"}]}, r"adapters\.mcp\[0\]\.description: is missing"),
    ],
)
def test_wrong_tools_are_found_before_the_start(adapters: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings_for("http://127.0.0.1:1", {"adapters": adapters})
    settings_for("http://127.0.0.1:1", {"adapters": {"mcp": [tool("b")], "agents": {"b": "c"}}})


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("gateway.adapters", "mcp."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)


async def test_a_missing_package_is_named(start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_package(monkeypatch)
    with pytest.raises(ConfigError, match=r"mcp, which is not installed: pip install 'mlc-gateway\[adapters\]'"):
        await start_gateway("http://127.0.0.1:1", None, {**PORT, **over(tool("a"))})
