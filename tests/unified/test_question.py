import json
from typing import Any

import pytest

from gateway.unified.model import AgentInput
from gateway.unified.request import read_execute
from gateway.unified.roles import last_user_turns, question_text


def read(value: Any) -> AgentInput:
    agent_input = read_execute(json.dumps({"input": value}).encode()).input
    assert agent_input is not None
    return agent_input


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text} for text in texts]}


IMAGE = {"type": "image", "source": {"type": "url", "format": "png", "data": "https://h/a.png"}}
ASSISTANT = {"role": "assistant", "content": "answer"}
RESULT = {"toolResult": {"toolUseId": "1", "content": "t"}}
CASES: list[tuple[str, Any, str]] = [
    ("text as it is", "  hi \n", "  hi \n"),
    ("one block as it is", [{"text": " a\n"}, IMAGE], " a\n"),
    ("blocks trimmed and joined", [{"text": " a\n"}, IMAGE, {"text": "\tb"}], "a\nb"),
    ("blank blocks left out", [{"text": " "}, {"text": "a "}, {"text": ""}], "a"),
    ("no text", [IMAGE], ""),
    ("last user turn", [user("old"), ASSISTANT, user("new ")], "new "),
    ("last user turns", [user("old"), ASSISTANT, user("one"), user(" two")], "one\ntwo"),
    ("other roles count as user", [user("old"), ASSISTANT, {"role": "reviewer", "content": "r"}, user("u")], "r\nu"),
    ("system does not", [user("a"), {"role": "system", "content": "s"}], "a"),
    ("developer does not", [user("a"), {"role": "developer", "content": "d"}], "a"),
    ("tool answers do not", [user("a"), {"role": "tool", "toolCallId": "1", "content": "t"}], "a"),
    ("results in a user turn do not", [{"role": "user", "content": [RESULT]}], ""),
    ("nothing after the assistant", [user("a"), ASSISTANT], ""),
]  # fmt: skip


@pytest.mark.parametrize(("value", "question"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_question(value: Any, question: str) -> None:
    assert question_text(read(value)) == question


def test_the_operators_roles_decide_who_is_the_assistant() -> None:
    agent_input = read([user("old"), {"role": "model", "content": "m"}, user("new"), {"role": "note", "content": "n"}])
    roles = {"model": "assistant", "note": "system"}
    assert last_user_turns(agent_input, roles) == (agent_input.messages[2],)
    assert question_text(agent_input, roles) == "new"
