"""Sessions of V2 agents: the LLM gets what it gets from the cluster for the whole conversation in one request."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from gateway.errors import GatewayError
from gateway.simulator.core import Executed
from tests.conftest import examples
from tests.delivery.frames import parsed, replaced
from tests.properties.test_sessions import (
    HOSTILE,
    INPUTS,
    OPTIONS,
    SYSTEM,
    Json,
    SessionDeployment,
    all_agents,
    messages_of,
)
from tests.properties.v2 import clean_request, is_native_spelling

THOROUGH, QUICK = 500, 100
CALL = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": '{"by":2}'}}
TOOL_TURN = [
    {"role": "user", "content": [{"type": "text", "text": "Zoom in."}]},
    {"role": "assistant", "content": [{"type": "text", "text": "So."}], "toolCalls": [CALL]},
    {"role": "tool", "toolCallId": "c1", "content": [{"type": "text", "text": "a red dot"}]},
]
SYSTEM_TURN = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
]
V2_INPUTS = [*filter(is_native_spelling, INPUTS), *[TOOL_TURN, SYSTEM_TURN] * 4]


class V2Session(RuleBasedStateMachine):
    """One session of a V2 agent."""

    deployment: SessionDeployment

    @initialize(agent=st.sampled_from(all_agents(v2=True)))
    def begin(self, agent: tuple[str, str]) -> None:
        version, self.name = agent
        self.deployment = SessionDeployment(version)
        self.cluster = self.deployment.cluster
        self.provider = self.cluster.profile(self.name).provider
        self.stored: list[Json] = []
        self.system: list[Json] = []
        self.memory_id = ""

    @rule(value=st.sampled_from(V2_INPUTS) | HOSTILE, restarts=st.booleans())
    def ask(self, value: Any, restarts: bool) -> None:
        if restarts:
            self.deployment.restart()
        new = (
            [{"role": "user", "content": _typed(value)}]
            if isinstance(value, str)
            else copy.deepcopy(messages_of(value))
        )
        system = [message for message in new if message["role"].casefold() in SYSTEM]
        rest = [message for message in new if message["role"].casefold() not in SYSTEM]
        body = {"input": value, "parameters": {"memory_id": self.memory_id}}
        _, became, changed = self.deployment.run(self.name, body, strict=False)
        if isinstance(became, GatewayError):
            event("refused")
            assert all(problem.place for problem in became.problems)
            return
        event(f"{became.status}")
        whole = copy.deepcopy([*(system or self.system), *self.stored, *rest])
        request, texts = clean_request(self.provider, whole)
        clean = self.cluster.core.execute(self.cluster.agents[self.name], request)
        assert _seen(became) == _seen(clean, texts)
        if became.status != 200:
            return
        assert changed is not None
        answer = msgspec.json.decode(changed.body)
        self.memory_id = answer["memory_id"]
        self.system = system or self.system
        said = {"role": "assistant", "content": _typed(answer["message"]["content"][0]["text"])}
        self.stored += [*rest, said]

    def teardown(self) -> None:
        if hasattr(self, "deployment"):
            self.deployment.close()


def _typed(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


def _seen(executed: Executed, texts: Mapping[str, str] | None = None) -> tuple[int, list[Any]]:
    """Status, and what the LLM received. texts: what stands for each word of the request."""
    return executed.status, [replaced(parsed(body), texts or {}) for body in executed.llm_bodies]


def test_sessions_of_v2_agents() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(V2Session, settings=runs)  # type: ignore[no-untyped-call]
