"""Sessions of every agent, turn after turn: the LLM gets what the session holds and what is new, once and in order.

The test keeps the conversation itself. What the LLM received is judged by the oracle, as if the client had sent that
conversation whole.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.agents.memory import MemoryReader
from gateway.config.schema import AgentRule, Agents, Settings
from gateway.delivery.plan import Plan
from gateway.errors import GatewayError
from gateway.execute.handler import Handler
from gateway.execute.media import Inliner
from gateway.execute.rewrite import Rewrite
from gateway.execute.rewriter import Rewriter
from gateway.execute.session_run import SessionRuns
from gateway.memory.conversion import place_map, relocate
from gateway.memory.sessions import BusySessions, Sessions
from gateway.mlcommons.generations import Generation
from gateway.observe.logs import configure
from gateway.ports import Answer, ExecuteCall
from gateway.simulator.core import Executed
from gateway.simulator.llm import LlmEndpoints, answer_any
from gateway.simulator.llm.endpoints import ANSWER
from gateway.unified.model import AgentInput
from gateway.unified.request import read_execute
from tests.conftest import examples
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import Sent
from tests.memory.in_memory_store import InMemoryStore
from tests.oracle import Oracle, Outcome, Verdict
from tests.properties.deployment import Deployment
from tests.strategies import hostile_text

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
MOST_TURNS = 5
THOROUGH, QUICK = 2000, 300
OPTIONS: dict[str, Any] = {
    "stateful_step_count": MOST_TURNS,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
INPUTS = [case.input for case in CASES.values() if not case.parameters and not case.pairs]
HOSTILE = hostile_text().filter(str.strip)
KNOWN_ROLES = {"user": "user", "assistant": "assistant", "tool": "user"}
SYSTEM = ("system", "developer")
UNREAD = re.compile("v2.*-gemini")  # the cluster can't read its answers (ANSWER_NOT_READ)

Json = dict[str, Any]


class SessionDeployment(Deployment):
    """A deployment whose agents have the gateway's memory. After `restart`, the gateway knows only what is stored."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.store = InMemoryStore()
        self.restart()

    def restart(self) -> None:
        known = Settings(agents=Agents(rules=[AgentRule("*", memory="gateway")]))
        log = configure("error", "json")
        sessions = Sessions(self.store, known.memory, log, BusySessions())
        rewriter = Rewriter(known)
        runs = SessionRuns(sessions, known, self.recorder)
        media = Inliner(rewriter.options, None, log)
        self.handler = Handler(known, self.resolver, MemoryReader(self), media, rewriter, self.recorder, runs)

    def run(
        self, agent: str, body: Json, strict: bool = True
    ) -> tuple[Plan | None, Executed | GatewayError, Answer | None]:
        """Run an agent. Return the plan, what became of the request, and the client's answer. strict: see `send`."""
        self.cluster.forget()
        agent_id, data = self.cluster.agents[agent], json.dumps(body).encode()
        headers = CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json"}))
        call = ExecuteCall(agent_id, "POST", "/", headers, data, "request", streaming=False)
        self.recorder.plan = None
        try:
            forward = self._run(self.handler(call))
        except GatewayError as error:
            return None, error, None
        self.core.llm = LlmEndpoints() if strict else answer_any
        try:
            executed = self._execute(agent_id, data, forward)
        finally:
            self.core.llm = answer_any
        assert forward.stages
        changed = self._run(_awaited(forward.finish(Answer(executed.status, {}, json.dumps(executed.body).encode()))))
        return self.recorder.plan, executed, changed


async def _awaited(work: Any) -> Answer | None:
    answer: Answer | None = await asyncio.shield(work)
    return answer


@cache
def all_agents(v2: bool = False) -> list[tuple[str, str]]:
    """Version and name of every agent; of V2 agents if `v2`."""
    found = []
    for version in VERSIONS:
        deployment = SessionDeployment(version)
        names = sorted(name for name in deployment.cluster.agents if not UNREAD.fullmatch(name))
        found += [(version, name) for name in names if _is_v2(deployment, name) is v2]
        deployment.close()
    return found


def _is_v2(deployment: Deployment, name: str) -> bool:
    return deployment.cluster.profile(name).generation is Generation.UNIFIED_V2


class Model:
    """The conversation as the client knows it, and as the session should hold it."""

    def __init__(self) -> None:
        self.sent: list[Json] = []
        self.stored: list[Json] = []
        self.system = ""
        self.sends_whole = False

    def expected(self, new: list[Json]) -> AgentInput:
        """The whole conversation, with the places that the client knows."""
        first = next(i for i, message in enumerate(new) if message["role"].casefold() not in SYSTEM)
        parts = [(message, f"input[{i}]") for i, message in enumerate(new[:first])]
        if not parts and self.system and not any(message["role"].casefold() in SYSTEM for message in new):
            parts = [({"role": "system", "content": [{"text": self.system}]}, "memory.system")]
        parts += [(message, f"memory[{seq}]") for seq, message in enumerate(self.stored)]
        parts += [(message, f"input[{i}]") for i, message in enumerate(new[first:], first)]
        read = read_execute(json.dumps({"input": [message for message, _ in parts]}).encode())
        assert read.input is not None
        return relocate(read.input, place_map([lambda rest, at=at: at + rest for _, at in parts]))

    def may_repeat(self, new: list[Json]) -> bool:
        """Whether these messages may be the session's own, perhaps changed."""
        begun = [_alike(_stored(message)) for message in new if message["role"].casefold() not in SYSTEM]
        stored = [_alike(message) for message in self.stored]
        repeats = any(message in stored for message in begun) and any(m["role"] == "assistant" for m in begun)
        return self.sends_whole or repeats or (bool(stored) and begun[:1] == stored[:1])

    def add(self, new: list[Json]) -> None:
        """A turn was answered."""
        system = [text for message in new if message["role"].casefold() in SYSTEM for text in _texts(message)]
        if system:
            self.system = "\n\n".join(system)
        self.sent += new
        self.stored += [_stored(message) for message in new if message["role"].casefold() not in SYSTEM]
        for messages in (self.sent, self.stored):
            messages.append({"role": "assistant", "content": [{"text": ANSWER}]})


def _stored(message: Json) -> Json:
    role = message["role"].casefold()
    if "toolCallId" in message:
        result = {"toolUseId": message["toolCallId"], "content": message["content"]}
        return {"role": "user", "content": [{"toolResult": result}]}
    if "toolCalls" in message:
        return {"role": role, "content": [*message["content"], *map(_use, message["toolCalls"])]}
    if role in KNOWN_ROLES:
        return {**message, "role": KNOWN_ROLES[role]}
    first, *rest = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
    return {"role": "user", "content": [{"text": f"[{message['role']}]: {first['text']}"}, *rest]}


def _use(call: Json) -> Json:
    function = call["function"]
    return {"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}}


def _alike(message: Json) -> Json:
    """The message in one spelling."""
    content = message["content"]
    blocks = [{"text": content}] if isinstance(content, str) else content
    return {**message, "content": [{name: block[name] for name in block if name != "type"} for block in blocks]}


def _texts(message: Json) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [block["text"] for block in content]


def messages_of(value: Any) -> list[Json]:
    """An `input` as messages."""
    if isinstance(value, str):
        return [{"role": "user", "content": [{"text": value}]}]
    return value if "role" in value[0] else [{"role": "user", "content": value}]


class Session(RuleBasedStateMachine):
    """One session of one agent."""

    deployment: SessionDeployment

    @initialize(agent=st.sampled_from(all_agents()))
    def begin(self, agent: tuple[str, str]) -> None:
        self.begin_with(agent)

    def begin_with(self, agent: tuple[str, str]) -> None:
        self.version, self.name = agent
        self.deployment = SessionDeployment(self.version)
        self.oracle = Oracle(self.deployment.cluster)
        self.model = Model()
        self.memory_id = ""

    @rule(value=st.sampled_from(INPUTS) | HOSTILE, as_question=st.booleans(), restarts=st.booleans())
    def ask(self, value: Any, as_question: bool, restarts: bool) -> None:
        self.ask_anew(value, as_question, restarts)

    def ask_anew(self, value: Any, as_question: bool, restarts: bool) -> None:
        if restarts:
            self.deployment.restart()
        new = messages_of(value)
        if isinstance(value, list) and "role" in value[0] and self.model.may_repeat(new):
            return  # they may be a branch of it (tests/properties/test_branches.py)
        body = {"parameters": {"question": value}} if as_question and isinstance(value, str) else {"input": value}
        self._ask(body, new, isinstance(value, list) and "role" in value[0])

    @rule(text=HOSTILE)
    def ask_with_the_whole_conversation(self, text: str) -> None:
        new = {"role": "user", "content": text}
        if any(message["role"].casefold() in SYSTEM for message in self.model.sent):
            return  # then the client's system text is sent once more, and replaces the stored one
        self._ask({"input": [*self.model.sent, new]}, [new], True, len(self.model.sent))
        self.model.sends_whole = True

    def _ask(self, body: Json, new: list[Json], has_places: bool, known: int = 0) -> None:
        body = {**body, "parameters": {**body.get("parameters", {}), "memory_id": self.memory_id}}
        plan, became, changed = self.deployment.run(self.name, body)
        if isinstance(became, GatewayError):
            event("refused")
            assert all(problem.place for problem in became.problems)
            return
        event(f"{became.status}")
        cluster = self.deployment.cluster
        stored = cluster.stored(cluster.profile(self.name), None)
        sent = Sent(self._expected(body, new, has_places, known), _without_limit(plan), None, became, stored)
        verdict = self.judge(sent)
        assert verdict.outcome is Outcome.ARRIVED, (self.version, self.name, verdict)
        assert changed is not None
        self.memory_id = _memory_id(msgspec.json.decode(changed.body))
        self.model.add(new)

    def judge(self, sent: Sent) -> Verdict:
        return self.oracle.judge(self.name, {}, (), sent)

    def _expected(self, body: Json, new: list[Json], has_places: bool, known: int) -> AgentInput:
        if not self.model.stored and not self.model.system and "input" in body:
            whole = read_execute(json.dumps(body).encode()).input
            assert whole is not None
            return whole
        expected = self.model.expected(new)
        if has_places and not known:
            return expected
        place = "parameters.question" if "input" not in body else "input"

        def client_place(at: str) -> str:
            if not at.startswith("input"):
                return at
            if known:
                return at.replace("input[0]", f"input[{known}]", 1)
            if isinstance(body.get("input"), list):
                return place + at.removeprefix("input[0]").removeprefix(".content")
            return place

        return relocate(expected, client_place)

    def teardown(self) -> None:
        if hasattr(self, "deployment"):
            self.deployment.close()


def _without_limit(plan: Plan | None) -> Rewrite | None:
    """The plan without its parameters: the oracle takes the limit of the cluster's memory for one of the caller."""
    return None if plan is None else Rewrite(_bare(plan), None)


def _bare(plan: Plan) -> Plan:
    return Plan(plan.strategy, plan.provider, {}, plan.question, plan.request, plan.notices, plan.proved)


def _memory_id(body: Mapping[str, Any]) -> str:
    if "inference_results" not in body:
        return str(body["memory_id"])
    outputs = body["inference_results"][0]["output"]
    return next(output["result"] for output in outputs if output["name"] == "memory_id")


def test_sessions() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(Session, settings=runs)  # type: ignore[no-untyped-call]
