"""The tests that every store passes.

A store's test module has a class that inherits from `StoreConformance` and defines the fixture ``new_store``:

    class TestSqliteStore(StoreConformance):
        @pytest.fixture
        def new_store(self, tmp_path: Path) -> NewStore:
            return lambda: SqliteStore(tmp_path / "memory.sqlite3")
"""

from tests.memory.conformance.base import NewStore, OpenStore
from tests.memory.conformance.contents import ContentTests
from tests.memory.conformance.lists import ListTests
from tests.memory.conformance.writers import WriterTests

__all__ = ["NewStore", "OpenStore", "StoreConformance"]


class StoreConformance(ContentTests, WriterTests, ListTests):
    """All tests of a store. `gateway.memory.store.Store` states what they test."""
