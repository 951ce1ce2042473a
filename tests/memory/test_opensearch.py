"""The stores on OpenSearch: the tests of every store, and what a cluster may do to their requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal

import pytest

from gateway.config.memory import OpenSearchStore as Settings
from gateway.memory.stores.opensearch import OpenSearchStore
from tests.memory.opensearch_server import OpenSearchServer
from tests.memory.store_conformance import NewStore, StoreConformance

Kind = Literal["auto", "container", "index"]


def store_on(server: OpenSearchServer, kind: Kind = "auto", **settings: Any) -> OpenSearchStore:
    return OpenSearchStore(Settings(kind=kind, **{"seconds": 5.0} | settings), server.url)


class OnServer(StoreConformance):
    version: ClassVar[str]

    @pytest.fixture
    async def server(self) -> AsyncIterator[OpenSearchServer]:
        async with OpenSearchServer(self.version) as server:
            yield server

    @pytest.fixture
    def new_store(self, server: OpenSearchServer) -> NewStore:
        return lambda: store_on(server)


class TestIndex(OnServer):
    """Indices of the gateway's own, on a cluster without memory containers."""

    version = "2.19.0"


class TestContainer(OnServer):
    """A memory container."""

    version = "3.6.0"


class TestEarlyContainer(OnServer):
    """A memory container of a cluster that overwrites sessions."""

    version = "3.3.0"
