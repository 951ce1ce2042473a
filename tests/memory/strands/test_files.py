"""The store of Strands' files passes the tests of every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.memory.stores.strands_files import StrandsFilesStore
from tests.memory.store_conformance import NewStore, StoreConformance


class TestStrandsFilesStore(StoreConformance):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return lambda: StrandsFilesStore(tmp_path / "sessions")
