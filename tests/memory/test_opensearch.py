"""The stores on OpenSearch: the tests of every store, and what a cluster may do to their requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal

import aiohttp
import msgspec
import pytest

from gateway.config.memory import OpenSearchStore as Settings
from gateway.config.types import Secret
from gateway.memory.model import Message, Owner, Page, SessionKey, Turn
from gateway.memory.store import (
    Store,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
    TooLargeForStore,
    UnknownPosition,
    UnreadableSession,
    Unstorable,
)
from gateway.memory.stores.opensearch import cluster
from gateway.memory.stores.opensearch.store import OpenSearchStore
from tests.memory.conversations import assistant, image, key, medium, text, texts, tool_use, turn, user
from tests.memory.opensearch_server import Fault, OpenSearchServer
from tests.memory.store_conformance import NewStore, StoreConformance

Kind = Literal["auto", "container", "index"]


def store_on(server: OpenSearchServer, kind: Kind = "auto", **settings: Any) -> OpenSearchStore:
    return OpenSearchStore(Settings(kind=kind, **{"seconds": 60.0} | settings), server.url)


class OnServer(StoreConformance):
    version: ClassVar[str]
    security: ClassVar[bool] = False

    @pytest.fixture
    async def server(self) -> AsyncIterator[OpenSearchServer]:
        async with OpenSearchServer(self.version, security=self.security) as server:
            yield server

    @pytest.fixture
    def new_store(self, server: OpenSearchServer) -> NewStore:
        return lambda: store_on(server)


class TestIndex(OnServer):
    """Indices of the gateway's own, on a cluster without memory containers."""

    version = "2.19.0"


class TestContainer(OnServer):
    """A memory container."""

    version = "3.6.0"


@pytest.mark.slow
class TestEarlyContainer(OnServer):
    """A memory container of a cluster that overwrites sessions, and can be searched: it has the security plugin."""

    version = "3.3.0"
    security = True


@pytest.fixture
async def server() -> AsyncIterator[OpenSearchServer]:
    async with OpenSearchServer() as server:
        yield server


@pytest.fixture(params=["index", "container"])
async def store(request: pytest.FixtureRequest, server: OpenSearchServer) -> AsyncIterator[OpenSearchStore]:
    store = store_on(server, request.param)
    await store.start()
    yield store
    await store.close()


# Where messages are written


@pytest.mark.parametrize(
    ("version", "security", "containers"),
    [
        ("2.19.0", False, 0),
        ("3.2.0", False, 0),
        ("3.3.0", False, 0),
        ("3.3.0", True, 1),
        ("3.4.0", False, 0),
        ("3.5.0", False, 1),
        ("3.10.0-SNAPSHOT", False, 1),
    ],
)
async def test_auto_goes_by_what_the_cluster_can_do(
    version: str, security: bool, containers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async with OpenSearchServer(version, security=security) as server:
        store = store_on(server)
        await store.append(key(), turn(), 0)
        assert len((await store.load(key())).messages) == 2
        assert await store.delete(key())
        await store.close()
        assert len(server.containers) == containers
        assert server.documents() == []
    warned = "memory kept in index" in capsys.readouterr().err
    assert warned == (version in ("3.3.0", "3.4.0") and not security)


async def test_a_container_is_proved_at_the_start_and_on_another_version(server: OpenSearchServer) -> None:
    def proofs() -> int:
        return sum(path.endswith("working/_delete_by_query") for _, path in server.requests)

    async def choose_again() -> None:
        server.faults[len(server.requests)] = "refused"
        with pytest.raises(StoreUnavailable):
            await store.probe(1)
        await store.probe(1)

    for starts in (1, 2):
        store = store_on(server)
        await store.start()
        assert proofs() == starts
        await choose_again()
        assert proofs() == starts
        await store.close()
    store = store_on(server)
    await store.start()
    server.version = "3.8.0"
    for _ in range(2):
        await choose_again()
        assert proofs() == 4
    await store.close()
    assert len(server.containers) == 1


async def test_sessions_in_a_container_can_be_read_by_a_gateway_that_starts_on_a_full_disk(
    server: OpenSearchServer,
) -> None:
    earlier = store_on(server)
    await earlier.append(key(), turn(), 0)
    await earlier.close()
    server.blocked = True
    store = store_on(server)
    assert len((await store.load(key())).messages) == 2
    with pytest.raises(StoreUnavailable, match="Free disk space"):
        await store.probe(1)
    await store.close()
    assert len(server.containers) == 1


async def test_a_container_that_does_not_serve_is_tried_once_by_a_store(server: OpenSearchServer) -> None:
    server.version = "3.4.0"
    store = store_on(server)
    await store.start()
    server.counted_from_now()
    server.faults[0] = "forbidden"
    with pytest.raises(StoreUnavailable):
        await store.append(key(), turn(), 0)
    assert (await store.append(key(), turn(), 0)).turns == 1
    assert not any("_create" in path for _, path in server.requests)
    server.version = "3.5.0"
    server.faults[len(server.requests)] = "refused"
    with pytest.raises(StoreUnavailable):
        await store.append(key(), turn(), 1)
    assert (await store.append(key(), turn(), 1)).turns == 2
    assert len(server.containers) == 1  # the cluster was upgraded meanwhile
    await store.close()


async def test_container_of_an_earlier_gateway_that_can_not_be_searched(server: OpenSearchServer) -> None:
    earlier = store_on(server)
    await earlier.append(key("old"), turn(), 0)
    await earlier.close()
    server.version = "3.4.0"  # as if that gateway had trusted this version
    store = store_on(server)
    assert (await store.append(key(), turn(), 0)).turns == 1
    assert len((await store.load(key())).messages) == 2
    assert await store.delete(key())
    assert await store.session(key()) is None
    assert len(server.containers) == 1  # it may hold sessions
    await store.close()


# A cluster that takes no writes


@pytest.mark.parametrize("version", ["2.19.0", "3.6.0"])
async def test_a_full_disk_is_reported_at_once(version: str) -> None:
    async with OpenSearchServer(version) as server:
        store = store_on(server)
        await store.append(key(), turn(), 0)
        await store.probe(1)
        server.blocked = True
        server.counted_from_now()
        with pytest.raises(StoreUnavailable, match=r"flood-stage watermark.* Free disk space"):
            await store.probe(1)
        with pytest.raises(StoreUnavailable, match="Free disk space"):
            await store.append(key(), turn(), 1)
        assert len(server.requests) <= 12  # none is sent again and again
        assert len((await store.load(key())).messages) == 2
        server.blocked = False
        await store.probe(1)
        assert (await store.append(key(), turn(), 1)).turns == 2
        assert await store.delete(key())
        assert server.documents() == []
        await store.close()


async def test_container_is_made_once_for_all_gateways(server: OpenSearchServer) -> None:
    for _ in range(3):
        store = store_on(server)
        await store.start()
        await store.close()
    assert len(server.containers) == 1


async def test_container_that_was_deleted_is_made_again(server: OpenSearchServer) -> None:
    store = store_on(server)
    await store.append(key("old"), turn(), 0)
    await store.close()
    server.containers.clear()
    again = store_on(server)
    assert (await again.append(key("new"), turn(), 0)).turns == 1
    assert len(server.containers) == 1
    await again.close()


async def test_container_that_was_deleted_is_made_again_once_by_all_gateways(server: OpenSearchServer) -> None:
    store = store_on(server)
    await store.append(key(), turn(), 0)
    await store.close()
    server.containers.clear()
    server.counted_from_now()
    slow, fast = store_on(server), store_on(server)
    server.holds[5] = asyncio.Event()
    starting = asyncio.create_task(slow.start())
    await server.held.wait()
    assert server.requests[5] == ("POST", "/_plugins/_ml/memory_containers/_create")
    await fast.start()
    server.holds[5].set()
    await starting
    assert len(server.containers) == 1
    assert (await slow.append(key("new"), turn(), 0)).turns == 1
    await asyncio.gather(slow.close(), fast.close())


async def test_place_that_is_gone_is_chosen_again_at_the_next_request(server: OpenSearchServer) -> None:
    store = store_on(server)
    await store.append(key("one"), turn(), 0)
    for number, remove in enumerate([server.containers.clear, server.indices.clear, server.switch_off]):
        remove()
        with pytest.raises(StoreUnavailable):
            await store.append(key(f"lost {number}"), turn(), 0)
        assert (await store.append(key(f"{number}"), turn(), 0)).turns == 1
        assert len((await store.load(key(f"{number}"))).messages) == 2
    await store.close()


async def test_a_turn_is_not_acknowledged_if_the_index_of_messages_is_gone(server: OpenSearchServer) -> None:
    store = store_on(server, "index")
    await store.start()
    del server.indices["mlc-gateway-memory-messages"]
    with pytest.raises(StoreUnavailable, match="index_not_found_exception"):
        await store.append(key(), turn(), 0)
    assert await store.session(key()) is None
    assert (await store.append(key(), turn(), 0)).turns == 1  # the index was made again
    assert len((await store.load(key())).messages) == 2
    await store.close()


async def test_session_of_a_container_that_is_gone_can_be_deleted(server: OpenSearchServer) -> None:
    store = store_on(server)
    await store.append(key(), turn(), 0)
    server.containers.clear()
    with pytest.raises(UnreadableSession, match="Delete the session"):
        await store.load(key())
    assert await store.delete(key())
    assert await store.session(key()) is None
    await store.close()


async def test_messages_are_as_the_rfc_has_them(server: OpenSearchServer, store: OpenSearchStore) -> None:
    message = msgspec.structs.replace(user("What is this?", image()), metadata=METADATA)
    await store.append(key("one", "agent-1"), turn(message), 0)
    [document] = [document for document in server.documents() if "message_id" in document]
    assert document["payload_type"] == "conversational"
    assert document["message_id"] == 0
    assert document["namespace"] == {"agent_id": "agent-1", "session_id": "gws-one"}
    assert document["metadata"] == {"type": "structured_message", "role": "user", "input_type": "content_blocks"}
    shown = {"image": {"format": "png", "type": "BASE64", "data": image()["image"]["source"]["bytes"]}, "type": "IMAGE"}
    of_agents = [{"text": "What is this?", "type": "TEXT"}, shown]
    content = of_agents if document["structured_data_blob"].get("json") else [{"text": "What is this?"}, image()]
    assert document["structured_data_blob"]["message"] == {"role": "user", "content": content}


METADATA = msgspec.structs.replace(user().metadata, input_type="content_blocks", created=1.0)


@pytest.mark.parametrize(
    ("missing", "reason"), [("agentic_memory", "agentic_memory_enabled"), ("ml_commons", "no handler found")]
)
async def test_auto_says_that_it_uses_the_index_where_there_are_no_containers(
    server: OpenSearchServer, missing: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setattr(server, missing, False)
    store = store_on(server)
    assert (await store.append(key(), turn(), 0)).turns == 1
    await store.close()
    [line] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (line["event"], line["level"]) == ("memory kept in index", "warning")
    assert reason in line["reason"]


@pytest.mark.parametrize(("version", "agentic_memory"), [("2.19.0", False), ("3.6.0", False), ("3.4.0", True)])
async def test_container_where_there_can_be_none_is_refused(version: str, agentic_memory: bool) -> None:
    async with OpenSearchServer(version, agentic_memory) as server:
        store = store_on(server, "container")
        with pytest.raises(StoreUnavailable, match=r"needs ML Commons 3\.3"):
            await store.start()
        await store.close()


async def test_sessions_go_on_when_the_cluster_is_upgraded(server: OpenSearchServer) -> None:
    added = [turn(user(image(medium(100_000)))) for _ in range(4)]
    for number, (version, agentic_memory) in enumerate(
        [("2.19.0", False), ("3.6.0", True), ("3.6.0", False), ("3.6.0", True)]
    ):
        server.version, server.agentic_memory = version, agentic_memory
        store = store_on(server)
        await store.append(key(), added[number], number)
        await store.close()
    store = store_on(server)
    page = await store.load(key())
    assert [stored.message for stored in page.messages] == [one.messages[0] for one in added]
    assert await store.delete(key())
    assert server.documents() == []
    await store.close()


# Reads


async def test_newest_messages_are_read_where_searches_do_not_find_them(server: OpenSearchServer) -> None:
    server.searches_lag = True
    store = store_on(server, "container")
    await store.append(key(), turn(user("one", image(medium(100_000)))), 0)
    await store.append(key(), turn(user("two")), 1)
    assert texts((await store.load(key())).messages) == ["one", "two"]
    await store.close()


async def test_order_of_keys_in_tool_calls_is_kept(store: OpenSearchStore) -> None:
    message = assistant(tool_use("call", zebra=1, ant={"z": [{"y": 1, "b": 2}], "a": 3}))
    await store.append(key(), turn(message), 0)
    [stored] = (await store.load(key())).messages
    assert json.dumps(stored.message.content) == json.dumps(message.content)


async def test_every_page_of_a_long_session(server: OpenSearchServer) -> None:
    store = store_on(server, "index")
    sizes = [1, 3, 2, 0, 5] * 40
    seq = 0
    for number, size in enumerate(sizes):
        await store.append(key(), turn_of(size, seq), number)
        seq += size
    expected = [str(i) for i in range(seq)]
    assert seq == 440
    for limit in (1, 7, 100, 1000):
        for before in (seq + 5, seq, seq - 1, 301, 17, 1):
            page = await store.load(key(), before, limit)
            high = min(before, seq)
            assert texts(page.messages) == expected[max(high - limit, 0) : high]
            assert page.more == (high > limit)
    await store.close()


def turn_of(size: int, first: int) -> Turn:
    """Return a turn of `size` messages, numbered from `first`."""
    return Turn(turn().id, tuple(user(str(first + i)) for i in range(size)))


async def test_page_of_no_messages(store: OpenSearchStore) -> None:
    await store.append(key(), turn(), 0)
    assert await store.load(key(), limit=0) == Page((), True)


@pytest.mark.slow
async def test_limits_may_be_large(store: OpenSearchStore) -> None:
    await store.append(key(), turn(*(user(str(i)) for i in range(1_100))), 0)
    assert len((await store.load(key(), limit=10**6)).messages) == 1_100
    assert len((await store.sessions(limit=10**6)).sessions) == 1


@pytest.mark.parametrize("turns", [0, 1, 4, 6, 7, 100_000])
async def test_session_whose_head_has_another_number_is_read_to_its_end(
    server: OpenSearchServer, store: OpenSearchStore, turns: int
) -> None:
    for number in range(5):
        await store.append(key(), turn(user(str(number))), number)
    [head] = [document for document in server.documents() if document.get("kind") == "session"]
    head["body"]["turns"] = turns
    server.counted_from_now()
    session = await store.session(key())
    assert session is not None
    assert session.turns == 5
    assert len(server.requests) < 11
    assert texts((await store.load(key())).messages) == ["0", "1", "2", "3", "4"]
    assert [listed.turns for listed in (await store.sessions()).sessions] == [5]
    assert (await store.append(key(), turn(), 5)).turns == 6


async def test_damaged_session_is_reported(server: OpenSearchServer, store: OpenSearchStore) -> None:
    await store.append(key(), turn(user("one"), assistant("two")), 0)
    damaged = next(document for document in server.documents() if document.get("message_id") == 1)
    damaged["structured_data_blob"]["message"]["role"] = "system"
    with pytest.raises(UnreadableSession, match="Message 1 of the session can't be read"):
        await store.load(key())


@pytest.mark.parametrize("kind", ["session", "turn"])
async def test_session_that_can_not_be_read_is_left_out_of_lists(
    kind: str, server: OpenSearchServer, store: OpenSearchStore
) -> None:
    await store.append(key(), turn(), 0)
    next(document for document in server.documents() if document.get("kind") == kind)["body"]["version"] = 2
    for name in ("two", "three"):
        await store.append(key(name), turn(), 0)
    assert {session.key for session in (await store.sessions()).sessions} == {key("two"), key("three")}


async def test_session_of_a_newer_gateway_is_not_read(server: OpenSearchServer, store: OpenSearchStore) -> None:
    await store.append(key(), turn(), 0)
    next(document for document in server.documents() if document.get("kind") == "session")["body"]["version"] = 2
    with pytest.raises(UnreadableSession, match="newer gateway"):
        await store.session(key())


@pytest.mark.parametrize("after", ["nonsense", "9" * 5000 + ":id"], ids=["a word", "too many digits"])
async def test_place_in_the_list_that_is_no_place(store: OpenSearchStore, after: str) -> None:
    with pytest.raises(UnknownPosition, match="is not the `next` of a page"):
        await store.sessions(after=after)


# Sizes


async def test_medium_of_many_documents(store: OpenSearchStore, server: OpenSearchServer) -> None:
    large = medium(9_000_000)
    await store.append(key(), turn(user(image(large), image(large))), 0)
    [stored] = (await store.load(key())).messages
    assert stored.message.content == (image(large), image(large))
    pieces = [document for document in server.documents() if document.get("payload_type") == "data"]
    assert len(pieces) == 5


async def test_message_that_is_too_large_is_refused(store: OpenSearchStore) -> None:
    long = user(*(text("x" * 60_000) for _ in range(200)))
    with pytest.raises(TooLargeForStore, match=r"messages\[0\] have 120\d+ bytes; the store takes 8000000"):
        await store.append(key(), turn(long), 0)
    assert await store.session(key()) is None


@pytest.mark.parametrize(
    ("message", "system", "place"),
    [
        (user("\ud83d"), None, "messages[0]"),
        (user("\ud83d" * 100_000), None, "messages[0]"),
        (assistant(tool_use("call", value=object())), None, "messages[0]"),
        (user("one"), "\ud83d", "system"),
    ],
)
async def test_what_is_not_json_is_refused(
    store: OpenSearchStore, message: Message, system: str | None, place: str
) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.append(key(), turn(message, system=system), 0)
    assert caught.value.place == place
    assert await store.session(key()) is None


async def test_owner_that_is_not_unicode(store: OpenSearchStore) -> None:
    own = SessionKey(Owner("agent", caller="\udcff"), "gws-one")
    assert await store.session(own) is None
    with pytest.raises(Unstorable):
        await store.append(own, turn(), 0)


# Errors


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ("refused", StoreUnavailable, "can't be reached"),
        ("stall", StoreUnavailable, r"did not answer within 0\.1 s"),
        ("forbidden", StoreUnavailable, "answered 403: security_exception no permissions .* the permissions that docs"),
        ("too large", TooLargeForStore, "does not take a request of this size"),
        ("text", StoreUnavailable, "did not answer with JSON"),
        ("other", StoreUnavailable, "did not answer as OpenSearch does"),
    ],
)
async def test_faults_have_an_error_of_their_own(
    server: OpenSearchServer, fault: Fault, error: type[StoreError], reason: str
) -> None:
    account = {"username": "gateway", "password": Secret("hunter2")}
    store = store_on(server, "index", **account)
    faulty = store_on(server, "index", seconds=0.1, **account) if fault == "stall" else store
    await store.start()
    server.counted_from_now()
    server.faults[0] = fault
    with pytest.raises(error, match=reason) as caught:
        await faulty.append(key(), turn(), 0)
    assert "hunter2" not in str(caught.value)
    server.faults.clear()  # a loaded machine may be late before the request is sent
    assert (await store.append(key(), turn(), 0)).turns == 1
    await faulty.close()
    await store.close()


async def test_cluster_that_is_down_at_the_start_is_used_when_it_is_up(server: OpenSearchServer) -> None:
    server.faults |= dict.fromkeys(range(4), "refused")  # aiohttp sends a PUT twice
    store = store_on(server)
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await store.start()
    assert (await store.append(key(), turn(), 0)).turns == 1
    await store.close()


@pytest.mark.parametrize("fault", ["throttled", "item throttled"])
async def test_throttled_requests_are_sent_again(
    server: OpenSearchServer, store: OpenSearchStore, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_FIRST_WAIT", 0.001)
    server.counted_from_now()
    server.faults |= dict.fromkeys(range(0, 40, 2), fault)
    for number in range(3):
        assert (await store.append(key(), turn(), number)).turns == number + 1
    assert len((await store.load(key())).messages) == 6


async def test_throttling_that_does_not_end(server: OpenSearchServer) -> None:
    store = store_on(server, "index")
    await store.start()
    store._cluster._settings = msgspec.structs.replace(store._cluster._settings, seconds=0.5)  # of the attempts only
    server.counted_from_now()
    server.faults = dict.fromkeys(range(100), "throttled")
    with pytest.raises(StoreThrottled, match="takes no more requests at present"):
        await store.append(key(), turn(), 0)
    await store.close()


def test_store_is_a_store() -> None:
    store: Store = OpenSearchStore(Settings(), "http://127.0.0.1:9")
    assert store.name == "opensearch"


async def test_what_an_agent_adds_to_a_session_is_read_and_deleted_with_it() -> None:
    async with OpenSearchServer("3.6.0") as server:
        store = store_on(server, "container")
        await store.append(key(), turn(user("one"), assistant("two"), system="Be brief."), 0)
        [container] = server.containers
        agent = [
            {"role": "user", "content": [{"type": "TEXT", "text": "three"}, {"type": "IMAGE", "image": SHOWN}]},
            {"role": "assistant", "toolCalls": [CALL]},
            {"role": "tool", "toolCallId": "c1", "content": [{"type": "TEXT", "text": "4"}]},
            {"role": "assistant", "content": [{"type": "TEXT", "text": "five"}]},
            {"role": "system", "content": [{"type": "TEXT", "text": "Be long."}]},
            {"role": "user", "content": [{"type": "TEXT", "text": "six"}]},
        ]
        await write_as_agent(server, container, agent, 2)
        for again in (False, True):
            session = await store.session(key())
            assert session is not None
            assert (session.turns, session.messages, session.system) == (4, 8, "Be brief."), again
        page = await store.load(key())
        assert [(one.turn, one.message.role, one.message.content) for one in page.messages[2:]] == [
            (2, "user", ({"text": "three"}, {"image": {"format": "png", "source": {"bytes": "QUJD"}}})),
            (2, "assistant", (tool_use("c1", "look", at=1),)),
            (2, "user", ({"toolResult": {"toolUseId": "c1", "content": [{"text": "4"}]}},)),
            (2, "assistant", ({"text": "five"},)),
            (3, "user", ({"text": "system:"}, {"text": "Be long."})),
            (4, "user", ({"text": "six"},)),
        ]
        assert (await store.append(key(), turn(user("seven"), assistant("eight")), 4)).turns == 5
        await write_as_agent(server, container, [{"role": "user", "content": []}], 10)
        assert (await store.session(key())).messages == 11  # type: ignore[union-attr]
        assert await store.delete(key())
        assert server.containers[container]["working"].documents == {}
        await store.close()


async def test_what_is_no_message_of_an_agent_is_an_error_and_deleted_with_the_session() -> None:
    async with OpenSearchServer("3.6.0") as server:
        store = store_on(server, "container")
        await store.append(key(), turn(user("one"), assistant("two")), 0)
        [container] = server.containers
        await write_as_agent(server, container, [{"content": "nonsense"}], 2)
        with pytest.raises(UnreadableSession, match="no message of an agent"):
            await store.session(key())
        assert await store.delete(key())
        assert server.containers[container]["working"].documents == {}
        await store.close()


SHOWN = {"type": "BASE64", "format": "png", "data": "QUJD"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


async def write_as_agent(server: OpenSearchServer, container: str, messages: list[Any], start: int) -> None:
    url = f"{server.url}/_plugins/_ml/memory_containers/{container}/memories"
    async with aiohttp.ClientSession() as client:
        for number, message in enumerate(messages, start):
            body = {
                "payload_type": "conversational",
                "message_id": number,
                "structured_data_blob": {"message": message},
                "namespace": {"session_id": key().id},
                "metadata": {"type": "structured_message", "role": message.get("role", "")},
                "infer": False,
            }
            async with client.post(url, json=body) as response:
                assert response.status == 200
