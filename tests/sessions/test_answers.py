"""Answers that a session can't take as they come: the client gets them, and the session can be used again."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.app import Gateway
from gateway.execute import session_run
from gateway.execute.deliveries import NOTICE
from gateway.memory.model import NO_ANSWER, Message, Owner, Session, SessionKey
from gateway.memory.stores.registry import build_store
from tests.conftest import StartGateway
from tests.execute.stub_cluster import ML, V1, V2
from tests.execute.stub_cluster import Cluster as Documents

SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/r/es/aws4_request, SignedHeaders=host, Signature=0",
    "X-Amz-Date": "20260101T000000Z",
}


def event(content: str, is_last: bool) -> bytes:
    outputs = [{"name": "memory_id", "result": "m"}, answer(content, is_last)]
    return b"data: " + json.dumps({"inference_results": [{"output": outputs}]}).encode() + b"\n\n"


def answer(content: str, is_last: bool) -> Any:
    return {"name": "response", "dataAsMap": {"content": content, "is_last": is_last}}


def legacy(text: str) -> bytes:
    outputs = [{"name": "memory_id", "result": "m"}, {"name": "response", "result": text}]
    return json.dumps({"inference_results": [{"output": outputs}]}).encode()


def unified(*content: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps({"stop_reason": "end_turn", "message": message, "memory_id": "m", "metrics": {}}).encode()


EVENTS = event("It is ", False) + event("seven.", False) + event("", True)


@dataclass
class Stub:
    """A cluster whose next answer is `body` with `headers`, or, with `streams`, a chunked stream of events."""

    url: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    sent: list[Any] = field(default_factory=list)
    documents: Documents = field(default_factory=Documents)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await self.documents.answer(request)
        if request.method == "DELETE":  # of the conversation that the run left
            return web.json_response({})
        self.sent.append(await request.json())
        if not self.streams:
            return web.Response(body=self.body, headers={"Content-Type": "application/json", **self.headers})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.body)
        return response


@dataclass
class Chat:
    """A client that goes on with one session of an agent."""

    stub: Stub
    gateway: Gateway
    client: aiohttp.ClientSession
    memory_id: str = ""
    notices: str = ""

    async def ask(
        self, text: str, body: bytes, agent: str = V1, tail: str = "", headers: Any = None
    ) -> tuple[int, bytes]:
        self.stub.body = body
        url = f"http://127.0.0.1:{self.gateway.data_port}{ML}agents/{agent}/_execute{tail}"
        asked = {"input": text, "parameters": {"memory_id": self.memory_id}}
        async with self.client.post(url, json=asked, headers=headers) as response:
            self.notices = ", ".join(response.headers.getall(NOTICE, []))
            received = await response.read()
            return response.status, received

    async def begin(self, agent: str = V1) -> None:
        status, received = await self.ask("Hello.", unified({"text": "Hi."}) if agent == V2 else legacy("Hi."), agent)
        assert status == 200
        found = json.loads(received)
        outputs = found.get("inference_results", [{"output": [{"result": found.get("memory_id")}]}])[0]["output"]
        self.memory_id = outputs[0]["result"]

    async def stored(self, agent: str = V1) -> list[Message]:
        store = build_store(self.gateway.settings.memory)
        await store.start()
        try:
            page = await store.load(SessionKey(Owner(agent), self.memory_id))
        finally:
            await store.close()
        return [stored.message for stored in page.messages]

    async def sessions(self) -> tuple[Session, ...]:
        store = build_store(self.gateway.settings.memory)
        await store.start()
        try:
            return (await store.sessions()).sessions
        finally:
            await store.close()


@pytest.fixture
async def chat(start_gateway: StartGateway, tmp_path: Path) -> AsyncIterator[Chat]:
    stub = Stub()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", stub.serve)
    settings = {
        "memory": {"sqlite": {"path": str(tmp_path / "s.sqlite3")}, "wait_seconds": 60},
        "agents": {"rules": [{"agent": "*", "memory": "gateway"}]},
    }
    async with TestServer(app) as server, aiohttp.ClientSession(auto_decompress=False) as client:
        gateway = await start_gateway(f"http://127.0.0.1:{server.port}", None, settings)
        yield Chat(stub, gateway, client)


async def goes_on(chat: Chat, agent: str = V1) -> str:
    """Assert that the session can be used, and return what the cluster got."""
    status, received = await chat.ask("And?", unified({"text": "Yes."}) if agent == V2 else legacy("Yes."), agent)
    assert status == 200, received
    return json.dumps(chat.stub.sent[-1])


async def failed(chat: Chat) -> list[str]:
    """Return the texts of the failed turns, with what stands in place of an answer."""
    return [message.content[0]["text"] for message in await chat.stored() if message.metadata.failed]


@pytest.mark.parametrize(
    ("body", "coding"),
    [(b"\x28\xb5\x2f\xfd", "zstd"), (gzip.compress(legacy("a" * (17 << 20))), "gzip")],
    ids=["unknown coding", "too large"],
)
async def test_an_answer_that_can_not_be_decoded_is_sent_and_its_turn_has_failed(
    chat: Chat, body: bytes, coding: str
) -> None:
    await chat.begin()
    chat.stub.headers = {"Content-Encoding": coding}
    assert await chat.ask("Lost?", body) == (200, body)
    assert chat.notices.endswith("MEMORY_ANSWER_MISSING")
    chat.stub.headers = {}
    assert "Lost?" not in await goes_on(chat)
    assert await failed(chat) == ["Lost?", NO_ANSWER]


async def test_a_first_answer_that_can_not_be_decoded_names_no_session(chat: Chat) -> None:
    chat.stub.headers = {"Content-Encoding": "zstd"}
    assert (await chat.ask("Lost?", b"\x28\xb5\x2f\xfd"))[0] == 200
    assert chat.notices.endswith("MEMORY_ANSWER_MISSING")
    assert await chat.sessions() == ()


async def test_a_fault_while_the_answer_is_read_does_not_lock_the_session(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat.begin()
    with monkeypatch.context() as context:
        context.setattr(session_run, "read_answer", lambda *_: [][0])
        assert (await chat.ask("Lost?", legacy("x")))[0] == 500
    assert "Lost?" not in await goes_on(chat)
    assert await failed(chat) == ["Lost?", NO_ANSWER]


async def test_forged_credentials_of_a_user_open_no_session(chat: Chat) -> None:
    bob = {"Authorization": "Basic Ym9iOnNlY3JldA=="}
    status, received = await chat.ask("My secret.", legacy("Hi."), headers=bob)
    chat.memory_id = json.loads(received)["inference_results"][0]["output"][0]["result"]
    assert (status, len(chat.stub.sent)) == (200, 1)
    chat.stub.documents.lookup_status = 401
    forged = {"Authorization": "Basic Ym9iOmd1ZXNz"}
    for text in ("And?", "x" * 100_000):  # sent on without the session: a real cluster refuses it
        _, received = await chat.ask(text, legacy("Hi."), headers=forged)
        assert b"My secret." not in received
    assert "My secret." not in json.dumps(chat.stub.sent[1:])
    chat.stub.documents.lookup_status = 200
    await chat.ask("And?", legacy("Hi."), headers=bob)
    assert "My secret." in json.dumps(chat.stub.sent[-1])


async def test_a_large_answer_is_not_read_on_the_event_loop(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def read(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return session_run_read(*args)

    session_run_read = session_run.read_answer
    monkeypatch.setattr(session_run, "read_answer", read)
    await chat.begin()
    assert (await chat.ask("More?", legacy("x" * 100_000)))[0] == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


@pytest.mark.parametrize("frames", ["chunks", "length", "gzip"])
async def test_a_streamed_conversation_goes_on(chat: Chat, frames: str) -> None:
    chat.stub.streams = frames == "chunks"
    chat.stub.headers = {"Content-Type": "text/event-stream"}
    body = EVENTS
    if frames == "gzip":
        chat.stub.headers["Content-Encoding"] = "gzip"
        body = gzip.compress(EVENTS)
    status, received = await chat.ask("Hello.", body, tail="/stream")
    events = [json.loads(one.removeprefix(b"data: ")) for one in received.split(b"\n\n")[:-1]]
    outputs = [one["inference_results"][0]["output"] for one in events]
    chat.memory_id = outputs[-1][0]["result"]
    assert (status, chat.memory_id[:4]) == (200, "gws-")
    # An id is of a turn that is stored, so the first turn's is in the last event.
    said = [answer("It is ", False)], [answer("seven.", False)]
    assert outputs == [*said, [{"name": "memory_id", "result": chat.memory_id}, answer("", True)]]
    status, received = await chat.ask("And?", body, tail="/stream")
    assert (status, received.count(chat.memory_id.encode())) == (200, 3)
    chat.stub.streams, chat.stub.headers = False, {}
    sent = await goes_on(chat)
    assert [sent.count(text) for text in ("Hello.", "It is seven.", "And?")] == [1, 2, 2]


async def test_a_tool_call_without_a_name_in_a_stream_does_not_lock_the_session(chat: Chat) -> None:
    await chat.begin()
    events = ({"type": "TOOL_CALL_START", "toolCallId": "1"}, {"type": "RUN_FINISHED"})
    chat.stub.streams = True
    body = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in events)
    assert await chat.ask("Lost?", body, tail="/stream") == (200, body)
    chat.stub.streams = False
    await goes_on(chat)


async def test_a_run_in_the_background_is_refused(chat: Chat) -> None:
    await chat.begin()
    status, received = await chat.ask("Later?", legacy("x"), tail="?async=true")
    (problem,) = json.loads(received)["error"]["problems"]
    assert (status, problem["field"]) == (400, "?async")
    assert "Later?" not in await goes_on(chat)
    assert (await chat.ask("Now?", legacy("x"), tail="?async=false"))[0] == 200


async def test_a_signed_request_is_refused_before_its_session_is_opened(chat: Chat) -> None:
    await chat.begin()
    before = len(chat.stub.sent)
    chat.memory_id = (
        f"{chat.memory_id[:-4]}0000"  # which is unknown, but a signature that nobody checks must not show that
    )
    status, received = await chat.ask("Who?", legacy("x"), headers=SIGNED)
    assert (status, json.loads(received)["error"]["type"]) == (400, "SignatureConflict")
    chat.memory_id = ""
    status, received = await chat.ask("Who?", legacy("x"), headers=SIGNED)
    assert (status, json.loads(received)["error"]["type"]) == (400, "SignatureConflict")
    assert len(chat.stub.sent) == before
    store = build_store(chat.gateway.settings.memory)
    await store.start()
    assert len((await store.sessions()).sessions) == 1
    await store.close()


USE = {"toolUse": {"toolUseId": "c1", "name": "zoom", "input": {}}}
WITHOUT_CONTENT: list[Any] = [{}, {"image": None}, {"toolUse": {}}, {"toolResult": None}, {"text": ""}]


@pytest.mark.parametrize("size", [1, 100_000])
async def test_blocks_without_content_are_not_stored(chat: Chat, size: int) -> None:
    await chat.begin(V2)
    content = [{"text": "x" * size}, *WITHOUT_CONTENT, {"text": None, **USE}]
    assert (await chat.ask("What?", unified(*content), V2))[0] == 200
    assert chat.notices == ""
    assert [block for message in (await chat.stored(V2))[3:] for block in message.content] == [content[0], USE]
    await goes_on(chat, V2)


@pytest.mark.parametrize(
    ("content", "notice"),
    [(WITHOUT_CONTENT, "MEMORY_ANSWER_MISSING"), ([{"text": "Yes."}, {"new": {"a": 1}}], "MEMORY_BLOCK_UNKNOWN")],
)
async def test_what_the_session_does_not_hold_of_an_answer_is_reported(chat: Chat, content: Any, notice: str) -> None:
    await chat.begin(V2)
    assert (await chat.ask("What?", unified(*content), V2))[0] == 200
    assert chat.notices == notice
    await goes_on(chat, V2)
