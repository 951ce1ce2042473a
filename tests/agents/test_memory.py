from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway.agents.errors import LookupDenied, LookupFailed
from gateway.agents.memory import MemoryReader

from .conftest import ML, FakeCluster, HttpLookup

MEMORY = "k3Xx_6EBm8w0PCMjLWNL"
PATH = f"{ML}memory/{MEMORY}/messages"
CALLER = {"authorization": "Basic a"}


def message(question: str, response: str | None = None) -> dict[str, Any]:
    answered = {} if response is None else {"response": response, "additional_info": {}}
    return {
        "memory_id": MEMORY,
        "message_id": "m",
        "create_time": "2026-11-21T21:09:18Z",
        "input": question,
        **answered,
    }


# 2.19.0 05_memory, conv_d_get_messages: the sixth run failed.
RECORDED = [
    message("What is my name?", "Your name is Bob"),
    *(message(f"q{n}", f"FAKE-ANSWER-{155 + n}") for n in range(3, 7)),
    message("q"),
    message("again", "FAKE-ANSWER-164"),
]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (10, ["What is my name?", "q3", "q4", "q5", "q6", "q", "again"]),
        (2, ["q", "again"]),  # one has no response
        (1, ["again"]),
        (0, []),
        (-1, []),
    ],
)
async def test_the_newest_oldest_first(
    cluster: FakeCluster, lookup: HttpLookup, limit: int, expected: list[str]
) -> None:
    cluster.documents[PATH] = {"messages": RECORDED}
    remembered = await MemoryReader(lookup).remembered(MEMORY, CALLER, limit)
    assert [question for question, _ in remembered] == expected
    assert dict(remembered).items() <= {m["input"]: m.get("response") or "" for m in RECORDED}.items()
    assert all(sent["authorization"] == "Basic a" for sent in cluster.headers)


async def test_every_page_is_read(session: ClientSession) -> None:
    messages = [message(f"q{i}", f"a{i}") for i in range(25)]
    asked = []

    async def page(request: web.Request) -> web.Response:
        start = int(request.query.get("next_token", 0))
        asked.append(start)
        body: dict[str, Any] = {"messages": messages[start : start + 10]}
        return web.json_response(body | ({"next_token": start + 10} if start + 10 < len(messages) else {}))

    app = web.Application()
    app.router.add_get(PATH, page)
    async with TestServer(app, host="127.0.0.1") as server:
        lookup = HttpLookup(session, URL(f"http://127.0.0.1:{server.port}"))
        remembered = await MemoryReader(lookup).remembered(MEMORY, CALLER, 7)
    assert remembered == tuple((f"q{i}", f"a{i}") for i in range(18, 25))
    assert asked == [0, 10, 20]


async def test_a_page_that_points_at_itself_ends_the_walk(cluster: FakeCluster, lookup: HttpLookup) -> None:
    cluster.documents[PATH] = {"messages": [message("q", "a")], "next_token": 0}
    assert await MemoryReader(lookup).remembered(MEMORY, CALLER, 10) == (("q", "a"),)


async def test_a_memory_that_does_not_exist_holds_nothing(lookup: HttpLookup) -> None:
    assert await MemoryReader(lookup).remembered("nope", CALLER, 10) == ()


async def test_a_memory_of_someone_else(cluster: FakeCluster, lookup: HttpLookup) -> None:
    cluster.denied[PATH] = {"Basic a"}
    with pytest.raises(LookupDenied) as denied:
        await MemoryReader(lookup).remembered(MEMORY, CALLER, 10)
    assert "cluster:admin/opensearch/ml/memory/interaction/list" in denied.value.hint


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": {}},
        {"messages": [1]},
        {"messages": [{"input": 1, "response": "a"}]},
        {"messages": [{"response": "a"}]},
        {"messages": [{"input": 1}]},
    ],
)
async def test_messages_that_can_not_be_read(cluster: FakeCluster, lookup: HttpLookup, body: Any) -> None:
    cluster.documents[PATH] = body
    with pytest.raises(LookupFailed):
        await MemoryReader(lookup).remembered(MEMORY, CALLER, 10)
