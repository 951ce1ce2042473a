"""Fixtures for all tests: Hypothesis profiles, and a gateway on free ports in front of a test's upstream."""

from __future__ import annotations

import faulthandler
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gateway.app import Gateway, UseCase, build
from gateway.config.load import load
from gateway.config.schema import Settings
from gateway.memory import owner
from gateway.observe.logs import configure
from gateway.recording import recorder
from gateway.register import reuse
from tests.wire import PATIENCE

# max_examples is the share in percent of the examples and of other counts (`share`) that a run tries: `make test` a
# twenty-fifth, CI an eighth, a thorough run all (make test-thorough). Examples have no time limit, because a loaded
# machine would exceed it. CI tries the same ones each time, so that its results are reproducible.
_PROPERTY: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "derandomize": bool(os.environ.get("CI")),
}
settings.register_profile("thorough", max_examples=100, **_PROPERTY)
settings.register_profile("ci", max_examples=13, **_PROPERTY)
settings.register_profile("quick", max_examples=4, **_PROPERTY)
settings.load_profile("quick")


# As for test modules: the values in failed assertions are shown. Tests of several folders use it.
pytest.register_assert_rewrite("tests.recording.sinks.store_conformance")

_HANGS = 600.0
"""Seconds after which a test that does not end shows where it is and ends its process, so that the run fails and does
not hang. In a thorough run four times as many."""
_watched_since = 0.0
_STANDARD_ERROR = os.fdopen(os.dup(2), "w")


def share(count: int) -> int:
    """Return this run's share of a count of examples, requests or rounds: all of them in a thorough run."""
    return max(1, count * settings().max_examples // 100)


def examples(count: int, **more: Any) -> settings:
    """Set the number of examples in a thorough run; other runs try their share of it. more: other settings."""
    return settings(max_examples=share(count), **more)


def mostly_slow(cases: Iterable[Any], every: int) -> list[Any]:
    """Return test cases as parameters. The first and every N-th after it stay as they are; others are marked slow.

    cases: one value each, or a tuple of values.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] if index % every else [])
        for index, case in enumerate(cases)
    ]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """End a test that hangs. pytest's own `faulthandler_timeout` starts a thread for each test, which takes 1 ms."""
    global _watched_since
    if time.monotonic() - _watched_since > 10:
        _watched_since = time.monotonic()
        seconds = _HANGS * max(1, settings().max_examples / 25)
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)
        # Modules and caches that tests have loaded since the last time stay in memory anyway. So may the garbage of
        # earlier tests: a test may only wait for the collection of objects that it has made itself.
        gc.freeze()
    return (yield)


def pytest_enter_pdb() -> None:
    """Give a debugger all the time it needs."""
    faulthandler.cancel_dump_traceback_later()


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: all of it stays, and looking through it takes a second or two."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, as they stay in memory anyway, and collect less often."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture
def small_heap() -> None:
    """Exclude all objects that there are from garbage collection, so that collections in the test cost little."""
    gc.collect()
    gc.freeze()


BOTH_LOOPS = ("faults", "smuggling", "exactness")
"""Folders whose tests run on both event loops. Those on asyncio's own are marked slow, as the gateway uses uvloop."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in BOTH_LOOPS and "[asyncio" in item.name:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_seconds, reverse=True)


def _seconds(item: pytest.Item) -> int:
    """Return what the mark ``slow(seconds)`` says; 0 without one."""
    mark = item.get_closest_marker("slow")
    return int(mark.args[0]) if mark and mark.args else 0


@pytest.fixture(autouse=True, scope="session")
def _cheap_hashes() -> Iterator[None]:
    """Reduce the cost of the hashes of registrations and callers, slow on purpose; the tests compute thousands.

    Gateways in other processes use the real ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reuse._COST, "n", 2)
        patch.setattr(owner, "_ROUNDS", 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the sessions of gateways with default settings out of the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _whole_recordings() -> Iterator[None]:
    """Let gateways that stop record all that waits, however long a loaded machine takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_GRACE", PATIENCE)
        yield


StartGateway = Callable[..., Awaitable[Gateway]]


def settings_for(url: str, over: Mapping[str, Any] | None = None) -> Settings:
    """Return settings with free ports and `url` as upstream. over: overrides, nested as in a file.

    `over` may have `upstream.nodes` instead of `url`.
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
    """Starts gateways with ``await start_gateway(url, use_case, over)``, and stops them after the test.

    More arguments are for `gateway.app.build`.
    """
    started: list[Gateway] = []

    async def start(
        url: str, use_case: UseCase | None = None, over: Mapping[str, Any] | None = None, **more: Any
    ) -> Gateway:
        settings = settings_for(url, {**(over or {}), "listen": {"http": http, **(over or {}).get("listen", {})}})
        gateway = build(settings, use_case, configure("error", "json"), **more)
        await gateway.start()
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        await gateway.stop()
