"""``mlc-gateway memory import-agentcore``: sessions of other programs in AgentCore Memory become sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Message, Owner, SessionKey
from gateway.memory.reading import read_messages
from gateway.memory.store import Store, StoreError
from gateway.memory.stores.agentcore.chain import ForeignSessions
from tests.memory.agentcore.conftest import NewAgentCoreStore, connect
from tests.memory.agentcore.emulator import Emulator
from tests.memory.agentcore.payloads import CALL, calls, results, spoken
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import assistant, key, turn, user

ACTOR = "user-1"
AGENT = "Ym9iOn-lY3_ldA9012xy"
START = 1_750_000_000


@pytest.fixture
def place(tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A SQLite file whose settings name the emulator's memory, too."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    place = Place(tmp_path)
    settings = json.loads(place.config.read_text())
    settings["memory"]["agentcore"] = {"memory_id": emulator.memory_id, "endpoint": emulator.url}
    place.config.write_text(json.dumps(settings))
    return place


@pytest.fixture
def memory(place: Place, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capsys)


def write(emulator: Emulator, session: str, when: float, *payload: Any, branch: Any = None, **metadata: str) -> str:
    """Write an event as another program does; return its id."""
    answer = connect(Settings(endpoint=emulator.url)).create_event(
        memoryId=emulator.memory_id,
        actorId=ACTOR,
        sessionId=session,
        eventTimestamp=START + when,
        payload=list(payload),
        metadata={name: {"stringValue": value} for name, value in metadata.items()},
        **({"branch": branch} if branch else {}),
    )
    return str(answer["event"]["eventId"])


def messages(place: Place, id_: str) -> list[Message]:
    async def work(store: Store) -> list[Message]:
        return [stored.message async for stored in read_messages(store, SessionKey(Owner(AGENT), id_))]

    found: list[Message] = place.work(work)
    return found


def import_(memory: Commands, *ids: str) -> Any:
    return memory.json("import-agentcore", "--actor", ACTOR, "--agent", AGENT, *ids)


def record(role: str, text: str) -> str:
    """Return a message as AWS's plug-in for Strands writes it."""
    message = {"role": role, "content": [{"text": text}]}
    return json.dumps({"message": message, "message_id": 0, "created_at": "2026-01-02T03:04:05+00:00"})


def test_sessions_of_camunda(emulator: Emulator, memory: Commands, place: Place) -> None:
    write(emulator, "s1", 0, spoken("ASSISTANT", "I look."), calls({**CALL, "elementId": "e"}), seq="1")
    first = write(emulator, "s1", 0, spoken("USER", "How many cats?"), seq="0")
    result = {"id": CALL["id"], "content": "3", "elementId": "e", "properties": {"status": "error"}}
    write(emulator, "s1", 1, spoken("TOOL", "3"), results(result), seq="2")
    write(emulator, "s1", 2, spoken("ASSISTANT", "3 cats."), seq="3")
    write(emulator, "s1", 3, spoken("USER", "Another answer"), branch={"name": "b", "rootEventId": first})
    done = import_(memory)
    assert (done["imported"], done["turns"], done["failed"]) == (1, 1, {})
    use = {"toolUse": {"toolUseId": CALL["id"], "name": CALL["name"], "input": CALL["arguments"]}}
    found = messages(place, done["sessions"]["s1"])
    assert [(one.role, one.content) for one in found] == [
        ("user", ({"text": "How many cats?"},)),
        ("assistant", ({"text": "I look."}, use)),
        ("user", ({"toolResult": {"toolUseId": CALL["id"], "status": "error", "content": [{"text": "3"}]}},)),
        ("assistant", ({"text": "3 cats."},)),
    ]
    assert [one.metadata.created for one in found] == [START, START, START + 1, START + 2]


def test_sessions_of_the_plugin_that_go_on(emulator: Emulator, memory: Commands, place: Place) -> None:
    write(emulator, "s1", 0, spoken("USER", record("user", "Hi")), spoken("ASSISTANT", record("assistant", "Hello")))
    write(emulator, "s1", 1, {"blob": json.dumps({"_type": "agent_state"})})
    write(emulator, "s2", 0, spoken("USER", record("user", "Other")))
    first = import_(memory, "s1")
    assert (first["turns"], list(first["sessions"])) == (1, ["s1"])
    write(emulator, "s1", 2, spoken("USER", record("user", "And?")), spoken("ASSISTANT", record("assistant", "No.")))
    second = import_(memory)
    assert (second["imported"], second["turns"], second["sessions"]["s1"]) == (2, 2, first["sessions"]["s1"])
    found = messages(place, first["sessions"]["s1"])
    assert [one.content[0]["text"] for one in found] == ["Hi", "Hello", "And?", "No."]
    write(emulator, "s3", 0, {"blob": json.dumps({"_type": "agent_state"})})
    third = import_(memory)
    assert (third["present"], third["sessions"]) == (2, second["sessions"])


def test_an_answer_that_came_after_the_import_is_not_lost(emulator: Emulator, memory: Commands, place: Place) -> None:
    write(emulator, "s1", 0, spoken("USER", "Hi"))
    new_id = import_(memory)["sessions"]["s1"]
    write(emulator, "s1", 1, spoken("ASSISTANT", "Hello"))
    code, out = memory("import-agentcore", "--actor", ACTOR, "--agent", AGENT)
    assert (code, json.loads(out)["failed"]["s1"]) == (
        1,
        f"Turn 1 of session {new_id} was not complete when it was written to the target. "
        "Delete the session there, and run this again.",
    )
    assert memory("delete", new_id)[0] == 0
    assert import_(memory)["sessions"] == {"s1": new_id}
    assert [one.content[0]["text"] for one in messages(place, new_id)] == ["Hi", "Hello"]


def test_sessions_that_can_not_be_imported(emulator: Emulator, memory: Commands) -> None:
    write(emulator, "good", 0, spoken("USER", "Hi"))
    write(emulator, "odd", 0, {"blob": {"blobType": "other"}})
    code, out = memory("import-agentcore", "--actor", ACTOR, "--agent", AGENT, "good", "odd", "none")
    done = json.loads(out)
    assert (code, done["imported"], set(done["failed"])) == (1, 1, {"odd", "none"})
    assert "unknown blobType 'other'" in done["failed"]["odd"]
    assert done["failed"]["none"] == f"the actor {ACTOR} has no session none"


async def test_sessions_of_the_gateway_are_refused(new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    await store.append(key(), turn(user("a"), assistant("b")), 0)
    await store.close()
    source = ForeignSessions(store._settings, connect)
    with pytest.raises(StoreError, match="memory copy"):
        await source.turns("mlc-agent____", key().id)
    await source.close()


def test_memory_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = Commands(Place(tmp_path), capsys)
    code, _ = memory("import-agentcore", "--actor", ACTOR, "--agent", AGENT)
    assert code == 2
    assert "memory.agentcore.memory_id" in memory.err
