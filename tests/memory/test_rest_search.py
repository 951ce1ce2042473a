"""Searches for the messages of a session in a memory container."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.memory import rest_handler
from gateway.memory.owner import message_id
from gateway.memory.rest import Search, read_search
from tests.conftest import StartGateway
from tests.memory.conversations import turn, user
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.test_management import Expiring
from tests.memory.test_rest import (
    BOB,
    CONTAINER,
    EVE,
    FORBIDDEN,
    NOT_FOUND,
    SESSION,
    DeletedMeanwhile,
    WithSessions,
    bobs_key,
)
from tests.memory.test_rest import store as store  # a fixture
from tests.wire import RecordingUpstream, read_message, send_request

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


OTHERS: tuple[Any, ...] = (
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


@pytest.mark.parametrize("document", OTHERS)
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
    monkeypatch.setattr(rest_handler, "_LARGEST", 200)
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


async def test_whom_the_cluster_refuses_gets_its_answer(start_gateway: StartGateway, store: InMemoryStore) -> None:
    assert await search(start_gateway, store, {"query": QUERY}, BOB, FORBIDDEN) == (403, {"status": 403})


@pytest.mark.parametrize("readable", [True, False])
async def test_any_other_search_passes_unchanged(readable: bool, start_gateway: StartGateway) -> None:
    bodies = [json.dumps(document).encode() for document in (*OTHERS, "x" * 70_000)]
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
