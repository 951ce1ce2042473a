"""Sessions of V2 agents: as those of all others (`test_sessions`), judged by what the cluster makes of `input`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.conftest import examples
from tests.delivery.simulated_cluster import Sent
from tests.native_oracle import judge_native
from tests.oracle import Verdict
from tests.properties.test_sessions import HOSTILE, INPUTS, OPTIONS, Session, all_agents

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


class V2Session(Session):
    """One session of a V2 agent."""

    @initialize(agent=st.sampled_from(all_agents(v2=True)))
    def begin(self, agent: tuple[str, str]) -> None:
        self.begin_with(agent)

    @rule(value=st.sampled_from(V2_INPUTS) | HOSTILE, as_question=st.booleans(), restarts=st.booleans())
    def ask(self, value: Any, as_question: bool, restarts: bool) -> None:
        self.ask_anew(value, as_question, restarts)

    def judge(self, sent: Sent) -> Verdict:
        return judge_native(self.deployment.cluster, self.name, sent)


def test_sessions_of_v2_agents() -> None:
    runs = examples(THOROUGH if settings().max_examples == 100 else QUICK, **OPTIONS)
    run_state_machine_as_test(V2Session, settings=runs)  # type: ignore[no-untyped-call]
