"""What the conformance tests of stores don't try: writers that stop half-way, limits, what is left after a deletion."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Owner, SessionKey, Turn
from gateway.memory.store import (
    SessionConflict,
    SessionNotFound,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
    TooLargeForStore,
    UnreadableSession,
    Unstorable,
)
from gateway.memory.stores.agentcore import turn as turn_module
from gateway.memory.stores.agentcore.client import AgentCoreClient
from gateway.memory.stores.agentcore.store import AgentCoreStore
from tests.conftest import mostly_slow
from tests.memory.agentcore.conftest import NewAgentCoreStore, connect, settings_of
from tests.memory.agentcore.emulator import Emulator, Faults
from tests.memory.conversations import assistant, image, key, medium, text, texts, tool_result, tool_use, turn, user
from tests.wire import read_message

LARGE = image(medium(1_100_000))


def three_turns() -> list[Turn]:
    return [
        turn(user("What is this?", LARGE), assistant("A cat."), system="Be brief."),
        turn(user("Whose?"), assistant(tool_use("1")), user(tool_result("1", text("Ann's"))), assistant("Ann's.")),
        turn(user("And the first image?", image()), assistant("The same cat.")),
    ]


WRITES = [4, 5, 3]
"""Events that each of the turns takes: its messages, its large medium, and the entry of the record."""


@pytest.mark.parametrize(
    ("done", "writes"), mostly_slow([(done, n) for done, most in enumerate(WRITES) for n in range(most)], 2), ids=str
)
async def test_half_written_turn_is_invisible_and_can_be_written_again(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore, done: int, writes: int
) -> None:
    turns = three_turns()
    writer = new_agentcore_store()
    await writer.start()
    for number in range(done):
        await writer.append(key(), turns[number], number)
    before = await writer.load(key()) if done else None
    emulator.fail_after(writes)
    with pytest.raises(StoreUnavailable):
        await writer.append(key(), turns[done], done)
    emulator.repair()

    reader = new_agentcore_store()
    await reader.start()
    if before is None:
        assert await reader.session(key()) is None
        with pytest.raises(SessionNotFound):
            await reader.load(key())
    else:
        assert await reader.load(key()) == before
    for number in range(done, 3):
        await reader.append(key(), turns[number], number)
    loaded = await writer.load(key())
    assert [stored.message for stored in loaded.messages] == [message for added in turns for message in added.messages]
    assert [stored.turn_id for stored in loaded.messages] == [added.id for added in turns for _ in added.messages]
    await reader.close()
    await writer.close()


async def test_turn_whose_confirmation_was_lost_is_not_stored_again(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    store = new_agentcore_store()
    await store.start()
    added = turn()
    emulator.fail_after(3)  # both messages and the entry; then the record can't be read
    with pytest.raises(StoreUnavailable):
        await store.append(key(), added, 0)
    emulator.repair()
    assert (await store.append(key(), added, 0)).turns == 1
    assert [stored.seq for stored in (await store.load(key())).messages] == [0, 1]
    await store.close()


async def test_repeated_writes_take_effect_once(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    emulator.reset(Faults(fail=1))  # each write fails once, every other after it was stored
    store = new_agentcore_store()
    await store.start()
    for number, added in enumerate(three_turns()):
        await store.append(key(), added, number)
    await store.close()
    stored = [event for event in emulator.state.events.values() if event["actorId"].startswith("mlc-")]
    assert len(stored) == 8


async def test_branches_and_labels(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    turns = three_turns()
    for number, added in enumerate(turns):
        await store.append(key(), added, number)
    events = {event["eventId"]: event for event in emulator.state.events.values() if event["actorId"][:4] == "mlc-"}
    by_turn: dict[str, list[Any]] = {}
    for event in sorted(events.values(), key=lambda event: int(event["metadata"]["seq"]["stringValue"])):
        by_turn.setdefault(event["metadata"]["mlc.turn"]["stringValue"][:1], []).append(event)
    assert {number: len(found) for number, found in by_turn.items()} == {"1": 2, "2": 4, "3": 2}
    assert {event["branch"]["name"] for event in by_turn["1"]} == {"main"}
    for number in ("2", "3"):
        root = by_turn[str(int(number) - 1)][-1]["eventId"]
        [branch] = {json.dumps(event["branch"]) for event in by_turn[number]}
        assert json.loads(branch)["rootEventId"] == root
    times = [by_turn[number][0]["eventTimestamp"] for number in "123"]
    assert times == sorted(set(times))
    tokens = [parameters["clientToken"] for name, parameters in emulator.state.requests if name == "CreateEvent"]
    assert len(set(tokens)) == len(tokens) == sum(WRITES)
    lists = [parameters for name, parameters in emulator.state.requests if name == "ListEvents"]
    assert all("eventMetadata" not in parameters.get("filter", {}) for parameters in lists)
    await store.load(key())
    last = emulator.state.requests[-1 - 1]  # before the medium
    assert last[1]["filter"]["branch"]["includeParentBranches"]
    await store.close()


@pytest.mark.slow
async def test_new_turns_are_loaded_without_the_old_ones(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    store = new_agentcore_store()
    await store.start()
    for number in range(30):
        await store.append(key(), turn(*[user(f"{number}")] * 10), number)
    emulator.state.requests.clear()
    page = await store.load(key(), limit=50)
    assert [stored.turn for stored in page.messages] == [n for n in range(26, 31) for _ in range(10)]
    lists = [parameters for name, parameters in emulator.state.requests if name == "ListEvents"]
    assert len(lists) == 2  # the record, and one page of 300 messages
    await store.close()


async def test_deletion_leaves_nothing_but_its_mark(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    for number, added in enumerate(three_turns()):
        await store.append(key(), added, number)
    await store.pin(key(), True)
    await store.append(key("other"), turn(), 0)
    assert await store.delete(key())
    await store.close()
    left = [event for event in emulator.state.events.values() if event["sessionId"] == key().id]
    [mark] = [event["payload"][0]["blob"]["data"] for event in left]
    assert set(mark) == {"id", "parent", "index", "kind", "key", "time"}
    assert mark["kind"] == "deleted"


async def test_interrupted_deletion_is_finished_by_the_next(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    store = new_agentcore_store()
    await store.start()
    for number, added in enumerate(three_turns()):
        await store.append(key(), added, number)
    emulator.fail_after(1)  # the mark is written, and nothing is deleted
    with pytest.raises(StoreUnavailable):
        await store.delete(key())
    emulator.repair()
    assert await store.session(key()) is None
    assert (await store.sessions()).sessions == ()
    assert await store.delete(key()) is False
    await store.close()
    assert len([event for event in emulator.state.events.values() if event["sessionId"] == key().id]) == 1


class _Held:
    """A client whose first write waits for `release`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.waits, self.release = threading.Event(), threading.Event()

    def create_event(self, **parameters: Any) -> Any:
        self.waits.set()
        assert self.release.wait(60)
        return self._client.create_event(**parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize("turns", [0, 1])
async def test_writer_of_a_session_that_is_deleted_meanwhile_gets_a_conflict(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore, turns: int
) -> None:
    other = new_agentcore_store()
    await other.start()
    await other.append(key(), turn(), 0)
    if turns == 0:
        await other.delete(key())
    held = _Held(connect(settings_of(emulator)))
    writer = AgentCoreStore(settings_of(emulator), lambda _: held, pause=0.001)
    await writer.start()
    writing = asyncio.ensure_future(writer.append(key(), turn(), turns))
    await asyncio.to_thread(held.waits.wait)
    if turns == 0:
        await other.append(key(), turn(), 0)
    assert await other.delete(key())
    held.release.set()
    with pytest.raises(SessionConflict) as caught:
        await writing
    assert caught.value.turns == 0
    await writer.close()
    await other.close()
    assert len(emulator.state.events) == 1


class _LosesAnAnswer:
    """A client whose write number `which` is done and, after `then`, seems to have failed."""

    def __init__(self, client: Any, which: int, then: Callable[[], object]) -> None:
        self._client, self._left, self._then = client, which, then

    def create_event(self, **parameters: Any) -> Any:
        answer = self._client.create_event(**parameters)
        self._left -= 1
        if self._left == 0:
            self._then()
            raise ConnectionResetError("the answer is lost")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


async def _losing_writer(
    emulator: Emulator, which: int, then: Callable[[], Coroutine[Any, Any, None]]
) -> AgentCoreStore:
    """Return a started store whose write number `which` is done and, after `then`, seems to have failed."""
    loop = asyncio.get_running_loop()
    service = _LosesAnAnswer(
        connect(settings_of(emulator)), which, lambda: asyncio.run_coroutine_threadsafe(then(), loop).result(60)
    )
    writer = AgentCoreStore(settings_of(emulator), lambda _: service, pause=0.001)
    await writer.start()
    return writer


@pytest.mark.parametrize("which", [1, 2, 3, 4], ids=["medium", "first message", "last message", "entry"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and begun anew"])
async def test_writer_whose_lost_write_is_deleted_meanwhile_gets_a_conflict(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore, which: int, again: bool
) -> None:
    other = new_agentcore_store()
    await other.start()
    await other.append(key(), turn(), 0)

    async def interfere() -> None:
        assert await other.delete(key())
        if again:
            await other.append(key(), turn(), 0)

    writer = await _losing_writer(emulator, which, interfere)
    with pytest.raises(SessionConflict) as caught:
        await writer.append(key(), turn(user("What is this?", LARGE), assistant("A cat.")), 1)
    assert caught.value.turns == int(again)
    await writer.close()
    await other.close()


async def test_turn_that_another_writer_stored_while_this_one_looks_for_its_event_is_stored_once(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    other = new_agentcore_store()
    await other.start()
    await other.append(key(), turn(), 0)
    added, before = turn(), set(emulator.state.events)

    async def interfere() -> None:
        [lost] = set(emulator.state.events) - before
        await other.append(key(), added, 1)
        del emulator.state.events[lost]

    writer = await _losing_writer(emulator, 1, interfere)
    assert (await writer.append(key(), added, 1)).turns == 2
    await writer.close()
    await other.close()


async def test_pin_of_a_session_that_is_deleted_and_begun_anew_finds_none(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    other = new_agentcore_store()
    await other.start()
    await other.append(key(), turn(), 0)

    async def interfere() -> None:
        assert await other.delete(key())
        await other.append(key(), turn(), 0)

    writer = await _losing_writer(emulator, 1, interfere)
    with pytest.raises(SessionNotFound):
        await writer.pin(key(), True)
    await writer.close()
    await other.close()


async def test_records_do_not_grow(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    for number in range(10):
        await store.append(key(), turn(), number)
        await store.pin(key(), bool(number % 2))
    await store.close()
    assert len([event for event in emulator.state.events.values() if event["actorId"].startswith("mlcrec-")]) <= 4
    again = new_agentcore_store()
    await again.start()
    assert (await again.append(key(), turn(), 10)).pinned
    await again.close()


# Expiry


def events_of_turn(emulator: Emulator, number: int) -> list[str]:
    """Return the ids of a turn's messages."""
    labels = {id_: event.get("metadata", {}).get("mlc.turn", {}) for id_, event in emulator.state.events.items()}
    return [id_ for id_, label in labels.items() if label.get("stringValue", "").startswith(f"{number}/")]


async def test_turns_that_aws_has_removed_are_left_out(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    days = 86_400.0
    now = [1_750_000_000.0]
    store = AgentCoreStore(settings_of(emulator), connect, clock=lambda: now[0], pause=0.001)
    await store.start()
    for number in range(3):
        await store.append(key(), turn(user(f"{number}")), number)
        now[0] += 30 * days
    for event in events_of_turn(emulator, 1):
        del emulator.state.events[event]
    page = await store.load(key())
    assert texts(page.messages) == ["1", "2"]
    assert [stored.seq for stored in page.messages] == [1, 2]
    assert not page.more
    await store.close()


async def test_missing_event_of_late_is_an_error(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    for number in range(2):
        await store.append(key(), turn(user(f"{number}")), number)
    [first] = events_of_turn(emulator, 1)
    del emulator.state.events[first]
    with pytest.raises(UnreadableSession, match=first):
        await store.load(key())
    assert texts((await store.load(key(), limit=1)).messages) == ["1"]
    await store.close()


# Limits


async def test_what_does_not_fit_is_refused_before_anything_is_written(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    store = new_agentcore_store()
    await store.start()
    refused: list[tuple[type[StoreError], Turn]] = [
        (TooLargeForStore, turn(user("a"), user(*["b"] * 101))),
        (TooLargeForStore, turn(user("a"), user("b" * 5_000_001))),
        (Unstorable, turn(user("a"), user("\ud800"))),
        (Unstorable, turn(user("a"), id_="x" * 257)),
        (Unstorable, turn(user("a"), id_="\ud800")),
        (Unstorable, turn(user("a", image("\ud800" * 1_000_000)))),
        (Unstorable, turn(user("a"), system="\ud800")),
        (TooLargeForStore, turn(user("a"), system="b" * 5_000_001)),
        (Unstorable, turn(user({"image": {"source": {"gatewayMedia": {"sha256": "", "events": []}}}}))),
    ]
    for error, added in refused:
        with pytest.raises(error):
            await store.append(key(), added, 0)
    assert emulator.state.events == {}
    await store.close()


async def test_media_larger_than_an_event_are_kept_in_parts(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "PART", 500_000)
    store = new_agentcore_store()
    await store.start()
    added = turn(user(LARGE, tool_result("1", LARGE)), user(image()))
    await store.append(key(), added, 0)
    parts = [event for event in emulator.state.events.values() if event["actorId"].startswith("mlcmed-")]
    assert len(parts) == 3
    assert [stored.message for stored in (await store.load(key())).messages] == [
        user(tool_result("1", LARGE), LARGE),
        user(image()),
    ]
    data = parts[0]["payload"][0]["blob"]["media"]
    data["data"], whole = data["data"][:-4], data["data"]
    with pytest.raises(UnreadableSession, match="not what was stored"):  # an image that is cut is not shown as one
        await store.load(key())
    data["data"] = whole
    assert (await store.load(key())).messages
    del emulator.state.events[parts[1]["eventId"]]
    with pytest.raises(UnreadableSession, match="medium"):
        await store.load(key())
    await store.close()


async def test_odd_names_are_kept_apart(new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    odd = [
        SessionKey(Owner("a", "b", "c"), "gws-1"),
        SessionKey(Owner("a__b", "", "c"), "gws-1"),
        SessionKey(Owner("a", "b__c", ""), "gws-1"),
        SessionKey(Owner("", "", ""), "gws-1"),
        SessionKey(Owner("-", "/", ":"), "gws-1"),
        SessionKey(Owner("x" * 300), "gws-1"),
        SessionKey(Owner("a"), "gws-" + "x" * 200),
        SessionKey(Owner("a"), "gws-ü"),
    ]
    for number, own in enumerate(odd):
        await store.append(own, turn(user(f"{number}"), id_=f"turn ü~=%{number}"), 0)
    for number, own in enumerate(odd):
        [stored] = (await store.load(own)).messages
        assert texts((stored,)) == [f"{number}"]
        assert stored.turn_id == f"turn ü~=%{number}"
    assert sorted(session.key for session in (await store.sessions()).sessions) == sorted(odd)
    await store.close()


# Calls that fail


async def test_throttled_store_gives_up_rather_than_miss_its_deadline(emulator: Emulator) -> None:
    emulator.reset(Faults(throttle=1))
    settings = Settings(memory_id=emulator.memory_id, endpoint=emulator.url, seconds=60)
    store = AgentCoreStore(settings, connect, pause=1000)
    await store.start()
    with pytest.raises(StoreThrottled, match="too many requests"):
        await store.append(key(), turn(), 0)
    await store.close()


async def test_refusals_say_what_the_service_says(emulator: Emulator) -> None:
    settings = Settings(memory_id="other-abcdefghij", endpoint=emulator.url)
    store = AgentCoreStore(settings, connect)
    await store.start()
    for work in (
        lambda: store.session(key()),
        lambda: store.load(key()),
        lambda: store.append(key(), turn(), 0),
        lambda: store.delete(key()),
        store.sessions,
        lambda: store.sessions(key().owner),
    ):
        with pytest.raises(StoreUnavailable, match="memory not found"):
            await work()  # a session in a memory that is gone is not one that never was
    await store.close()


async def test_an_answer_without_what_every_answer_has_is_no_internal_error() -> None:
    """A proxy, say, that answers 200 with JSON of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_message(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    settings = Settings(Emulator.memory_id, endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    client = _own_client(settings)
    store = AgentCoreStore(settings, lambda _: client)
    await store.start()
    for work in (lambda: store.session(key()), lambda: store.probe(1), store.sessions):
        with pytest.raises(StoreUnavailable, match="has no `"):
            await work()
    await store.close()
    server.close()


async def test_unreachable_service() -> None:
    settings = Settings(memory_id=Emulator.memory_id, endpoint="http://127.0.0.1:1", seconds=5)
    store = AgentCoreStore(settings, connect, pause=0.001)
    await store.start()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await store.session(key())
    await store.close()


async def test_silent_service_is_not_waited_for() -> None:
    connected, given_up = asyncio.Event(), asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await given_up.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Settings(memory_id=Emulator.memory_id, endpoint=f"http://127.0.0.1:{port}", seconds=0.2)
    client = _own_client(settings)
    store = AgentCoreStore(settings, lambda _: client)
    await store.start()
    with pytest.raises(StoreUnavailable, match=r"0\.2 s"):
        await store.session(key())
    await asyncio.wait_for(connected.wait(), 60)
    given_up.set()
    await store.close()
    server.close()


async def test_occupied_threads_are_not_waited_for() -> None:
    client = AgentCoreClient(Settings(threads=1))
    started, release = threading.Event(), threading.Event()

    def occupy() -> None:
        started.set()
        release.wait()

    occupied = asyncio.ensure_future(client.run(occupy))
    await asyncio.to_thread(started.wait)
    try:
        with pytest.raises(StoreUnavailable, match=r"0\.05 s"):
            await client.operation(0.05).run(len, "x")
    finally:
        release.set()
    await occupied
    await client.close()


def _own_client(settings: Settings) -> Any:
    """Return a client that does not try a call again, so that its thread ends with the connection."""
    import boto3
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1})
    session = boto3.session.Session("key", "secret", region_name="us-east-1")
    return session.client("bedrock-agentcore", endpoint_url=settings.endpoint, config=config)


async def test_memory_must_be_named() -> None:
    with pytest.raises(StoreError, match=r"memory\.agentcore\.memory_id"):
        await AgentCoreStore(Settings()).start()


async def test_credentials_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    store = AgentCoreStore(Settings(memory_id=Emulator.memory_id, region="eu-west-1"))
    await store.start()
    with pytest.raises(StoreUnavailable, match="credentials"):
        await store.session(key())
    await store.close()


class RefusingService:
    """A client of boto3 whose calls end with one error after the other, then succeed."""

    def __init__(self, *codes: str) -> None:
        self.codes = list(codes)

    def list_actors(self, **parameters: Any) -> dict[str, Any]:
        if self.codes:
            error = {"Error": {"Code": self.codes.pop(0), "Message": "not now"}}
            raise ClientError(error, "ListActors")
        return {"actorSummaries": []}


async def test_throttled_calls_are_no_failed_attempts() -> None:
    service = RefusingService(*["ThrottledException"] * 6, "ServiceException", "ThrottledException", "ServiceException")
    client = AgentCoreClient(Settings(), lambda _: service, pause=0.001)
    assert await client.operation().actors() == []
    assert service.codes == []
    await client.close()


async def test_a_list_that_lacks_what_an_earlier_one_showed_takes_no_turn_back(
    emulator: Emulator, new_agentcore_store: NewAgentCoreStore
) -> None:
    emulator.reset(Faults(stale=True))
    store = new_agentcore_store()
    await store.start()
    for number in range(3):
        session = await store.append(key(), turn(user(f"question {number}"), assistant(f"answer {number}")), number)
    emulator.state.unseen |= set(emulator.state.events)  # each event is missing from the next list again
    assert await store.session(key()) == session
    emulator.state.unseen |= set(emulator.state.events)
    page = await store.load(key())
    assert [one.message.content[0]["text"] for one in page.messages][-1] == "answer 2"
    emulator.state.unseen |= set(emulator.state.events)
    assert (await store.append(key(), turn(user("question 3")), 3)).turns == 4
    assert await store.delete(key())
    assert await store.session(key()) is None
    await store.close()


async def test_a_clock_that_is_behind_does_not_take_the_time_back(emulator: Emulator) -> None:
    settings, now = Settings(memory_id=emulator.memory_id, endpoint=emulator.url), 2e9
    store = AgentCoreStore(settings, connect, clock=lambda: now, pause=0.001)
    await store.start()
    first = await store.append(key(), turn(user("a"), assistant("b")), 0)
    now -= 1000
    assert (await store.append(key(), turn(user("c"), assistant("d")), 1)).updated == first.updated
    await store.close()
