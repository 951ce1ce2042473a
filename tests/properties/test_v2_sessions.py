"""Sessions of V2 agents: the LLM gets what it gets from the cluster for the whole conversation in one request."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from gateway.errors import GatewayError
from tests.conftest import examples
from tests.properties.test_sessions import (
    HOSTILE,
    INPUTS,
    OPTIONS,
    Json,
    SessionDeployment,
    all_agents,
    messages_of,
)
from tests.properties.v2 import SYSTEM, clean_request, in_cluster_spelling, seen, typed

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
V2_INPUTS = [*INPUTS, *[TOOL_TURN, SYSTEM_TURN] * 4]
KNOWN_ROLES = ("user", "assistant", "tool")


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
        new = in_cluster_spelling(copy.deepcopy(messages_of(value)))
        system = [message for message in new if message["role"] in SYSTEM]
        rest = [message for message in new if message["role"] not in SYSTEM]
        begun, known = _stored(rest), self.stored[: len(rest)]
        if begun[:1] == known[:1] and begun != known:
            return  # then the messages that they share are known (tests/memory/test_prefix.py)
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
        assert seen(became) == seen(clean, texts)
        if became.status != 200:
            return
        assert changed is not None
        answer = msgspec.json.decode(changed.body)
        self.memory_id = answer["memory_id"]
        if system:
            system_text = "\n\n".join(block["text"] for message in system for block in message["content"])
            self.system = [{"role": "system", "content": typed(system_text)}]
        answered = {"role": "assistant", "content": typed(answer["message"]["content"][0]["text"])}
        self.stored += [*begun, answered]

    def teardown(self) -> None:
        if hasattr(self, "deployment"):
            self.deployment.close()


def _stored(messages: list[Json]) -> list[Json]:
    """Messages as the session holds them: those of unknown roles are the user's, with the role before the text."""
    return [message if message["role"] in KNOWN_ROLES else _named(message) for message in messages]


def _named(message: Json) -> Json:
    first, *rest = message["content"]
    return {"role": "user", "content": [*typed(f"[{message['role']}]: {first['text']}"), *rest]}


def test_sessions_of_v2_agents() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(V2Session, settings=runs)  # type: ignore[no-untyped-call]
