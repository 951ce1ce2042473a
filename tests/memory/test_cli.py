"""``mlc-gateway memory`` on SQLite files and a simulated cluster."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.memory.copying import read_exported
from gateway.memory.model import Page, SessionKey
from gateway.memory.store import UnreadableSession
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.cli_place import Commands, Place
from tests.memory.conversations import assistant, image, key, tool_use, turn, user

MISSING = "There is no session gws-nope."


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Three sessions: two of one owner, one of another."""
    place = Place(tmp_path)
    place.append(key("a"), turn(user("Look:", image()), assistant("A dot.")), turn(user("And?"), assistant("No.")))
    place.append(key("b"), turn(user("Hello"), assistant("Hi", tool_use("call-1")), system="Be brief."))
    place.append(key("c", "other", "blue", "bob"), turn())
    return place


@pytest.fixture
def memory(place: Place, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capsys)


def test_list(memory: Commands) -> None:
    document = memory.json("list")
    assert document["store"] == "sqlite"
    assert {one["id"] for one in document["sessions"]} == {"gws-a", "gws-b", "gws-c"}
    assert [one["id"] for one in memory.json("list", "--tenant", "blue")["sessions"]] == ["gws-c"]
    assert {one["id"] for one in memory.json("list", "--agent", "agent", "--caller", "")["sessions"]} == {
        "gws-a",
        "gws-b",
    }
    assert (len(memory.json("list", "--limit", "3")["sessions"]), memory.err) == (3, "")
    assert len(memory.json("list", "--limit", "2")["sessions"]) == 2
    assert memory.err == "More sessions exist than the 2 shown: set --limit to see more.\n"


def test_show(memory: Commands) -> None:
    document = memory.json("show", "gws-a")
    assert (document["turns"], [one["turn"] for one in document["messages"]]) == (2, [1, 1, 2, 2])
    assert document["messages"][0]["content"] == [{"text": "Look:"}, image()]


def test_a_terminal_gets_text(memory: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    code, out = memory("list")
    assert code == 0
    assert [word for word in ("session", "gws-a", "gws-b", "gws-c", "blue", "bob") if word not in out] == []
    _, out = memory("show", "gws-a")
    assert "1. user\nLook:\n[image png]\n\n1. assistant\nA dot.\n" in out
    _, out = memory("show", "gws-b")
    assert "[toolUse look_up call-1]" in out
    assert json.loads(memory("show", "gws-b", "--json")[1])["system"] == "Be brief."


def test_no_stored_text_steers_the_terminal(memory: Commands, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    steering = "\x1b]0;title\x07\x9b2J"
    block = tool_use("call-1", f"tool{steering}")
    place.append(key("e", f"agent{steering}", steering), turn(user(f"one\ntwo{steering}"), assistant(block)))
    listed, shown = memory("list")[1], memory("show", "gws-e")[1]
    assert [control for control in "\x1b\x07\x9b" if control in listed + shown] == []
    harmless = "\ufffd]0;title\ufffd2J"  # rich removes the bell
    assert ("\ufffd" in listed, shown.count(harmless)) == (True, 4)
    assert f"\none\ntwo{harmless}\n" in shown


def test_a_block_that_is_not_known_is_shown_by_its_name(
    memory: Commands, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    place.append(key("e"), turn(user({"cachePoint": "format"}, {"text": 5})))
    code, out = memory("show", "gws-e")
    assert (code, "[cachePoint]\n[text]\n" in out) == (0, True)


def test_a_session_that_cannot_be_exported_does_not_stop_the_others(
    memory: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SqliteStore.load

    async def fail_for_b(store: SqliteStore, session_key: SessionKey, *args: Any, **values: Any) -> Page:
        if session_key == key("b"):
            raise UnreadableSession("message 0 can't be read")
        return await load(store, session_key, *args, **values)

    monkeypatch.setattr(SqliteStore, "load", fail_for_b)
    code, out = memory("export")
    exported = [json.loads(line)["message"]["turn_id"] for line in out.splitlines() if "message" in json.loads(line)]
    assert (code, len(exported)) == (1, 6)
    assert memory.err == "gws-b: message 0 can't be read\n"


def test_export_as_json_lines(memory: Commands, tmp_path: Path) -> None:
    _, out = memory("export", "gws-a", "gws-b")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["session"]["id"] for line in lines if "session" in line] == ["gws-a", "gws-b"]
    assert sum("message" in line for line in lines) == 6
    assert memory("export", "--agent", "other", "--out", str(tmp_path / "out.jsonl")) == (0, "")
    [first, *_] = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(first)["session"]["id"] == "gws-c"


def test_export_ends_in_silence_when_nobody_reads_it(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with io.TextIOWrapper(os.fdopen(writing, "wb", 0)) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            run(["memory", "export", "-c", str(place.config)])
    assert (ended.value.code, capsys.readouterr().err) == (1, "")


def test_export_as_files_of_strands(memory: Commands, tmp_path: Path) -> None:
    assert memory("export", "--format", "strands", "--out", str(tmp_path / "out"), "gws-a") == (0, "")
    assert len(list((tmp_path / "out").rglob("message_*.json"))) == 4
    (tmp_path / "file").touch()
    assert memory("export", "--format", "strands", "--out", str(tmp_path / "file")) == (2, "")
    assert len(memory.err.splitlines()) == 1
    code, _ = memory("export", "--format", "strands", "gws-a")
    assert (code, memory.err.splitlines()[-1]) == (2, "Error: --format strands needs a directory: --out DIRECTORY.")


def test_delete(memory: Commands, place: Place) -> None:
    assert memory("delete", "gws-a") == (0, "gws-a: deleted\n")
    assert place.session(key("a")) is None
    assert place.session(key("b")) is not None


def test_nothing_is_deleted_if_an_id_is_unknown(memory: Commands, place: Place) -> None:
    assert memory("delete", "gws-a", "gws-nope") == (1, "")
    assert memory.err == f"mlc-gateway memory delete: {MISSING}\n"
    assert place.session(key("a")) is not None


def test_pin_and_unpin(memory: Commands, place: Place) -> None:
    for name, pinned in (("pin", True), ("unpin", False)):
        assert memory(name, "gws-a")[0] == 0
        session = place.session(key("a"))
        assert session is not None
        assert session.pinned is pinned


@pytest.mark.parametrize("name", ["show", "export", "delete", "pin", "unpin"])
def test_an_unknown_session_ends_with_1(name: str, memory: Commands) -> None:
    assert memory(name, "gws-nope") == (1, "")
    assert memory.err == f"mlc-gateway memory {name}: {MISSING}\n"


def test_a_store_that_cannot_be_used_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    place.path.write_bytes(b"not a database" * 100)
    commands = Commands(place, capsys)
    assert commands("list") == (2, "")
    assert commands.err.startswith("mlc-gateway memory list: ")


def test_copy_between_stores(memory: Commands, place: Place, tmp_path: Path) -> None:
    assert memory.json("copy", "--from", "sqlite", "--to", "strands_files") == {
        "copied": 3,
        "present": 0,
        "turns": 4,
        "failed": {},
    }
    assert memory.json("copy", "--from", "sqlite", "--to", "strands_files")["present"] == 3
    other = Place(tmp_path, "two")
    found = memory.json("copy", "--from", "strands_files", "--to", "sqlite", "--to-config", str(other.config))
    assert (found["copied"], found["failed"]) == (3, {})
    for name in ("a", "b"):
        assert other.texts(key(name)) == place.texts(key(name))


def test_an_interrupted_copy_continues(memory: Commands, place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path, "two")
    arguments = ("--from", "sqlite", "--to", "sqlite", "--to-config", str(other.config))
    memory.json("copy", *arguments)
    place.work(lambda store: store.append(key("a"), turn(user("more")), 2))
    assert memory.json("copy", *arguments) == {"copied": 1, "present": 2, "turns": 1, "failed": {}}
    assert other.texts(key("a")) == place.texts(key("a"))


def test_a_session_that_cannot_be_copied_does_not_stop_the_others(memory: Commands, tmp_path: Path) -> None:
    other = Place(tmp_path, "two")
    other.append(key("b"), turn())
    code, out = memory("copy", "--from", "sqlite", "--to", "sqlite", "--to-config", str(other.config))
    document = json.loads(out)
    assert (code, document["copied"], list(document["failed"])) == (1, 2, ["gws-b"])
    assert memory.err.startswith("gws-b: The target has a session gws-b whose turns are others.")


def test_only_the_wanted_sessions_are_copied(memory: Commands, tmp_path: Path) -> None:
    other = Place(tmp_path, "two")
    arguments = ("--from", "sqlite", "--to", "sqlite", "--to-config", str(other.config))
    assert memory.json("copy", *arguments, "--agent", "other")["copied"] == 1
    assert other.session(key("a")) is None


def test_an_export_is_imported_again(memory: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = memory("export")[1]
    (tmp_path / "sessions.jsonl").write_text(exported)
    other = Commands(Place(tmp_path, "other"), capsys)
    done = other.json("import", str(tmp_path / "sessions.jsonl"))
    lines = [json.loads(line) for line in exported.splitlines()]
    sessions = [line["session"] for line in lines if "session" in line]
    assert (done["imported"], done["failed"]) == (len(sessions), {})
    assert other.json("import", str(tmp_path / "sessions.jsonl"))["present"] == len(sessions)

    def shown(text: str) -> list[Any]:
        found = [json.loads(line) for line in text.splitlines()]
        for line in found:
            for time in ("created", "updated"):
                line.get("session", {}).pop(time, None)
        return sorted(found, key=json.dumps)

    assert shown(other("export")[1]) == shown(exported)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "line 1 is not one of an export: JSON is malformed"),
        (
            '{"message": {"seq": 0, "turn_id": "t", "role": "user", "content": []}}',
            'line 1 is not one of an export: expected {"session": …}',
        ),
        (
            '{"session": {"id": "gws-x", "agent_id": "a"}}\n{}',
            'line 2 is not one of an export: expected {"message": …}',
        ),
        ('{"session": {"id": 1}}', "line 1 is not one of an export: Expected `str`, got `int`"),
    ],
    ids=["no JSON", "no session", "neither", "type"],
)
def test_what_is_no_export_is_refused(memory: Commands, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert memory("import", str(tmp_path / "x.jsonl"))[0] == 2
    assert reason in memory.err


def test_branches_of_a_session_that_lost_its_start_keep_their_places() -> None:
    old = [
        {"session": {"id": "gws-a", "agent_id": "a"}},
        {"message": {"seq": 4, "turn_id": "t1", "role": "user", "content": [], "metadata": {"after": 2}}},
        {"message": {"seq": 5, "turn_id": "t2", "role": "user", "content": [], "metadata": {"after": 5}}},
    ]
    [session] = read_exported(json.dumps(line).encode() for line in old)
    assert [message.metadata.after for one in session.turns for message in one.messages] == [0, 1]


def test_a_store_is_not_copied_to_itself(memory: Commands) -> None:
    assert memory("copy", "--from", "sqlite", "--to", "sqlite")[0] == 2
    assert "--from and --to are the same store" in memory.err


@pytest.mark.parametrize(
    "name", ["list", "show", "export", "delete", "pin", "unpin", "copy", "import", "import-cluster", "import-agentcore"]
)
def test_help_has_exit_codes_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "\nExit codes:\n  0    Success.\n" in shown
    assert f"mlc-gateway memory {name}" in shown.partition("\nExamples:\n  ")[2]
