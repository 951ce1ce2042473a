"""Expensive bodies: which thread reads them, which limit refuses them, and that legacy ones pass byte for byte."""

from __future__ import annotations

import base64
import contextlib
import gc
import gzip
import json
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench.attacks.documents import MAKERS, Documents, chat, flow, tool
from gateway.execute import handler as execute_handler
from gateway.offload import READING, Worker
from gateway.unified.model import AgentInput
from tests.conftest import StartGateway
from tests.execute.stub_cluster import FLOW, Client, Cluster, server_of

ML = "/_plugins/_ml/agents/"
JSON = {"Content-Type": "application/json"}
LIMITS = {"limits": {"values": 2000, "text": 200_000, "input_items": 600}}


@pytest.fixture
async def client(start_gateway: StartGateway) -> AsyncIterator[Client]:
    cluster = Cluster()
    server = server_of(cluster)
    await server.start_server()
    gateway = await start_gateway(str(server.make_url("/")), None, LIMITS)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as session:
        yield Client(cluster, session)
    await server.close()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that ran on the thread for large bodies."""
    names: list[str] = []
    original = Worker._run

    async def run(self: Worker, rank: int, work: Any) -> Any:
        names.append(next(cell.cell_contents.__name__ for cell in work.__closure__ if callable(cell.cell_contents)))
        return await original(self, rank, work)

    monkeypatch.setattr(Worker, "_run", run)
    return names


async def post(client: Client, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    async with client.session.post(ML + path, data=body, headers={**JSON, **headers}) as answer:
        return answer.status, await answer.json()


async def execute(client: Client, body: bytes, **headers: str) -> tuple[int, Any]:
    return await post(client, f"{FLOW}/_execute", body, **headers)


async def plan_once(client: Client, moved: list[str]) -> None:
    """Have a first request planned: nothing is known of an agent before, so that is done on the thread."""
    assert (await execute(client, b'{"input":"first"}'))[0] == 200
    assert moved == ["rewrite"]
    moved.clear()


async def test_small_bodies_stay_on_the_loop(client: Client, moved: list[str]) -> None:
    await plan_once(client, moved)
    assert (await execute(client, b'{"input":"hello"}'))[0] == 200
    assert (await execute(client, gzip.compress(b'{"input":"hello"}'), **{"Content-Encoding": "gzip"}))[0] == 200
    assert not moved


LARGE = {
    "many escapes": b'{"input":"' + rb"a\n" * 40_000 + b'"}',
    "many values": b'{"input":"a","parameters":{"a":[' + b"1," * 1100 + b"1]}}",
}
DOCUMENT = b'{"type":"document","source":{"type":"base64","format":"%s","data":"' + b"YWJj" * 2000 + b'"}}'


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
async def test_large_bodies_are_read_and_planned_off_the_loop(client: Client, moved: list[str], body: bytes) -> None:
    assert (await execute(client, body))[0] == 200
    assert moved == ["read_execute", "rewrite"]
    packed = gzip.compress(body)
    assert (await execute(client, packed, **{"Content-Encoding": "gzip"}))[0] == 200
    assert moved[-2:] == ["read_execute", "rewrite"]


@pytest.mark.parametrize(("format", "expected"), [(b"txt", ["rewrite"]), (b"pdf", [])])
async def test_documents_that_may_be_sent_as_text_are_planned_off_the_loop(
    client: Client, moved: list[str], format: bytes, expected: list[str]
) -> None:
    await plan_once(client, moved)
    body = b'{"input":[{"text":"Sum up."},%s]}' % (DOCUMENT % format)
    assert (await execute(client, body))[0] == 200
    assert moved == expected


async def test_the_plan_for_a_large_image_is_made_on_the_loop(client: Client, moved: list[str]) -> None:
    await plan_once(client, moved)
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100_000)).decode()
    block = {"type": "image", "source": {"type": "base64", "format": "png", "data": data}}
    assert (await execute(client, json.dumps({"input": [block]}).encode()))[0] in (200, 400)
    assert not moved


async def test_what_is_sent_for_a_long_text_is_planned_off_the_loop(client: Client, moved: list[str]) -> None:
    assert (await execute(client, b'{"input":"' + b"a " * 40_000 + b'"}'))[0] == 200
    assert moved == ["rewrite"]


BOMBS: dict[str, tuple[tuple[bytes, bytes, int, bytes], int, str]] = {
    "numbers": ((b'{"input":[', b"1,", 1000, b"1]}"), 400, "TOO_MANY_ITEMS"),
    "more numbers": ((b'{"input":[', b"1,", 5_000_000, b"1]}"), 413, ""),
    "empty strings": ((b'{"input":[', b'"",', 3_000, b'""]}'), 400, "TOO_MANY_VALUES"),
    "a long text": ((b'{"input":"', b"a", 10_000_000, b'"}'), 413, ""),
    "a long text of escapes": ((b'{"input":"', b"\\n", 5_000_000, b'"}'), 413, ""),
    "white space": ((b'{"input":', b" ", 10_000_000, b'"a"}'), 413, ""),
}
"""Start, repeated part, how often, end; and the status and code of the refusal."""


@pytest.mark.parametrize(("parts", "status", "code"), BOMBS.values(), ids=BOMBS)
async def test_a_bomb_is_refused_before_anything_is_asked(
    client: Client, parts: tuple[bytes, bytes, int, bytes], status: int, code: str
) -> None:
    start, repeated, times, end = parts
    body = start + repeated * times + end
    answer, document = await execute(client, gzip.compress(body, 1), **{"Content-Encoding": "gzip"})
    assert answer == status
    assert document["error"]["problems"][0].get("code", "") == code
    assert "limits." in document["error"]["help"]
    assert not client.cluster.lookups
    assert not client.cluster.bodies


async def test_many_empty_members_are_refused(client: Client) -> None:
    answer, document = await execute(client, gzip.compress(b"") * 10_001, **{"Content-Encoding": "gzip"})
    assert (answer, document["error"]["type"]) == (400, "ValidationException")


LEGACY = [
    b'{"parameters":{"question":"q"}} // asked by the portal',
    b'/* v2 */ {"parameters":{"question":"q"}}',
    b"",
    b'{"parameters":{"a":[' + b"1," * 3000 + b"1]}}",
]


@pytest.mark.parametrize("body", LEGACY)
async def test_a_legacy_body_goes_byte_for_byte(client: Client, body: bytes) -> None:
    assert (await execute(client, body))[0] == 200
    assert client.cluster.bodies == [body]


@pytest.mark.parametrize(
    "body",
    [
        b'{"input":"a"} // x',
        b'/**/{"\\u0069nput":"a"}',
        b'{"parameters":{},/**/"input":"a","input":"b"}',
        b'{"input"',
        '{"parameters":{"question":"q"}}'.encode("utf-16"),
    ],
)
async def test_an_input_in_a_body_that_is_not_strict_is_a_400(client: Client, body: bytes) -> None:
    status, document = await execute(client, body)
    assert (status, document["error"]["type"]) == (400, "ValidationException")
    assert "strict JSON" in document["error"]["help"]
    assert not client.cluster.bodies


MODEL = b'"model":{"model_id":"m","model_provider":"p"}'


@pytest.mark.parametrize("path", ["_register", "_execute"])
async def test_registrations_are_read_with_the_same_budget(client: Client, moved: list[str], path: str) -> None:
    large = b'{"name":"a","input":"x",' + MODEL + b',"a":[' + b"1," * 1100 + b"1]}"
    assert (await post(client, path, large))[0] == 400
    assert set(moved) <= {"_read_concerned", "parts_of", "read_registration"}
    assert moved
    many = b'{"name":"a","input":"x",' + MODEL + b',"a":[' + b"1," * 3000 + b"1]}"
    status, document = await post(client, path, many)
    assert (status, document["error"]["problems"][0]["code"]) == (400, "TOO_MANY_VALUES")
    long = b'{"name":"a","input":"x",' + MODEL + b',"a":' + b" " * 300_000 + b"1}"
    assert (await post(client, path, long))[0] == 413
    assert not client.cluster.bodies


async def test_a_refused_input_is_given_back_without_a_collection(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[weakref.ref[AgentInput]] = []
    original = execute_handler.read_execute

    class Seen(AgentInput, weakref=True):
        """An input that a weak reference can follow."""

    def read_execute(*args: Any) -> Any:
        request = original(*args)
        assert request.input is not None
        seen = Seen(request.input.type, request.input.messages)
        inputs.append(weakref.ref(seen))
        return type(request)(request.kind, seen, request.extracted, request.parameters, request.other)

    monkeypatch.setattr(execute_handler, "read_execute", read_execute)
    client.cluster.lookup_status = 500
    gc.collect()
    gc.disable()
    try:
        for body in (b'{"input":"hello"}', LARGE["many escapes"]):
            assert (await execute(client, body))[0] == 502
        await READING.run(int)
        assert [ref() for ref in inputs] == [None, None]
    finally:
        gc.enable()


async def test_once_an_input_was_refused_an_agent_is_planned_for_off_the_loop(client: Client, moved: list[str]) -> None:
    await plan_once(client, moved)
    refused = {"input": "hello", "parameters": {"gw_x": "1"}}
    assert (await execute(client, json.dumps(refused).encode()))[0] == 400
    assert not moved
    talk = {"input": [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in ("user", "assistant") * 2]}
    for body in (refused, talk):
        await execute(client, json.dumps(body).encode())
    assert moved == ["rewrite", "rewrite"]


# Documents of agents, which may be as expensive as bodies


class Documented(Cluster):
    """A cluster with one agent, `large`, and what it needs."""

    def __init__(self, documents: Documents) -> None:
        super().__init__()
        self.documents = documents.by_path("large")
        self.read: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        self.read[request.path] += 1
        document = self.documents.get(request.path)
        return await super().answer(request) if document is None else web.json_response(document)


@contextlib.asynccontextmanager
async def through(start_gateway: StartGateway, documents: Documents, **limits: int) -> AsyncIterator[Client]:
    cluster = Documented(documents)
    server = server_of(cluster)
    await server.start_server()
    gateway = await start_gateway(str(server.make_url("/")), None, {"limits": limits})
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as session:
        yield Client(cluster, session)
    await server.close()


async def test_a_large_agent_is_read_and_planned_off_the_loop(start_gateway: StartGateway, moved: list[str]) -> None:
    async with through(start_gateway, MAKERS["a long prompt in every tool"](40)) as client:
        for _ in range(3):
            assert (await post(client, "large/_execute", b'{"input":"hello"}'))[0] == 200
    assert Counter(moved) == {"count_values": 1, "_read_object": 1, "add": 1, "read": 1, "rewrite": 3}
    assert [sent["parameters"]["question"] for sent in client.cluster.sent] == ["hello"] * 3


async def test_an_agent_that_is_too_large_is_refused_without_another_look(start_gateway: StartGateway) -> None:
    async with through(start_gateway, MAKERS["tools"](1600)) as client:
        answers = [await post(client, "large/_execute", b'{"input":"hello"}') for _ in range(5)]
        legacy = await post(client, "large/_execute", b'{"parameters":{"question":"hello"}}')
    (problem,) = answers[0][1]["error"]["problems"]
    assert problem == {
        "field": "agents/large",
        "reason": "the agent has too many tools, with those of the agents it runs",
        "expected": "at most 1000",
        "received": "1600",
        "code": "AGENT_TOO_LARGE",
        "help": "register an agent with fewer tools and shorter templates, or divide this one into several",
    }
    assert {status for status, _ in answers} == {400}
    assert client.cluster.read[f"{ML}large"] == 1  # type: ignore[attr-defined]
    assert legacy[0] == 200


async def test_a_long_memory_is_planned_with_off_the_loop(start_gateway: StartGateway, moved: list[str]) -> None:
    agent = chat(memory={"type": "conversation_index"})
    async with through(start_gateway, agent) as client:
        turn = {"input": "q", "response": "a" * 70_000}
        client.cluster.documents["/_plugins/_ml/memory/m/messages"] = {"messages": [turn]}  # type: ignore[attr-defined]
        body = b'{"input":"hello","parameters":{"memory_id":"m"}}'
        await post(client, "large/_execute", body)
    assert "rewrite" in moved


@pytest.mark.parametrize("limit", ["text", "values"])
async def test_a_document_over_a_limit_is_refused_until_the_limit_is_raised(
    start_gateway: StartGateway, limit: str
) -> None:
    documents = flow([tool()], description="x" * 5000, tags=["x"] * 500)
    low, high = {"text": (4000, 8000), "values": (400, 800)}[limit]
    async with through(start_gateway, documents, **{limit: low}) as client:
        status, refusal = await post(client, "large/_execute", b'{"input":"hello"}')
    (problem,) = refusal["error"]["problems"]
    assert (status, problem["field"], problem["code"]) == (400, "agents/large", "DOCUMENT_TOO_LARGE")
    assert f"limits.{limit}" in refusal["error"]["help"]
    async with through(start_gateway, documents, **{limit: high}) as client:
        assert (await post(client, "large/_execute", b'{"input":"hello"}'))[0] == 200
