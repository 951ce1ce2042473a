"""A small cluster with recorded agents, behind gateways with policies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from tests.conftest import StartGateway
from tests.execute.stub_cluster import ML, RAN, Cluster, server_of

pytest.register_assert_rewrite("tests.policy.budget_store_conformance", "tests.policy.overspending")

TOTAL = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}


def v2_answer(text: str = "hello", usage: Any = TOTAL) -> tuple[int, Any]:
    """An answer of a V2 agent, as recorded on 3.6.0."""
    message = {"role": "assistant", "content": [{"text": text}]}
    metrics = {"total_usage": usage}
    return 200, {"stop_reason": "end_turn", "message": message, "memory_id": "m", "metrics": metrics}


class Place:
    """A gateway in front of `cluster`, and a client."""

    def __init__(self, cluster: Cluster, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.cluster, self.gateway, self.session = cluster, gateway, session

    async def execute(self, agent: str, body: Any, **more: Any) -> aiohttp.ClientResponse:
        path = more.pop("path", "_execute")
        url = f"http://127.0.0.1:{self.gateway.data_port}{ML}agents/{agent}/{path}"
        if not isinstance(body, bytes):
            more["json"] = body
        else:
            more["data"] = body
        answer = await self.session.post(url, **more)
        await answer.read()
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The value of a counter; 0 if there is none with these labels."""
        families = text_string_to_metric_families(self.gateway.metrics.render().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(one.value for one in samples if one.name == name and one.labels.items() >= labels.items())


Start = Callable[..., Awaitable[Place]]


@pytest.fixture
async def start(start_gateway: StartGateway) -> AsyncIterator[Start]:
    """``await start({"usage_header": True})``: gateways with these policies, in front of one cluster."""
    cluster = Cluster()
    cluster.answers = [v2_answer()]
    async with server_of(cluster) as server, aiohttp.ClientSession() as session:

        async def start(policy: dict[str, Any], sinks: Any = None, **more: Any) -> Place:
            over = {"policy": policy, **more}
            gateway = await start_gateway(str(server.make_url("")), None, over, **({"sinks": sinks} if sinks else {}))
            return Place(cluster, gateway, session)

        yield start


__all__ = ["RAN", "Place", "Start", "v2_answer"]
