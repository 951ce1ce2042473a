"""opensearch-py and opensearch-js before a real OpenSearch 3.6.0, direct and through the gateway.

Every exchange is compared twice. The bytes between client and gateway must be those between gateway and cluster. And a
response through the gateway must be the direct response, except for values that the cluster generates for each response
(`compare.VOLATILE`, `compare.STATISTICS`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import AsyncOpenSearch, OpenSearch
from opensearchpy.exceptions import OpenSearchException

from tests.clients.test_clients import JS, node
from tests.exactness.compare import differences, exact, steady
from tests.exactness.conftest import Deployment, Ledger
from tests.exactness.scenario import everything

__all__ = ["node"]
pytestmark = pytest.mark.real_cluster

OPTIONS: dict[str, Any] = {"max_retries": 0, "timeout": 120}
RUN_JS = Path(__file__).parent / "workload.cjs"


def sync(url: str, *, compress: bool) -> None:
    with OpenSearch(url, **OPTIONS, http_compress=compress) as client:
        steps, result = everything(), None
        with suppress(StopIteration):
            while True:
                call = steps.send(result)
                try:
                    result = call.on(client)
                except OpenSearchException:
                    result = None


def asynchronous(url: str, *, compress: bool) -> None:
    asyncio.run(_asynchronous(url, compress))


async def _asynchronous(url: str, compress: bool) -> None:
    async with AsyncOpenSearch(url, **OPTIONS, http_compress=compress) as client:
        steps, result = everything(), None
        with suppress(StopIteration):
            while True:
                call = steps.send(result)
                try:
                    result = await call.on(client)
                except OpenSearchException:
                    result = None


CLIENTS: dict[str, tuple[Callable[..., None], bool]] = {
    "opensearch-py": (sync, False),
    "opensearch-py, gzip": (sync, True),
    "opensearch-py async": (asynchronous, False),
    "opensearch-py async, gzip": (asynchronous, True),
}


def compare(deployment: Deployment, run: Callable[[str], None]) -> int:
    """Run it direct and through the gateway, compare both ways; the number of requests that were compared."""
    for recorder in (deployment.direct, deployment.client_side, deployment.cluster_side):
        recorder.forget()
    run(deployment.direct.url)
    direct = deployment.direct.exchanges()
    run(deployment.client_side.url)
    before, behind = deployment.client_side.exchanges(), deployment.cluster_side.exchanges()
    assert [one.request.line for one in before] == [one.request.line for one in behind]
    found = differences(map(exact, before), map(exact, behind))
    assert not found, "\n".join(found)
    assert len(direct) == len(before)
    found = differences(map(steady, direct), map(steady, before))
    assert not found, "\n".join(found)
    return len(before)


@pytest.mark.parametrize("client", CLIENTS)
def test_opensearch_py(client: str, deployment: Deployment, ledger: Ledger) -> None:
    run, compress = CLIENTS[client]
    count = compare(deployment, lambda url: run(url, compress=compress))
    assert count > 120
    ledger.add(client, count)


@pytest.mark.parametrize("compression", ["", "gzip"], ids=["plain", "gzip"])
def test_opensearch_js(compression: str, node: str, deployment: Deployment, ledger: Ledger) -> None:
    def run(url: str) -> None:
        environment = {**os.environ, "NODE_PATH": str(JS / "node_modules")}
        command = [node, str(RUN_JS), url, compression]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    count = compare(deployment, run)
    assert count > 30
    ledger.add(f"opensearch-js {compression}".strip(), count)
