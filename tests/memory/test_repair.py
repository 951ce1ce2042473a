"""Every tool call is sent with one result, also after a run that was killed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.model import Block, Message
from gateway.memory.repair import INTERRUPTED, Placed, repair
from tests.memory.conversations import assistant, text, tool_result, tool_use, user

ERROR: Block = tool_result("c1", text(INTERRUPTED), status="error")


def repaired(stored: list[Message], following: list[Message]) -> tuple[list[Message], list[tuple[str, str]]]:
    found, notices = repair([Placed(message, f"memory[{n}]") for n, message in enumerate(stored)], following)
    return [placed.message for placed in found], [(notice.code, notice.place) for notice in notices]


CALL = [user("weather?"), assistant("Let me see.", tool_use("c1"))]
REPAIRED = ("MEMORY_REPAIRED", "memory[1]")


def test_a_whole_conversation_stays_as_it_is() -> None:
    whole = [*CALL, user(tool_result("c1", text("sunny"))), assistant("It is sunny.")]
    assert repaired(whole, [user("and tomorrow?")]) == (whole, [])


def test_a_call_at_the_end_gets_a_result_that_says_it_was_interrupted() -> None:
    assert repaired(CALL, [user("hello?")]) == ([*CALL, user(ERROR)], [REPAIRED])


def test_a_call_that_the_new_input_answers_is_not_repaired() -> None:
    assert repaired(CALL, [user(tool_result("c1", text("sunny")))]) == (CALL, [])


def test_one_of_two_calls_is_answered_by_the_new_input() -> None:
    stored = [user("both?"), assistant(tool_use("c1"), tool_use("c2"))]
    assert repaired(stored, [user(tool_result("c2", text("2")))]) == ([*stored, user(ERROR)], [REPAIRED])


def test_a_call_in_the_middle_is_repaired_before_the_next_message() -> None:
    rest = [user("hello?"), assistant("Yes?")]
    assert repaired([*CALL, *rest], [user("x")]) == ([*CALL, user(ERROR), *rest], [REPAIRED])


def test_results_without_a_call_are_left_out() -> None:
    orphan = user(tool_result("c9", text("lost")))
    stored = [orphan, user("hi", tool_result("c8")), assistant("hello")]
    expected = [user("hi"), assistant("hello")]
    assert repaired(stored, []) == (expected, [("MEMORY_REPAIRED", "memory[0]"), ("MEMORY_REPAIRED", "memory[1]")])


def test_a_second_result_of_a_call_is_left_out() -> None:
    results = user(tool_result("c1", text("sunny")), tool_result("c1", text("again")))
    found, notices = repaired([*CALL, results], [])
    assert found == [*CALL, user(tool_result("c1", text("sunny")))]
    assert notices == [("MEMORY_REPAIRED", "memory[2]")]


def test_content_that_can_not_be_sent_is_replaced_and_reported() -> None:
    stored = [user("a"), assistant(), assistant("b\0")]
    assert repaired(stored, []) == ([user("a"), assistant("b\ufffd")], [("MEMORY_REPAIRED", "memory[2]")])


BLOCKS = st.sampled_from(
    [text("words"), *(make(id_) for make in (tool_use, tool_result) for id_ in ("a", "b"))],
)
MESSAGES = st.builds(
    lambda is_user, blocks: (user if is_user else assistant)(*blocks),
    st.booleans(),
    st.lists(BLOCKS, min_size=1, max_size=3, unique_by=str),
)


def is_sane(message: Message) -> bool:
    kind = "toolUse" if message.role == "user" else "toolResult"
    return not any(kind in block for block in message.content)


@given(st.lists(MESSAGES.filter(is_sane), max_size=8))
def test_each_call_has_one_result_in_the_turn_after_it(stored: list[Message]) -> None:
    found, notices = repaired(stored, [user("and now?")])
    calls: Counter[str] = Counter()
    role = ""
    for message in [*found, assistant("end")]:
        if message.role == "assistant" and role == "user":
            assert not calls, "a call without a result"
        for block in message.content:
            if "toolUse" in block:
                calls[block["toolUse"]["toolUseId"]] = 1
            elif "toolResult" in block:
                id_ = block["toolResult"]["toolUseId"]
                assert calls.pop(id_, 0), "a result without a call"
        role = message.role
    assert bool(notices) == (found != stored)
    kept = [block for message in found for block in message.content if "toolResult" not in block]
    assert kept == [block for message in stored for block in message.content if "toolResult" not in block]
