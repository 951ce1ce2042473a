"""Lists and deletions in AgentCore Memory: what they cost, what they leave to requests, and what they can't do."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from gateway.config.memory import AgentCoreStore as Settings
from gateway.config.memory import Retention
from gateway.memory.reading import read_sessions
from gateway.memory.sessions import BusySessions, delete_expired
from gateway.memory.store import StoreError, StoreUnavailable, UnknownPosition
from gateway.memory.stores.agentcore import record as ids
from gateway.memory.stores.agentcore.store import AgentCoreStore
from gateway.observe.logs import configure
from tests.memory.agentcore.conftest import connect, settings_of
from tests.memory.agentcore.emulator import Emulator
from tests.memory.conversations import key, turn, user


class Service:
    """A client of boto3 that calls `before(method, parameters)` first."""

    def __init__(self, client: Any, before: Callable[[str, dict[str, Any]], None]) -> None:
        self._client, self._before = client, before

    def __getattr__(self, name: str) -> Any:
        def call(**parameters: Any) -> Any:
            self._before(name, parameters)
            return getattr(self._client, name)(**parameters)

        return call


class Gate:
    """Holds calls until it is opened. reached: a call waits."""

    def __init__(self) -> None:
        self._waits, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._waits.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        await asyncio.to_thread(self._waits.wait)


class Opened:
    """A started store whose calls begin with `before`, and what it logs."""

    def __init__(
        self, emulator: Emulator, before: Callable[[str, dict[str, Any]], None] = lambda *_: None, **settings: Any
    ) -> None:
        own = Settings(memory_id=emulator.memory_id, endpoint=emulator.url, **{"seconds": 300, **settings})
        self._stream = io.StringIO()
        log = configure("warning", "json", self._stream)
        self.store = AgentCoreStore(own, lambda of: Service(connect(of), before), pause=0.001, log=log)

    async def __aenter__(self) -> Opened:
        await self.store.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


def refusal(name: str, code: str = "ValidationException", status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, name)


# Requests beside lists and deletions


async def test_requests_do_not_wait_for_deletions(emulator: Emulator) -> None:
    gate = Gate()
    held = lambda name, _: gate.wait() if name == "delete_event" else None  # noqa: E731
    async with Opened(emulator, held, threads=4) as opened:
        await opened.store.append(key(), turn(*[user("a")] * 10), 0)
        await opened.store.append(key("other"), turn(), 0)
        deleting = asyncio.ensure_future(opened.store.delete(key()))
        try:
            await gate.reached()
            assert await opened.store.session(key("other"))
        finally:
            gate.open()
        assert await deleting


async def test_requests_do_not_wait_for_lists(emulator: Emulator) -> None:
    gate, holds = Gate(), threading.Event()

    def hold(name: str, parameters: dict[str, Any]) -> None:
        if name == "list_events" and parameters["sessionId"] != key("other").id and holds.is_set():
            gate.wait()

    async with Opened(emulator, hold, threads=4) as opened:
        for number in range(10):
            await opened.store.append(key(f"{number}"), turn(), 0)
        await opened.store.append(key("other"), turn(), 0)
        holds.set()
        listing = asyncio.ensure_future(opened.store.sessions(key().owner))
        try:
            await gate.reached()
            assert await opened.store.session(key("other"))
        finally:
            gate.open()
        assert len((await listing).sessions) == 11


async def test_deletion_goes_on_if_its_caller_is_cancelled(emulator: Emulator) -> None:
    gate, holds = Gate(), threading.Event()
    held = lambda name, _: gate.wait() if name == "create_event" and holds.is_set() else None  # noqa: E731
    async with Opened(emulator, held) as opened:
        await opened.store.append(key(), turn(), 0)
        holds.set()
        deleting = asyncio.ensure_future(opened.store.delete(key()))
        await gate.reached()
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        gate.open()
    [event] = emulator.state.events.values()
    assert event["payload"][0]["blob"]["data"]["kind"] == "deleted"


# Deletions that fail


async def test_events_that_are_not_deleted_are_logged(emulator: Emulator) -> None:
    def refuse(name: str, parameters: dict[str, Any]) -> None:
        if name == "delete_event" and parameters["actorId"].startswith("mlc-"):
            raise refusal("DeleteEvent", "AccessDeniedException", 403)

    async with Opened(emulator, refuse) as opened:
        await opened.store.append(key(), turn(), 0)
        with pytest.raises(StoreUnavailable, match="refuses DeleteEvent"):
            await opened.store.delete(key())
        assert await opened.store.session(key()) is None
        [line] = opened.logged()
    assert (line["event"], line["level"]) == ("events not deleted", "warning")
    assert (line["agent"], line["session"], line["events"]) == (key().owner.agent_id, key().id, 2)
    assert "refuses DeleteEvent" in line["reason"]


async def test_deletion_that_the_end_of_the_gateway_interrupts_is_logged(emulator: Emulator) -> None:
    gate = Gate()
    held = lambda name, _: gate.wait() if name == "delete_event" else None  # noqa: E731
    opened = Opened(emulator, held)
    await opened.store.start()
    await opened.store.append(key(), turn(), 0)
    deleting = asyncio.ensure_future(opened.store.delete(key()))
    await gate.reached()
    opened.store._settings = msgspec.structs.replace(opened.store._settings, seconds=0.01)
    await opened.store.close()
    gate.open()
    [line] = opened.logged()
    assert (line["event"], line["events"], line["reason"]) == ("events not deleted", 3, "the gateway has ended")
    with pytest.raises(asyncio.CancelledError):
        await deleting


@pytest.mark.parametrize("error", [refusal("CreateEvent"), RecursionError("too deep")], ids=["service", "boto3"])
async def test_messages_of_a_turn_whose_record_is_refused_are_deleted(emulator: Emulator, error: Exception) -> None:
    def refuse(name: str, parameters: dict[str, Any]) -> None:
        if name == "create_event" and parameters["actorId"].startswith("mlcrec-"):
            raise error

    async with Opened(emulator, refuse) as opened:
        with pytest.raises(StoreError, match=r"AgentCore Memory (refuses|does not take)"):
            await opened.store.append(key(), turn(), 0)
    assert emulator.state.events == {}


# Lists


async def test_record_that_can_not_be_read_is_left_out_of_lists(emulator: Emulator) -> None:
    async with Opened(emulator) as opened:
        for name in ("old", "later", "new"):
            await opened.store.append(key(name), turn(), 0)
        connect(settings_of(emulator)).create_event(
            memoryId=emulator.memory_id,
            actorId=ids.actor(ids.RECORDS, key().owner),
            sessionId=key("later").id,
            eventTimestamp=time.time(),
            payload=[{"blob": {"blobType": "mlc-gateway.session", "version": 2}}],
        )
        for owner in (None, key().owner):
            page = await opened.store.sessions(owner)
            assert [one.key for one in page.sessions] == [key("new"), key("old")]
        assert {(one["event"], one["session"]) for one in opened.logged()} == {("session not listed", key("later").id)}
        assert await delete_expired(opened.store, Retention(sessions=1), time.time(), BusySessions()) == 1
        assert await opened.store.session(key("old")) is None


async def test_all_pages_of_a_list_read_each_record_once(emulator: Emulator) -> None:
    async with Opened(emulator) as opened:
        for number in range(5):
            await opened.store.append(key(f"{number}"), turn(), 0)
        emulator.state.requests.clear()
        first = await opened.store.sessions(limit=2)
        second = await opened.store.sessions(after=first.next, limit=2)
        third = await opened.store.sessions(after=second.next, limit=2)
        assert [len(page.sessions) for page in (first, second, third)] == [2, 2, 1]
        assert [name for name, _ in emulator.state.requests].count("ListEvents") == 5
        assert (await opened.store.sessions(after=second.next, limit=2)).sessions == third.sessions  # once more


async def test_all_sessions_of_a_long_list_are_read_once(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.memory.reading.PAGE", 2)
    async with Opened(emulator) as opened:
        for number in range(5):
            await opened.store.append(key(f"{number}"), turn(), 0)
        emulator.state.requests.clear()
        found = [session.key.id async for session in read_sessions(opened.store)]
        assert (len(found), len(set(found))) == (5, 5)
        assert [name for name, _ in emulator.state.requests].count("ListEvents") == 5


@pytest.mark.parametrize("kept", [0, 4])
async def test_a_session_that_is_updated_while_a_long_list_is_read_is_found(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr("gateway.memory.reading.PAGE", 2)
    monkeypatch.setattr("gateway.memory.stores.agentcore.store._KEPT", kept)
    async with Opened(emulator) as opened:
        keys = [key(f"{number}") for number in range(5)]
        for one in keys:
            await opened.store.append(one, turn(), 0)
        found: list[str] = []
        async for session in read_sessions(opened.store):
            if not found:
                await opened.store.append(keys[0], turn(), 1)  # the last one moves to the front
            found.append(session.key.id)
        assert sorted(found) == sorted(one.id for one in keys)


async def test_each_record_of_a_list_has_the_time_of_an_operation(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now, passed, listing = loop.time, [0.0], threading.Event()
    monkeypatch.setattr(loop, "time", lambda: now() + passed[0])

    def take_40_seconds(name: str, _: dict[str, Any]) -> None:
        if name == "list_events" and listing.is_set():
            passed[0] += 40

    async with Opened(emulator, take_40_seconds, threads=2, seconds=60) as opened:
        for number in range(3):
            await opened.store.append(key(f"{number}"), turn(), 0)
        listing.set()
        assert len((await opened.store.sessions()).sessions) == 3
        listing.clear()


@pytest.mark.parametrize("after", ["abc", "1", "1:x", "00098249999999.999"])
async def test_after_of_another_store_is_an_error(emulator: Emulator, after: str) -> None:
    async with Opened(emulator) as opened:
        with pytest.raises(UnknownPosition, match="not the `next` of a page"):
            await opened.store.sessions(after=after)
