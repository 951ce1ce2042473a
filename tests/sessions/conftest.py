"""Gateways with sessions in a SQLite file, in front of a simulated cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.execute.deliveries import NOTICE
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway

RULE = {"agent": "*", "memory": "gateway"}


@dataclass
class Answered:
    """What a client got, and what the LLM received for it."""

    status: int
    body: Any
    notices: str
    llm: list[Any]
    headers: Mapping[str, str]

    @property
    def memory_id(self) -> str:
        """The id of the session that the answer names; "" for none."""
        if "memory_id" in self.body:
            return str(self.body["memory_id"])
        outputs = self.body["inference_results"][0]["output"]
        found = [output["result"] for output in outputs if output["name"] == "memory_id"]
        return str(found[0]) if found else ""


@dataclass
class Cluster:
    """A simulated cluster, and the gateways in front of it that share a file of sessions."""

    simulator: Simulator
    agents: dict[str, str]
    settings: dict[str, Any]
    start_gateway: StartGateway
    gateways: list[Gateway] = field(default_factory=list)

    async def start(self, over: Mapping[str, Any] | None = None) -> Gateway:
        """Start another gateway. over: settings."""
        settings = {**self.settings, **(over or {})}
        self.gateways.append(await self.start_gateway(self.simulator.url, None, settings))
        return self.gateways[-1]

    async def ask(
        self,
        agent: str,
        body: Mapping[str, Any],
        memory_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        gateway: Gateway | None = None,
    ) -> Answered:
        """Run an agent through a gateway, the newest one by default."""
        if memory_id is not None:
            body = {**body, "parameters": {**body.get("parameters", {}), "memory_id": memory_id}}
        before = len(self.simulator.received)
        port = (gateway or self.gateways[-1]).data_port
        url = f"http://127.0.0.1:{port}/_plugins/_ml/agents/{self.agents.get(agent, agent)}/_execute"
        async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=headers) as response:
            received = await response.json()
            notices = ", ".join(response.headers.getall(NOTICE, []))
            return Answered(response.status, received, notices, self.simulator.received[before:], response.headers)


StartCluster = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def start_cluster(start_gateway: StartGateway, tmp_path: Path) -> AsyncIterator[StartCluster]:
    """``await start_cluster("3.6.0", {"concurrent": "refuse"})``: a cluster and a gateway. memory: its settings."""
    started: list[Simulator] = []

    async def start(version: str = "2.19.0", memory: Mapping[str, Any] | None = None) -> Cluster:
        simulator = Simulator(version)
        await simulator.start()
        started.append(simulator)
        agents = seed_core(simulator.core, simulator.llm_url)
        settings = {
            "memory": {"sqlite": {"path": str(tmp_path / "sessions.sqlite3")}, **(memory or {})},
            "agents": {"rules": [RULE]},
        }
        cluster = Cluster(simulator, agents, settings, start_gateway)
        await cluster.start()
        return cluster

    yield start
    for simulator in started:
        await simulator.stop()
