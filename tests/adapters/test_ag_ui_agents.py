"""Agents of the type AG_UI (3.5 and later), whose streams are those of the recordings: what becomes of their events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from tests.adapters.conftest import Deployed
from tests.adapters.test_ag_ui import PNG, asks, run, user
from tests.adapters.test_listener import PORT, serving
from tests.adapters.verifier import replay
from tests.conftest import StartGateway

RECORDED = json.loads((Path(__file__).parent / "recorded/ag_ui_3.8.0.json").read_text())
ROOT = {"version": {"number": "3.8.0", "distribution": "opensearch"}}


class Recorded(Deployed):
    """A cluster with one AG_UI agent, which answers as the recording `stream`."""

    def __init__(self) -> None:
        self.stream = ""
        self.bodies: list[Any] = []

    async def answer(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        path = request.path.rpartition("/")[2]
        if path == "_search":
            return aiohttp.web.json_response({"hits": {"hits": []}})
        if request.method == "POST":
            self.bodies.append(await request.json())
            return aiohttp.web.Response(text=RECORDED["streams"][self.stream], content_type="text/event-stream")
        if "/agents/" in request.path:
            return aiohttp.web.json_response(RECORDED["agent"])
        return aiohttp.web.json_response(RECORDED["model"] if "/models/" in request.path else ROOT if not path else {})


async def ask(start_gateway: StartGateway, stream: str, body: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the events, and the body that the cluster got."""
    cluster = Recorded()
    cluster.stream = stream
    async with serving(cluster.answer) as url:
        cluster.url = f"http://127.0.0.1:{(await start_gateway(url, None, PORT)).adapters_port}"
        events = await run(cluster, "agent", body)
    return events, cluster.bodies[-1] if cluster.bodies else None


async def test_a_text(start_gateway: StartGateway) -> None:
    body = asks(user("hello"))
    events, sent = await ask(start_gateway, "text", body)
    assert [message["content"] for message in replay(events)] == ["fake answer 5 "]
    assert sent == body


async def test_the_members_that_the_cluster_needs_are_added(start_gateway: StartGateway) -> None:
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", **user("hello")}]}
    _, sent = await ask(start_gateway, "text", body)
    assert sent == {**body, "tools": [], "context": [], "state": {}, "forwardedProps": {}}


async def test_a_tool_of_the_cluster_and_one_of_the_front_end(start_gateway: StartGateway) -> None:
    events, _ = await ask(start_gateway, "backend_tool", asks(user("hello")))
    called, result, *_ = replay(events)
    assert called["toolCalls"][0]["function"]["name"] == "ListIndexTool"
    assert result["content"].startswith("row,health")
    assert "outcome" not in events[-1]
    events, _ = await ask(start_gateway, "frontend_tool", asks(user("hello")))
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_11_1"]}


@pytest.mark.parametrize(
    ("stream", "code", "words"),
    [
        ("two_tools", "TOOL_CALL_BROKEN", "joins calls"),
        ("fail400", "RunFailed", "fake openai error 400"),
        ("cuthard", "RunFailed", "network error"),
        ("missing_state", "RunFailed", "Expected RemoteInferenceInputDataSet"),
    ],
)
async def test_a_run_that_fails_ends_with_one_error(
    start_gateway: StartGateway, stream: str, code: str, words: str
) -> None:
    events, _ = await ask(start_gateway, stream, asks(user("hello")))
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", code)
    assert words in events[-1]["message"]


async def test_the_conversation_in_the_cluster_s_memory(start_gateway: StartGateway) -> None:
    events, sent = await ask(start_gateway, "empty_messages", asks())
    assert sent["messages"] == []
    assert [event["type"] for event in events] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert events[1]["messages"][1]["content"] == "fake answer 5"


async def test_media_of_1_0_are_sent_in_the_form_that_the_cluster_reads(start_gateway: StartGateway) -> None:
    """It drops all others without a word."""
    image = {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}}
    _, sent = await ask(start_gateway, "text", asks(user([image, {"type": "text", "text": "what?"}])))
    part = {"type": "binary", "mimeType": "image/png", "data": PNG}
    assert sent["messages"][0]["content"] == [part, {"type": "text", "text": "what?"}]
    link = {"type": "image", "source": {"type": "url", "value": "https://example.com/a.png"}}
    events, sent = await ask(start_gateway, "text", asks(user([link])))
    assert sent is None
    assert "messages[0].content[0]" in events[-1]["message"]


async def test_a_copy_of_the_conversation_that_is_none_is_an_error(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = RECORDED["streams"]["empty_messages"].replace('"role":"assistant"', '"rôle":"assistant"')
    monkeypatch.setitem(RECORDED["streams"], "other messages", stream)
    events, _ = await ask(start_gateway, "other messages", asks())
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "ClusterError")
    assert "messages.1" in events[-1]["message"]
