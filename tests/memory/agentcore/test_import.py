"""``mlc-gateway memory import-agentcore``: sessions of other programs in AgentCore Memory become sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.model import Message, Owner, SessionKey
from gateway.memory.reading import read_messages
from gateway.memory.store import Store, StoreError, UnreadableSession
from gateway.memory.stores.agentcore.client import StoredEvent
from gateway.memory.stores.agentcore.foreign import ForeignSessions, to_session
from tests.memory.agentcore.conftest import NewAgentCoreStore, connect
from tests.memory.agentcore.emulator import Emulator
from tests.memory.agentcore.payloads import CALL, calls, content, metadata, results, spoken
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import assistant, key, nested, turn, user

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


def test_sessions_of_the_first_connectors(emulator: Emulator, memory: Commands, place: Place) -> None:
    """Arrays of calls, texts of tools alone, and metadata of events: the form that this product was specified from."""
    asked = [{**CALL, "elementId": "e"}, {"name": "count", "arguments": {"what": "cats"}}]
    write(emulator, "s1", 0, spoken("ASSISTANT", "I look."), {"blob": asked}, seq="1")
    write(emulator, "s1", 0, spoken("USER", "How many cats?"), spoken("USER", " "), seq="0", userId="u1")
    write(emulator, "s1", 1, spoken("TOOL", "3"), seq="2")
    write(emulator, "s1", 2, spoken("ASSISTANT", "3 cats."), seq="3")
    done = import_(memory)
    assert (done["imported"], done["turns"], done["failed"], done["left_out"]) == (1, 1, {}, {})
    use = {"toolUse": {"toolUseId": CALL["id"], "name": CALL["name"], "input": CALL["arguments"]}}
    count = {"toolUse": {"toolUseId": "call_2", "name": "count", "input": {"what": "cats"}}}
    pointer = "The result is part of the result of the call 1."
    found = messages(place, done["sessions"]["s1"])
    assert [(one.role, one.content) for one in found] == [
        ("user", ({"text": "How many cats?"},)),
        ("assistant", ({"text": "I look."}, use, count)),
        (
            "user",
            (
                {"toolResult": {"toolUseId": "1", "content": [{"text": "3"}]}},
                {"toolResult": {"toolUseId": "call_2", "content": [{"text": pointer}]}},
            ),
        ),
        ("assistant", ({"text": "3 cats."},)),
    ]
    assert [one.metadata.created for one in found] == [START, START, START + 1, START + 2]
    assert found[0].metadata.extra == {"userId": "u1"}


def test_content_of_camunda_becomes_what_agents_take(emulator: Emulator, memory: Commands, place: Place) -> None:
    write(
        emulator,
        "s1",
        0,
        spoken("USER", "See."),
        content({"type": "document", "document": {"documentId": "d"}}),
        content({"type": "object", "content": {"a": 1}}),
        content({"type": "blob", "blob": "iVBORw0KGgo=", "mimeType": "image/png"}),
        content({"type": "blob", "blob": "JVBERg==", "mimeType": "application/pdf"}),
        metadata({}, role="USER"),
    )
    write(
        emulator,
        "s1",
        1,
        content({"type": "reasoning", "provider": "anthropic", "payload": {"thinking": "Hm.", "signature": "s"}}),
        content({"type": "reasoning", "provider": "openai", "payload": {"id": "rs_1"}}),
        spoken("ASSISTANT", "I look."),
        calls(CALL),
        metadata({}, role="ASSISTANT"),
    )
    reference = {"type": "document", "document": {"documentId": "e"}}
    parts = [{"type": "text", "text": "3"}, {"type": "object", "content": {"cats": 3}}, reference]
    result = {"id": CALL["id"], "name": "search", "content": parts, "elementId": "e", "status": "error"}
    write(emulator, "s1", 2, spoken("TOOL", "3"), results(result), metadata({}, role="TOOL"))
    done = import_(memory)
    assert done["left_out"] == {"s1": ["content of the type reasoning that only the provider openai reads"]}
    assert memory.err == "s1: left out: content of the type reasoning that only the provider openai reads\n"
    found = messages(place, done["sessions"]["s1"])
    assert [one.content for one in found] == [
        (
            {"text": "See."},
            {"text": '{"documentId":"d"}'},
            {"text": '{"a":1}'},
            {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
            {"document": {"format": "pdf", "name": "document", "source": {"bytes": "JVBERg=="}}},
        ),
        (
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
            {"text": "I look."},
            {"toolUse": {"toolUseId": CALL["id"], "name": CALL["name"], "input": CALL["arguments"]}},
        ),
        (
            {
                "toolResult": {
                    "toolUseId": CALL["id"],
                    "status": "error",
                    "content": [{"text": "3"}, {"json": {"cats": 3}}, {"text": '{"documentId":"e"}'}],
                }
            },
        ),
    ]


@pytest.mark.parametrize(
    ("events", "expected", "left_out"),
    [
        ([("a", 0, None, ""), ("b", 1, "B", "a"), ("c", 2, "C", "b")], ["a", "b", "c"], []),
        ([("a", 0, None, ""), ("x", 1, "X", "a"), ("b", 2, "B", "a")], ["a", "b"], ["another branch"]),
        (
            [("a", 0, None, ""), ("x", 1, "X", "a"), ("y", 2, "Y", "x"), ("late", 3, None, ""), ("b", 4, "B", "a")],
            ["a", "b"],
            ["2 other branches"],
        ),
        ([("b", 1, "B", "gone"), ("c", 2, "C", "b")], ["b", "c"], []),
    ],
    ids=["a branch for each turn", "a turn that was tried again", "main line that went on", "expired root"],
)
def test_branches_are_followed(events: list[Any], expected: list[str], left_out: list[str]) -> None:
    stored = [
        StoredEvent(id, when, [spoken("USER", id)], {}, branch, root or None) for id, when, branch, root in events
    ]
    for order in (stored, stored[::-1]):
        session = to_session(order)
        assert [turn.messages[0].content[0]["text"] for turn in session.turns] == expected
        assert session.left_out == left_out


@pytest.mark.parametrize("block", [{"toolResult": {"toolUseId": "1"}}, {"toolUse": {"name": "look"}}], ids=str)
def test_a_block_of_an_unknown_form_is_refused(block: Any) -> None:
    message = {"message": {"role": "user", "content": [block]}, "message_id": 0}
    with pytest.raises(UnreadableSession, match="unknown form"):
        to_session([StoredEvent("a", 0, [spoken("USER", json.dumps(message))], {})])


def test_a_branch_without_a_root_is_refused() -> None:
    stored = [StoredEvent("a", 0, [spoken("USER", "a")], {}), StoredEvent("b", 1, [spoken("USER", "b")], {}, "B")]
    with pytest.raises(UnreadableSession, match="the branch B does not say"):
        to_session(stored)


def test_content_that_is_nested_too_deeply_is_refused() -> None:
    deep = {"blobType": "camunda.messageContent", "version": 1, "content": {"type": "object", "content": nested()}}
    with pytest.raises(UnreadableSession, match="nested too deeply"):
        to_session([StoredEvent("a", 0, [spoken("USER", "a"), {"blob": deep}], {})])


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


async def test_sessions_of_the_gateway_are_refused(emulator: Emulator, new_agentcore_store: NewAgentCoreStore) -> None:
    store = new_agentcore_store()
    await store.start()
    await store.append(key(), turn(user("a"), assistant("b")), 0)
    await store.close()
    source = ForeignSessions(Settings(memory_id=emulator.memory_id, endpoint=emulator.url), connect)
    with pytest.raises(StoreError, match="memory copy"):
        await source.read("mlc-agent____", key().id)
    await source.close()


def test_memory_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = Commands(Place(tmp_path), capsys)
    code, _ = memory("import-agentcore", "--actor", ACTOR, "--agent", AGENT)
    assert code == 2
    assert "memory.agentcore.memory_id" in memory.err
