"""Which stores are opened for which settings, and what is wrong with settings."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gateway.cli import run
from gateway.config import inspector as settings
from gateway.config.inspector import AuditFile, Inspector, OpenSearchExchanges, SqliteExchanges
from gateway.config.types import Secret
from gateway.observe.logs import configure
from gateway.recording.sinks.registry import SINKS, check_sinks, open_sinks, open_store
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.recording.store import RecordSink
from tests.recording.records import record

LOG = configure("error", "json")


def all_stores(tmp_path: Path) -> Inspector:
    return Inspector(
        enabled=True,
        stores=["audit_file", "opensearch", "sqlite", "sqlite"],
        sqlite=SqliteExchanges(str(tmp_path / "sqlite")),
        audit_file=AuditFile(str(tmp_path / "audit.jsonl")),
        opensearch=OpenSearchExchanges(url="http://127.0.0.1:1"),
    )


def test_every_store_of_the_settings_has_an_entry() -> None:
    assert set(get_args(settings.Sink)) == set(SINKS)


def test_each_store_is_opened_once_in_the_order_of_the_settings(tmp_path: Path) -> None:
    sinks = open_sinks(all_stores(tmp_path), LOG)
    try:
        assert [sink.name for sink in sinks] == ["audit_file", "opensearch", "sqlite"]
        assert all(isinstance(sink, RecordSink) for sink in sinks)
    finally:
        for sink in sinks:
            sink.close()


def test_the_page_reads_what_another_process_recorded(tmp_path: Path) -> None:
    store = open_store(all_stores(tmp_path))
    assert isinstance(store, SqliteStore)
    assert store.name == "sqlite"
    store.close()


def test_stores_without_a_path_are_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    for sink in open_sinks(Inspector(enabled=True, stores=["audit_file", "sqlite"]), LOG):
        sink.add([record()])
        sink.close()
    state = tmp_path / ".local" / "state" / "mlc-gateway"
    assert (state / "audit.jsonl").is_file()
    assert (state / "inspector" / "records.sqlite3").is_file()


def test_nothing_is_opened_if_the_inspector_is_off(tmp_path: Path) -> None:
    off = Inspector(stores=["sqlite"], sqlite=SqliteExchanges(str(tmp_path / "sqlite")))
    assert (open_sinks(off, LOG), open_store(off)) == ([], None)
    assert open_store(Inspector(enabled=True, stores=["audit_file"])) is None
    assert list(tmp_path.iterdir()) == []


def test_settings_that_can_be_used(tmp_path: Path) -> None:
    assert check_sinks(all_stores(tmp_path)) == []
    assert check_sinks(Inspector(enabled=True)) == []
    assert [problem.path for problem in check_sinks(Inspector(enabled=True, stores=[]))] == ["inspector.stores"]
    assert list(tmp_path.iterdir()) == []


def test_settings_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = Inspector(
        enabled=True,
        stores=["sqlite", "audit_file", "opensearch"],
        sqlite=SqliteExchanges(str(tmp_path / "file" / "inspector")),
        audit_file=AuditFile(str(tmp_path)),
        opensearch=OpenSearchExchanges(
            username="writer", password=Secret(), sigv4_region="eu-west-1", ca_file=str(tmp_path / "missing.pem")
        ),
    )
    assert [(problem.path, problem.reason) for problem in check_sinks(wrong)] == [
        ("inspector.sqlite.directory", f"can't be used: {tmp_path}/file is not a directory"),
        ("inspector.audit_file.path", "can't be used: it is a directory"),
        ("inspector.opensearch.url", "is needed for the store opensearch"),
        ("inspector.opensearch.password", "is needed with inspector.opensearch.username"),
        ("inspector.opensearch.sigv4_region", "can't be given together with inspector.opensearch.username"),
        ("inspector.opensearch.ca_file", "can't be read"),
    ]
    assert check_sinks(Inspector(enabled=True, stores=["sqlite"], opensearch=wrong.opensearch)) == []
    assert check_sinks(Inspector(stores=wrong.stores, sqlite=wrong.sqlite)) == []


def test_default_places_that_can_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("GATEWAY__INSPECTOR", "{enabled: true, stores: [sqlite, audit_file]}")
    place, reason = f"{tmp_path}/file/mlc-gateway", f"can't be used: {tmp_path}/file is not a directory"
    end = "allowed: a place that this user can write to"
    expected = (
        f"inspector.sqlite.directory: is not set, and the default {place}/inspector {reason}; {end}\n"
        f"inspector.audit_file.path: is not set, and the default {place}/audit.jsonl {reason}; {end}\n"
    )
    for command in ("check-config", "serve"):
        assert run([command]) == 2
        assert capsys.readouterr() == ("", expected)


def test_a_home_directory_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "expanduser", _unknown)
    monkeypatch.delenv("XDG_STATE_HOME")
    (problem,) = check_sinks(Inspector(enabled=True))
    assert str(problem).startswith(
        "inspector.sqlite.directory: is not set, and the default ~/.local/state/mlc-gateway/inspector can't be used: "
        "the home directory is not known; "
    )


def _unknown(path: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")
