"""The store of Strands' files: the tests of every store, killed writers, what Strands adds, and damaged files."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.memory import Memory
from gateway.memory.copying import OtherSession, copy_session
from gateway.memory.model import Message, Metadata, Owner, SessionKey, Turn
from gateway.memory.store import SessionConflict, StoreUnavailable, UnknownPosition, UnreadableSession, Unstorable
from gateway.memory.stores.registry import build_store
from gateway.memory.stores.strands import files, session
from gateway.memory.stores.strands.files import StrandsFilesStore
from gateway.memory.stores.strands.mapping import encode_record, to_record
from gateway.memory.stores.strands.session import decode_name, encode_name
from gateway.storage import files as storage_files
from tests.memory.conversations import assistant, key, texts, tool_result, tool_use, turn, user
from tests.memory.in_memory_store import InMemoryStore
from tests.memory.store_conformance import NewStore, StoreConformance


class TestStrandsFilesStore(StoreConformance):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return lambda: StrandsFilesStore(tmp_path / "sessions")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StrandsFilesStore]:
    store = StrandsFilesStore(tmp_path)
    await store.start()
    yield store
    await store.close()


def agent(root: Path, of: SessionKey = key()) -> Path:  # noqa: B008  # immutable
    return root / f"session_{of.id}" / "agents" / f"agent_{of.owner.agent_id}"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def modes(root: Path) -> set[tuple[str, int]]:
    paths = [root, *root.rglob("*")]
    return {("directory" if path.is_dir() else "file", path.stat().st_mode & 0o777) for path in paths}


def add_as_strands(root: Path, *messages: Any) -> None:
    """Add messages as Strands does: with the number after the last one in the directory."""
    folder = agent(root) / "messages"
    folder.mkdir(parents=True, exist_ok=True)
    first = len(list(folder.iterdir()))
    for seq, message in enumerate(messages, first):
        (folder / f"message_{seq}.json").write_bytes(encode_record(to_record(message, seq)))


async def test_a_copy_of_a_turn_that_grows_is_not_continued(store: StrandsFilesStore, tmp_path: Path) -> None:
    target = InMemoryStore()
    add_as_strands(tmp_path, user("Hi"))
    session = await store.session(key())
    assert session is not None
    assert await copy_session(store, target, session) == 1
    add_as_strands(tmp_path, assistant("Hello"))
    with pytest.raises(OtherSession, match="Turn 1 of session gws-one was not complete"):
        await copy_session(store, target, session)
    await target.append(key(), turn(), 1)  # a session that went on in the target is left as it is
    assert await copy_session(store, target, session) == 0


# Killed writers


class Killed(BaseException):
    pass


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Make the writer stop before its `step`-th change of a file. Return a function that returns how many it made."""
    made = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal made
            if made == step:
                raise Killed
            made += 1
            return change(*args, **options)

        return run

    for module, name in (
        (storage_files.os, "pwrite"),
        (session.os, "utime"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "mkdir"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return lambda: made


async def killed(store: StrandsFilesStore, step: int, work: Callable[[], Any]) -> bool:
    """Do `work` in a writer that is killed at its `step`-th change; return False if it has made fewer."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill_at(step, monkeypatch)
        try:
            await work()
        except Killed:
            return True
    return False


ADDED = turn(user("two", tool_result("1")), assistant(tool_use("1")), user("three"), id_="turn-added")


@pytest.mark.parametrize("before", [0, 1])
async def test_turn_of_a_killed_writer_is_stored_whole_or_not_at_all(tmp_path: Path, before: int) -> None:
    for step in range(100):
        root = tmp_path / str(step)
        store = StrandsFilesStore(root)
        await store.start()
        for number in range(before):
            await store.append(key(), turn(user("one")), number)
        was_killed = await killed(store, step, lambda: store.append(key(), ADDED, before))  # noqa: B023
        session = await store.session(key())
        assert (session.turns if session else 0) in ({before, before + 1} if was_killed else {before + 1})
        if session:
            page = await store.load(key())
            assert len(page.messages) == session.messages == before + 3 * (session.turns - before)
            assert not list((agent(root) / "gateway" / "pending").glob("*")) or session.turns == before
        longer = await store.append(key(), turn(user("next"), id_="next"), session.turns if session else 0)
        await store.append(key(), ADDED, longer.turns)
        page = await store.load(key())
        ids = [one.turn_id for one in page.messages][before:]
        assert ids in (["turn-added"] * 3 + ["next"], ["next"] + ["turn-added"] * 3)
        assert [one.seq for one in page.messages] == list(range(before + 4))
        await store.close()
        if not was_killed:
            break
    assert 5 < step < 30


async def test_turn_is_never_seen_by_strands_before_it_is_stored(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(user("one")), 0)
    for step in range(100):
        was_killed = await killed(store, step, lambda: store.append(key(), ADDED, 1))
        seen = len(list((agent(tmp_path) / "messages").iterdir()))
        session = await store.session(key())
        assert session
        assert seen == 1 or session.turns == 2
        if not was_killed:
            break


async def test_killed_recovery_is_done_again(tmp_path: Path) -> None:
    async def commit_without_moving(root: Path) -> StrandsFilesStore:
        store = StrandsFilesStore(root)
        await store.start()
        await store.append(key(), turn(user("one")), 0)
        await store.append(key(), ADDED, 1)
        for seq in (1, 2, 3):
            name = f"message_{seq}.json"
            (agent(root) / "messages" / name).rename(agent(root) / "gateway" / "pending" / name)
        return store

    for step in range(20):
        store = await commit_without_moving(tmp_path / str(step))
        was_killed = await killed(store, step, lambda: store.session(key()))  # noqa: B023
        page = await store.load(key())
        assert [one.turn_id for one in page.messages][1:] == ["turn-added"] * 3
        await store.close()
        if not was_killed:
            break
    assert step == 3


async def test_strands_went_on_without_a_turn_that_was_not_moved(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(user("one"), assistant("two")), 0)
    await store.append(key(), ADDED, 1)
    for seq in (2, 3, 4):
        name = f"message_{seq}.json"
        (agent(tmp_path) / "messages" / name).rename(agent(tmp_path) / "gateway" / "pending" / name)
    add_as_strands(tmp_path, user("of Strands"), assistant("answer"))
    page = await store.load(key())
    assert texts(page.messages) == ["one", "two", "of Strands", "answer"]
    assert [one.turn for one in page.messages] == [1, 1, 2, 2]
    assert (await store.append(key(), ADDED, 2)).messages == 7


# What Strands adds


async def test_messages_that_strands_adds_are_counted(store: StrandsFilesStore, tmp_path: Path) -> None:
    add_as_strands(tmp_path, user("one"), assistant("two"))
    session = await store.session(key())
    assert session
    assert (session.turns, session.messages) == (1, 2)
    add_as_strands(tmp_path, user("three"), assistant(tool_use("1")))
    assert (await store.load(key())).messages[-1].turn == 2
    add_as_strands(tmp_path, user(tool_result("1")), assistant("four"))  # still the turn that was seen before
    with pytest.raises(SessionConflict) as caught:
        await store.append(key(), turn(), 1)
    assert caught.value.turns == 2
    await store.append(key(), turn(user("five"), id_="five"), 2)
    add_as_strands(tmp_path, assistant("six"), user("seven"))
    page = await store.load(key())
    assert [one.turn for one in page.messages] == [1, 1, 2, 2, 2, 2, 3, 3, 4]
    assert [one.seq for one in page.messages] == list(range(9))
    ids = [one.turn_id for one in page.messages]
    assert ids[0] == ids[1] != ids[2] == ids[5]
    assert ids[6] == "five"
    assert (await store.load(key(), before=5, limit=2)).messages == page.messages[3:5]


async def test_turn_without_messages(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), Turn("empty", (), system="Be brief."), 0)
    await store.append(key(), Turn("empty too", ()), 1)
    await store.append(key(), turn(user("one"), id_="one"), 2)
    await store.append(key(), Turn("empty again", ()), 3)
    add_as_strands(tmp_path, user("two"))
    page = await store.load(key())
    assert [one.turn for one in page.messages] == [3, 5]
    assert page.messages[0].turn_id == "one"
    assert (await store.append(key(), Turn("empty", ()), 0)).turns == 5


# Names


@pytest.mark.parametrize(
    "id_",
    ["a", "..", "../../etc", "a/b", "100%", "%2F", "ü 🙂", "\0", "\ud800", "", " ", "x" * 200, "x" * 201, "ü" * 150],
)
def test_names_are_safe_and_tell_the_id(id_: str) -> None:
    name = encode_name(id_)
    assert "/" not in name
    assert "\0" not in name
    assert len(name.encode()) <= 200
    assert decode_name(name) == (id_ if len(id_.encode(errors="replace")) <= 200 else None)


def test_names_that_strands_may_use_are_left_as_they_are() -> None:
    for id_ in ("gws-1", "my agent", "ü", "a.b~c:d"):
        assert encode_name(id_) == id_


async def test_sessions_are_below_the_directory(tmp_path: Path) -> None:
    store = StrandsFilesStore(tmp_path / "sessions")
    await store.start()
    owner = Owner("../../agent", tenant="..", caller="../..")
    await store.append(SessionKey(owner, "gws-../../../x"), turn(), 0)
    assert names(tmp_path) == ["sessions"]
    assert names(tmp_path / "sessions") == [".deleted", ".locks", "tenant_.."]
    assert [one.key for one in (await store.sessions()).sessions] == [SessionKey(owner, "gws-../../../x")]
    await store.close()


async def test_agents_of_one_session_are_deleted_apart(store: StrandsFilesStore, tmp_path: Path) -> None:
    one, other = key(agent_id="one"), key(agent_id="other")
    await store.append(one, turn(), 0)
    await store.append(other, turn(user("stays")), 0)
    assert await store.delete(one)
    assert texts((await store.load(other)).messages) == ["stays"]
    assert await store.delete(other)
    assert names(tmp_path) == [".deleted", ".locks"]
    assert names(tmp_path / ".deleted") == []


@pytest.mark.parametrize("after", ["abc", "1750000000.5:1", "18446744073709551615"])
async def test_after_of_another_store_is_an_error(store: StrandsFilesStore, after: str) -> None:
    await store.append(key(), turn(), 0)
    with pytest.raises(UnknownPosition, match="not the `next` of a page"):
        await store.sessions(after=after)


async def test_deletion_that_a_starting_process_finishes_succeeds(
    store: StrandsFilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def remove_second(path: Path) -> None:
        remove(path)
        remove(path)

    await store.append(key(), turn(), 0)
    monkeypatch.setattr(shutil, "rmtree", remove_second)
    assert await store.delete(key())


async def test_deletion_that_was_interrupted_is_finished_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".deleted" / "x" / "agents").mkdir(parents=True)
    store = StrandsFilesStore(tmp_path)
    await store.start()
    assert not list((tmp_path / ".deleted").iterdir())
    await store.close()


# Files that can't be used


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"message": 1}', b'{"message": {"role": "x"}}', b"\xff", b"[" * 9999]
)
async def test_message_that_cannot_be_read(store: StrandsFilesStore, tmp_path: Path, content: bytes) -> None:
    await store.append(key(), turn(), 0)
    await store.append(key("other"), turn(), 0)
    path = agent(tmp_path) / "messages" / "message_1.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableSession, match=r"message_1\.json"):
        await store.load(key())
    assert len((await store.sessions()).sessions) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2}'])
async def test_state_that_cannot_be_read(store: StrandsFilesStore, tmp_path: Path, content: bytes) -> None:
    await store.append(key(), turn(), 0)
    await store.append(key("other"), turn(), 0)
    (agent(tmp_path) / "gateway" / "state.json").write_bytes(content)
    for work in (store.session(key()), store.load(key()), store.append(key(), turn(), 1)):
        with pytest.raises(UnreadableSession, match=r"state\.json"):
            await work
    assert [one.key for one in (await store.sessions()).sessions] == [key("other")]


@pytest.mark.parametrize("lines", [b"", b"x" * 40])
async def test_turns_that_are_cut(store: StrandsFilesStore, tmp_path: Path, lines: bytes) -> None:
    await store.append(key(), turn(), 0)
    (agent(tmp_path) / "gateway" / "turns").write_bytes(lines)
    for work in (store.load(key()), store.append(key(), turn(), 1)):
        with pytest.raises(UnreadableSession, match="turns does not have the lines"):
            await work
    assert len((await store.sessions()).sessions) == 1
    assert await store.delete(key())


@pytest.mark.parametrize("renames", range(3))
async def test_a_writer_that_stops_while_it_shows_several_messages_of_one_role(
    store: StrandsFilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    first, second = turn(user("lost")), turn(user("one"), user("two"), assistant("three"))
    await store.append(key(), first, 0)
    left, original = renames, Path.rename

    def rename(path: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, "stopped")
        original(path, target)

    with monkeypatch.context() as context:
        context.setattr(Path, "rename", rename)
        with pytest.raises(StoreUnavailable):
            await store.append(key(), second, 1)
    page = await store.load(key())
    assert [one.message for one in page.messages] == [*first.messages, *second.messages]
    assert names(agent(tmp_path) / "messages") == ["message_2.json", "message_3.json"]
    assert names(agent(tmp_path) / "gateway" / "hidden") == ["message_0.json", "message_1.json"]
    shown = json.loads((agent(tmp_path) / "messages" / "message_2.json").read_bytes())["message"]["content"]
    assert shown == [{"text": "lost"}, {"text": "one"}, {"text": "two"}]


async def test_other_files_among_pending_messages_are_left(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(), 0)
    (agent(tmp_path) / "gateway" / "pending" / ".DS_Store").touch()
    assert (await store.append(key(), turn(), 1)).turns == 2
    assert names(agent(tmp_path) / "gateway" / "pending") == [".DS_Store"]
    assert await store.delete(key())


async def test_state_of_a_newer_gateway(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(), 0)
    path = agent(tmp_path) / "gateway" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(UnreadableSession, match="version 2"):
        await store.load(key())


async def test_missing_message(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(), 0)
    (agent(tmp_path) / "messages" / "message_0.json").unlink()
    with pytest.raises(UnreadableSession, match="missing"):
        await store.load(key())


async def test_symbolic_links_are_not_followed(store: StrandsFilesStore, tmp_path: Path) -> None:
    await store.append(key(), turn(), 0)
    path = agent(tmp_path) / "messages" / "message_0.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableSession, match="symbolic link"):
        await store.load(key())


@pytest.mark.parametrize("of", ["", "agents", "agents/agent_agent", "agents/agent_agent/messages"])
async def test_links_to_directories_are_not_followed(store: StrandsFilesStore, tmp_path: Path, of: str) -> None:
    """They may lead to another caller's session, and a deletion would leave what is there, and report success."""
    await store.append(key(), turn(), 0)
    path = tmp_path / "session_gws-one" / of
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    there = sorted((tmp_path / "elsewhere").rglob("*"))
    for work in (
        lambda: store.session(key()),
        lambda: store.load(key()),
        lambda: store.append(key(), turn(id_="next"), 1),
        lambda: store.pin(key(), True),
        lambda: store.delete(key()),
    ):
        with pytest.raises(UnreadableSession, match="symbolic link"):
            await work()
    assert (await store.sessions()).sessions == ()
    assert sorted((tmp_path / "elsewhere").rglob("*")) == there


@pytest.mark.parametrize("name", [".deleted", ".locks"])
async def test_what_a_link_in_place_of_the_trash_leads_to_is_not_emptied(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "sessions", tmp_path / "elsewhere"
    for path in (root, elsewhere, elsewhere / "other"):
        path.mkdir()
    (root / name).symlink_to(elsewhere)
    with pytest.raises(StoreUnavailable, match=rf"{name} can't be used: it is a symbolic link"):
        await StrandsFilesStore(root).start()
    assert (elsewhere / "other").exists()


async def test_files_are_their_owners_only_whatever_the_umask(tmp_path: Path) -> None:
    store = StrandsFilesStore(tmp_path / "sessions")
    before = os.umask(0)
    try:
        await store.start()
        await store.append(key(), turn(user("a"), user("b")), 0)
        await store.pin(key(), True)
    finally:
        os.umask(before)
    assert modes(tmp_path / "sessions") == {("file", 0o600), ("directory", 0o700)}
    await store.close()


async def test_a_copy_of_a_session_is_listed_as_its_owners(store: StrandsFilesStore, tmp_path: Path) -> None:
    """Also where the name does not tell the id, so that it is read from a file, which names the first owner."""
    alice, bob = (SessionKey(Owner("agent", "", caller), "gws-" + "x" * 300) for caller in ("alice", "bob"))
    await store.append(alice, turn(), 0)
    shutil.copytree(tmp_path / "caller_alice", tmp_path / "caller_bob")
    for owned in (alice, bob):
        assert [one.key for one in (await store.sessions(owned.owner)).sessions] == [owned]
    assert {one.key for one in (await store.sessions()).sessions} == {alice, bob}


@pytest.mark.parametrize("name", ["gateway/state.json", "messages/message_2.json"])
async def test_a_session_that_cannot_be_read_can_be_deleted(
    store: StrandsFilesStore, tmp_path: Path, name: str
) -> None:
    session = await store.append(key(), turn(), 0)
    assert session.messages == 2
    (agent(tmp_path) / name).write_bytes(b"{")
    with pytest.raises(UnreadableSession):
        await store.session(key())
    assert await store.delete(key())
    assert not agent(tmp_path).exists()
    assert await store.session(key()) is None


async def test_a_probe_that_a_starting_process_removes_is_made_again(
    store: StrandsFilesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, removed = files.write_files, []

    def write_late(*writes: files.Write) -> None:
        if not removed:
            removed.extend((tmp_path / ".deleted").iterdir())
            StrandsFilesStore(tmp_path)._prepare()
        write(*writes)

    monkeypatch.setattr(files, "write_files", write_late)
    await store.probe(10)
    assert removed
    assert not list((tmp_path / ".deleted").iterdir())


@pytest.mark.parametrize("damage", [lambda path: path.symlink_to("elsewhere"), Path.mkdir], ids=["link", "directory"])
async def test_damaged_session_is_left_out_of_lists(
    damage: Callable[[Path], None], store: StrandsFilesStore, tmp_path: Path
) -> None:
    for one in (key(), key("two")):
        await store.append(one, turn(), 0)
    path = agent(tmp_path) / "gateway" / "state.json"
    path.unlink()
    damage(path)
    assert [session.key for session in (await store.sessions()).sessions] == [key("two")]
    assert [session.key for session in (await store.sessions(key().owner)).sessions] == [key("two")]


@pytest.mark.parametrize("value", ["\ud800", {1, 2}, b"bytes"])
async def test_content_that_is_not_json(store: StrandsFilesStore, value: Any) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.append(key(), turn(user("before"), user({"text": value})), 0)
    assert caught.value.place == "messages[1]"
    assert await store.session(key()) is None


@pytest.mark.parametrize(
    "message",
    [
        user(tool_result("1", "text")),  # type: ignore[arg-type]
        user("a", metadata=Metadata(created=1e30)),
        user("a", metadata=Metadata(created=float("nan"))),
        user("a", metadata=Metadata(extra={"strands": {"message": 1}})),
    ],
    ids=["result", "late", "no time", "extra"],
)
async def test_message_that_strands_can_not_have(store: StrandsFilesStore, message: Message) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.append(key(), turn(user("before"), message), 0)
    assert caught.value.place == "messages[1]"
    assert await store.session(key()) is None


async def test_system_text_that_is_not_text(store: StrandsFilesStore) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.append(key(), turn(system="\ud800"), 0)
    assert caught.value.place == "system"
    assert await store.session(key()) is None


async def test_numbers_that_only_python_has_as_json(store: StrandsFilesStore) -> None:
    added = user(tool_result("1", {"json": [float("inf"), 10**40, 1e-7]}))
    await store.append(key(), turn(added), 0)
    assert (await store.load(key())).messages[0].message == added


async def test_locked_session_is_unavailable_after_a_time(tmp_path: Path) -> None:
    store = StrandsFilesStore(tmp_path, seconds=0.05)
    await store.start()
    for number in range(256):
        (tmp_path / ".locks" / f"{number:02x}").touch()
    held = [path.open("wb") for path in (tmp_path / ".locks").iterdir()]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(StoreUnavailable):
        await store.append(key(), turn(), 0)
    for file in held:
        file.close()
    await store.close()


async def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = StrandsFilesStore(tmp_path / "file" / "sessions")
    with pytest.raises(StoreUnavailable, match="can't be used"):
        await store.start()


async def test_store_that_is_closed(tmp_path: Path) -> None:
    store = StrandsFilesStore(tmp_path)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.session(key())


async def test_store_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = build_store(Memory(store="strands_files"))
    await store.start()
    await store.append(key(), turn(), 0)
    assert agent(tmp_path / "mlc-gateway" / "sessions").is_dir()
    await store.close()


async def test_readers_see_whole_turns_while_others_write(store: StrandsFilesStore, tmp_path: Path) -> None:
    other = StrandsFilesStore(tmp_path)
    await other.start()
    await store.append(key(), turn(), 0)

    async def write() -> None:
        for number in range(1, 40):
            await other.append(key(), turn(user("a"), assistant("b"), user("c")), number)

    writing = asyncio.ensure_future(write())
    while not writing.done():
        messages = (await store.load(key())).messages
        assert len(messages) % 3 == 2 or len(messages) == 100
        assert [one.seq for one in messages] == list(range(messages[0].seq, messages[0].seq + len(messages)))
    await writing
    await other.close()
