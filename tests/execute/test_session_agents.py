"""Which agents of legacy requests are read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, UnresolvedAgent, UpstreamTimeout
from gateway.execute.session_run import LegacyAgents
from gateway.ports import ExecuteCall
from gateway.unified.request import ExecuteRequest, read_execute

CALL = ExecuteCall("a", "POST", "/", CIMultiDictProxy(CIMultiDict()), b"", "request", streaming=False)


class Gateway:
    """The resolver, the sessions and the forms of answers, of every agent. error: why agents can't be read."""

    def __init__(self) -> None:
        self.memory_is_gateways = False
        self.error: GatewayError | None = None

    def caller(self, _: Any) -> bytes:
        return b"caller"

    async def agent(self, *_: Any) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(profile=None)

    def rule(self, _: str) -> None:
        return None

    def remembers(self, _: Any) -> bool:
        return self.memory_is_gateways

    def converts(self, _: Any) -> bool:
        return False


def legacy(**parameters: str) -> ExecuteRequest:
    return read_execute(json.dumps({"parameters": {"question": "q", **parameters}}).encode())


async def test_an_agent_without_sessions_is_read_again_if_a_session_is_named() -> None:
    gateway: Any = Gateway()
    agents = LegacyAgents(gateway, gateway, gateway, clock=lambda: 0.0)
    assert await agents.find(CALL, legacy()) is None
    gateway.memory_is_gateways = True  # it has been registered again
    assert await agents.find(CALL, legacy()) is None
    assert await agents.find(CALL, legacy(memory_id="gws-a-1")) is not None


@pytest.mark.parametrize(
    ("error", "is_read_again"), [(UpstreamTimeout("no answer in time"), True), (UnresolvedAgent("not allowed"), False)]
)
async def test_an_agent_that_a_failing_cluster_did_not_show_is_read_by_the_next_request(
    error: GatewayError, is_read_again: bool
) -> None:
    gateway: Any = Gateway()
    gateway.memory_is_gateways = True
    agents = LegacyAgents(gateway, gateway, gateway, clock=lambda: 0.0)
    gateway.error = error
    assert await agents.find(CALL, legacy()) is None
    gateway.error = None
    assert (await agents.find(CALL, legacy()) is not None) is is_read_again
