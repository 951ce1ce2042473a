"""Conversations of mixed callers: each turn arrives exactly or is refused, and no turn harms a later one.

A turn is a unified input through the gateway, or a plain question or text that its caller sends to the gateway or to
the cluster. Between turns, the agent's connector is upgraded and rolled back, and time passes. What a later turn reads
of an earlier one is compared with a memory that holds the readable text itself.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gateway.mlcommons.generations import Generation
from gateway.simulator.core import Executed
from tests.conftest import examples
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import Sent
from tests.native_oracle import judge_native
from tests.oracle import Oracle, Outcome, Verdict
from tests.oracle_rules import readable
from tests.properties.deployment import Deployment, Upgrade
from tests.properties.test_sessions import UNREAD
from tests.properties.v2 import readable_messages, seen
from tests.strategies import hostile_text

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
MOST_TURNS = 8
MOST_UPGRADES = 2
THOROUGH, QUICK = 2000, 300  # of the latter, a quick run has a share
OPTIONS: dict[str, Any] = {
    "stateful_step_count": MOST_TURNS + 3 * MOST_UPGRADES,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
INPUTS = [case.input for case in CASES.values() if not case.parameters and not case.pairs]
HOSTILE = hostile_text().filter(str.strip)
WORDS = st.sampled_from(["and now?", 'say "hi" \\ \n$', "größer 😀", "costs $5 {x} [1]", '{"a": 1}'])
SECONDS = st.sampled_from([0.5, 1.0, 3.0])
UPGRADABLE = re.compile(r"(?!fc_signed).*-([defgi]|gemini_text|(bedrock|openai)_tutorial)")  # their names
FINE = (Outcome.ARRIVED, Outcome.REFUSED)


@cache
def remembering_agents() -> list[tuple[str, str]]:
    """Version and name of every agent that remembers, but for the one that the cluster can't run (ANSWER_NOT_READ)."""
    found = []
    for version in VERSIONS:
        deployment = Deployment(version)
        agents = sorted(name for name in deployment.cluster.agents if not UNREAD.fullmatch(name))
        found += [(version, name) for name in agents if deployment.cluster.profile(name).memory_type]
        deployment.close()
    return found


def chosen_agents() -> st.SearchStrategy[tuple[str, str]]:
    """Those whose connector can be upgraded, and unified ones, more often than others."""
    agents = remembering_agents()
    upgradable = [agent for agent in agents if UPGRADABLE.fullmatch(agent[1])]
    unified = [agent for agent in agents if agent[1].startswith(("v1", "v2"))]
    return st.sampled_from(upgradable) | st.sampled_from(unified) | st.sampled_from(agents)


class Conversation(RuleBasedStateMachine):
    """One memory of one agent.

    turns: how many there were. made: the upgrade that is in use. changed_at: when the connector was changed last, by
    the deployment's clock.
    """

    deployment: Deployment

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        version, self.name = data.draw(chosen_agents())
        self.deployment = Deployment(version)
        self.cluster, self.core = self.deployment.cluster, self.deployment.core
        self.oracle = Oracle(self.cluster)
        self.agent_id = self.cluster.agents[self.name]
        self.generation = self.cluster.profile(self.name).generation
        self.is_v2 = self.generation is Generation.UNIFIED_V2
        self.memory_id = "" if self.is_v2 else self.core.memory.create("a conversation").memory_id
        self.turns = self.upgrades = 0
        self.can_upgrade = UPGRADABLE.fullmatch(self.name) is not None
        self.made: Upgrade | None = None
        self.changed_at = -self.deployment.ttl

    @precondition(lambda self: self.turns < MOST_TURNS)
    @rule(data=st.data())
    def ask_through_the_gateway(self, data: st.DataObject) -> None:
        self.turns += 1
        body = {"input": data.draw(st.sampled_from(INPUTS) | HOSTILE), **self._in_memory(self.memory_id)}
        if self.is_v2:
            self._ask_v2(body)
            return
        before = self._replayed()
        has_unanswered = any(not turn.response for turn in self.core.memory.earlier(self.memory_id, None))
        sent = self.deployment.send(self.name, body)
        verdict = self.oracle.judge(self.name, {}, before, sent, has_unanswered)
        event(verdict.outcome.value)
        self._check(verdict, sent)

    @precondition(lambda self: self.turns < MOST_TURNS)
    @rule(text=WORDS, through_gateway=st.booleans(), as_input=st.booleans())
    def ask_plainly(self, text: str, through_gateway: bool, as_input: bool) -> None:
        """A request of a caller who knows nothing of the gateway."""
        self.turns += 1
        if self.is_v2 or (as_input and self.generation is Generation.UNIFIED_V1):
            asked: dict[str, Any] = {"input": text}
        else:
            asked = {"parameters": {"question": text}}
        clean = self._run(asked, self._clean_memory())
        if through_gateway:
            sent = self.deployment.send(self.name, self._with_memory(asked, self.memory_id), strict=False)
            assert sent.executed is not None, sent.error
            found = sent.executed
        else:
            found = self._run(asked, self.memory_id)
        event(f"plain {found.status}")
        assert seen(found) == seen(clean)
        self._note_memory(found)

    @precondition(lambda self: self.can_upgrade and self.made is None and self.upgrades < MOST_UPGRADES)
    @rule(new_connector=st.booleans(), tells_gateway=st.booleans())
    def upgrade(self, new_connector: bool, tells_gateway: bool) -> None:
        self.upgrades += 1
        self.made = self.deployment.upgrade(self.name, new_connector, tells_gateway)
        event("upgrade")
        self._connector_changed(tells_gateway)

    @precondition(lambda self: self.made is not None)
    @rule(tells_gateway=st.booleans())
    def roll_back(self, tells_gateway: bool) -> None:
        assert self.made is not None
        self.deployment.roll_back(self.made, tells_gateway)
        self.made = None
        event("rollback")
        self._connector_changed(tells_gateway)

    @precondition(lambda self: self.turns == MOST_TURNS or self.deployment.now < self.changed_at + self.deployment.ttl)
    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        self.deployment.sleep(seconds)

    def teardown(self) -> None:
        if hasattr(self, "deployment"):
            self.deployment.close()

    def _connector_changed(self, tells_gateway: bool) -> None:
        self.changed_at = -self.deployment.ttl if tells_gateway else self.deployment.now
        self.oracle = Oracle(self.cluster)

    def _check(self, verdict: Verdict, sent: Sent) -> None:
        used, now = self.deployment.recorder.profile, self.cluster.profile(self.name)
        assert used is not None
        if used.models == now.models:
            assert verdict.outcome in FINE, verdict
        else:
            event(f"cached profile: {verdict.outcome.value}")
            assert self.deployment.now < self.changed_at + self.deployment.ttl
            if self.made is not None:
                assert verdict.outcome in FINE, verdict
        if sent.error is not None:
            assert all(problem.place for problem in sent.error.problems)

    # Memory

    def _run(self, body: Mapping[str, Any], memory_id: str) -> Executed:
        return self.core.execute(self.agent_id, self._with_memory(body, memory_id))

    def _with_memory(self, body: Mapping[str, Any], memory_id: str) -> dict[str, Any]:
        parameters = {**body.get("parameters", {}), **self._in_memory(memory_id).get("parameters", {})}
        return {**body, **({"parameters": parameters} if parameters else {})}

    def _in_memory(self, memory_id: str) -> dict[str, Any]:
        return {"parameters": {"memory_id": memory_id}} if memory_id else {}

    def _clean_memory(self) -> str:
        """A memory that holds the readable texts of this one; "" for none."""
        if self.is_v2:
            if not self.memory_id:
                return ""
            self.core.sessions["clean"] = readable_messages(self.core.sessions[self.memory_id])
            return "clean"
        return self.cluster.remembering([(readable(question), answer) for question, answer in self._replayed()])

    def _replayed(self) -> list[tuple[str, str]]:
        """The stored turns that the agent replays. Only unified V1 agents replay one that failed without an answer."""
        held = self.core.memory.earlier(self.memory_id, None)
        unified = self.generation is Generation.UNIFIED_V1
        return [(turn.input or "", turn.response or "") for turn in held if turn.response or unified]

    def _note_memory(self, executed: Executed) -> None:
        if self.is_v2 and executed.status == 200:
            self.memory_id = executed.body["memory_id"]

    # V2

    def _ask_v2(self, body: Mapping[str, Any]) -> None:
        held = copy.deepcopy(self.core.sessions.get(self.memory_id, []))
        sent = self.deployment.send(self.name, body)
        verdict = judge_native(self.cluster, self.name, sent, {}, held)
        event(f"V2 {verdict.outcome.value}")
        if _names_a_document_twice(held, sent):
            return  # docs/reference/limitations.md, COMBINATION_NOT_DELIVERABLE
        assert verdict.outcome in FINE, verdict
        if sent.error is not None:
            assert all(problem.place for problem in sent.error.problems)
        else:
            assert sent.executed is not None
            self._note_memory(sent.executed)


def _names_a_document_twice(held: Any, sent: Sent) -> bool:
    """Whether Bedrock refuses a document because the cluster gave one of an earlier turn the same name."""
    assert sent.input is not None
    has_document = any(medium.kind == "document" for medium in sent.input.media)
    is_refused = sent.executed is not None and sent.executed.status == 400
    return is_refused and has_document and '"document"' in json.dumps(held)


def test_conversations() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(Conversation, settings=runs)  # type: ignore[no-untyped-call]
