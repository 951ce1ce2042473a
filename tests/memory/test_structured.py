"""Messages in the form of ML Commons' agents: every block has a type, and every call its result."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.memory.model import Message
from gateway.memory.structured import from_structured, single_calls, structured
from tests.memory.conversations import assistant, image, tool_result, tool_use, user

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
USE, RESULT = tool_use("1", "look", at=1), tool_result("1", {"text": "3"}, {"json": {"n": 3}})


def typed(text: str) -> dict[str, str]:
    return {"text": text, "type": "TEXT"}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (user("a", " "), {"role": "user", "content": [typed("a")]}),
        (assistant(USE), {"role": "assistant", "toolCalls": [CALL]}),
        (assistant("I look.", USE), {"role": "assistant", "content": [typed("I look.")], "toolCalls": [CALL]}),
        (user(RESULT), {"role": "tool", "toolCallId": "1", "content": [typed("3"), typed('{"json": {"n": 3}}')]}),
        (
            user({"image": {"format": "png", "source": {"bytes": ""}}}),
            {"role": "user", "content": [typed("(image, png: too large to be shown here)")]},
        ),
        (assistant(), {"role": "assistant", "content": []}),
    ],
)
def test_a_message(message: Message, shown: Any) -> None:
    assert structured(message) == shown


def test_calls_that_the_form_can_not_answer_are_texts() -> None:
    two = (assistant(USE, tool_use("2", "look")), user(RESULT, tool_result("2", {"text": "4"})))
    assert single_calls(two) == set()
    shown = [structured(message, single_calls(two)) for message in two]
    assert [one["role"] for one in shown] == ["assistant", "user"]
    assert not any("toolCalls" in one for one in shown)
    assert [len(one["content"]) for one in shown] == [2, 2]
    assert all(block["type"] == "TEXT" for one in shown for block in one["content"])


def test_one_call_after_the_other() -> None:
    turn = (user("a"), assistant(USE), user(RESULT), assistant(tool_use("2", "look")), user(tool_result("2", image())))
    assert single_calls(turn) == {"1", "2"}
    shown = [structured(message, single_calls(turn)) for message in turn]
    assert [one["role"] for one in shown] == ["user", "assistant", "tool", "assistant", "tool"]


def test_a_call_without_a_result_is_a_text() -> None:
    assert single_calls((assistant(USE), assistant("b"))) == set()


def test_arguments_that_are_no_json_are_kept() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{at"}}
    assert from_structured({"role": "assistant", "toolCalls": [call]}) == assistant(tool_use("1", "look", input="{at"))
