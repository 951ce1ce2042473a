from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway.agents.lookup import DocumentTooLarge, LookupDenied, LookupFailed
from gateway.agents.memory import MemoryReader
from gateway.errors import AnswerTooLarge

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


class Pages:
    """Shows the messages of a memory, as many as are asked for; a page over `longest` characters is too large."""

    def __init__(self, messages: list[dict[str, Any]], longest: int) -> None:
        self.messages, self.longest = messages, longest
        self.sizes: list[int] = []

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        query = URL(path, encoded=True).query
        size, start = int(query["max_results"]), int(query.get("next_token", 0))
        self.sizes.append(size)
        page = self.messages[start : start + size]
        if sum(len(one["input"]) for one in page) > self.longest:
            raise AnswerTooLarge("too long")
        following = {"next_token": start + size} if start + size < len(self.messages) else {}
        return 200, {"messages": page, **following}


async def test_pages_of_long_messages_are_read_with_fewer_each() -> None:
    pages = Pages([message(f"{i}" + "x" * 1000, "a") for i in range(30)], 15_000)
    remembered = await MemoryReader(pages).remembered(MEMORY, CALLER, 3)
    assert [question[:2] for question, _ in remembered] == ["27", "28", "29"]
    assert pages.sizes == [1000, 100, 10, 10, 10]


async def test_a_message_that_is_too_long_is_a_refusal() -> None:
    with pytest.raises(DocumentTooLarge) as error:
        await MemoryReader(Pages([message("x" * 20)], 10)).remembered(MEMORY, CALLER, 3)
    assert [(problem.place, problem.code) for problem in error.value.problems] == [
        (f"memory/{MEMORY}", "DOCUMENT_TOO_LARGE")
    ]


@pytest.mark.parametrize(("limit", "taken"), [(2, True), (None, False)])
async def test_what_the_agent_recalls_has_a_longest_length(limit: int | None, taken: bool) -> None:
    pages = Pages([message("x" * 8_000_000, "a") for _ in range(3)], 10_000_000)
    reading = MemoryReader(pages).remembered(MEMORY, CALLER, limit)
    if taken:
        assert len(await reading) == 2
        return
    with pytest.raises(DocumentTooLarge, match="longer than the gateway reads") as error:
        await reading
    assert error.value.hint == "start a new memory"


async def test_a_memory_without_end_is_a_refusal() -> None:
    class Endless(Pages):
        async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
            self.sizes.append(1)
            return 200, {"messages": [], "next_token": len(self.sizes)}

    pages = Endless([], 0)
    with pytest.raises(DocumentTooLarge):
        await MemoryReader(pages).remembered(MEMORY, CALLER, 3)
    assert len(pages.sizes) == 1000
