"""Conversations of mixed callers: each turn arrives exactly or is refused, and no turn harms a later one.

A turn is a unified input through the gateway, or a plain question that its caller sends directly. What a later turn
reads of an earlier one is compared with a memory that holds the readable text itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gateway.mlcommons.generations import Generation
from gateway.simulator.memory import Memory
from tests.conftest import examples
from tests.delivery.cases import CASES
from tests.delivery.frames import parsed
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.oracle import Oracle, Outcome
from tests.oracle_rules import readable
from tests.strategies import hostile_text

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
MOST_TURNS = 8
THOROUGH, QUICK = 2000, 300  # of the latter, a quick run has a share
OPTIONS: dict[str, Any] = {
    "stateful_step_count": MOST_TURNS,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
LIMIT = 10  # turns that an agent replays (`message_history_limit`)
INPUTS = st.one_of(
    st.sampled_from([case.input for case in CASES.values() if not case.parameters and not case.pairs]),
    hostile_text().filter(str.strip),
)
WORDS = st.sampled_from(["and now?", 'say "hi" \\ \n$', "größer 😀", "costs $5 {x} [1]", '{"a": 1}'])


@cache
def remembering_agents() -> list[tuple[str, str]]:
    return [
        (version, name)
        for version in VERSIONS
        for name in sorted(cluster_of(version).agents)
        if cluster_of(version).profile(name).memory_type
    ]


@cache
def oracle_of(version: str) -> Oracle:
    return Oracle(cluster_of(version))


class Conversation(RuleBasedStateMachine):
    """One memory of one agent. turns: how many there were."""

    cluster: SimulatedCluster
    memory: Memory

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.version, self.name = data.draw(st.sampled_from(remembering_agents()))
        self.cluster = cluster_of(self.version)
        self.memory = self.cluster.core.memory.create("a conversation")
        self.turns = 0

    @precondition(lambda self: self.turns < MOST_TURNS)
    @rule(given=INPUTS)
    def ask_through_the_gateway(self, given: Any) -> None:
        self.turns += 1
        held = [(turn.input, turn.response) for turn in self._held() if turn.response]
        before = self._readable()
        sent = self.cluster.send(self.name, {"input": given}, held[-LIMIT:], memory_id=self.memory.memory_id)
        verdict = oracle_of(self.version).judge(self.name, {}, before, sent)
        event(verdict.outcome.value)
        assert verdict.outcome in (Outcome.ARRIVED, Outcome.REFUSED), verdict
        if sent.error is not None:
            assert all(problem.place for problem in sent.error.problems)

    @precondition(lambda self: self.turns < MOST_TURNS)
    @rule(text=WORDS)
    def ask_directly(self, text: str) -> None:
        self.turns += 1
        agent_id = self.cluster.agents[self.name]
        clean = self.cluster.ask(agent_id, {"question": text}, self._readable())
        asked = self.cluster.core.execute(
            agent_id, {"parameters": {"question": text, "memory_id": self.memory.memory_id}}
        )
        event(f"direct {asked.status}")
        assert (asked.status, list(map(parsed, asked.llm_bodies))) == (
            clean.status,
            list(map(parsed, clean.llm_bodies)),
        )

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.forget()
            oracle_of(self.version).frames.forget()

    def _held(self) -> list[Any]:
        return self.cluster.core.memory.earlier(self.memory.memory_id, None)

    def _readable(self) -> list[tuple[str, str]]:
        """What the agent replays. Only unified V1 agents replay a turn that failed without an answer."""
        unified = self.cluster.profile(self.name).generation is Generation.UNIFIED_V1
        return [(readable(turn.input or ""), turn.response) for turn in self._held() if turn.response or unified]


def test_conversations() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(Conversation, settings=runs)  # type: ignore[no-untyped-call]
