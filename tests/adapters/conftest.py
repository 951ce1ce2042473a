"""A simulated cluster, the gateway before it with an adapters' port, and clients of that port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway

ANSWER = "This is the simulated model's answer."


class Deployed:
    """agents: ids by name. url: of the adapters' port."""

    def __init__(self, simulator: Simulator, agents: dict[str, str], gateway: Any) -> None:
        self.simulator, self.agents, self.gateway = simulator, agents, gateway
        self.http_server = gateway.settings.listen.http
        self.url = f"http://127.0.0.1:{gateway.adapters_port}"

    def openai(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", **{"max_retries": 0, **options})

    def http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self.url)

    @property
    def asked(self) -> Any:
        """What the LLM got last."""
        return self.simulator.received[-1]


Deploy = Callable[..., Any]


@pytest.fixture
async def deploy(start_gateway: StartGateway) -> Deploy:
    @asynccontextmanager
    async def start(
        version: str = "3.6.0", over: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Deployed]:
        async with Simulator(version, **options) as simulator:
            agents = seed_core(simulator.core, simulator.llm_url)
            settings = {**(over or {}), "listen": {"adapters_port": 0, **(over or {}).get("listen", {})}}
            yield Deployed(simulator, agents, await start_gateway(simulator.url, None, settings))

    return start
