"""Upgrades and rollbacks while callers go on sending requests: ``python -m tests.migrate.under_traffic --tries 20``.

The simulated 2.19.0 and the migration run on a clock of their own, so the result does not depend on the machine. Each
call of the migration takes as long as it took on a real cluster (30 to 33), and callers' requests arrive meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.migrate import probe
from gateway.migrate.backup import Journal
from gateway.migrate.connection import ClusterError
from gateway.migrate.reading import agent_ids, read_documents
from gateway.migrate.rollback import RolledBack, UndoFailed, carry_out, roll_back
from gateway.migrate.upgrade import Offer, offers
from gateway.simulator.core import ClusterCore
from gateway.simulator.handlers import Request
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response, respond

ML = "/_plugins/_ml/"
WAYS = ("internal", "standalone", "new connector")
STATES = ("used", "deployed")
RATES = (5, 20)
SECRET = {"key": "s3cr3t"}
OLD = '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
NEW = '{"messages":${parameters.messages}}'
MARK = '[{"role":"user","content":[{"text":"new template"}]}]'
_CALLS = {"_undeploy": (0.02, 0.07), "_deploy": (0.025, 0.04), "PUT": (0.01, 0.04), "GET": (0.004, 0.012)}


@dataclass
class Busy:
    """A cluster with one agent, whose callers send `rate` requests a second. It is a `Cluster` and a `Clock`.

    failed: the answers to callers' requests without a 200. load_seconds: how long a model takes to load.
    """

    way: str
    state: str
    rate: float
    seed: int
    load_seconds: float = 0.02
    now: float = 1000.0
    requests: int = 0
    failed: list[Any] = field(default_factory=list)
    last: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.way} {self.state} {self.rate} {self.seed}")
        self.core = ClusterCore("2.19.0", self._llm)
        self.resources = self.core.resources
        self.resources.clock = self.monotonic
        self._due = float("inf")
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
        self._due = self.now + self.random.random() / self.rate
        self.sleep(2 / self.rate)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """Let time pass, and the callers' requests arrive."""
        end = self.now + seconds
        while self._due <= end:
            self.now = self._due
            self._due += 1 / self.rate
            self.request()
        self.now = end

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
        answer = self._respond(Request(method, path, {"content-type": "application/json"}, data))
        self.sleep(seconds - before)
        return answer.status, answer.body

    def _respond(self, request: Request) -> Response:
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
    problem: str = ""


def run(way: str, state: str, rate: float, seed: int, directory: Path, load_seconds: float = 0.02) -> Outcome:
    """Upgrade an agent under traffic, and roll it back."""
    busy = Busy(way, state, rate, seed, load_seconds)
    before = busy.resources.model(busy.model)["model_state"]
    ids = agent_ids(busy, [busy.agent])
    documents = read_documents(busy, (2, 19, 0), ids)
    (offer,) = offers(documents, ids, f"{seed:032x}", way == "new connector")
    assert isinstance(offer, Offer), offer
    journal = Journal.create(directory, offer, documents, "http://127.0.0.1:1")
    upgraded = rolled_back = False
    problem = ""
    try:
        carry_out(busy, journal, lambda: probe.prove_again(busy, journal.record), credential=SECRET, clock=busy)
        upgraded = busy.uses_new_template()
        roll_back(busy, journal, clock=busy)
        rolled_back = not busy.uses_new_template() and busy.resources.model(busy.model)["model_state"] == before
    except (RolledBack, UndoFailed, ClusterError) as error:
        problem = str(error)
    left = len(busy.resources.connectors) - int(way != "internal")
    return Outcome(upgraded, rolled_back and not left, busy.requests, busy.failed, problem)


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
    print("connector      model     requests/s  upgraded  rolled back  requests  failed")
    with tempfile.TemporaryDirectory() as folder:
        for way, state, rate in itertools.product(WAYS, STATES, RATES):
            found = [run(way, state, rate, seed, Path(folder)) for seed in range(tries)]
            upgraded, rolled_back = sum(one.upgraded for one in found), sum(one.rolled_back for one in found)
            requests, failed = sum(one.requests for one in found), sum(len(one.failed) for one in found)
            row = f"{way:14} {state:9} {rate:10} {upgraded:6}/{tries} {rolled_back:9}/{tries} {requests:9} {failed:7}"
            print(row, *{one.problem for one in found if one.problem})


if __name__ == "__main__":
    main()
