"""A simulated cluster and a gateway before it, served by a thread, for commands that are synchronous."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import urllib3
from msgspec.structs import replace

from gateway.app import Gateway, build
from gateway.cli import run
from gateway.migrate import assess, upgrade
from gateway.migrate.assess import anonymous
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.simulator.errors import Answer
from gateway.simulator.fixtures import seed_core
from gateway.simulator.handlers import Request
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response
from gateway.simulator.server import Simulator
from tests.conftest import settings_for
from tests.wire import PATIENCE


class Cluster(Simulator):
    """A simulator that records its requests, and refuses those in `refusals`.

    refusals: ``GET /path`` → the status, with an error body, or a function that returns the body of a 200.
    llm_answers: set unless the LLM is to answer later. llm_asked: set when it is asked.
    """

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.requests: list[Request] = []
        self.refusals: dict[str, int | Callable[[], Any]] = {}
        self.llm_answers = threading.Event()
        self.llm_answers.set()
        self.llm_asked = threading.Event()

    @property
    def calls(self) -> list[str]:
        """Method and path of every request, in order."""
        return [f"{request.method} {request.target}" for request in self.requests]

    async def _post(self, call: LlmRequest) -> LlmReply:
        self.llm_asked.set()
        if not self.llm_answers.is_set():
            await asyncio.to_thread(self.llm_answers.wait, PATIENCE)
        return await super()._post(call)

    async def _respond(self, request: Request) -> Response:
        self.requests.append(request)
        found = self.refusals.get(f"{request.method} {request.path}")
        if callable(found):
            return Response(200, found())
        if found is not None:
            reason = f"no permissions for [{request.path}] and User [name=reader]"
            return Response(found, {"error": {"type": "security_exception", "reason": reason}, "status": found})
        try:
            return await super()._respond(request)
        except Answer as answer:
            return Response(answer.status, answer.body)


class Deployment:
    """A cluster of a version with the usual agents, and a gateway before it."""

    def __init__(self, version: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.cluster = Cluster(version)
        self._gateway: Gateway | None = None
        self._pool = urllib3.PoolManager(retries=False, timeout=60)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self) -> None:
        self.do(self.cluster.start())
        self.agents = seed_core(self.cluster.core, self.cluster.llm_url)

    def stop(self) -> None:
        self._pool.clear()  # the gateway waits for its clients
        if self._gateway is not None:
            self.do(self._gateway.stop())
        self.do(self.cluster.stop())

    @property
    def version(self) -> str:
        return self.cluster.core.version

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def gateway_url(self) -> str:
        if self._gateway is None:
            self._gateway = build(settings_for(self.cluster.url), log=configure("error", "json"))
            self.do(self._gateway.start())
        return f"http://127.0.0.1:{self._gateway.data_port}"

    @property
    def gateway_admin_url(self) -> str:
        assert self.gateway_url
        assert self._gateway is not None
        return f"http://127.0.0.1:{self._gateway.admin_port}"

    def renew_gateway(self) -> None:
        """Replace the gateway with a new one, which has read no agent yet."""
        self._pool.clear()
        if self._gateway is not None:
            self.do(self._gateway.stop())
        self._gateway = None

    def post(self, path: str, body: Any, url: str = "") -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON body and headers of a POST to the gateway, or to `url`."""
        headers = {"Content-Type": "application/json"}
        answer = self._pool.request("POST", (url or self.gateway_url) + path, body=json.dumps(body), headers=headers)
        return answer.status, json.loads(answer.data), answer.headers

    def refused_by(self, over: Any, agent: str, value: Any) -> Any:
        """Send `value` as input to an agent through a gateway with other settings; return the refusal."""
        gateway = build(settings_for(self.cluster.url, over), log=configure("error", "json"))
        self.do(gateway.start())
        try:
            url = f"http://127.0.0.1:{gateway.data_port}"
            status, answer, _ = self.post(f"/_plugins/_ml/agents/{self.agents[agent]}/_execute", {"input": value}, url)
        finally:
            self._pool.clear()
            self.do(gateway.stop())
        assert status == 400, answer
        return answer

    def take_received(self) -> list[Any]:
        """Return what the models received since the last call."""
        received = list(self.cluster.received)
        self.cluster.llm.received.clear()
        return received

    def register(self, body: dict[str, Any]) -> str:
        """Register an agent directly with the cluster; return its id."""
        status, answer, _ = self.post("/_plugins/_ml/agents/_register", body, self.url)
        assert status == 200, answer
        agent_id: str = answer["agent_id"]
        return agent_id


@pytest.fixture(scope="module")
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


StartDeployment = Callable[..., Deployment]


@pytest.fixture
def start_deployment(_loop: asyncio.AbstractEventLoop) -> Iterator[StartDeployment]:
    """``start_deployment("2.19.0")``"""
    with ExitStack() as stack:

        def start(version: str = "2.19.0") -> Deployment:
            deployment = Deployment(version, _loop)
            stack.callback(deployment.stop)
            deployment.start()
            return deployment

        yield start


@pytest.fixture
def deployment(start_deployment: StartDeployment) -> Deployment:
    return start_deployment()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, credentials or proxies of this machine's."""
    import os

    for name in os.environ:
        if name.upper().startswith(("GATEWAY__", "AWS_", "MLC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("agents", "--url", url)``: exit status, standard output and standard error of a command."""

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(argv)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


def _computed_once(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function whose result depends on its arguments only: equal arguments are computed once.

    The ports of the simulated models make no difference.
    """
    known: dict[str, Any] = {}

    def get(*arguments: Any) -> Any:
        key = re.sub(r"127\.0\.0\.1:\d+", "", repr(arguments))
        if key not in known:
            known[key] = compute(*arguments)
        return known[key]

    return get


def _effects_computed_once() -> Callable[..., upgrade.Effect]:
    """Wrap `upgrade.effect`: profiles that differ only in names and ids, as those of two clusters do, are equal."""
    compute = upgrade.effect
    known = _computed_once(lambda _old, _new, for_tools, both: compute(*both.profiles, for_tools))

    def get(old: AgentProfile, new: AgentProfile, for_tools: bool = False) -> upgrade.Effect:
        found = known(anonymous(old), anonymous(new), for_tools, _Unprinted((old, new)))
        return replace(found, agent_id=old.id, name=old.name)

    return get


@dataclass(frozen=True)
class _Unprinted:
    """Two profiles that the key of `_computed_once` leaves out."""

    profiles: tuple[AgentProfile, AgentProfile] = field(repr=False)


@pytest.fixture(autouse=True, scope="session")
def _agents_assessed_once() -> Iterator[None]:
    """Most clusters of the tests have the same agents. To compute what each can take costs half a second a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upgrade, "effect", _effects_computed_once())
        for name in ("abilities", "_gains"):
            patch.setattr(assess, name, _computed_once(getattr(assess, name)))
        yield


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once, for as long as a loaded machine takes; leave it to the system when files reach the disk."""
    monkeypatch.setattr("gateway.migrate.writer._PAUSE", 0.01)
    monkeypatch.setattr("gateway.migrate.parking.SETTLE", 0.01)
    monkeypatch.setattr("gateway.cli.promote._PAUSE", 0.01)
    monkeypatch.setattr("gateway.cli.promote._PATIENCE", PATIENCE)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)
