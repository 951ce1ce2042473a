"""A simulated cluster with the gateway's use case before it, and the migration's commands, on a clock of their own.

Everything runs in one process and at once: the gateway reads the cluster's documents and sends its requests without a
network. Its cache of profiles expires by the clock.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.agents.documents import Rule
from gateway.agents.holds import LONGEST_HOLD, Holds
from gateway.agents.memory import MemoryReader
from gateway.agents.resolver import Resolver
from gateway.config.schema import Settings
from gateway.delivery.plan import Plan
from gateway.errors import GatewayError
from gateway.execute.deliveries import Reporter
from gateway.execute.handler import Handler
from gateway.execute.media import Inliner
from gateway.execute.rewrite import Rewrite
from gateway.execute.rewriter import Rewriter
from gateway.migrate import probe
from gateway.migrate.apply import Runner
from gateway.migrate.backup import Journal
from gateway.migrate.reading import read_documents
from gateway.migrate.upgrade import Offer, offers
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.ports import ExecuteCall, Forward
from gateway.simulator.core import Executed
from gateway.simulator.handlers import Request
from gateway.simulator.llm import LlmEndpoints, answer_any
from gateway.simulator.rest import respond
from gateway.unified.request import read_execute
from tests.delivery.simulated_cluster import LLM_URL, Sent, SimulatedCluster
from tests.delivery.v2_agents import register_v2

T = TypeVar("T")
TAG = "0123456789abcdef" * 2
CREDENTIAL = {"key": "not-a-secret"}


class MemoryJournal(Journal):
    """A journal that is not written to a file."""

    def save(self) -> None:
        pass


class Recorder(Reporter):
    """Keeps the last plan (None: nothing was planned), and the profile that it was made for."""

    plan: Plan | None = None
    profile: AgentProfile | None = None

    def resolved(self, profile: AgentProfile) -> None:
        self.profile = profile

    def count(self, plan: Plan) -> None:
        self.plan = plan


@dataclass(frozen=True)
class Upgrade:
    """An upgrade that was made. new_connector: by a new connector."""

    journal: Journal
    new_connector: bool


class Deployment:
    """A cluster of one version and a gateway. It is the gateway's port, and the migration's `Cluster` and `Clock`.

    rules: the operator's.
    """

    def __init__(self, version: str, rules: Sequence[Rule] = ()) -> None:
        self.cluster = SimulatedCluster(version)
        self.core = self.cluster.core
        self.rules = rules
        self.core.llm = answer_any
        self.now = 1000.0
        self._loop = asyncio.new_event_loop()
        settings, log = Settings(), configure("error", "json")
        self.ttl = settings.agents.cache_ttl
        self.holds = Holds(self.monotonic)
        self.resolver = Resolver(self, self.ttl, self.monotonic, rules=rules, holds=self.holds)
        rewriter = Rewriter(settings)
        self.recorder = Recorder(settings, log, Metrics())
        media = Inliner(rewriter.options, None, log)
        self.handler = Handler(settings, self.resolver, MemoryReader(self), media, rewriter, self.recorder)
        if self.core.unified:
            self.cluster.agents |= register_v2(self.core)

    def close(self) -> None:
        self._loop.run_until_complete(self.resolver.close())
        self._loop.close()

    # Time

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds

    # The cluster, as the gateway and the migration see it

    async def get_json(self, path: str, headers: Any) -> tuple[int, Any]:
        return self.call("GET", path)

    async def exchange(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the use case reads documents only")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        data = b"" if body is None else json.dumps(body).encode()
        serve = respond(self.core, Request(method, path, {"content-type": "application/json"}, data))
        try:
            request = next(serve)
            while True:
                request = serve.send(None if not hasattr(request, "url") else answer_any(request))
        except StopIteration as end:
            return end.value.status, end.value.body

    # Requests

    def send(self, agent: str, body: Mapping[str, Any], strict: bool = True) -> Sent:
        """Send a request through the gateway. strict: the LLM checks what it gets as its provider does."""
        agent_id, data = self.cluster.agents[agent], json.dumps(body).encode()
        agent_input = read_execute(data).input
        headers = CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json"}))
        target = f"/_plugins/_ml/agents/{agent_id}/_execute"
        self.recorder.plan = None
        call = ExecuteCall(agent_id, "POST", target, headers, data, "request", streaming=False)
        try:
            forward = self._run(self.handler(call))
        except GatewayError as error:
            return Sent(agent_input, None, error, None)
        self.core.llm = LlmEndpoints() if strict else answer_any
        try:
            executed = self._execute(agent_id, data, forward)
        finally:
            self.core.llm = answer_any
        rewritten = Rewrite(self.recorder.plan, None) if self.recorder.plan is not None else None
        memory_id = (body.get("parameters") or {}).get("memory_id")
        has_messages = memory_id in self.core.memory.memories  # a V2 agent's memory is another
        stored = self.cluster.stored(self.cluster.profile(agent), memory_id) if has_messages else None
        return Sent(agent_input, rewritten, None, executed, stored)

    def _execute(self, agent_id: str, data: bytes, forward: Forward) -> Executed:
        executed = self.core.execute(agent_id, b"".join(forward.body) if forward.body is not None else data)
        if executed.status < 400 or forward.retry is None:
            return executed
        again = forward.retry(executed.status, json.dumps(executed.body).encode())
        if again is None:
            return executed
        assert isinstance(again, Forward)
        return self.core.execute(agent_id, b"".join(again.body) if again.body is not None else data)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_background() -> T:
            try:
                return await work
            finally:
                others = asyncio.all_tasks() - {asyncio.current_task()}
                await asyncio.gather(*others, return_exceptions=True)  # profiles that are read again

        return self._loop.run_until_complete(with_background())

    # The migration

    def upgrade(self, agent: str, new_connector: bool, tells_gateway: bool) -> Upgrade:
        """Make the upgrade of an agent as ``mlc-gateway upgrade --apply`` does.

        Of the other agents that use the connector, only those that gain something count, as each is proved, too.
        """
        agent_id, template = self.cluster.agents[agent], agent.partition("-")[2]
        gaining = {self.cluster.agents.get(f"{kind}-{template}", agent_id) for kind in ("per", "conv")}
        documents = read_documents(self, self.cluster.numbers, [agent_id], self.rules)
        documents = replace(documents, agents={id_: documents.agents[id_] for id_ in {agent_id, *gaining}})
        (found,) = offers(documents, [agent_id], TAG, new_connector)
        assert isinstance(found, Offer), found
        journal = MemoryJournal.create(Path(tempfile.gettempdir()), found, documents, LLM_URL)
        gateways = self if tells_gateway else None
        prove = lambda: probe.prove_again(self, journal.record, self.rules)  # noqa: E731
        Runner(self, journal, credential=CREDENTIAL, clock=self, gateways=gateways).carry_out(prove)
        self.cluster.profile.cache_clear()
        return Upgrade(journal, new_connector)

    def roll_back(self, upgrade: Upgrade, tells_gateway: bool) -> None:
        """Undo an upgrade as ``mlc-gateway rollback`` does."""
        Runner(self, upgrade.journal, clock=self, gateways=self if tells_gateway else None).roll_back()
        assert upgrade.journal.record.outcome == "reverted"
        self.cluster.profile.cache_clear()

    def hold(self, name: str, parts: Mapping[str, Any], wait: bool) -> None:
        """See `gateway.migrate.gateways.Gateways`. No request runs meanwhile."""
        self.holds.hold(name, parts, LONGEST_HOLD)

    def drop(self) -> None:
        pass

    def release(self, name: str) -> None:
        self.holds.release(name)
