"""The case of roles does not change what is delivered, stored, refused or reported."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.execute.rewrite import RewriteOptions
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput, InputType
from tests.conftest import examples
from tests.delivery.simulated_cluster import Sent, cluster_of
from tests.matrix import VERSIONS
from tests.strategies import conversations, in_any_case, spelled

AGENTS = [(version, name) for version in VERSIONS for name in sorted(cluster_of(version).agents)]
TABLE = {"bot": "assistant", "Guide": "system", "human": "user"}
OTHERS = {"assistant": "bot", "system": "guide", "user": "human"}


@st.composite
def spellings(draw: st.DrawFn) -> tuple[Any, Any, dict[str, str]]:
    """A value of `input` with roles in lower case, the same with roles in any case, and the operator's table."""
    table = draw(st.sampled_from([{}, TABLE]))
    conversation = draw(conversations(kinds=("image",), roles=("user", "user", "reviewer")).filter(is_messages))
    if table:
        roles = [draw(st.sampled_from([m.role, OTHERS.get(m.role, m.role)])) for m in conversation.messages]
        messages = (replace(m, role=role) for m, role in zip(conversation.messages, roles, strict=True))
        conversation = replace(conversation, messages=tuple(messages))
    lower = draw(spelled(conversation))
    other = [m if m["role"] == "reviewer" else {**m, "role": draw(in_any_case(m["role"]))} for m in lower]
    return lower, other, table


def is_messages(conversation: AgentInput) -> bool:
    return conversation.type is InputType.MESSAGES


def outcome_of(sent: Sent) -> Any:
    """Return the outcome of a request, without the spelling of roles in messages."""
    if sent.error is not None:
        return [(problem.place, problem.code, problem.expected, problem.help) for problem in sent.error.problems]
    assert sent.rewritten is not None
    assert sent.executed is not None
    plan = sent.rewritten.plan
    request = plan.request and (plan.request.messages, plan.request.system)
    notices = [(notice.code, notice.place) for notice in plan.notices]
    return plan.strategy, plan.question, plan.parameters, request, notices, sent.executed.llm_bodies, sent.stored


@examples(100, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(AGENTS), spellings())
def test_the_case_of_a_role_changes_nothing(agent: Any, inputs: tuple[Any, Any, dict[str, str]]) -> None:
    (version, name), (lower, other, table) = agent, inputs
    policy = RewriteOptions(MappingOptions(roles=table))
    place = cluster_of(version)
    expected = outcome_of(place.send(name, {"input": lower}, policy=policy))
    place.forget()
    found = outcome_of(place.send(name, {"input": other}, policy=policy))
    place.forget()
    event("refused" if isinstance(expected, list) else "sent")
    assert shown(found) == shown(expected)


def shown(value: Any) -> str:
    """Return text without the tokens of media and the ids of turns, which differ between requests."""
    return re.sub(r"gwb_[0-9a-zA-Z]+|gw_[0-9a-f]{32}", "token", repr(value))
