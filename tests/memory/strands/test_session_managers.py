"""Strands' own session manager and models, unchanged, on the gateway's files, and the gateway on theirs."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="strands-agents is not installed (make strands)")

from strands.session import FileSessionManager
from strands.types.session import SessionMessage

from gateway.memory.model import Metadata, Owner, Page, SessionKey, Turn, Usage
from gateway.memory.store import Store
from gateway.memory.stores.strands.files import StrandsFilesStore
from tests.memory.conversations import assistant, tool_result, tool_use, turn, user
from tests.memory.strands.scripted import PNG, ScriptedModel, agent, call, image, plain

ID = "gws-support-0001"
KEY = SessionKey(Owner("support"), ID)
IMAGE = {"image": {"format": "png", "source": {"bytes": b64encode(PNG).decode()}}}
META = Metadata(created=1_750_000_000.5, provider="bedrock/converse", usage=Usage(1, 2, 3), extra={"trace": "1"})


class Place:
    """Where sessions are: a store for the gateway, and session managers for Strands, made again for each test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def manager(self, session_id: str = ID) -> FileSessionManager:
        return FileSessionManager(session_id, storage_dir=str(self.directory))

    def load(self, key: SessionKey = KEY) -> Page:
        return self.do(lambda store: store.load(key))

    def append(self, added: Turn, turns: int) -> Any:
        return self.do(lambda store: store.append(KEY, added, turns))

    def do(self, work: Callable[[Store], Any]) -> Any:
        async def run() -> Any:
            store = StrandsFilesStore(self.directory)
            await store.start()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(place: Place, model: ScriptedModel, *questions: Any, **state: Any) -> Any:
    """Ask the session's agent in a new process, as it were. Return the agent."""
    asked = agent(model, place.manager())
    for name, value in state.items():
        asked.state.set(name, value)
    for question in questions:
        asked(question)
    return asked


def script() -> ScriptedModel:
    return ScriptedModel([{"text": "A cat."}], [{"text": "I count."}, call("Köln")], [{"text": "3 cats."}])


def test_gateway_reads_what_strands_wrote(place: Place) -> None:
    run(place, script(), [{"text": "What is this?"}, image()], "How many in Köln?")
    page = place.load()
    assert [(one.message.role, one.message.content) for one in page.messages] == [
        ("user", ({"text": "What is this?"}, IMAGE)),
        ("assistant", ({"text": "A cat."},)),
        ("user", ({"text": "How many in Köln?"},)),
        ("assistant", ({"text": "I count."}, tool_use("call-1", "count_cats", city="Köln"))),
        ("user", (tool_result("call-1", {"text": "3 in Köln"}, IMAGE),)),
        ("assistant", ({"text": "3 cats."},)),
    ]
    assert [one.seq for one in page.messages] == list(range(6))
    assert page.messages[1].message.metadata.usage == Usage(10, 2, 12)
    assert all(one.message.metadata.created > 1e9 for one in page.messages)


def test_strands_goes_on_with_its_own_session(place: Place) -> None:
    first = run(place, script(), [{"text": "What is this?"}, image()], "How many in Köln?", mood="good", seen=["Köln"])
    model = ScriptedModel([{"text": "Yes."}])
    second = run(place, model, "Sure?")
    assert model.received[0][:-1] == plain(first.messages)
    assert second.messages[:6] == first.messages  # tracking ids and usage as well
    assert second.state.get() == {"mood": "good", "seen": ["Köln"]}
    assert second.conversation_manager.get_state() == first.conversation_manager.get_state()


def test_strands_goes_on_with_the_gateways_session(place: Place) -> None:
    place.append(turn(user("Look:", IMAGE), assistant(tool_use("call-9", "count_cats", city="Bonn"))), 0)
    place.append(turn(user(tool_result("call-9", {"text": "2"}, IMAGE)), assistant("Two.", metadata=META)), 1)
    model = ScriptedModel([{"text": "Yes."}])
    run(place, model, "Sure?")
    assert model.received == [
        [
            {"role": "user", "content": [{"text": "Look:"}, image()]},
            {"role": "assistant", "content": [call("Bonn", "call-9")]},
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "call-9", "status": "success", "content": [{"text": "2"}, image()]}}
                ],
            },
            {"role": "assistant", "content": [{"text": "Two."}]},
            {"role": "user", "content": [{"text": "Sure?"}]},
        ]
    ]
    page = place.load()
    assert [one.seq for one in page.messages] == list(range(6))
    assert page.messages[3].message == assistant("Two.", metadata=META)


def test_both_take_turns(place: Place) -> None:
    run(place, ScriptedModel([{"text": "one"}]), "1")
    first = place.load().messages[-1].turn
    session = place.append(turn(user("2", IMAGE), assistant("two", metadata=META), system="Be kind."), first)
    run(place, script(), [{"text": "What is this?"}, image()], "How many in Köln?", mood="good")
    before = place.load().messages
    assert before[2].turn_id == before[3].turn_id != before[4].turn_id
    place.append(turn(user("5"), assistant("five"), system=None), before[-1].turn)
    model = ScriptedModel([{"text": "six"}])
    last = run(place, model, "6")
    texts = ["".join(block.get("text", "") for block in one.message.content) for one in place.load().messages]
    assert texts == [
        "1",
        "one",
        "2",
        "two",
        "What is this?",
        "A cat.",
        "How many in Köln?",
        "I count.",
        "",
        "3 cats.",
        "5",
        "five",
        "6",
        "six",
    ]
    assert last.state.get() == {"mood": "good"}
    assert len(model.received[0]) == 13
    assert session.system == place.do(lambda store: store.session(KEY)).system == "Be kind."


def test_redacted_messages(place: Place) -> None:
    run(place, ScriptedModel("[hidden]", [{"text": "ok"}]), "my password", "go on")
    model = ScriptedModel([{"text": "ok"}])
    run(place, model, "what did I say?")
    assert model.received[0][0] == {"role": "user", "content": [{"text": "[hidden]"}]}


def test_sliding_window_is_restored(place: Place) -> None:
    from strands.agent.conversation_manager import SlidingWindowConversationManager

    window = SlidingWindowConversationManager(window_size=2)
    model = ScriptedModel(*([{"text": str(i)}] for i in range(4)))
    asked = agent(model, place.manager(), conversation_manager=window)
    for number in range(4):
        asked(str(number))
    window = SlidingWindowConversationManager(window_size=2)
    restored = agent(ScriptedModel(), place.manager(), conversation_manager=window)
    assert window.removed_message_count == 6
    assert restored.messages == asked.messages
    assert len(place.load().messages) == 8


def test_another_conversation_manager_is_refused_for_a_session_of_the_gateway(place: Place) -> None:
    from strands.agent.conversation_manager import SummarizingConversationManager

    place.append(turn(), 0)
    with pytest.raises(ValueError, match="conversation manager"):
        agent(ScriptedModel(), place.manager(), conversation_manager=SummarizingConversationManager())


def test_a_session_of_strands_whose_id_has_a_percent_sign_is_not_found(place: Place) -> None:
    agent(ScriptedModel([{"text": "one"}]), place.manager("gws-50%"))("1")
    assert place.do(lambda store: store.session(SessionKey(Owner("support"), "gws-50%"))) is None
    assert place.do(lambda store: store.sessions()).sessions == ()


def test_strands_sees_edited_turns_and_runs_that_failed(place: Place) -> None:
    place.append(turn(user("first"), assistant("one", metadata=META)), 0)
    place.append(turn(user("edited", metadata=Metadata(after=0)), assistant("two", metadata=META)), 1)
    place.append(turn(user("asked", metadata=Metadata(failed=True)), assistant("it failed", metadata=META)), 2)
    model = ScriptedModel([{"text": "ok"}])
    run(place, model, "go on")
    texts = [message["content"][0]["text"] for message in model.received[0]]
    assert texts == ["first", "one", "edited", "two", "asked", "it failed", "go on"]


def test_several_agents_of_one_session_are_kept_apart(place: Place) -> None:
    agent(ScriptedModel([{"text": "one"}]), place.manager(), "a b")("1")
    agent(ScriptedModel([{"text": "two"}]), place.manager(), "ä")("2")
    assert len(place.load(SessionKey(Owner("a b"), ID)).messages) == 2
    model = ScriptedModel([{"text": "three"}])
    agent(model, place.manager(), "ä")("3")
    assert [message["content"][0]["text"] for message in model.received[0]] == ["2", "two", "3"]


# The files


def test_strands_writes_our_messages_as_we_do(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.append(turn(user("Grüße 🙂", IMAGE, metadata=META), assistant(tool_use("1", x=[0.5, 1e22, {}]), "ü")), 0)
    place.append(turn(user(tool_result("1", {"json": {"n": [None, True, []]}}, IMAGE)), assistant("")), 1)
    manager = place.manager()
    for path in sorted(tmp_path.glob("session_*/agents/*/messages/*.json")):
        record = SessionMessage.from_dict(json.loads(path.read_bytes()))
        before = path.read_bytes()
        manager._write_file(str(path), record.to_dict())
        assert path.read_bytes() == before
    [agent_file] = tmp_path.glob("session_*/agents/*/agent.json")
    before = agent_file.read_bytes()
    manager._write_file(str(agent_file), manager.read_agent(ID, "support").to_dict())
    assert agent_file.read_bytes() == before
    session_file = tmp_path / f"session_{ID}" / "session.json"
    before = session_file.read_bytes()
    manager._write_file(str(session_file), manager.read_session(ID).to_dict())
    assert session_file.read_bytes() == before


def test_gateway_changes_no_file_of_strands(tmp_path: Path) -> None:
    place = Place(tmp_path)
    run(place, script(), [{"text": "What is this?"}, image()], "How many in Köln?")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    session = place.append(turn(), 2)
    assert (session.turns, session.messages) == (3, 8)
    assert {path: path.read_bytes() for path in files} == files
