"""``mlc-gateway memory import-cluster``: conversations of a simulated cluster become sessions."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.memory_import import read_conversation
from gateway.memory.model import Owner, SessionKey
from gateway.memory.owner import agent_of, caller_of
from gateway.memory.reading import read_messages
from gateway.memory.store import Store
from gateway.migrate.connection import PASSWORD
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import turn, user
from tests.migrate.conftest import Deployment, StartDeployment
from tests.migrate.test_connection import connected

AGENT = "Ym9iOn-lY3_ldA9012xy"


@pytest.fixture(params=["2.19.0", "3.6.0"])
def deployment(request: pytest.FixtureRequest, start_deployment: StartDeployment) -> Deployment:
    return start_deployment(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def memory(place: Place, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capsys)


def converse(deployment: Deployment, *exchanges: tuple[str, str]) -> str:
    """Make a conversation of questions and answers, and return its id."""
    store = deployment.cluster.core.memory
    memory_id = store.create("conversation").memory_id
    for question, answer in exchanges:
        store.answer(store.begin(memory_id, question).message_id, answer or None)
    return memory_id


def import_all(deployment: Deployment, memory: Commands, *args: str) -> Any:
    return memory.json("import-cluster", "--url", deployment.url, "--agent", AGENT, *args)


def messages(place: Place, id: str, owner: Owner = Owner(AGENT)) -> Any:  # noqa: B008  # immutable
    async def work(store: Store) -> Any:
        return [stored async for stored in read_messages(store, SessionKey(owner, id))]

    return place.work(work)


def test_conversations_become_sessions(deployment: Deployment, memory: Commands, place: Place) -> None:
    first = converse(deployment, ("My name is Bob.", "Hello Bob"), ("What is my name?", "Bob"))
    second = converse(deployment, ("Hi", "Hello"))
    document = import_all(deployment, memory)
    assert (document["imported"], document["turns"], document["failed"]) == (2, 3, {})
    assert set(document["sessions"]) == {first, second}
    session_id = document["sessions"][first]
    assert agent_of(session_id) == AGENT
    assert place.texts(SessionKey(Owner(AGENT), session_id)) == [
        "My name is Bob.",
        "Hello Bob",
        "What is my name?",
        "Bob",
    ]
    found = messages(place, session_id)
    exchanges = read_conversation(connected("--url", deployment.url), first)
    created = [exchange.created for exchange in exchanges for _ in range(2)]
    assert [stored.message.metadata.created for stored in found] == created
    assert all(created)
    assert [stored.turn for stored in found] == [1, 1, 2, 2]


def test_a_second_run_imports_only_what_is_new(deployment: Deployment, memory: Commands, place: Place) -> None:
    old = converse(deployment, ("one", "1"))
    first = import_all(deployment, memory)
    assert import_all(deployment, memory) == {**first, "imported": 0, "present": 1, "turns": 0}
    store = deployment.cluster.core.memory
    store.answer(store.begin(old, "two").message_id, "2")
    assert import_all(deployment, memory) == {**first, "imported": 1, "turns": 1}
    assert place.texts(SessionKey(Owner(AGENT), first["sessions"][old])) == ["one", "1", "two", "2"]


def test_a_session_that_went_on_is_left_as_it_is(deployment: Deployment, memory: Commands, place: Place) -> None:
    old = converse(deployment, ("one", "1"))
    first = import_all(deployment, memory)
    key = SessionKey(Owner(AGENT), first["sessions"][old])
    place.work(lambda store: store.append(key, turn(user("and then?")), 1))
    assert import_all(deployment, memory) == {**first, "imported": 0, "present": 1, "turns": 0}
    assert place.texts(key) == ["one", "1", "and then?"]


def test_an_empty_conversation_becomes_no_session(deployment: Deployment, memory: Commands) -> None:
    converse(deployment)
    assert import_all(deployment, memory) == {"imported": 0, "present": 0, "turns": 0, "failed": {}, "sessions": {}}


def test_a_failed_run_has_no_answer(deployment: Deployment, memory: Commands, place: Place) -> None:
    id = converse(deployment, ("one", ""), ("two", "Agent execution failed: no model"), ("three", "3"))
    found = messages(place, import_all(deployment, memory)["sessions"][id])
    assert [(stored.message.role, stored.message.metadata.failed) for stored in found] == [
        ("user", True),
        ("assistant", True),
        ("user", True),
        ("assistant", True),
        ("user", False),
        ("assistant", False),
    ]


def test_a_question_that_the_gateway_wrote_is_imported_as_it_reads(
    deployment: Deployment, memory: Commands, place: Place
) -> None:
    id = converse(deployment, ("${parameters.gw_U0123456789abcdef:-What is it?}", "A dot."))
    new = import_all(deployment, memory, id)["sessions"][id]
    assert place.texts(SessionKey(Owner(AGENT), new)) == ["What is it?", "A dot."]


def test_long_lists_are_read_whole(deployment: Deployment, memory: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.memory_import._PAGE", 2)
    ids = [converse(deployment, *((str(number), "a") for number in range(5))) for _ in range(4)]
    document = import_all(deployment, memory)
    assert (set(document["sessions"]), document["turns"]) == (set(ids), 20)


def test_only_the_named_conversations(deployment: Deployment, memory: Commands) -> None:
    wanted, _ = converse(deployment, ("one", "1")), converse(deployment, ("two", "2"))
    assert list(import_all(deployment, memory, wanted)["sessions"]) == [wanted]


def test_an_unknown_conversation_does_not_stop_the_others(deployment: Deployment, memory: Commands) -> None:
    id = converse(deployment, ("one", "1"))
    code, out = memory("import-cluster", "--url", deployment.url, "--agent", AGENT, "nope", id)
    assert (code, f'"{id}": "gws-' in out) == (1, True)
    assert memory.err == "nope: The cluster has no conversation nope that this account may read.\n"


def test_the_sessions_belong_to_the_account(
    deployment: Deployment, memory: Commands, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = converse(deployment, ("one", "1"))
    monkeypatch.setenv(PASSWORD, "secret")
    new = import_all(deployment, memory, "--user", "bob", "--to-tenant", "blue")["sessions"][id]
    caller = caller_of({"Authorization": f"Basic {base64.b64encode(b'bob:secret').decode()}"}, by_user=True)
    assert len(messages(place, new, Owner(AGENT, "blue", caller))) == 2
    other = import_all(deployment, memory, "--to-caller", "abc")["sessions"][id]
    assert other != new
    assert len(messages(place, other, Owner(AGENT, "", "abc"))) == 2


def test_an_account_without_the_right_ends_with_2(deployment: Deployment, memory: Commands) -> None:
    deployment.cluster.refusals["GET /_plugins/_ml/memory"] = 403
    code, out = memory("import-cluster", "--url", deployment.url, "--agent", AGENT)
    assert (code, out) == (2, "")
    assert "This account may not read conversations" in memory.err


def test_other_turns_under_the_new_id_are_reported(deployment: Deployment, memory: Commands, place: Place) -> None:
    id = converse(deployment, ("one", "1"))
    key = SessionKey(Owner(AGENT), import_all(deployment, memory)["sessions"][id])
    place.work(lambda store: store.delete(key))
    place.append(key, turn())
    code, _ = memory("import-cluster", "--url", deployment.url, "--agent", AGENT)
    assert (code, memory.err.partition(":")[0]) == (1, id)


def test_the_agent_may_be_its_name_or_the_beginning_of_its_id(deployment: Deployment, memory: Commands) -> None:
    agent = next(iter(deployment.agents.values()))
    name = deployment.cluster.core.resources.agents[agent]["name"]
    old = converse(deployment, ("Hello", "Hi"))
    others = [id for id in deployment.cluster.core.resources.agents if id != agent]
    beginning = next(agent[:n] for n in range(4, 20) if not any(id.startswith(agent[:n]) for id in others))
    new = {
        memory.json("import-cluster", "--url", deployment.url, "--agent", given)["sessions"][old]
        for given in (agent, name, beginning)
    }
    assert [agent_of(id) for id in new] == [agent]
    deployment.cluster.core.resources.agents["twin"] = deployment.cluster.core.resources.agents[agent]
    assert memory("import-cluster", "--url", deployment.url, "--agent", name) == (2, "")
    assert f"2 agents are called {name}: name one by its id" in memory.err


def test_nothing_to_import_is_one_line(deployment: Deployment, memory: Commands) -> None:
    assert memory("import-cluster", "--url", deployment.url, "--agent", AGENT, "--table") == (
        0,
        "0 sessions imported (0 turns), 0 already there, 0 failed\n",
    )
