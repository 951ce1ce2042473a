"""SQLite files of the gateway with several connections, in one process and in several."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from gateway.storage.sqlite import Format, open_file
from tests.docs.pages import ROOT

FORMAT = Format(0x54455354, "memory.sqlite.path", [["CREATE TABLE t (word)"]], ("synchronous = NORMAL",))
_OTHER = """
import sys
from pathlib import Path
from gateway.storage.sqlite import Format, open_file
form = Format(0x54455354, "memory.sqlite.path", [["CREATE TABLE t (word)"]], ("synchronous = NORMAL",))
connection = open_file(Path(sys.argv[1]), form)
connection.execute("INSERT INTO t VALUES (?)", (sys.argv[2],))
connection.close()
"""


def _other_process_writes(path: Path, word: str) -> None:
    subprocess.run([sys.executable, "-c", _OTHER, str(path), word], check=True, cwd=ROOT)


def test_a_process_that_leaves_takes_nothing_away_from_one_that_stays(tmp_path: Path) -> None:
    """The one that stays has opened the file twice, which must not end the locks of its first connection."""
    path = tmp_path / "kept.sqlite3"
    writer = open_file(path, FORMAT)
    reader = open_file(path, FORMAT)
    for number in range(3):
        writer.execute("INSERT INTO t VALUES (?)", (f"own {number}",))
        _other_process_writes(path, f"other {number}")
        assert (tmp_path / "kept.sqlite3-wal").exists()
    wanted = [f"{who} {number}" for number in range(3) for who in ("own", "other")]
    for connection in (writer, reader):
        assert [word for (word,) in connection.execute("SELECT word FROM t ORDER BY rowid")] == wanted
        connection.close()
    after = sqlite3.connect(path)
    assert [word for (word,) in after.execute("SELECT word FROM t ORDER BY rowid")] == wanted
    after.close()


def test_a_file_at_the_end_of_a_link_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path, link = tmp_path / "real.sqlite3", tmp_path / "link.sqlite3"
    link.symlink_to(path)
    open_file(link, FORMAT).close()
    assert path.stat().st_mode & 0o777 == 0o600
