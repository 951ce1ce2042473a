"""``mlc-gateway move --conversations``: what clients began on the old cluster goes on in the gateway's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import urllib3

from gateway.app import build
from gateway.config.load import load
from gateway.observe.logs import configure
from tests.migrate.conftest import Command, StartDeployment
from tests.migrate.moving import LLM_SECRET, Move
from tests.migrate.test_import_conversations import converse
from tests.migrate.test_move import NOTHING, empty

BOB = ("My name is Bob.", "Hello Bob")


@pytest.fixture
def move(start_deployment: StartDeployment, tmp_path: Path) -> Move:
    """A conversational agent of 2.19.0 with a memory there, and a store of sessions in the settings."""
    move = empty(Move(start_deployment("2.19.0"), start_deployment("3.8.0"), tmp_path))
    move.agent = move.old.agents["conv-a"]
    move.write_credentials({"key": LLM_SECRET})
    memory = f"memory:\n  by_caller: false\n  store: sqlite\n  sqlite: {{path: {tmp_path / 'memory.sqlite3'}}}\n"
    move.config.write_text(move.config.read_text() + memory)
    return move


def _moved(command: Command, move: Move, *more: str) -> dict[str, Any]:
    status, out, err = command(*move.argv_with_credentials("--conversations", "--json", *more))
    assert status == 0, (out, err)
    found: dict[str, Any] = json.loads(out)["conversations"]
    return found


def _ask(move: Move, memory_id: str, question: str) -> tuple[int, Any, Any]:
    """Ask a gateway with the settings file; return the status, the answer and its headers."""
    ports = {"listen": {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2}}
    gateway = build(load(move.config, overrides=ports), log=configure("error", "json"))
    move.old.do(gateway.start())
    pool = urllib3.PoolManager(retries=False, timeout=60)
    try:
        url = f"http://127.0.0.1:{gateway.data_port}/_plugins/_ml/agents/{move.agent}/_execute"
        body = {"parameters": {"question": question, "memory_id": memory_id}}
        headers = {"Content-Type": "application/json", "Connection": "close"}
        answer = pool.request("POST", url, body=json.dumps(body), headers=headers)
        return answer.status, json.loads(answer.data), answer.headers
    finally:
        pool.clear()
        move.old.do(gateway.stop())


def test_a_conversation_goes_on_under_the_id_that_its_client_knows(move: Move, command: Command) -> None:
    memory_id = converse(move.old, BOB)
    found = _moved(command, move)
    assert (found["imported"], found["turns"], found["failed"]) == (1, 1, {})
    assert found["rules"] == [f"{{agent: {id_}, memory: gateway}}" for id_ in (move.agent, move.target)]
    rules = "".join(f"    - {rule}\n" for rule in found["rules"])
    move.config.write_text(move.config.read_text().replace("agents:\n", f"agents:\n  rules:\n{rules}", 1))
    session_id = found["sessions"][memory_id]
    for id_ in (memory_id, session_id, memory_id):
        before = len(move.old.cluster.received)
        status, answer, headers = _ask(move, id_, "What is my name?")
        assert status == 200, answer
        (sent,) = move.old.cluster.received[before:]
        assert "My name is Bob." in json.dumps(sent)
        assert headers["X-MLC-Agent"] == move.agent
        outputs = answer["inference_results"][0]["output"]
        assert [output["result"] for output in outputs if output["name"] == "memory_id"] == [session_id]
    status, answer, _ = _ask(move, converse(move.old, BOB), "And mine?")
    assert (status, answer["error"]["type"]) == (404, "SessionNotFound")


def test_it_goes_on_with_the_copy_once_the_old_agent_is_gone(move: Move, command: Command) -> None:
    """The route has `on_failure: next`. The copy is on the other cluster, and reads the same session."""
    memory_id = converse(move.old, BOB)
    rules = "".join(f"    - {rule}\n" for rule in _moved(command, move)["rules"])
    text = move.config.read_text().replace("agents:\n", f"agents:\n  rules:\n{rules}", 1)
    move.config.write_text(
        text.replace("    - agent: ", "    - on_failure: next\n      agent: ").replace("weight: 0", "weight: 1")
    )
    assert _ask(move, memory_id, "What is my name?")[2]["X-MLC-Agent"] == move.agent
    del move.old.cluster.core.resources.agents[move.agent]
    before = len(move.old.cluster.received)
    status, answer, headers = _ask(move, memory_id, "And yours?")
    assert status == 200, answer
    assert (headers["X-MLC-Agent"], headers["X-MLC-Cluster"]) == (move.target, "new")
    (sent,) = move.old.cluster.received[before:]
    assert all(text in json.dumps(sent) for text in ("My name is Bob.", "What is my name?", "And yours?"))


def test_a_second_run_imports_only_what_is_new(move: Move, command: Command) -> None:
    memory_id = converse(move.old, BOB)
    first = _moved(command, move)
    assert _moved(command, move) == {**first, "imported": 0, "present": 1, "turns": 0}
    store = move.old.cluster.core.memory
    store.answer(store.begin(memory_id, "And then?").message_id, "Nothing")
    assert _moved(command, move) == {**first, "imported": 1, "turns": 1}


def test_rules_that_say_so_are_not_asked_for(move: Move, command: Command) -> None:
    move.config.write_text(
        move.config.read_text().replace("agents:\n", 'agents:\n  rules: [{agent: "*", memory: gateway}]\n', 1)
    )
    assert _moved(command, move)["rules"] == []


def test_what_it_says_on_a_terminal(move: Move, command: Command) -> None:
    converse(move.old, BOB)
    status, out, _ = command(*move.argv_with_credentials("--conversations", "--dry-run"))
    assert "Conversations of the account that would be imported: 1\n" in out
    status, out, _ = command(*move.argv_with_credentials("--conversations"))
    assert status == 0
    assert "Conversations that became sessions: 1 (1 turn), 0 already there, 0 failed." in out
    assert f"  - {{agent: {move.target}, memory: gateway}}" in out


def test_a_store_that_can_not_be_used_is_found_before_anything_is_made(move: Move, command: Command) -> None:
    move.config.write_text(move.config.read_text().replace("memory.sqlite3", "gateway.yaml/memory.sqlite3"))
    status, _, err = command(*move.argv_with_credentials("--conversations"))
    assert status == 2, err
    assert move.made() == NOTHING


def test_a_conversation_that_can_not_be_read_is_said(move: Move, command: Command) -> None:
    good, bad = converse(move.old, BOB), converse(move.old, BOB)
    move.old.cluster.refusals[f"GET /_plugins/_ml/memory/{bad}/messages"] = 500
    status, out, _ = command(*move.argv_with_credentials("--conversations", "--json"))
    found = json.loads(out)["conversations"]
    assert (status, list(found["sessions"]), list(found["failed"])) == (1, [good], [bad])
    del move.old.cluster.refusals[f"GET /_plugins/_ml/memory/{bad}/messages"]
    assert _moved(command, move)["failed"] == {}


@pytest.mark.parametrize(
    ("names", "message"),
    [(["conv-a", "conv-b"], "with --conversations, name one agent"), (["flow-a"], "has no memory in its cluster")],
)
def test_agents_whose_conversations_are_not_known(move: Move, command: Command, names: list[str], message: str) -> None:
    agents = [move.old.agents[name] for name in names]
    argv = move.argv("--conversations", "--dry-run")
    status, _, err = command(argv[0], *agents, *argv[2:])
    assert status == 2
    assert message in err
