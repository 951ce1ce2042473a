"""The audit file: whole lines, several files, killed writers."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config.inspector import AuditFile as Settings
from gateway.observe.record import ExchangeRecord
from gateway.recording.sinks import audit_file as module
from gateway.recording.sinks.audit_file import AuditFile
from gateway.recording.store import StoreError
from tests.recording.sinks.store_conformance import FULL, numbered


class Clock:
    """A clock that is set by hand."""

    now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "audit.jsonl"


def open_file(path: Path, clock: Clock, **settings: Any) -> AuditFile:
    return AuditFile(Settings(path=str(path), **settings), clock)


def read(path: Path) -> list[ExchangeRecord]:
    return [msgspec.json.decode(line, type=ExchangeRecord) for line in path.read_bytes().splitlines()]


def ids(path: Path) -> list[str]:
    return [record.id for record in read(path)]


def test_whole_records_are_appended(path: Path, clock: Clock) -> None:
    file = open_file(path, clock)
    file.add([FULL])
    open_file(path, clock).add(numbered(1, 2))
    file.keep_medium("a" * 64, "image/png", b"x")
    file.add([])
    file.close()
    assert read(path) == [FULL, *numbered(1, 2)]


def test_text_that_is_no_unicode(path: Path, clock: Clock) -> None:
    open_file(path, clock).add(numbered(1, user_agent="a\udcff"))
    assert read(path)[0].user_agent == "a�"


def test_files_are_of_their_owner_only(path: Path, clock: Clock) -> None:
    file = open_file(path, clock, bytes=1)
    file.add(numbered(1))
    file.add(numbered(2))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()} == {0o600}
    assert len(list(path.parent.iterdir())) == 3  # the file, a full one, the lock


def test_another_file_is_begun_when_it_is_full(path: Path, clock: Clock) -> None:
    file = open_file(path, clock, bytes=1, files=2)
    for number in range(5):
        clock.now += 1
        file.add(numbered(number))
    assert ids(path) == ["4"]
    assert [ids(full) for full in file.full_files()] == [["2"], ["3"]]
    assert [full.name for full in file.full_files()] == [
        "audit.jsonl.20010909T014644.000000Z",
        "audit.jsonl.20010909T014645.000000Z",
    ]


def test_full_files_of_one_moment_keep_their_order(path: Path, clock: Clock) -> None:
    file = open_file(path, clock, bytes=1)
    for number in range(4):
        file.add(numbered(number))
    assert [ids(full) for full in file.full_files()] == [["0"], ["1"], ["2"]]


def test_the_oldest_full_files_go_whatever_the_name(tmp_path: Path, clock: Clock) -> None:
    file = open_file(tmp_path / "audit[1]*.jsonl", clock, bytes=1, files=2)
    for number in range(5):
        clock.now += 1
        file.add(numbered(number))
    assert [ids(full) for full in file.full_files()] == [["2"], ["3"]]


def test_another_file_is_begun_when_it_is_old(path: Path, clock: Clock) -> None:
    open_file(path, clock, seconds=100.0).add(numbered(1))
    clock.now += 99
    open_file(path, clock, seconds=100.0).add(numbered(2))  # also after a restart
    clock.now += 1
    file = open_file(path, clock, seconds=100.0)
    file.add(numbered(3))
    clock.now += 99
    file.add(numbered(4))
    assert (ids(path), [ids(full) for full in file.full_files()]) == (["3", "4"], [["1", "2"]])


def test_age_does_not_count_if_it_is_off(path: Path, clock: Clock) -> None:
    file = open_file(path, clock, seconds=0.0)
    file.add(numbered(1))
    clock.now += 10**9
    file.add(numbered(2))
    assert ids(path) == ["1", "2"]


def test_other_files_are_not_deleted(path: Path, clock: Clock) -> None:
    path.parent.mkdir()
    others = [path.with_name(name) for name in ("audit.jsonl.bak", "other", "audit.jsonl.2-mine")]
    for other in others:
        other.touch()
    file = open_file(path, clock, bytes=1, files=1)
    for number in range(4):
        file.add(numbered(number))
    assert all(other.exists() for other in others)


def test_a_file_that_another_tool_moved_away(path: Path, clock: Clock) -> None:
    file = open_file(path, clock)
    file.add(numbered(1))
    path.rename(path.with_suffix(".old"))
    file.add(numbered(2))
    assert ids(path) == ["2"]


@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("part", [b"{", b'{"id": "' + b"x" * 200_000])
def test_what_a_killed_writer_left_of_a_line_is_removed(path: Path, clock: Clock, whole: int, part: bytes) -> None:
    file = open_file(path, clock)
    file.add(numbered(*range(whole)))
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as end:
        end.write(part)
    file.add(numbered(7))
    assert ids(path) == [*map(str, range(whole)), "7"]


def test_a_full_disk_leaves_whole_lines(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_file(path, clock)
    file.add(numbered(1))
    pwrite = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[: len(data) // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(StoreError, match="No space left on device") as error:
            file.add(numbered(2, 3))
        assert error.value.lost is None  # all
        assert ids(path) == ["1"]
    file.add(numbered(4))
    assert ids(path) == ["1", "4"]


def test_a_short_write_goes_on(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:100], offset))
    open_file(path, clock).add([FULL])
    assert read(path) == [FULL]


@pytest.mark.parametrize(("sync", "synced"), [("batch", 2), ("system", 0)])
def test_sync(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, sync: str, synced: int) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    file = open_file(path, clock, sync=sync)
    file.add(numbered(1))
    file.add(numbered(2, 3))
    assert len(calls) == synced


def test_several_writers(path: Path, clock: Clock) -> None:
    """No line is torn or lost, although each writer begins other files."""
    writers, each = 4, 25

    def write(name: int) -> None:
        own = open_file(path, clock, bytes=20_000, files=1000)
        for number in range(each):
            own.add(numbered(name * 1000 + number, user_agent="x" * 500))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [*open_file(path, clock).full_files(), path]
    found = [id_ for file in files for id_ in ids(file)]
    assert len(files) > 3
    assert sorted(found) == sorted(str(name * 1000 + number) for name in range(writers) for number in range(each))
    for name in range(writers):
        own = [int(id_) for id_ in found if int(id_) // 1000 == name]
        assert own == sorted(own)


def test_a_writer_that_stopped_within_a_write(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.01)
    file = open_file(path, clock)
    file.add(numbered(1))
    with path.with_name("audit.jsonl.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="has locked"):
            file.add(numbered(2))
    file.add(numbered(3))
    assert ids(path) == ["1", "3"]


def test_a_symbolic_link_is_not_followed(path: Path, clock: Clock, tmp_path: Path) -> None:
    path.parent.mkdir()
    (tmp_path / "target").touch()
    path.symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match=r"audit\.jsonl can't be"):
        open_file(path, clock).add(numbered(1))
    assert (tmp_path / "target").read_bytes() == b""
