"""Upgrades and rollbacks while callers go on sending requests: ``python -m tests.migrate.under_traffic --tries 20``.

The simulated 2.19.0 and the migration run on a clock of their own, so the result does not depend on the machine. Each
call of the migration takes as long as it took on a real cluster (30 to 33), and callers' requests arrive meanwhile:
texts that they send to the cluster itself, or nothing but images that they send through a gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.agents.holds import LONGEST_HOLD, Holds
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.config.schema import Settings
from gateway.errors import UndeliverableContent
from gateway.execute.rewriter import Rewriter
from gateway.migrate import probe
from gateway.migrate.apply import RolledBack, Runner, UndoFailed
from gateway.migrate.backup import Journal
from gateway.migrate.connection import ClusterError
from gateway.migrate.gateways import Gateways
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.upgrade import Offer, offers
from gateway.simulator.core import ClusterCore
from gateway.simulator.handlers import Request
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response, respond
from gateway.unified.request import read_execute

ML = "/_plugins/_ml/"
WAYS = ("internal", "standalone", "new connector")
STATES = ("used", "deployed")
RATES = (5, 20)
IMAGES_RATE = 20
SECRET = {"key": "s3cr3t"}
OLD = '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
NEW = '{"messages":${parameters.messages}}'
MARK = '[{"role":"user","content":[{"text":"new template"}]}]'
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
_MEDIUM = {"type": "image", "source": {"type": "base64", "format": "png", "data": IMAGE}}
_WITH_IMAGE = json.dumps({"input": [{"type": "text", "text": "What is this?"}, _MEDIUM]}).encode()
_BETWEEN = 5.0
"""Seconds of traffic after an upgrade and after a rollback, longer than profiles are cached."""
_TO_CLUSTER, _RUN, _TO_GATEWAY = (0.001, 0.03), (0.05, 1.5), (0.002, 0.02)
"""Seconds: of a request from the gateway to the cluster, of a run, of a request of the migration to the gateway."""
_CALLS = {"_undeploy": (0.02, 0.07), "_deploy": (0.025, 0.04), "PUT": (0.01, 0.04), "GET": (0.004, 0.012)}


@dataclass
class Busy:
    """A cluster with one agent, whose callers send `rate` requests a second. It is a `Cluster` and a `Clock`.

    failed: the answers to callers' requests without a 200. load_seconds: how long a model takes to load. images: the
    callers send images through a gateway.
    """

    way: str
    state: str
    rate: float
    seed: int
    load_seconds: float = 0.02
    images: bool = False
    now: float = 1000.0
    requests: int = 0
    failed: list[Any] = field(default_factory=list)
    last: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.way} {self.state} {self.rate} {self.seed}")
        self.core = ClusterCore("2.19.0", self._llm)
        self.resources = self.core.resources
        self.resources.clock = self.monotonic
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        own = {"connector": connector()}
        if self.way != "internal":
            own = {"connector_id": self.resources.create_connector(connector())["connector_id"]}
        self.model = self.resources.register_model({"name": "m", **own}, self.state == "deployed")["model_id"]
        asked = {"model_id": self.model, "prompt": "${parameters.question}"}
        tool = {"type": "MLModelTool", "parameters": asked}
        self.agent = self.resources.register_agent({"name": "a", "type": "flow", "tools": [tool]})["agent_id"]
        self.now += 10
        self.resources.refresh_seconds = 1.0
        self.resources.deployments.load_seconds = self.load_seconds
        self.request()  # loads the model
        self.gateway = Gateway(self)
        self.after(self.random.random() / self.rate, self._arrive)
        self.sleep(2 / self.rate)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """Let time pass, and the callers' requests arrive."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        """Let something happen some seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def _arrive(self) -> None:
        self.after(1 / self.rate, self._arrive)
        if self.images:
            self.requests += 1
            self.gateway.receive_image()
        else:
            self.request()

    def request(self, **more: str) -> bool:
        """Send a caller's request. Return True if the new template answered it."""
        self.requests += 1
        found = self.core.execute(self.agent, {"parameters": {"question": "hi", **more}})
        if found.status != 200:
            self.failed.append(found.body)
        return "new template" in self.last

    def uses_new_template(self) -> bool:
        return self.request(messages=MARK)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request of the migration. It takes effect at some time before its answer."""
        seconds = self.random.uniform(*_CALLS.get(path.rpartition("/")[2], _CALLS.get(method, _CALLS["PUT"])))
        before = seconds * self.random.random()
        self.sleep(before)
        data = b"" if body is None else json.dumps(body).encode()
        answer = self.respond(Request(method, path, {"content-type": "application/json"}, data))
        self.sleep(seconds - before)
        return answer.status, answer.body

    def respond(self, request: Request) -> Response:
        """Answer a request at once."""
        serve = respond(self.core, request)
        try:
            call = next(serve)
            while True:
                call = serve.send(self._llm(call))
        except StopIteration as end:
            response: Response = end.value
            return response

    def _llm(self, request: LlmRequest) -> LlmReply:
        self.last = request.body
        assert request.headers.get("X-Key") == SECRET["key"], "the parked connector was called"
        return LlmReply(200, json.dumps({"output": {"message": {"content": [{"text": "ok"}]}}}))


class Gateway:
    """A gateway before the cluster, with a real resolver and the real rewrite. It is the `Gateways` of a migration.

    A request reaches the cluster some time after it was planned, and its run calls the LLM at its beginning and at its
    end. arrived, lost: images that reached the LLM in both calls or not, behind a 200. refused: those that got a 400.
    """

    def __init__(self, busy: Busy) -> None:
        self.arrived = self.lost = self.refused = 0
        self._busy = busy
        self._holds = Holds(busy.monotonic)
        ttl = (Settings().agents.cache_ttl, 0.0)[busy.seed % 2]  # some gateways read the documents for each request
        self._resolver = Resolver(self, ttl, busy.monotonic, holds=self._holds)
        self._rewriter = Rewriter(Settings())
        self._running: dict[int, float] = {}

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        answer = self._busy.respond(Request("GET", path, {}, b""))
        return answer.status, answer.body

    def receive_image(self) -> None:
        """Plan a request with an image now, and send it later."""
        request = read_execute(_WITH_IMAGE)
        assert request.input is not None
        try:
            rewrite = self._rewriter.rewrite(self._agent(), request, request.input)
        except UndeliverableContent:
            self.refused += 1
            return
        assert rewrite.body is not None
        body, number = b"".join(rewrite.body), self._busy.requests
        self._running[number] = self._busy.now
        uniform = self._busy.random.uniform
        self._busy.after(uniform(*_TO_CLUSTER), lambda: self._run(number, body, uniform(*_RUN)))

    def _run(self, number: int, body: bytes, seconds: float) -> None:
        begins_well = self._reaches_llm(body)

        def end() -> None:
            del self._running[number]
            if self._reaches_llm(body) and begins_well:
                self.arrived += 1
            else:
                self.lost += 1

        self._busy.after(seconds, end)

    def _reaches_llm(self, body: bytes) -> bool:
        answer = self._busy.core.execute(self._busy.agent, body)
        if answer.status != 200:
            self._busy.failed.append(answer.body)
        return IMAGE in self._busy.last

    def _agent(self) -> ResolvedAgent:
        cached = self._resolver.peek(self._busy.agent, self._resolver.caller({}))
        return cached if cached is not None else asyncio.run(self._read())

    async def _read(self) -> ResolvedAgent:
        try:
            return await self._resolver.agent(self._busy.agent, {})
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)  # profiles that are read again

    def hold(self, name: str, parts: Mapping[str, Any], wait: bool) -> None:
        self._busy.sleep(self._busy.random.uniform(*_TO_GATEWAY))
        self._holds.hold(name, parts, LONGEST_HOLD)
        while wait and any(began <= self._holds.since(name) for began in self._running.values()):
            self._busy.sleep(0.05)

    def drop(self) -> None:
        pass

    def release(self, name: str) -> None:
        self._busy.sleep(self._busy.random.uniform(*_TO_GATEWAY))
        self._holds.release(name)

    def drop_profiles(self) -> None:
        self._busy.sleep(self._busy.random.uniform(*_TO_GATEWAY))
        self._resolver.invalidate("settings")


class DropsOnly:
    """A gateway that can't hold documents. It is told to read them again, as all were before."""

    def __init__(self, gateway: Gateway) -> None:
        self.drop = gateway.drop_profiles

    def hold(self, name: str, parts: Mapping[str, Any], wait: bool) -> None:
        pass

    def release(self, name: str) -> None:
        pass


def connector() -> dict[str, Any]:
    return {
        "name": "c",
        "version": "1",
        "protocol": "http",
        "credential": SECRET,
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": "http://127.0.0.1:1/bedrock/model/m/converse",
                "headers": {"X-Key": "${credential.key}"},
                "request_body": OLD,
            }
        ],
    }


@dataclass
class Outcome:
    """upgraded, rolled_back: it succeeded, and what then answers is the new or the old template."""

    upgraded: bool
    rolled_back: bool
    requests: int
    failed: list[Any]
    problem: str
    gateway: Gateway


def run(
    way: str,
    state: str,
    rate: float,
    seed: int,
    directory: Path,
    load_seconds: float = 0.02,
    images: bool = False,
    gateways: Callable[[Gateway], Gateways] = lambda gateway: gateway,
) -> Outcome:
    """Upgrade an agent under traffic, and roll it back. images: see `Busy`. gateways: what the migration uses."""
    busy = Busy(way, state, rate, seed, load_seconds, images)
    named = gateways(busy.gateway)
    before = busy.resources.model(busy.model)["model_state"]
    ids = agent_ids(busy, [busy.agent])
    documents = read_documents(busy, (2, 19, 0), ids)
    (offer,) = offers(documents, ids, f"{seed:032x}", way == "new connector")
    assert isinstance(offer, Offer), offer
    journal = Journal.create(directory, offer, documents, "http://127.0.0.1:1")
    upgraded = rolled_back = False
    problem = ""
    try:
        prove = lambda: probe.prove_again(busy, journal.record)  # noqa: E731
        Runner(busy, journal, credential=SECRET, clock=busy, gateways=named).carry_out(prove)
        upgraded = busy.uses_new_template()
        busy.sleep(_BETWEEN if images else 0)
        Runner(busy, journal, clock=busy, gateways=named).roll_back()
        rolled_back = not busy.uses_new_template() and busy.resources.model(busy.model)["model_state"] == before
    except (RolledBack, UndoFailed, ClusterError) as error:
        problem = str(error)
    left = len(busy.resources.connectors) - int(way != "internal")
    busy.sleep(_BETWEEN if images else 0)
    return Outcome(upgraded, rolled_back and not left, busy.requests, busy.failed, problem, busy.gateway)


def naive(way: str, state: str, rate: float, seed: int) -> bool:
    """Change the connector once, undeploying before it if it is standalone. Return True if it took effect."""
    busy = Busy(way, state, rate, seed)
    change = {"actions": [{**connector()["actions"][0], "request_body": NEW}]}
    change["parameters"] = {"messages": MARK}
    if way == "internal":
        busy.call("PUT", f"{ML}models/{busy.model}", {"connector": change})
    else:
        busy.call("POST", f"{ML}models/{busy.model}/_undeploy")
        (connector_id,) = busy.resources.connectors
        busy.call("PUT", f"{ML}connectors/{connector_id}", change)
    return busy.uses_new_template()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    tries = parser.parse_args().tries
    with tempfile.TemporaryDirectory() as folder:

        def repeat(way: str, state: str, rate: float, images: bool) -> tuple[str, list[Outcome]]:
            found = [run(way, state, rate, seed, Path(folder), images=images) for seed in range(tries)]
            upgraded, rolled_back = sum(one.upgraded for one in found), sum(one.rolled_back for one in found)
            requests, failed = sum(one.requests for one in found), sum(len(one.failed) for one in found)
            row = f"{way:14} {state:9} {rate:10} {upgraded:6}/{tries} {rolled_back:9}/{tries} {requests:9} {failed:7}"
            return row, found

        head = "connector      model     requests/s  upgraded  rolled back  requests  failed"
        print(head)
        for way, state, rate in itertools.product(WAYS, STATES, RATES):
            row, found = repeat(way, state, rate, images=False)
            print(row, *{one.problem for one in found if one.problem})
        print("\nOnly images, through a gateway:", f"{head}  arrived  refused  lost", sep="\n")
        for way, state in itertools.product(WAYS, STATES):
            row, found = repeat(way, state, IMAGES_RATE, images=True)
            counts = [sum(getattr(one.gateway, name) for one in found) for name in ("arrived", "refused", "lost")]
            print(row, "{:8} {:8} {:5}".format(*counts), *{one.problem for one in found if one.problem})


if __name__ == "__main__":
    main()
