"""Stores that take no writes at present: no LLM is called for a turn that could not be stored."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.memory import sessions
from tests.memory.full_disk import full_disk
from tests.memory.opensearch_server import OpenSearchServer
from tests.sessions.conftest import Cluster, StartCluster

AGENT = "flow-b"
Full = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def no_refusal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_REFUSAL_SECONDS", 0.0)


@pytest.fixture(params=["sqlite", "strands_files", "opensearch index", "opensearch container"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[dict[str, Any], Full]]:
    """The settings of a store, and a context in which its disk is full."""
    name, _, kind = request.param.partition(" ")
    match name:
        case "sqlite":
            yield {"store": name, "sqlite": {"path": str(tmp_path / "memory.sqlite3")}}, full_disk
        case "strands_files":
            yield {"store": name, "strands_files": {"directory": str(tmp_path / "sessions")}}, full_disk
        case _:
            async with OpenSearchServer() as server:
                yield {"store": name, "opensearch": {"url": server.url, "kind": kind}}, lambda: blocked(server)


@contextlib.contextmanager
def blocked(server: OpenSearchServer) -> Iterator[None]:
    server.blocked = True
    yield
    server.blocked = False


async def begun(start_cluster: StartCluster, memory: dict[str, Any]) -> tuple[Cluster, str]:
    """Start a gateway, and return it with the id of a session that has one turn."""
    cluster = await start_cluster("2.19.0", memory)
    first = await cluster.ask(AGENT, {"input": "One."})
    assert first.memory_id.startswith("gws-")
    return cluster, first.memory_id


@pytest.mark.parametrize("continues", [False, True])
async def test_no_llm_is_called_while_the_disk_is_full(
    start_cluster: StartCluster, store: tuple[dict[str, Any], Full], continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_PROBE_SECONDS", 0.0)
    settings, full = store
    cluster, memory_id = await begun(start_cluster, settings)
    given = memory_id if continues else None
    with full():
        refused = await cluster.ask(AGENT, {"input": "Two."}, given)
        assert (refused.status, refused.body["error"]["type"]) == (503, "MemoryUnavailable")
        assert refused.llm == []
    answered = await cluster.ask(AGENT, {"input": "Three."}, given)
    assert (answered.status, answered.notices) == (200, "")
    assert "Two." not in json.dumps(answered.llm)


async def test_a_disk_that_is_full_when_the_agent_has_run(
    start_cluster: StartCluster, store: tuple[dict[str, Any], Full]
) -> None:
    """A write that just succeeded is trusted. The turn that is not stored is the only one, and has no id."""
    settings, full = store
    cluster, memory_id = await begun(start_cluster, settings)
    with full():
        lost = await cluster.ask(AGENT, {"input": "Two."})
        assert (lost.status, lost.notices) == (200, "MEMORY_UNAVAILABLE")
        assert "memory_id" not in json.dumps(lost.body)
        refused = await cluster.ask(AGENT, {"input": "Three."}, memory_id)
        assert (refused.status, refused.llm) == (503, [])
    assert (await cluster.ask(AGENT, {"input": "Four."}, memory_id)).memory_id == memory_id
