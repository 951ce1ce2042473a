"""An old and a new simulated cluster, each behind a front that sees its requests, and gateways with a route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDictProxy
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway
from tests.faulty_cluster import FaultyCluster
from tests.wire import PATIENCE

ML = "/_plugins/_ml"
PASSWORD = "canary-of-the-new-cluster"


@dataclass
class Cluster:
    """A simulated cluster, the front before it, and its agents' ids by name."""

    simulator: Simulator
    front: FaultyCluster
    agents: dict[str, str]

    @property
    def runs(self) -> int:
        """Number of runs that reached it."""
        return len(self.front.calls("POST", rf"{ML}/agents/(?!mlc-gateway-)[^/]+/_execute"))


@dataclass
class Answered:
    """What a client got. ran: the agent, on: its cluster, as the answer's headers name them."""

    status: int
    body: Any
    headers: CIMultiDictProxy[str]

    @property
    def ran(self) -> str:
        return self.headers.get("X-MLC-Agent", "")

    @property
    def on(self) -> str:
        return self.headers.get("X-MLC-Cluster", "")

    @property
    def memory_id(self) -> str:
        """The id of the conversation in the answer; "" for none."""
        if "memory_id" in self.body:
            return str(self.body["memory_id"])
        outputs = self.body["inference_results"][0]["output"]
        return next((str(output["result"]) for output in outputs if output["name"] == "memory_id"), "")


@dataclass
class Place:
    """Two clusters. settings: of each gateway."""

    old: Cluster
    new: Cluster
    start_gateway: StartGateway
    settings: dict[str, Any]
    gateways: list[Gateway] = field(default_factory=list)

    def route(self, old: str, new: str, weights: tuple[float, float] = (1, 1), **more: Any) -> dict[str, Any]:
        """Return the settings of a route. old, new: names of agents; "" for no such target."""
        own, other = self.old.agents[old], self.new.agents[new]
        target = {"agent": other, "cluster": "new", "weight": weights[1], "callers": more.pop("callers", "checked")}
        return {"agent": own, "targets": [{"agent": own, "weight": weights[0]}, target], **more}

    async def start(self, *routes: dict[str, Any], rules: Any = (), sinks: Any = None, **over: Any) -> Gateway:
        """Start a gateway with these routes. over: more sections. sinks: take what it records."""
        settings = {**self.settings, "agents": {"routes": list(routes), "rules": list(rules)}, **over}
        gateway = await self.start_gateway(self.old.front.url, None, settings, sinks=sinks)
        self.gateways.append(gateway)
        return gateway

    async def send(
        self, method: str, path: str, body: Any = None, headers: Any = None, gateway: Gateway | None = None
    ) -> Answered:
        """Send a request to a gateway, the newest one by default."""
        url = f"http://127.0.0.1:{(gateway or self.gateways[-1]).data_port}{path}"
        async with aiohttp.ClientSession() as client, client.request(method, url, json=body, headers=headers) as got:
            return Answered(got.status, await got.json(), got.headers)

    async def raw(self, method: str, path: str, body: Any = None) -> Answered:
        """Send a request to the newest gateway; return the answer with the bytes of its body as they came."""
        url = f"http://127.0.0.1:{self.gateways[-1].data_port}"
        async with (
            aiohttp.ClientSession(url, auto_decompress=False) as client,
            client.request(method, path, json=body) as got,
        ):
            return Answered(got.status, await got.read(), got.headers)

    async def stream(self, agent: str, question: str, headers: Any = None) -> str:
        """Run the old cluster's agent of this name with a stream; return all of that."""
        path = f"{ML}/agents/{self.old.agents[agent]}/_execute/stream"
        url = f"http://127.0.0.1:{self.gateways[-1].data_port}{path}"
        async with (
            aiohttp.ClientSession() as client,
            client.post(url, json={"input": question}, headers=headers) as got,
        ):
            assert got.status == 200
            return await got.text()

    async def copied(self, count: int) -> None:
        """Wait until so many copies have ended, or were dropped."""
        async with asyncio.timeout(PATIENCE):
            while await self.metric("mlc_gateway_mirrors_total") < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def metric(self, name: str, gateway: Gateway | None = None, **labels: str) -> float:
        """Return the sum of a gateway's metric over all series that have these labels."""
        url = f"http://127.0.0.1:{(gateway or self.gateways[-1]).admin_port}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            families = text_string_to_metric_families(await response.text())
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def ask(self, agent: str, question: Any, memory_id: str = "", **more: Any) -> Answered:
        """Run the old cluster's agent of this name. question: the input, or a whole body."""
        body = question if isinstance(question, dict) else {"input": question}
        if memory_id:
            body = {**body, "parameters": {**body.get("parameters", {}), "memory_id": memory_id}}
        return await self.send("POST", f"{ML}/agents/{self.old.agents.get(agent, agent)}/_execute", body, **more)


@asynccontextmanager
async def clusters(start_gateway: StartGateway, folder: Path) -> AsyncIterator[Place]:
    """A cluster of 2.19 as `upstream`, and one of 3.8 as `new`, whose credentials the settings have.

    folder: of their password and the sessions.
    """
    secret = folder / "password"
    secret.write_text(PASSWORD)
    async with AsyncExitStack() as stack:
        both = []
        for version in ("2.19.0", "3.8.0"):
            simulator = await stack.enter_async_context(Simulator(version))
            front = await stack.enter_async_context(FaultyCluster(simulator.url))
            both.append(Cluster(simulator, front, seed_core(simulator.core, simulator.llm_url)))
        account = {"username": "gateway", "password": {"file": str(secret)}}
        new = {"url": both[1].front.url, "auth": {"mode": "basic", "basic": account}}
        sessions = {"sqlite": {"path": str(folder / "sessions.sqlite3")}}
        yield Place(both[0], both[1], start_gateway, {"clusters": {"new": new}, "memory": sessions})


@pytest.fixture
async def place(start_gateway: StartGateway, tmp_path: Path) -> AsyncIterator[Place]:
    """See `clusters`."""
    async with clusters(start_gateway, tmp_path) as place:
        yield place
