"""Flows without an LLM among their tools: they take one text, as the question."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.delivery.plan import Plan
from gateway.errors import UndeliverableContent
from gateway.execute.rewrite import Policy, rewrite_input
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Tool
from gateway.unified.request import read_execute
from tests.delivery.cases import text, turn

SEARCH = AgentProfile("a", "a", "flow", (3, 4, 0), Generation.FUNCTION_CALLING, tools=(Tool("ListIndexTool", "list"),))


def planned(value: Any) -> Plan:
    request = read_execute(json.dumps({"input": value}).encode())
    assert request.input is not None
    return rewrite_input(SEARCH, request, request.input, Policy(), "t1").plan


@pytest.mark.parametrize(
    ("value", "question", "codes"),
    [
        (" plain\n", " plain\n", []),
        ([text(" "), text("books")], "books", ["BLANK_TEXT_DROPPED"]),
        ([text("books "), text("by Ada")], "books\nby Ada", ["TEXT_JOINED"]),
        ([turn("user", " "), turn("user", "books")], "books", ["BLANK_TEXT_DROPPED"]),
        ([turn("reviewer", "books")], "[reviewer]: books", ["ROLE_MAPPED"]),
    ],
)
def test_the_question_is_all_the_client_wrote(value: Any, question: str, codes: list[str]) -> None:
    plan = planned(value)
    assert (dict(plan.parameters), plan.question) == ({"question": question}, question)
    assert [notice.code for notice in plan.notices] == [*codes, "NO_LLM"]


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_what_the_user_did_not_say_is_no_question(role: str) -> None:
    with pytest.raises(UndeliverableContent):
        planned([turn(role, "books")])
