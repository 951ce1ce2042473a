"""The stores on OpenSearch pass the tests of every store on a real cluster, with a container and with an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import pytest

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.stores.opensearch import OpenSearchStore
from tests.memory.store_conformance import NewStore, StoreConformance

from .agents import Api

pytestmark = pytest.mark.real_cluster


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


class TestIndex(OnRealCluster):
    kind = "index"


class TestContainer(OnRealCluster):
    kind = "container"
