"""Which agents of legacy requests are read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.execute.session_agents import LegacyAgents
from gateway.ports import ExecuteCall
from gateway.unified.request import ExecuteRequest, read_execute

CALL = ExecuteCall("a", "POST", "/", CIMultiDictProxy(CIMultiDict()), b"", "request", streaming=False)


class Gateway:
    """The resolver, the sessions and the forms of answers. remembers: of every agent."""

    def __init__(self) -> None:
        self.memory_is_gateways = False

    def caller(self, _: Any) -> bytes:
        return b"caller"

    async def agent(self, *_: Any) -> Any:
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
