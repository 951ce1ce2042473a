"""Every feature of policy, memory and output beside every sink: each sink gets each exchange, whole."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.recording.store import Filter
from tests.conftest import StartGateway, mostly_slow
from tests.execute.stub_cluster import FLOW, ML, RAN, V1, V2, Cluster, server_of
from tests.policy.conftest import v2_answer
from tests.recording.sinks.stream_server import StreamServer
from tests.telemetry.collector import Collector, running_collector
from tests.wire import PATIENCE

AT_ONCE = 2
"""Runs of each agent at the same time, so that a bad record has others beside it."""
WITHOUT_CONTENT = 200, {"stop_reason": "end_turn", "message": {"role": "assistant"}, "metrics": {}}
"""An answer that a session can't take: MEMORY_ANSWER_MISSING."""
POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "header": {"usage_header": True},
    "prices": {"usage": True, "prices": [{"input": 3.0, "output": 15.0}]},
    "budget": {"budgets": [{"tokens": 10**9, "unknown": "count", "unknown_amount": 1}]},
    "spent": {"usage_header": True, "budgets": [{"tokens": 1, "unknown": "count", "unknown_amount": 1}]},
    "changes": {"usage_header": True, "guardrails": [{"answers": True}]},
    "refuses": {"guardrails": [{"agent": FLOW}]},
}
RULES: dict[str, dict[str, Any]] = {
    f"{memory} memory, {output} output": {"agent": "*", "memory": memory, "output": output}
    for memory, output in itertools.product(("gateway", "cluster"), ("unified", "legacy"))
}
ANSWERS = {"text": RAN, "V2": v2_answer(), "none": WITHOUT_CONTENT, "error": (503, {"error": "busy"})}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


def settings_of(
    folder: Path, policy: dict[str, Any], rule: dict[str, Any], stream: str, collector: str, webhook: str
) -> Any:
    guardrails = [{"name": "g", "url": webhook, **one} for one in policy.get("guardrails", ())]
    return {
        "policy": {**policy, "guardrails": guardrails},
        "agents": {"rules": [rule]},
        "memory": {"sqlite": {"path": str(folder / "sessions.sqlite3")}},
        "logs": {"access": "json", "access_file": str(folder / "access.log")},
        "inspector": {
            "enabled": True,
            "media": "keep",
            "stores": ["sqlite", "audit_file", "opensearch"],
            "opensearch": {"url": stream},
            "sqlite": {"directory": str(folder / "sqlite")},
            "audit_file": {"path": str(folder / "audit.jsonl")},
        },
        "telemetry": {"traces": {"endpoint": collector, "messages": True}},
    }


async def _run_all(port: int) -> int:
    """Run each agent many times at once, legacy and unified, with streams. Return how many runs."""
    url = f"http://127.0.0.1:{port}{ML}agents"
    bodies: list[Any] = [{"input": "hi"}, {"parameters": {"question": "hi"}}, {"input": {"broken": 1}}]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def run(agent: str, path: str, body: Any) -> None:
            async with client.post(f"{url}/{agent}/{path}", json=body) as answer:
                await answer.read()

        runs = list(itertools.product((FLOW, V1, V2), ("_execute", "_execute/stream"), bodies)) * AT_ONCE
        await asyncio.gather(*(run(*one) for one in runs))
        return len(runs)


@pytest.mark.parametrize(("policy", "rule"), mostly_slow(itertools.product(POLICIES, RULES), every=5))
async def test_each_sink_gets_each_exchange(
    start_gateway: StartGateway, tmp_path: Path, collector: Collector, policy: str, rule: str
) -> None:
    cluster = Cluster()

    async def check(request: web.Request) -> web.Response:
        document = await request.json()
        if policy == "refuses":
            return web.json_response({"verdict": "refuse", "reason": "no", "code": "r1"})
        blocks = [block for message in document[document["stage"]]["messages"] for block in message["content"]]
        texts = [{"place": one["place"], "text": "changed"} for one in blocks if one["type"] == "text"]
        return web.json_response({"verdict": "change", "texts": texts} if texts else {"verdict": "allow"})

    guard = web.Application()
    guard.router.add_post("/", check)
    answers = list(ANSWERS.values())
    cluster.answers = answers * 1000
    async with server_of(cluster) as server, TestServer(guard) as webhook, StreamServer() as stream:
        urls = stream.url, collector.url, str(webhook.make_url("/"))
        over = settings_of(tmp_path, POLICIES[policy], RULES[rule], *urls)
        gateway = await start_gateway(str(server.make_url("")), None, over)
        count = await _run_all(gateway.data_port)
        recorder, store = gateway._recording.recorder, gateway._recording.store
        assert recorder is not None
        assert store is not None
        await recorder.stop(PATIENCE)
        rows = store.rows(Filter(), limit=10 * count)
    assert gateway.metrics.records_dropped() == {}
    ids = {row.record.id for row in rows}
    assert len(ids) == len(rows) == count
    audit = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    access = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert {line["id"] for line in audit} == {line["request_id"] for line in access} == set(stream.documents) == ids
    assert len(audit) == len(access) == count
    roots = [span for span in collector.spans if span.kind == span.SPAN_KIND_SERVER]
    assert len(roots) == count
