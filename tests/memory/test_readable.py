"""Whatever an answer or a tool brings into a session, the next request can be sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.memory.conversion import as_input
from gateway.memory.model import Block
from gateway.memory.window import make_readable
from gateway.unified.limits import ParseLimits
from gateway.unified.request import read_execute
from tests.memory.conversations import assistant, image, text, tool_result, user


def nested(levels: int, value: Any = "deepest") -> Any:
    for _ in range(levels):
        value = [value]
    return value


def called(arguments: Any) -> Block:
    return {"toolUse": {"toolUseId": "c1", "name": "look_up", "input": arguments}}


WIDENED = ParseLimits()._replace(depth=ParseLimits().depth + 4)
"""The limits of a request with its session."""
ASKED = user("Look it up.")
RESULT = user(tool_result("c1", text("found")))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (text("a\0b\ud83dc"), text("a\ufffdb\ufffdc")),
        (called({"\0": [2**63, 2**63 - 1, True]}), called({"\ufffd": [str(2**63), 2**63 - 1, True]})),
        (called(None), called({})),
        (called(""), called({})),
        (called([1]), called({"input": [1]})),
        (called({"deep": nested(97)}), called({"deep": nested(97)})),
        (called({"deep": nested(98)}), called({"deep": nested(97, '["deepest"]')})),
    ],
)
def test_what_a_request_can_not_hold_is_replaced(block: Block, expected: Block) -> None:
    message = make_readable(assistant(block))
    assert message == assistant(expected)
    following = [RESULT] if "toolUse" in block else []
    written = [item for one in (ASKED, message, *following) for item in as_input(one)]
    read_execute(msgspec.json.encode({"input": written}), WIDENED)


def test_tools_may_answer_with_null() -> None:
    message = make_readable(user(tool_result("c1", {"json": None})))
    assert message == user(tool_result("c1", text("null")))


def test_other_messages_stay_as_they_are() -> None:
    message = user("Grüße", image(), tool_result("c1", {"json": {"n": 1.5, "list": [None]}}))
    assert make_readable(message) is message
