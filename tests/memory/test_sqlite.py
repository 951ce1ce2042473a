"""The SQLite store: the tests of every store, and its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.memory.stores.sqlite import SqliteStore
from tests.memory.store_conformance import NewStore, StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return lambda: SqliteStore(tmp_path / "memory.sqlite3")
