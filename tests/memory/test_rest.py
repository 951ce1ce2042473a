"""The gateway's own sessions on the cluster's memory paths."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.agents.lookup import Credentials
from gateway.app.wiring import UseCases
from gateway.memory import rest
from gateway.memory.model import Block, Metadata, Owner, Session, SessionKey, StoredMessage
from gateway.memory.owner import caller_of, message_id, new_session_id
from gateway.memory.rest import Search, SessionResources, read_search, working_document
from gateway.memory.store import Store, StoreError, StoreUnavailable, UnreadableSession
from gateway.memory.stores.strands.files import StrandsFilesStore
from tests.conftest import StartGateway
from tests.memory.conversations import assistant, image, tool_result, tool_use, turn, user
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.test_management import Expiring
from tests.proxy.use_case import UseCase
from tests.wire import Parsed, RecordingUpstream, read_message, send_request

BOB = b"Authorization: Basic Ym9iOnNlY3JldA=="
EVE = b"Authorization: Basic ZXZlOnNlY3JldA=="
AGENT = "Ym9iOn-lY3_ldA9012xy"
SESSION = new_session_id(AGENT, "one")
ML = "/_plugins/_ml"
CONTAINER = f"{ML}/memory_containers/c1/memories"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
FORBIDDEN = b'HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status": 403}'


def bobs_key(session_id: str = SESSION) -> SessionKey:
    name, _, value = BOB.decode().partition(": ")
    return SessionKey(Owner(AGENT, caller=caller_of({name: value}, by_user=True)), session_id)


class WithSessions(UseCase):
    """The use case of the tests, with sessions of `store`."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def __call__(self, *args: Any) -> Any:
        settings, clusters, log = args[:3]
        sessions = SessionResources(settings, self.store, clusters[""], Credentials().of, log)
        return UseCases(self.execute, self, sessions=sessions, store=self.store)


@pytest.fixture
async def store() -> InMemoryStore:
    """Three turns of bob: an image, a tool call, and a run that failed."""
    store = InMemoryStore()
    first = Metadata(created=1_795_296_419.25, input_type="content_blocks")
    turns = (
        turn(user("What is", image(), "in it?", metadata=first), assistant("A dot.")),
        turn(
            user("How many cats?"),
            assistant("I look it up.", tool_use("call-1", query="cats")),
            user(tool_result("call-1", {"text": "3"}, {"json": {"cats": 3}})),
            assistant("Three."),
        ),
        turn(user("And now?", metadata=Metadata(failed=True))),
    )
    for number, one in enumerate(turns):
        await store.append(bobs_key(), one, number)
    return store


async def ask(
    start_gateway: StartGateway, store: Store, method: str, path: str, *headers: bytes, answer: bytes = NOT_FOUND
) -> tuple[int, Any, list[Parsed]]:
    """Send a request. Return status and document of the response, and what reached the cluster."""
    raw = b"\r\n".join((f"{method} {path} HTTP/1.1".encode(), b"Host: c", *(headers or (BOB,)), b"", b""))
    async with RecordingUpstream([answer]) as upstream:
        gateway = await start_gateway(upstream.url, WithSessions(store))
        response = await send_request(gateway.data_port, raw)
        return int(response.line.split()[1]), json.loads(response.body), upstream.requests


async def test_a_session_is_a_memory(start_gateway: StartGateway, store: InMemoryStore) -> None:
    status, document, requests = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}")
    assert (status, document) == (
        200,
        {
            "memory_id": SESSION,
            "create_time": "2025-06-15T15:06:40.000000Z",
            "updated_time": "2025-06-15T15:06:42.000000Z",
            "name": "What is\nin it?",
        },
    )
    [request] = requests  # the cluster was asked whether the caller may read memories
    assert request.line == b"GET /_plugins/_ml/memory/mlc-gateway HTTP/1.1"
    assert request.values("authorization") == [BOB.partition(b": ")[2]]


async def test_turns_are_messages(start_gateway: StartGateway, store: InMemoryStore) -> None:
    status, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}/messages")
    first, second, third = document["messages"]
    assert (status, set(document)) == (200, {"messages"})
    assert first == {
        "memory_id": SESSION,
        "message_id": message_id(SESSION, 1),
        "create_time": "2026-11-21T21:26:59.250000Z",
        "input": "What is\nin it?",
        "response": "A dot.",
        "additional_info": {
            "messages": [
                {
                    "role": "user",
                    "content": [{"text": "What is"}, image(), {"text": "in it?"}],
                    "metadata": {"created": 1_795_296_419.25, "input_type": "content_blocks"},
                },
                {"role": "assistant", "content": [{"text": "A dot."}]},
            ]
        },
    }
    assert (second["input"], second["response"]) == ("How many cats?", "Three.")
    assert [message["role"] for message in second["additional_info"]["messages"]] == ["user", "assistant"] * 2
    assert third["input"] == "And now?"
    assert "response" not in third


@pytest.mark.parametrize(
    ("query", "numbers", "following"),
    [
        ("max_results=1", [1], 1),
        ("max_results=1&next_token=1", [2], 2),
        ("next_token=1", [2, 3], None),
        ("max_results=3", [1, 2, 3], None),
        ("next_token=3", [], None),
        ("max_results=0", [], None),
        ("next_token=999999999", [], None),
    ],
)
async def test_messages_come_in_pages(
    query: str, numbers: list[int], following: int | None, start_gateway: StartGateway, store: InMemoryStore
) -> None:
    _, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}/messages?{query}")
    assert [one["message_id"] for one in document["messages"]] == [message_id(SESSION, number) for number in numbers]
    assert document.get("next_token") == following


async def test_every_turn_is_on_one_page_if_the_oldest_are_missing(start_gateway: StartGateway) -> None:
    store = Expiring()
    for number in range(7):
        await store.append(bobs_key(), turn(), number)
    store.oldest = 6
    found, token = [], 0
    while token is not None:
        path = f"{ML}/memory/{SESSION}/messages?max_results=3&next_token={token}"
        _, document, _ = await ask(start_gateway, store, "GET", path)
        found.append([one["message_id"].rpartition("-")[2] for one in document["messages"]])
        token = document.get("next_token")
    assert found == [["4", "5", "6"], ["7"]]


async def test_every_page_of_a_long_session_is_found(start_gateway: StartGateway) -> None:
    store = InMemoryStore()
    for number in range(150):
        messages = [user(f"q{number}"), *[assistant("step")] * (number % 4), assistant(f"a{number}")]
        await store.append(bobs_key(), turn(*messages), number)
    for start in (0, 1, 2, 70, 148, 149):
        path = f"{ML}/memory/{SESSION}/messages?next_token={start}&max_results=2"
        _, document, _ = await ask(start_gateway, store, "GET", path)
        expected = [(f"q{number}", f"a{number}") for number in range(start, min(start + 2, 150))]
        assert [(one["input"], one["response"]) for one in document["messages"]] == expected


async def test_a_page_ends_when_its_messages_are_large(
    start_gateway: StartGateway, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "MOST_BYTES", 400)  # only the first turn is larger
    found, token = [], 0
    while token is not None:
        path = f"{ML}/memory/{SESSION}/messages?max_results=50&next_token={token}"
        _, document, _ = await ask(start_gateway, store, "GET", path)
        found.append([one["input"] for one in document["messages"]])
        token = document.get("next_token")
    assert found == [["What is\nin it?"], ["How many cats?", "And now?"]]


@pytest.mark.parametrize("query", ["max_results=x", "next_token=-1", "max_results=99999999999"])
async def test_a_page_that_is_no_number_is_a_400(query: str, start_gateway: StartGateway, store: InMemoryStore) -> None:
    status, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}/messages?{query}")
    assert (status, document["error"]["type"]) == (400, "ValidationException")


async def test_one_turn_and_its_tool_calls(start_gateway: StartGateway, store: InMemoryStore) -> None:
    id = message_id(SESSION, 2)
    status, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/message/{id}")
    assert (status, document["message_id"], document["response"]) == (200, id, "Three.")
    status, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/message/{id}/traces")
    [trace] = document["traces"]
    assert (status, trace) == (
        200,
        {
            "memory_id": SESSION,
            "message_id": f"{id}-1",
            "create_time": "1970-01-01T00:00:00.000000Z",
            "input": '{"query": "cats"}',
            "response": '3\n{"cats": 3}',
            "origin": "look_up",
            "parent_message_id": id,
            "trace_number": 1,
        },
    )


async def test_a_session_of_a_memory_container(start_gateway: StartGateway, store: InMemoryStore) -> None:
    _, document, _ = await ask(start_gateway, store, "GET", f"{CONTAINER}/sessions/{SESSION}")
    assert document == {
        "memory_container_id": "c1",
        "created_time": 1_750_000_000_000,
        "last_updated_time": 1_750_000_002_000,
        "namespace": {"agent_id": AGENT},
    }
    _, document, _ = await ask(start_gateway, store, "GET", f"{CONTAINER}/working/{message_id(SESSION, 4)}")
    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"query": "cats"}'}}
    assert document["structured_data_blob"]["message"] == {
        "role": "assistant",
        "content": [{"text": "I look it up.", "type": "TEXT"}],
        "toolCalls": [call],
    }
    assert document["message_id"] == 3
    assert document["namespace"] == {"agent_id": AGENT, "session_id": SESSION}


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (image("AA=="), {"image": {"format": "png", "type": "BASE64", "data": "AA=="}, "type": "IMAGE"}),
        (
            {"video": {"format": "mp4", "source": {"url": "https://a/b"}}},
            {"video": {"format": "mp4", "type": "URL", "data": "https://a/b"}, "type": "VIDEO"},
        ),
        (
            {"document": {"format": "pdf", "name": "Report", "source": {"bytes": "AA=="}}},
            {"document": {"format": "pdf", "type": "BASE64", "data": "AA=="}, "type": "DOCUMENT"},
        ),
        (
            {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://a/b"}}}},
            {"text": '{"image": {"format": "png", "source": {"s3Location": {"uri": "s3://a/b"}}}}', "type": "TEXT"},
        ),
        ({"cachePoint": {"type": "default"}}, {"text": '{"cachePoint": {"type": "default"}}', "type": "TEXT"}),
    ],
)
def test_each_block_has_a_type(block: Block, shown: Block) -> None:
    session = Session(bobs_key(), 1, 1, 0.0, 0.0)
    document = working_document("c1", session, StoredMessage(0, 1, "t1", user(block)))
    assert document["structured_data_blob"]["message"]["content"] == [shown]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{ML}/memory/{SESSION}", {"success": True}),
        (f"{CONTAINER}/sessions/{SESSION}", {"_index": "mlc-gateway", "_id": SESSION, "result": "deleted"}),
    ],
)
async def test_deletion(path: str, body: Any, start_gateway: StartGateway, store: InMemoryStore) -> None:
    assert (await ask(start_gateway, store, "DELETE", path))[:2] == (200, body)
    assert await store.session(bobs_key()) is None
    assert (await ask(start_gateway, store, "DELETE", path))[0] == 404


class Interrupted(InMemoryStore):
    """Its first deletion fails when nobody sees the session any more."""

    interrupted = False

    async def session(self, key: SessionKey) -> Session | None:
        return None if self.interrupted else await super().session(key)

    async def delete(self, key: SessionKey) -> bool:
        if not self.interrupted:
            self.interrupted = True
            raise StoreUnavailable("the connection was lost")
        return await super().delete(key)


async def test_a_deletion_that_failed_is_finished_by_the_next_one(start_gateway: StartGateway) -> None:
    store = Interrupted()
    await store.append(bobs_key(), turn(), 0)
    statuses = [(await ask(start_gateway, store, "DELETE", f"{ML}/memory/{SESSION}"))[0] for _ in range(3)]
    assert statuses == [503, 200, 404]


RESOURCES = (
    f"{ML}/memory/{{id}}",
    f"{ML}/memory/{{id}}/messages",
    f"{ML}/memory/message/{{id}}-1",
    f"{ML}/memory/message/{{id}}-1/traces",
    f"{CONTAINER}/sessions/{{id}}",
    f"{CONTAINER}/working/{{id}}-1",
)


@pytest.mark.parametrize("path", RESOURCES)
async def test_a_foreign_session_is_unknown(path: str, start_gateway: StartGateway, store: InMemoryStore) -> None:
    other = new_session_id(AGENT, "unknown")
    status, unknown, _ = await ask(start_gateway, store, "GET", path.format(id=other), BOB)
    assert status == 404
    for headers in ((EVE,), (b"X-A: b",), (BOB, b"X-Proxy-User: eve")):
        status, document, _ = await ask(start_gateway, store, "GET", path.format(id=SESSION), *headers)
        assert (status, json.dumps(document)) == (404, json.dumps(unknown).replace(other, SESSION))
    assert (await ask(start_gateway, store, "DELETE", f"{ML}/memory/{SESSION}", EVE))[0] == 404
    assert await store.session(bobs_key()) is not None


async def test_an_unknown_session_is_the_clusters_404(start_gateway: StartGateway, store: InMemoryStore) -> None:
    for id in ("gws-nope", new_session_id(AGENT, "unknown")):
        _, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/{id}")
        cause = {"type": "resource_not_found_exception", "reason": f"Memory [{id}] not found"}
        assert document == {"error": {"root_cause": [cause], **cause}, "status": 404}  # 2.19.0 memory_get_missing
    for id in ("gws-nope", message_id(SESSION, 4), message_id(SESSION, 0), SESSION):
        _, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/message/{id}")
        assert document["error"]["reason"] == f"Message [{id}] not found"


@pytest.mark.parametrize("path", RESOURCES)
async def test_whom_the_cluster_refuses_gets_its_answer(
    path: str, start_gateway: StartGateway, store: InMemoryStore
) -> None:
    answer = await ask(start_gateway, store, "GET", path.format(id=SESSION), BOB, answer=FORBIDDEN)
    assert answer[:2] == (403, {"status": 403})


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"500 Internal Server Error", b"503 Service Unavailable"])
async def test_a_cluster_that_cannot_check_the_caller_is_a_503(
    status: bytes, start_gateway: StartGateway, store: InMemoryStore
) -> None:
    answer = b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status
    found, document, _ = await ask(start_gateway, store, "DELETE", f"{ML}/memory/{SESSION}", answer=answer)
    assert (found, document["error"]["type"]) == (503, "MemoryUnavailable")
    assert await store.session(bobs_key()) is not None


class DeletedMeanwhile(InMemoryStore):
    """A store in which a session is deleted as soon as it was found."""

    async def session(self, key: SessionKey) -> Session | None:
        found = await super().session(key)
        await self.delete(key)
        return found


@pytest.mark.parametrize("path", [path for path in RESOURCES if "/sessions/" not in path])
async def test_a_session_that_is_deleted_during_a_read_is_unknown(path: str, start_gateway: StartGateway) -> None:
    store = DeletedMeanwhile()
    await store.append(bobs_key(), turn(), 0)
    status, document, _ = await ask(start_gateway, store, "GET", path.format(id=SESSION))
    assert (status, document["error"]["type"]) == (404, "resource_not_found_exception")


async def test_a_signed_request_is_refused(start_gateway: StartGateway, store: InMemoryStore) -> None:
    signed = b"Authorization: AWS4-HMAC-SHA256 Credential=AK/1/r/es/aws4_request, SignedHeaders=host, Signature=00"
    for header, query in ((signed, ""), (b"X-A: b", "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00")):
        answer = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}{query}", header)
        assert (answer[0], answer[1]["error"]["type"], answer[2]) == (400, "SignatureConflict", [])


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StoreUnavailable, "The gateway's store of"), (UnreadableSession, "The gateway can't read what")],
)
async def test_a_store_that_fails_is_a_503(
    error: type[StoreError],
    reason: str,
    start_gateway: StartGateway,
    store: InMemoryStore,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The log says why; a client does not get to know paths and accounts."""

    async def fail(_: SessionKey) -> None:
        raise error("/var/lib/sessions is full")

    store.session = fail  # type: ignore[method-assign]
    status, document, _ = await ask(start_gateway, store, "GET", f"{ML}/memory/{SESSION}")
    assert (status, document["error"]["type"]) == (503, "MemoryUnavailable")
    assert document["error"]["reason"].startswith(reason)
    assert "/var/lib" not in json.dumps(document)
    [logged] = [line for line in capfd.readouterr().err.splitlines() if "store unavailable" in line]
    assert json.loads(logged)["reason"] == "/var/lib/sessions is full"


def damage(directory: Path) -> None:
    [state] = directory.rglob("state.json")
    state.write_bytes(b"{")


async def test_a_session_whose_files_are_damaged_can_be_deleted_by_its_caller(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    store = StrandsFilesStore(tmp_path)
    await store.start()
    await store.append(bobs_key(), turn(), 0)
    damage(tmp_path)
    for method, expected in (("GET", 503), ("DELETE", 200), ("GET", 404)):
        status, _, _ = await ask(start_gateway, store, method, f"{ML}/memory/{SESSION}", BOB)
        assert status == expected
    await store.close()


OTHERS = (
    "GET /_plugins/_ml/memory/k3Xx_6EBm8w0PCMjLWNL",
    "GET /_plugins/_ml/memory/k3Xx_6EBm8w0PCMjLWNL/messages?max_results=1",
    "DELETE /_plugins/_ml/memory/k3Xx_6EBm8w0PCMjLWNL",
    "GET /_plugins/_ml/memory/message/qHXx_6EBm8w0PCMjO2Nj",
    "GET /_plugins/_ml/memory/xgws-1",
    "GET /_plugins/_ml/memory?gws-1",
    "PUT /_plugins/_ml/memory/gws-1",
    "POST /_plugins/_ml/memory/gws-1/messages",
    "GET /_plugins/_ml/memory_containers/gws-1",
    "GET /_plugins/_ml/memory_containers/gws-1/memories/sessions/other",
    "GET /_plugins/_ml/memory_containers/c/memories/long-term/gws-1",
    "GET /_plugins/_ml/agents/gws-1",
)


@pytest.mark.parametrize("line", OTHERS)
async def test_every_other_request_passes_unchanged(line: str, start_gateway: StartGateway) -> None:
    """Neither the other ids nor the other paths: request and response are those of the client and the cluster."""
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, WithSessions(InMemoryStore()))
        raw = f"{line} HTTP/1.1\r\nHost: c\r\nX-a: b\r\n\r\n".encode()
        answer = await send_request(gateway.data_port, raw)
        [received] = upstream.requests
        host = b"127.0.0.1:%d" % upstream.port
    assert received == Parsed(f"{line} HTTP/1.1".encode(), ((b"Host", host), (b"X-a", b"b")), b"")
    assert answer.line == b"HTTP/1.1 200 OK"


async def test_without_sessions_their_ids_pass_too(start_gateway: StartGateway) -> None:
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = f"GET {ML}/memory/{SESSION} HTTP/1.1\r\nHost: c\r\n\r\n".encode()
        assert (await send_request(gateway.data_port, raw)).body == b"ok"
        assert len(upstream.requests) == 1


TERM = {"term": {"namespace.session_id": "gws-1"}}
PATH = f"{CONTAINER}/working/_search"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"query": TERM}, Search("gws-1")),
        ({"query": TERM, "size": 50, "sort": [{"message_id": "asc"}]}, Search("gws-1", 0, 50)),  # 3.6.0
        ({"query": {"term": {"namespace.session_id": {"value": "gws-1"}}}}, Search("gws-1")),
        ({"query": {"match": {"namespace.session_id": {"query": "gws-1"}}}}, Search("gws-1")),
        ({"query": {"bool": {"filter": [TERM]}}, "from": 3}, Search("gws-1", 3)),
        ({"query": {"bool": {"must": TERM}}, "sort": "message_id"}, Search("gws-1")),
        ({"query": TERM, "sort": [{"created_time": {"order": "desc"}}]}, Search("gws-1", 0, 10, True)),
    ],
)
def test_a_search_for_a_session(document: Any, expected: Search) -> None:
    assert read_search(json.dumps(document).encode()) == expected


OTHER_SEARCHES: tuple[Any, ...] = (
    {"query": {"term": {"namespace.session_id": "7OoBAKIBmjUj_f3tXXOA"}}},
    {"query": {"term": {"namespace.user_id": "gws-1"}}},
    {"query": {"terms": {"namespace.session_id": ["gws-1"]}}},
    {"query": {"term": {"namespace.session_id": "gws-1", "x": "y"}}},
    {"query": {"bool": {"filter": [TERM, {"term": {"metadata.role": "user"}}]}}},
    {"query": {"bool": {"filter": [TERM], "must_not": [TERM]}}},
    {"query": {"bool": {"must_not": [TERM]}}},
    {"query": {"bool": {"filter": [{"bool": {"filter": [TERM]}}]}}},
    {"query": TERM, "aggs": {}},
    {"query": TERM, "size": -1},
    {"query": TERM, "size": "5"},
    {"query": TERM, "from": True},
    {"query": TERM, "sort": [{"metadata.role": "asc"}]},
    {"query": TERM, "sort": [{"message_id": "asc"}, {"created_time": "asc"}]},
    {"query": TERM, "sort": [{"message_id": {"order": "desc", "missing": "_last"}}]},
    {"sort": []},
    "gws-1",
    [TERM],
    None,
)


@pytest.mark.parametrize("document", OTHER_SEARCHES)
def test_any_other_search(document: Any) -> None:
    assert read_search(json.dumps(document).encode()) is None


NOT_READABLE = {"not JSON": b'{"query": gws-', "not UTF-8": b'{"query": "gws-\xff"}', "too deep": b'{"gws-":' * 20_000}


@pytest.mark.parametrize("body", NOT_READABLE.values(), ids=NOT_READABLE)
def test_what_cannot_be_read_is_no_search(body: bytes) -> None:
    assert read_search(body) is None


async def search(
    start_gateway: StartGateway, store: InMemoryStore, document: Any, header: bytes = BOB, answer: bytes = NOT_FOUND
) -> tuple[int, Any]:
    body = json.dumps(document).encode()
    head = b"POST %b HTTP/1.1\r\nHost: c\r\n%b\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), header, len(body))
    async with RecordingUpstream([answer]) as upstream:
        gateway = await start_gateway(upstream.url, WithSessions(store))
        response = await send_request(gateway.data_port, head + body)
        assert [request.line for request in upstream.requests] == [b"GET /_plugins/_ml/memory/mlc-gateway HTTP/1.1"]
        return int(response.line.split()[1]), json.loads(response.body)


QUERY = {"term": {"namespace.session_id": SESSION}}


@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"size": 2}, [1, 2]),
        ({"from": 5, "size": 5}, [6, 7]),
        ({"from": 7}, []),
        ({"size": 0}, []),
        ({"size": 2, "sort": [{"message_id": "desc"}]}, [7, 6]),
        ({"from": 6, "size": 5, "sort": [{"message_id": "desc"}]}, [1]),
    ],
)
async def test_the_messages_of_a_session_are_found(
    more: Any, numbers: list[int], start_gateway: StartGateway, store: InMemoryStore
) -> None:
    status, document = await search(start_gateway, store, {"query": QUERY, **more})
    hits = document["hits"]
    assert (status, hits["total"]) == (200, {"value": 7, "relation": "eq"})
    assert [hit["_id"] for hit in hits["hits"]] == [message_id(SESSION, number) for number in numbers]
    assert [hit["_source"]["message_id"] for hit in hits["hits"]] == [number - 1 for number in numbers]


async def test_a_page_of_expired_messages_has_none_of_the_next(start_gateway: StartGateway) -> None:
    store = Expiring()
    for number in range(4):
        await store.append(bobs_key(), turn(user("a")), number)
    store.oldest = 3
    pages = [await search(start_gateway, store, {"query": QUERY, "from": start, "size": 2}) for start in (0, 2)]
    shown = [[hit["_source"]["message_id"] for hit in document["hits"]["hits"]] for _, document in pages]
    assert shown == [[], [3]]


async def test_a_search_for_too_large_messages_is_a_400(
    start_gateway: StartGateway, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "MOST_BYTES", 200)
    status, document = await search(start_gateway, store, {"query": QUERY, "size": 7})
    assert (status, document["error"]["details"]["field"]) == (400, "size")
    assert (await search(start_gateway, store, {"query": QUERY, "size": 1}))[0] == 200  # however large it is


async def test_a_foreign_session_has_no_hits(start_gateway: StartGateway, store: InMemoryStore) -> None:
    status, document = await search(start_gateway, store, {"query": QUERY}, EVE)
    assert (status, document["hits"]["total"]["value"], document["hits"]["hits"]) == (200, 0, [])


async def test_a_session_that_is_deleted_during_a_search_has_no_hits(start_gateway: StartGateway) -> None:
    store = DeletedMeanwhile()
    await store.append(bobs_key(), turn(), 0)
    status, document = await search(start_gateway, store, {"query": QUERY})
    assert (status, document["hits"]["hits"]) == (200, [])


async def test_whom_the_cluster_refuses_gets_its_answer_to_a_search(
    start_gateway: StartGateway, store: InMemoryStore
) -> None:
    assert await search(start_gateway, store, {"query": QUERY}, BOB, FORBIDDEN) == (403, {"status": 403})


@pytest.mark.parametrize("readable", [True, False])
async def test_any_other_search_passes_unchanged(readable: bool, start_gateway: StartGateway) -> None:
    bodies = [json.dumps(document).encode() for document in (*OTHER_SEARCHES, "x" * 70_000)]
    async with RecordingUpstream() as upstream:
        settings = {"memory": {"readable": readable}}
        gateway = await start_gateway(upstream.url, WithSessions(InMemoryStore()), settings)
        for body in bodies:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
            writer.write(b"POST %b HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)))
            writer.write(body[:3])
            await writer.drain()
            writer.write(body[3:])
            assert (await read_message(reader)).body == b"ok", body
            writer.close()
    line = b"POST %b HTTP/1.1" % PATH.encode()
    assert [(received.line, received.body) for received in upstream.requests] == [(line, body) for body in bodies]


async def test_a_chunked_search_passes_unchanged(start_gateway: StartGateway) -> None:
    body = json.dumps({"query": TERM}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n" % PATH.encode()
    async with RecordingUpstream() as upstream:
        gateway = await start_gateway(upstream.url, WithSessions(InMemoryStore()))
        answer = await send_request(gateway.data_port, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    [received] = upstream.requests
    assert (received.body, answer.body) == (body, b"ok")
