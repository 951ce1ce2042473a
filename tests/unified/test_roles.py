"""The meaning of a client's role, in upper and lower case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidInput
from gateway.unified.request import read_execute
from gateway.unified.roles import STANDARD_ROLES, RoleMeaning, last_user_turns, meaning, question_text
from tests.strategies import in_any_case

TABLE = {"Bot": "assistant", "reviewer": "user", "function": "tool", "Guide": "system", "System": "user"}


@pytest.mark.parametrize(
    ("role", "table", "expected"),
    [
        *((role, {}, RoleMeaning(role, role)) for role in STANDARD_ROLES),
        ("ASSISTANT", {}, RoleMeaning("ASSISTANT", "assistant")),
        ("reviewer", {}, RoleMeaning("reviewer", "user", False)),
        (" assistant", {}, RoleMeaning(" assistant", "user", False)),
        ("bot", TABLE, RoleMeaning("bot", "assistant")),
        ("GUIDE", TABLE, RoleMeaning("GUIDE", "system")),
        ("system", TABLE, RoleMeaning("system", "user")),
        ("x", {"x": "nobody"}, RoleMeaning("x", "user", False)),
    ],
)
def test_a_role_means(role: str, table: dict[str, str], expected: RoleMeaning) -> None:
    assert meaning(role, table) == expected


@pytest.mark.parametrize(
    ("role", "prefix", "reason"),
    [
        ("User", "", ""),
        ("Bot", "", "The role 'Bot' is sent as assistant"),
        ("Critic", "[Critic]:", "The role 'Critic' is sent as user, its name before the text"),
    ],
)
def test_a_role_that_is_sent_as_another_is_reported(role: str, prefix: str, reason: str) -> None:
    found = meaning(role, TABLE)
    assert found.prefix == prefix
    codes = [(notice.code, notice.reason, notice.place) for notice in found.notices("input[2]")]
    assert codes == ([("ROLE_MAPPED", reason, "input[2]")] if reason else [])


@given(st.sampled_from([*STANDARD_ROLES, *TABLE]).flatmap(in_any_case), st.sampled_from([{}, TABLE]))
def test_case_is_ignored(role: str, table: dict[str, str]) -> None:
    lower, found = meaning(role.lower(), table), meaning(role, table)
    assert (found.standard, found.is_known, found.is_renamed) == (lower.standard, lower.is_known, lower.is_renamed)


def test_the_assistants_text_is_no_question_whatever_the_case_of_its_role() -> None:
    turns = [("user", "old"), ("Assistant", "answer"), ("SYSTEM", "s"), ("User", "new")]
    sent_input = read_execute(json.dumps({"input": [{"role": r, "content": c} for r, c in turns]}).encode()).input
    assert sent_input is not None
    assert question_text(sent_input) == "new"
    assert last_user_turns(sent_input) == (sent_input.messages[3],)


@pytest.mark.parametrize("role", ["assistant", "Assistant", "SYSTEM", "Developer"])
def test_an_answer_to_a_tool_call_stands_in_a_tool_turn(role: str) -> None:
    assert problems([{"role": role, "toolCallId": "1", "content": "x"}]) == [
        ("input[0].toolCallId", f"A message of role {role} can't answer a tool call")
    ]


@pytest.mark.parametrize("role", ["tool", "Tool"])
def test_a_tool_turn_names_its_call(role: str) -> None:
    reason = "A message of role tool needs the id of the tool call that it answers"
    assert problems([{"role": role, "content": "x"}]) == [("input[0].toolCallId", reason)]


@pytest.mark.parametrize(
    ("message", "roles", "accepted"),
    [
        ({"role": "tool", "content": "x"}, {"tool": "user"}, True),
        ({"role": "Tool", "content": "x"}, {"TOOL": "assistant"}, True),
        ({"role": "tool", "content": "x"}, {"tool": "tool"}, False),
        ({"role": "function", "content": "x"}, {"function": "tool"}, True),  # TOOL_RESULT_MISSING, where it is mapped
        ({"role": "assistant", "toolCallId": "1", "content": "x"}, {"assistant": "tool"}, True),
        ({"role": "tool", "toolCallId": "1", "content": "x"}, {"tool": "user"}, True),
        ({"role": "bot", "toolCallId": "1", "content": "x"}, {"bot": "assistant"}, False),
    ],
)
def test_the_operators_table_decides_who_answers_a_tool_call(
    message: Any, roles: dict[str, str], accepted: bool
) -> None:
    body = json.dumps({"input": [message]}).encode()
    if accepted:
        assert read_execute(body, roles=roles).input
    else:
        assert [place for place, _ in problems([message], roles)] == ["input[0].toolCallId"]


def problems(value: Any, roles: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as refusal:
        read_execute(json.dumps({"input": value}).encode(), roles=roles or {})
    return [(problem.place, problem.reason) for problem in refusal.value.problems]
