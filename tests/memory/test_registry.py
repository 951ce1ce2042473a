"""The registry of stores, and what `check-config` says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import yaml

from gateway.cli import run
from gateway.config.load import ConfigError
from gateway.config.memory import Memory
from gateway.memory.stores.registry import STORES, build_store, check_store
from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.conversations import key, turn


def memory(**values: Any) -> Memory:
    return msgspec.convert(values, Memory)


def test_every_store_of_the_settings_has_a_row() -> None:
    assert list(STORES) == list(get_args(get_type_hints(Memory)["store"]))
    assert set(STORES) < set(Memory.__struct_fields__)


async def test_sqlite_is_built_with_the_path_of_the_settings(tmp_path: Path) -> None:
    store = build_store(memory(sqlite={"path": str(tmp_path / "s.sqlite3")}))
    assert isinstance(store, SqliteStore)
    await store.start()
    await store.append(key(), turn(), 0)
    await store.close()
    assert (tmp_path / "s.sqlite3").is_file()


@pytest.mark.parametrize(
    ("state", "folder"), [("state", "state"), ("", "home/.local/state"), ("./x", "home/.local/state")]
)
async def test_default_path(state: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / state) if state == "state" else state)
    store = build_store(memory())
    await store.start()
    await store.close()
    assert (tmp_path / folder / "mlc-gateway" / "memory.sqlite3").is_file()


PROBLEMS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"sqlite": {"path": "FILE/memory.sqlite3"}},
        ["memory.sqlite.path: can't be used: FILE is not a directory; got 'FILE/memory.sqlite3'"],
    ),
    ({"sqlite": {"path": "DIRECTORY"}}, ["memory.sqlite.path: can't be used: it is a directory; got 'DIRECTORY'"]),
    (
        {"sqlite": {"path": "~no-such-user/memory.sqlite3"}},
        ["memory.sqlite.path: can't be used: the home directory is not known; got '~no-such-user/memory.sqlite3'"],
    ),
    ({"sqlite": {"path": "/LONG/x"}}, ["memory.sqlite.path: can't be used: File name too long; got '/LONG/x'"]),
    ({"store": "agentcore"}, ["memory.agentcore.memory_id: is needed for the store agentcore"]),
    (
        {
            "store": "opensearch",
            "opensearch": {"username": "u", "sigv4_region": "eu-west-1", "ca_file": "DIRECTORY/no"},
        },
        [
            "memory.opensearch.password: is needed with memory.opensearch.username",
            "memory.opensearch.sigv4_region: can't be given together with memory.opensearch.username",
            "memory.opensearch.ca_file: can't be read; got 'DIRECTORY/no'",
        ],
    ),
    (
        {"store": "strands_files", "strands_files": {"directory": "FILE"}},
        ["memory.strands_files.directory: can't be used: FILE is not a directory; got 'FILE'"],
    ),
]


@pytest.mark.parametrize(("values", "expected"), PROBLEMS)
def test_settings_that_a_store_cannot_use(
    values: dict[str, Any], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    def filled(text: str) -> str:
        return (
            text.replace("FILE", str(tmp_path / "file")).replace("DIRECTORY", str(tmp_path)).replace("LONG", "x" * 300)
        )

    path = tmp_path / "gateway.yaml"
    path.write_text(filled(yaml.safe_dump({"memory": values})))
    assert run(["check-config", "-c", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == list(map(filled, expected))


def test_store_with_problems_is_not_built() -> None:
    with pytest.raises(ConfigError, match=r"memory\.agentcore\.memory_id"):
        build_store(memory(), name="agentcore")
    with pytest.raises(ConfigError, match=r"memory\.store: there is no such store; got 'tape'; allowed: sqlite"):
        build_store(memory(), name="tape")


@pytest.mark.parametrize(("store", "shown"), [("sqlite", True), ("strands_files", True), ("opensearch", False)])
def test_check_config_names_the_stores_of_one_host(
    store: str, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f"memory: {{store: {store}}}")
    assert run(["check-config", "-c", str(path)]) == 0
    note = f"# memory.store: {store} serves the workers of one host; gateways on several hosts need opensearch or"
    assert (note in capsys.readouterr().out) is shown


def test_other_stores_are_not_checked(tmp_path: Path) -> None:
    assert check_store(memory(store="opensearch", sqlite={"path": str(tmp_path)})) == []
