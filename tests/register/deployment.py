"""A gateway in front of a simulated cluster, with a faulty proxy between them; and registrations to send."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway, build
from gateway.observe.logs import configure
from gateway.simulator.server import Simulator
from gateway.upstream import client as upstream_client
from tests.conftest import settings_for
from tests.faulty_cluster import FaultyCluster, orphans
from tests.lifecycle.process import PATIENCE, until

ML = "/_plugins/_ml"
REGISTER = f"{ML}/agents/_register"
SECRETS = ("AKIDSECRETKEY", "very-secret/key+=")
MODEL = "us.anthropic.claude-3-7-sonnet-20250219-v1:0"
QUICK = {"timeout": 60, "visible_within": 0.05}
"""A search of the simulated cluster that finds nothing will not find it later, so waiting is short."""
ENABLE_MCP = {"persistent": {"plugins.ml_commons.mcp_connector_enabled": True}}


def basic(user: str, password: str = "hunter2-hunter2") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Deadlines:
    """The timeouts of the gateway's calls to the cluster. They expire when `expire` is called, never by themselves.

    A real timeout that is short enough for a test would sometimes expire on a loaded machine.
    """

    def __init__(self) -> None:
        self._limits: list[asyncio.Timeout] = []

    def __getattr__(self, name: str) -> Any:
        """Return asyncio's own attribute for anything that is not replaced."""
        return getattr(asyncio, name)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """Replace `asyncio.timeout`. `PATIENCE` only prevents a failing test from hanging."""
        limit = asyncio.timeout(seconds and PATIENCE)
        self._limits.append(limit)
        return limit

    def expire(self) -> None:
        """Let the timeouts of all waiting calls expire."""
        limits, self._limits = self._limits, []
        for limit in limits:
            with contextlib.suppress(RuntimeError):  # the call has ended
                limit.reschedule(asyncio.get_running_loop().time())


@dataclass
class Deployment:
    """simulator: the cluster. front: the faulty proxy, the gateway's upstream. log: the gateway's log so far."""

    simulator: Simulator
    front: FaultyCluster
    gateway: Gateway
    client: aiohttp.ClientSession
    log: io.StringIO
    answers: list[str] = field(default_factory=list)

    def model(self, **more: Any) -> dict[str, Any]:
        credential = {"access_key": SECRETS[0], "secret_key": SECRETS[1]}
        parameters = {"region": "us-east-1"}
        block = {"model_id": MODEL, "model_provider": "bedrock/converse", "credential": credential}
        url = f"{self.simulator.llm_url}/bedrock/model/{MODEL}/converse"
        return {**block, "model_parameters": parameters, "url": url, **more}

    def body(self, **more: Any) -> dict[str, Any]:
        return {"name": "assistant", "type": "conversational", "model": self.model(), **more}

    async def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Return status, JSON and headers of the response. Its text is added to `answers`."""
        async with self.client.request(method, path, json=body, headers=headers) as response:
            text = await response.text()
            self.answers.append(text)
            return response.status, json.loads(text), response.headers

    async def register(self, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        status, document, _ = await self.call("POST", REGISTER, self.body() if body is None else body, headers)
        return status, document

    async def execute(self, agent_id: str, sent_input: Any) -> tuple[int, dict[str, Any]]:
        status, document, _ = await self.call("POST", f"{ML}/agents/{agent_id}/_execute", {"input": sent_input})
        return status, document

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of agents, models and connectors."""
        resources = self.simulator.core.resources
        return len(resources.agents), len(resources.models), len(resources.connectors)

    @property
    def orphans(self) -> list[str]:
        return orphans(self.simulator.core)

    def shown(self) -> str:
        """Return everything that the gateway logged or sent."""
        return self.log.getvalue() + "".join(self.answers)


async def left_alone(deployment: Deployment, request: Coroutine[Any, Any, Any]) -> None:
    """Send a request, disconnect when the first fault occurs, and then let the fault continue."""
    fault = deployment.front.faults[0]
    fault.until = asyncio.Event()
    task = asyncio.create_task(request)
    await until(lambda: fault.matched > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    fault.until.set()


@contextlib.asynccontextmanager
async def deploy(
    version: str = "2.19.0", over: Mapping[str, Any] | None = None, refresh_seconds: float = 0.0
) -> AsyncIterator[Deployment]:
    """Start a deployment. over: the gateway's settings. The log level is debug.

    A call that the faulty proxy does not answer times out at once; other calls have no timeout.
    """
    deadlines = Deadlines()
    async with Simulator(version, refresh_seconds=refresh_seconds) as simulator, FaultyCluster(simulator.url) as front:
        front.expire = deadlines.expire
        log = io.StringIO()
        settings = settings_for(front.url, {"listen": {"shutdown_seconds": 60}, "registration": QUICK, **(over or {})})
        gateway = build(settings, None, configure("debug", "json", log))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upstream_client, "asyncio", deadlines)
            await gateway.start()
            try:
                async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
                    yield Deployment(simulator, front, gateway, client, log)
            finally:
                await gateway.stop()
