"""A gateway before a simulated cluster, with a front between them that can fail; and a registration to send."""

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
"""What a search does not show in the simulated cluster, it never shows: no use in looking long."""
ENABLE_MCP = {"persistent": {"plugins.ml_commons.mcp_connector_enabled": True}}


def basic(user: str, password: str = "hunter2-hunter2") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Deadlines:
    """The time limits of the gateway's calls to the cluster: they end when `expire` is called, never by themselves.

    A limit that is short enough to wait for would sometimes strike a call that a loaded machine delays.
    """

    def __init__(self) -> None:
        self._limits: list[asyncio.Timeout] = []

    def __getattr__(self, name: str) -> Any:
        """What is not replaced here is asyncio's own."""
        return getattr(asyncio, name)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """Take the place of `asyncio.timeout`; `PATIENCE` only keeps a test that fails from hanging."""
        limit = asyncio.timeout(seconds and PATIENCE)
        self._limits.append(limit)
        return limit

    def expire(self) -> None:
        """Let all calls that wait for an answer run out of time."""
        limits, self._limits = self._limits, []
        for limit in limits:
            with contextlib.suppress(RuntimeError):  # that call is over
                limit.reschedule(asyncio.get_running_loop().time())


@dataclass
class Deployment:
    """simulator: the cluster. front: what the gateway takes for it. log: what the gateway wrote so far."""

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
        """Status, JSON and headers of the answer; its text is kept in `answers`."""
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
        """How many agents, models and connectors there are."""
        resources = self.simulator.core.resources
        return len(resources.agents), len(resources.models), len(resources.connectors)

    @property
    def orphans(self) -> list[str]:
        return orphans(self.simulator.core)

    def shown(self) -> str:
        """All that the gateway wrote or answered."""
        return self.log.getvalue() + "".join(self.answers)


async def left_alone(deployment: Deployment, request: Coroutine[Any, Any, Any]) -> None:
    """Send a request and go away when the front's first fault strikes; the fault goes on once the client has gone."""
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
    """A place whose gateway has the settings `over`; its log is at the level of debug.

    A call of the gateway's that the front does not answer runs out of time at once, any other has all it needs.
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
