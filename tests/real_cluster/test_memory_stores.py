"""The stores on OpenSearch pass the tests of every store on a real cluster, with a container and with an index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar, Literal

import pytest

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.store import Store, StoreUnavailable
from gateway.memory.stores.opensearch.store import OpenSearchStore
from tests.memory.conversations import key, turn
from tests.memory.store_conformance import NewStore, OpenStore, StoreConformance

from .agents import Api

pytestmark = pytest.mark.real_cluster


@contextlib.contextmanager
def full_disk(api: Api, prefix: str) -> Iterator[None]:
    """Let the indices of a prefix, and those of its container, take no writes, as OpenSearch does on a full disk."""
    path = f"/*{prefix}-*/_settings?expand_wildcards=all"
    api.must("PUT", path, {"index.blocks.read_only_allow_delete": True})
    try:
        yield
    finally:
        api.must("PUT", path, {"index.blocks.read_only_allow_delete": None})


class OnRealCluster(StoreConformance):
    kind: ClassVar[Literal["container", "index"]]

    @pytest.fixture
    def new_store(self, api: Api) -> Iterator[NewStore]:
        settings = Settings(kind=self.kind, prefix=f"stores-{self.kind}")
        yield lambda: OpenSearchStore(settings, api.url)
        everything = {"query": {"bool": {"must_not": {"term": {"kind": "container"}}}}}
        path = f"/{settings.prefix}-*/_delete_by_query?refresh=true&conflicts=proceed"
        api.must("POST", f"/{settings.prefix}-*/_refresh", None)
        api.must("POST", path, everything)

    async def test_a_full_disk_is_reported_at_once_and_sessions_can_be_read(
        self, api: Api, store: Store, open_store: OpenStore
    ) -> None:
        await store.append(key(), turn(), 0)
        with full_disk(api, f"stores-{self.kind}"):
            for used in (store, await open_store()):
                with pytest.raises(StoreUnavailable, match="Free disk space"):
                    await used.probe(1)
                with pytest.raises(StoreUnavailable, match="Free disk space"):
                    await used.append(key(), turn(), 1)
                assert len((await used.load(key())).messages) == 2
        await store.probe(1)
        assert (await store.append(key(), turn(), 1)).turns == 2


class TestIndex(OnRealCluster):
    kind = "index"


class TestContainer(OnRealCluster):
    kind = "container"
