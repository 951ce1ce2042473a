"""What is done with an answer: alone, around the use case's own work, and of event streams."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.agents.resolver import ResolvedAgent
from gateway.codes import Notice
from gateway.config.policy import Guardrail, UsageBudget
from gateway.config.schema import Settings
from gateway.errors import GuardrailRefused, GuardrailUnavailable
from gateway.execute import policy_handler
from gateway.execute.policy_handler import GuardedCall, PolicyHandler, PolicyRun
from gateway.execute.run_events import read_usage
from gateway.observe.logs import configure
from gateway.observe.metrics import Metrics
from gateway.observe.record import Delivery
from gateway.policy.budgets import Budgets, Ledger, MemoryBudgetStore
from gateway.policy.guardrails import Guardrails
from gateway.policy.hooks import Function, Hook
from gateway.policy.policies import Policies
from gateway.policy.usage import Meter, Prices
from gateway.ports import Answer, ExecuteCall, Forward
from gateway.unified.limits import ParseLimits
from tests.agents.recorded import profile_of
from tests.execute.stub_cluster import V2
from tests.policy.conftest import Start, v2_answer
from tests.policy.test_budget_stores import SlowStore, begin
from tests.policy.test_usage import REPORTED, legacy
from tests.proxy.use_case import Stage

AGENT = ResolvedAgent(profile_of("3.6.0", "v2_bedrock"))
BODY = json.dumps(v2_answer("call 4111")[1]).encode()
LOG = configure("error", "json")


class Session:
    """Stands for the use case's own work with an answer: notes what it is given."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.finished: list[tuple[int, bytes]] = []
        self.abandoned = 0

    async def finish(self, status: int, body: bytes) -> Answer | None:
        self.finished.append((status, body))
        return self.answer

    def abandon(self) -> None:
        self.abandoned += 1

    def forward(self, **more: Any) -> Forward:
        return Forward([b"{}"], stages=(Stage(self.finish, abandon=self.abandon),), **more)


class Env:
    """Policies with one limits, and guardrails whose function is `verdict`."""

    def __init__(self, verdict: Any = None, usage_header: bool = False) -> None:
        self.metrics = Metrics()
        self.store = MemoryBudgetStore()
        budgets = Budgets([UsageBudget(tokens=100)], Ledger(self.store), False, LOG, self.metrics.usage)
        hooks: list[tuple[Guardrail, Hook]] = [(Guardrail("own", answers=True), Function(verdict))] if verdict else []
        guardrails = Guardrails(hooks, LOG, self.metrics)
        self.policies = Policies(Meter(Prices([]), self.metrics.usage), budgets, guardrails, usage_header)
        self.agent_guardrails = guardrails.for_agent("a", "")

    async def run(self, streaming: bool = False) -> PolicyRun:
        assert self.policies.budgets is not None
        charges = await self.policies.budgets.admit("a", "", {})
        guarded = None
        if self.agent_guardrails is not None:
            headers = CIMultiDictProxy(CIMultiDict[str]())
            call = ExecuteCall("a", "POST", "/", headers, b"{}", "id", streaming)
            guarded = GuardedCall(self.agent_guardrails, call, AGENT, ParseLimits(), {})
        return PolicyRun(self.policies, AGENT, charges, streaming, guarded)

    @property
    def spent(self) -> float:
        return sum(self.store._spent.values())


def changing(document: Any) -> Any:
    [block] = document["answer"]["messages"][0]["content"]
    return {"verdict": "change", "texts": [{"place": block["place"], "text": "call [card]"}]}


def refusing(document: Any) -> Any:
    return {"verdict": "refuse", "reason": "no"}


async def test_the_use_case_gets_the_answer_as_the_guardrail_changed_it() -> None:
    env, session = Env(changing), Session(Answer(200, {"X-Own": "1"}, b"own"))
    forward = session.forward().through(await env.run())
    answer = await forward.finish(Answer(200, {}, BODY))
    [(_, given)] = session.finished
    assert json.loads(given)["message"]["content"] == [{"text": "call [card]"}]
    assert answer == Answer(200, {"X-Own": "1", "X-MLC-Gateway-Notice": "GUARDRAIL_CHANGED"}, b"own")
    assert [check["verdict"] for check in forward.guardrails] == ["change"]
    assert env.spent == 18


async def test_a_refused_answer_is_no_answer_for_the_use_case() -> None:
    env, session = Env(refusing), Session()
    forward = session.forward().through(await env.run())
    with pytest.raises(GuardrailRefused):
        await forward.finish(Answer(200, {}, BODY))
    assert session.finished == []
    assert env.spent == 18


async def test_an_error_is_not_checked() -> None:
    env, session = Env(refusing), Session()
    forward = session.forward().through(await env.run())
    error = Answer(500, {}, b"{}")
    assert await forward.finish(error) == error
    assert session.finished == [(500, b"{}")]


@pytest.mark.parametrize("known", [True, False])
async def test_what_is_not_held_is_read_after_it_was_sent(known: bool) -> None:
    env = Env()
    forward = Forward().through(await env.run())
    for body in (BODY if known else b"", BODY):
        assert forward.stages[0].report(200, body) is None
        assert env.spent == (18 if known else 0)


async def test_a_large_answer_is_read_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def read(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_usage(*args)

    monkeypatch.setattr(policy_handler, "read_usage", read)
    env = Env()
    forward = Forward().through(await env.run(streaming=True))
    left = forward.stages[0].report(200, b": wait\n\n" * 10_000 + b"".join(events()))
    assert left is not None
    assert (threads, env.spent) == ([], 0)
    await left
    assert (threads, env.spent) == (["reading"], 1125)
    assert forward.stages[0].report(200, BODY) is None
    assert env.spent == 1125


async def test_a_held_answer_is_measured_once() -> None:
    env = Env(usage_header=True)
    forward = Forward().through(await env.run())
    answer = await forward.finish(Answer(200, {}, BODY))
    assert answer.body == BODY
    assert answer.headers["X-MLC-Gateway-Usage"].startswith("input=11; output=7; model=")
    assert forward.stages[0].report(200, BODY) is None
    assert env.spent == 18


async def test_what_cannot_be_read_is_unknown_or_refused() -> None:
    own = Stage(Session().finish, left={"X-Own": "1"})
    forward = Forward(stages=(own,)).through(await Env(usage_header=True).run())
    assert forward.leave() == {"X-Own": "1", "X-MLC-Gateway-Usage": "unknown"}
    forward = Forward().through(await Env(refusing).run())
    with pytest.raises(GuardrailUnavailable, match="too large"):
        forward.leave()
    assert [check["verdict"] for check in forward.guardrails] == ["failed"]


def test_the_delivery_of_a_changed_request_has_the_notice() -> None:
    run = PolicyRun(Env().policies, AGENT, notices=[Notice("GUARDRAIL_CHANGED", "changed")])
    sent = Forward(delivery=Delivery(notices=("A",)), response_headers={"X-MLC-Gateway-Notice": "A"})
    forward = sent.through(run)
    assert forward.delivery == Delivery(notices=("A", "GUARDRAIL_CHANGED"))
    assert forward.response_headers == {"X-MLC-Gateway-Notice": "A, GUARDRAIL_CHANGED"}


def events() -> list[bytes]:
    outputs = [
        legacy({"name": "response", "dataAsMap": {"content": "hi", "is_last": False}}),
        legacy({"name": "token_usage", "dataAsMap": REPORTED}),
        legacy({"name": "response", "dataAsMap": {"content": "", "is_last": True}}),
    ]
    return [b"data: %b\n\n" % output for output in outputs]


async def test_of_a_stream_only_the_end_is_held(start: Start) -> None:
    place = await start({"budgets": [{"tokens": 1000}], "usage_header": True})
    goes_on = asyncio.Event()
    answer = place.cluster.answer

    async def stream(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await answer(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        first, *rest = events()
        await response.write(first)
        await goes_on.wait()
        for event in rest:
            await response.write(event)
        return response

    place.cluster.answer = stream  # type: ignore[method-assign, assignment]
    body = {"parameters": {"question": "hi", "include_token_usage": True}}
    url = f"http://127.0.0.1:{place.gateway.data_port}/_plugins/_ml/agents/{V2}/_execute/stream"
    async with place.session.post(url, json=body) as response:
        assert "X-MLC-Gateway-Usage" not in response.headers
        assert await response.content.readuntil(b"\n\n") == events()[0]
        assert place.metric("mlc_gateway_tokens_total") == 0
        goes_on.set()
        assert await response.read() == b"".join(events()[1:])
    assert place.metric("mlc_gateway_tokens_total", direction="input") == 1055
    assert (await place.execute(V2, body, path="_execute/stream")).status == 429


async def test_an_answer_is_sent_once_its_cost_is_stored() -> None:
    env, store = Env(), SlowStore()
    store.gate.set()
    assert env.policies.budgets is not None
    env.policies.budgets._ledger = Ledger(store)
    forward = Forward().through(await env.run())
    store.gate.clear()
    [finishing] = await begin(forward.finish(Answer(200, {}, BODY)))
    assert not finishing.done()
    store.gate.set()
    assert await finishing == Answer(200, {}, BODY)
    assert list(store.spent.values()) == [18.0]


# Agents that can't be read

NAMED: tuple[dict[str, Any], ...] = (
    {"budgets": [{"agent": "v2_*", "tokens": 100}]},
    {"guardrails": [{"agent": "v2_*", "name": "own", "url": "http://127.0.0.1:1/"}]},
)
IGNORED: tuple[dict[str, Any], ...] = (
    {"budgets": [{"tokens": 100}, {"agent": V2, "tokens": 50}]},
    {**NAMED[0], "on_store_failure": "allow"},
    {"guardrails": [{**NAMED[1]["guardrails"][0], "on_failure": "allow"}]},
)


@pytest.mark.parametrize(
    ("policy", "lookup", "status"),
    [(policy, lookup, 502) for policy in NAMED for lookup in (429, 503)]
    + [(policy, 403, 200) for policy in NAMED]
    + [(policy, 503, 200) for policy in IGNORED],
)
async def test_a_failing_cluster_does_not_switch_off_what_matches_names(
    start: Start, policy: dict[str, Any], lookup: int, status: int
) -> None:
    place = await start(policy)
    place.cluster.lookup_status = lookup
    answer = await place.execute(V2, {"parameters": {"question": "hi"}})
    assert (answer.status, len(place.cluster.bodies)) == (status, int(status == 200))


async def test_a_run_that_can_not_be_measured_gives_up_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    held = ["session"]

    async def handle(_: ExecuteCall) -> Forward:
        return Forward([b"{}"], stages=(Stage(abandon=held.clear),))

    class Unknown:
        async def agent(self, *_: Any) -> None:
            return None

    def fail(*_: Any) -> Forward:
        raise RuntimeError("prepare")

    monkeypatch.setattr(PolicyRun, "prepare", fail)
    policies = Policies(Meter(Prices([]), Metrics().usage))
    handler = PolicyHandler(handle, policies, Unknown(), Settings())  # type: ignore[arg-type]
    call = ExecuteCall("a", "POST", "/", CIMultiDictProxy(CIMultiDict()), b"{}", "id", False)
    with pytest.raises(RuntimeError):
        await handler(call)
    assert not held
