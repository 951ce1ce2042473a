"""Schemathesis from `docs/reference/openapi.yaml` against a running gateway: no request causes a 5xx of the gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from gateway.app import build
from gateway.observe.logs import configure
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.conftest import settings_for, share
from tests.openapi import fuzz, operation

AGENTS = {
    "2.19.0": ("flow-a", "cflow-d", "conv-e2", "flow-c"),
    "3.4.0": ("fc-bedrock_tutorial", "flow-openai_upgraded"),
}
OWN = ("GatewayError", "InternalError", "UpstreamUnavailable", "UpstreamTimeout", "UnresolvedAgent")


class LiveDeployment:
    """A gateway and a simulated cluster on a loop in another thread, as schemathesis is synchronous."""

    def __init__(self, version: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.simulator = Simulator(version, strict=False)
        self._call(self.simulator.start())
        ids = seed_core(self.simulator.core, self.simulator.llm_url)
        self.agents = [ids[name] for name in AGENTS[version]]
        self._gateway = build(settings_for(self.simulator.url), log=configure("error", "json"))
        self._call(self._gateway.start())
        self.url = f"http://127.0.0.1:{self._gateway.data_port}"

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def stop(self) -> None:
        self._call(self._gateway.stop())
        self._call(self.simulator.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="module", params=["2.19.0", "3.4.0"])
def deployment(request: pytest.FixtureRequest) -> Iterator[LiveDeployment]:
    started = LiveDeployment(request.param)
    yield started
    started.stop()


def _fuzz(deployment: LiveDeployment, id_: str, examples: int) -> None:
    fuzzed = operation(id_)
    statuses: set[int] = set()

    def check(case: Any, data: st.DataObject) -> None:
        case.path_parameters = {"agent_id": data.draw(st.sampled_from(deployment.agents))}
        case.query = {}
        response = case.call(base_url=deployment.url)
        statuses.add(response.status_code)
        error = response.json().get("error") if response.status_code >= 400 else {}
        if response.status_code >= 500:
            assert isinstance(error, dict), response.text
            assert error["type"] not in OWN, response.text

    fuzz(fuzzed, examples, check)
    assert 400 in statuses
    assert fuzzed.path.endswith("/stream") or 200 in statuses


OPERATIONS = pytest.mark.parametrize("id_", ["executeAgent", "executeAgentStream"])


@pytest.mark.slow
@OPERATIONS
def test_never_a_5xx_of_the_gateways_own_at_length(deployment: LiveDeployment, id_: str) -> None:
    _fuzz(deployment, id_, share(500))
