"""Sessions in AgentCore Memory pass the tests of every store, whatever the service does to them."""

from __future__ import annotations

from typing import ClassVar

import pytest

from gateway.memory.model import Message
from tests.memory.agentcore.conftest import NewAgentCoreStore
from tests.memory.agentcore.emulator import Emulator, Faults
from tests.memory.agentcore.test_mapping_properties import expected
from tests.memory.store_conformance import NewStore, StoreConformance

MODES: dict[str, Faults] = {
    "no fault": Faults(),
    "random order": Faults(shuffle=True),
    "same times": Faults(tie=True, shuffle=True),
    "pages": Faults(pages=(1, 0, 3, 2), shuffle=True),
    "stale lists": Faults(stale=True, lag=5),
    "throttled": Faults(throttle=3),
    "failing writes": Faults(fail=3),
    "failing writes, unknown ids": Faults(fail=3, echo=True),
    "everything": Faults(True, True, 5, True, 5, 4, True, (2, 0, 60)),
}
_PARAMETERS = [pytest.param(mode, marks=() if mode == "stale lists" else pytest.mark.slow) for mode in MODES]


@pytest.fixture(params=_PARAMETERS)
def mode(request: pytest.FixtureRequest, emulator: Emulator) -> str:
    emulator.reset(MODES[request.param])
    return str(request.param)


class TestAgentCoreStore(StoreConformance):
    media_size: ClassVar[int] = 1_100_000
    limits_bytes: ClassVar[bool] = False

    @pytest.fixture
    def new_store(self, mode: str, new_agentcore_store: NewAgentCoreStore) -> NewStore:
        return new_agentcore_store

    def as_stored(self, message: Message) -> Message:
        return expected(message)
