"""The matrix must see a delivery that is wrong: five wrong ones, each made by changing the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.delivery import escaping, plan, search, target
from gateway.delivery.call_model import CallModel
from gateway.delivery.candidate import Candidate
from gateway.delivery.proof import Proved
from gateway.delivery.target import TargetTurns
from gateway.execute import rewrite
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.model import AgentInput, Text
from tests.delivery.cases import CASES
from tests.matrix import cells
from tests.oracle import Outcome

AGENTS = {
    "2.19.0": ["flow-a", "cflow-a", "conv-a", "flow-b", "conv-e2", "flow-d", "conv-d"],
    "3.4.0": ["flow-bedrock_tutorial", "conv-bedrock_tutorial", "fc-bedrock_tutorial", "fc-openai_upgraded"],
}


def outcomes() -> dict[Outcome, set[str]]:
    """Which inputs ended how, over the agents above."""
    found: dict[Outcome, set[str]] = {outcome: set() for outcome in Outcome}
    for version, agents in AGENTS.items():
        for cell in cells(version, agents):
            found[cell.verdict.outcome].add(cell.case)
    return found


def plan_for(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real plan, made for another conversation than the client's."""
    real = plan.plan

    def wrong(profile: AgentProfile, provider: Any, agent_input: AgentInput, *rest: Any) -> plan.Plan:
        return real(profile, provider, change(agent_input), *rest)

    monkeypatch.setattr(rewrite, "plan", wrong)


def accept(call: CallModel, candidate: Candidate, *_: object) -> Proved:
    return Proved({**call.params, **candidate.parameters})


def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "prove", accept)


@pytest.mark.slow
def test_text_only_loses_media(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(conversation: AgentInput) -> AgentInput:
        messages = [
            replace(m, content=tuple(b for b in m.content if isinstance(b, Text))) for m in conversation.messages
        ]
        return replace(conversation, messages=tuple(m for m in messages if m.content) or conversation.messages)

    plan_for(texts, monkeypatch)
    found = outcomes()
    assert {"text, image", "interleaved", "images in history", "PDF"} <= found[Outcome.LOST]
    assert "plain text" not in found[Outcome.LOST] | found[Outcome.BROKEN]


@pytest.mark.slow
def test_dropped_history_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for(lambda conversation: replace(conversation, messages=conversation.messages[-1:]), monkeypatch)
    found = outcomes()
    assert {"conversation", "images in history", "two user turns"} <= found[Outcome.LOST]
    assert "text, image" not in found[Outcome.LOST] | found[Outcome.BROKEN]


@pytest.mark.slow
def test_swapped_order_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(conversation: AgentInput) -> AgentInput:
        return replace(conversation, messages=tuple(replace(m, content=m.content[::-1]) for m in conversation.messages))

    plan_for(swapped, monkeypatch)
    found = outcomes()
    assert {"text, image", "interleaved", "several texts", "two images"} <= found[Outcome.LOST]
    assert "plain text" not in found[Outcome.LOST] | found[Outcome.BROKEN]


def test_literal_text_breaks_the_agents_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def literal(call: CallModel, target: TargetTurns) -> Iterator[Candidate]:
        turns = {call.provider.messages_field: json.dumps(target.turns), "question": target.question.stored}
        yield Candidate("messages", turns, lambda env: None)

    unproved(monkeypatch)
    monkeypatch.setattr(search, "STRATEGIES", (literal,))
    found = outcomes()
    assert {"plain text", "text, image", "conversation"} <= found[Outcome.BROKEN]


@pytest.mark.slow
def test_text_without_guards_is_expanded_or_breaks_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    unproved(monkeypatch)
    monkeypatch.setattr(target, "is_storable", lambda text: True)
    monkeypatch.setattr(escaping, "_string", lambda text: json.dumps(text, ensure_ascii=False))
    found = outcomes()
    assert {"${parameters.question}", "${parameters.}", "JSON object"} <= found[Outcome.BROKEN]
    assert found[Outcome.LOST] | found[Outcome.BROKEN] < set(CASES)
