"""What all tests share: a gateway on free ports in front of an upstream of the test's own."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gateway.app import Gateway, UseCase, build
from gateway.config.load import load
from gateway.config.schema import Settings
from gateway.observe.logs import configure

# A quick run tries a quarter of the examples; `--hypothesis-profile=thorough` (make test-all) tries them all. No
# example has a time limit, which a loaded machine would exceed. CI tries the same examples each time, so that what
# passed there passes again; elsewhere they differ.
_PROPERTY: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "derandomize": bool(os.environ.get("CI")),
}
settings.register_profile("thorough", max_examples=100, **_PROPERTY)
settings.register_profile("quick", max_examples=25, **_PROPERTY)
settings.load_profile("quick")


def examples(count: int, **more: Any) -> settings:
    """Set how many examples a property gets in a thorough run; a quick one has its share. more: other settings."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), **more)


def pytest_collection_finish() -> None:
    """What has been collected stays: the collector need not look through it again in each of its rounds."""
    gc.freeze()


BOTH_LOOPS = ("faults", "smuggling", "exactness")
"""Folders whose tests run on both event loops. The gateway serves on uvloop: the copies on asyncio's own are slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in BOTH_LOOPS and "[asyncio" in item.name:
            item.add_marker(pytest.mark.slow)


StartGateway = Callable[..., Awaitable[Gateway]]


def settings_for(url: str, over: Mapping[str, Any] | None = None) -> Settings:
    """Settings with free ports and `url` as upstream; `over` is laid over them, nested as in a file.

    `over` may give `upstream.nodes` in place of `url`.
    """
    data: dict[str, Any] = {
        "listen": {"data_port": 0, "admin_port": 0, "shutdown_seconds": 2},
        "upstream": {"url": url},
    }
    for section, values in (over or {}).items():
        data[section] = {**data.get(section, {}), **values}
    if data["upstream"].get("nodes"):
        del data["upstream"]["url"]
    return load(None, {}, data)


@pytest.fixture
def http(request: pytest.FixtureRequest) -> str:
    """The server of the data port, see `listen.http`."""
    return str(request.config.getoption("--http"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--http", default="builtin", choices=["builtin", "aiohttp"], help="server of the data port")


@pytest.fixture
async def start_gateway(http: str) -> AsyncIterator[StartGateway]:
    """Starts gateways: ``await start_gateway(url, use_case, over)``; stops them when the test is over."""
    started: list[Gateway] = []

    async def start(url: str, use_case: UseCase | None = None, over: Mapping[str, Any] | None = None) -> Gateway:
        settings = settings_for(url, {**(over or {}), "listen": {"http": http, **(over or {}).get("listen", {})}})
        gateway = build(settings, use_case, configure("error", "json"))
        await gateway.start()
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        await gateway.stop()
