"""A gateway in front of a simulated cluster with its agents, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway


@dataclass
class Deployment:
    simulator: Simulator
    agents: dict[str, str]
    url: str
    client: aiohttp.ClientSession
    gateway: Gateway

    async def execute(self, agent: str, body: Any = None, **more: Any) -> aiohttp.ClientResponse:
        """POST `body` to `agent`, a seeded agent's name or an id. Return the response with its body read."""
        if body is not None:
            more["json"] = body
        path = f"/_plugins/_ml/agents/{self.agents.get(agent, agent)}/_execute"
        response = await self.client.post(path, **more)
        await response.read()
        return response


StartDeployment = Callable[..., Awaitable[Deployment]]


@pytest.fixture
async def start_deployment(start_gateway: StartGateway) -> AsyncIterator[StartDeployment]:
    """``await start_deployment("2.19.0", {"agents": {…}})``: the settings override the defaults.

    use_case: as for `start_gateway`.
    """
    started: list[Deployment] = []

    async def start(version: str = "2.19.0", over: Any = None, use_case: Any = None, **more: Any) -> Deployment:
        simulator = Simulator(version)
        await simulator.start()
        gateway = await start_gateway(simulator.url, use_case, over, **more)
        url = f"http://127.0.0.1:{gateway.data_port}"
        agents = seed_core(simulator.core, simulator.llm_url)
        started.append(Deployment(simulator, agents, url, aiohttp.ClientSession(url), gateway))
        return started[-1]

    yield start
    for deployment in started:
        await deployment.client.close()
        await deployment.simulator.stop()


@pytest.fixture
async def deployment(start_deployment: StartDeployment) -> Deployment:
    """A gateway with default settings in front of a 2.19 cluster."""
    return await start_deployment()
