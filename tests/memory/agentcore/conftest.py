"""An emulator for the tests of a module, and boto3 clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.config import Config

from gateway.config.memory import AgentCoreStore as Settings
from gateway.memory.stores.agentcore.store import AgentCoreStore
from tests.memory.agentcore.emulator import Emulator, Faults

NewAgentCoreStore = Callable[..., AgentCoreStore]


@pytest.fixture(scope="session")
def running_emulator() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(running_emulator: Emulator) -> Iterator[Emulator]:
    """An emulator without faults. No request and no response of the test may break botocore's model."""
    running_emulator.reset(Faults())
    yield running_emulator
    assert running_emulator.state.violations == []


@pytest.fixture
def new_agentcore_store(emulator: Emulator) -> NewAgentCoreStore:
    """A function that returns a store on the emulator. Its arguments are settings."""

    def new(seconds: float = 300.0, **settings: Any) -> AgentCoreStore:
        return AgentCoreStore(settings_of(emulator, seconds=seconds, **settings), connect, pause=0.001)

    return new


def settings_of(emulator: Emulator, **settings: Any) -> Settings:
    return Settings(memory_id=emulator.memory_id, endpoint=emulator.url, **{"seconds": 300.0, **settings})


def connect(settings: Settings) -> Any:
    return _client(settings.endpoint)


@cache
def _client(endpoint: str) -> Any:
    """Return a client that repeats nothing, as the store's own. Making one takes long, so they are shared."""
    return boto3.session.Session("key", "secret", region_name="us-east-1").client(
        "bedrock-agentcore",
        endpoint_url=endpoint,
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, max_pool_connections=50),
    )
