"""What of a session is sent: the newest messages that fit, with every tool call and its result together."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.memory import Window
from gateway.memory.model import Message, Metadata, StoredMessage
from gateway.memory.window import live_messages, measure, window_start
from tests.memory.conversations import assistant, image, text, tool_result, tool_use, user

NO_LIMIT = Window(turns=0, tokens=0, bytes=0)


def stored(turns: list[list[Message]]) -> list[StoredMessage]:
    messages = [(number, message) for number, turn in enumerate(turns, 1) for message in turn]
    return [StoredMessage(seq, number, f"t{number}", message) for seq, (number, message) in enumerate(messages)]


def start(turns: list[list[Message]], limits: Window) -> int | None:
    return window_start(stored(turns), limits)


QUESTION = [user("why?"), assistant("because")]
CALL = [user("weather?"), assistant(tool_use("c1"))]
RESULT = [user(tool_result("c1", text("sunny"))), assistant("It is sunny.")]


@pytest.mark.parametrize(
    ("turns", "limits", "expected"),
    [
        ([QUESTION] * 3, NO_LIMIT, 0),
        ([QUESTION] * 3, Window(turns=2), 2),
        ([QUESTION] * 3, Window(turns=1), 4),
        ([QUESTION, CALL, RESULT], Window(turns=1), 6),
        ([QUESTION, CALL, RESULT], Window(turns=2), 2),
        ([QUESTION, CALL, RESULT, QUESTION], Window(turns=2), 6),
        ([[assistant("Hello!"), *QUESTION]], NO_LIMIT, 0),
        ([[assistant("Hello!"), *QUESTION], QUESTION], Window(turns=1), 3),
        ([[user("a" * 400)], QUESTION], Window(tokens=50), 1),
        ([[user(image("A" * 4000))], QUESTION], Window(bytes=4000), 1),
        ([[user(image())], QUESTION], Window(tokens=1499), 1),
        ([QUESTION, [user("b" * 4000)]], Window(tokens=100), 3),
        ([], NO_LIMIT, 0),
    ],
)
def test_window(turns: list[list[Message]], limits: Window, expected: int) -> None:
    assert start(turns, limits) == expected


def test_parallel_calls_with_a_question_between_their_results_stay_together() -> None:
    calls = [user("both?"), assistant(tool_use("a"), tool_use("b")), user(tool_result("a", text("1")))]
    rest = [user("and?"), user(tool_result("b", text("2"))), assistant("3")]
    assert start([QUESTION, calls, rest], Window(turns=1)) == 8
    assert start([QUESTION, calls, rest], Window(turns=2)) == 2


def test_older_messages_are_asked_for_only_if_they_may_fit() -> None:
    messages = stored([QUESTION] * 3)
    assert window_start(messages[1:], NO_LIMIT, more=True) is None
    assert window_start(messages[1:], Window(turns=2), more=True) == 1


def test_lone_surrogates_are_measured() -> None:
    assert measure(user("\ud83d")) == (len('{"text": "\\ud83d"}'), 4)


def test_failed_turns_are_left_out() -> None:
    failed = user("nobody answers", metadata=Metadata(failed=True))
    messages = stored([QUESTION, [user("part of it"), failed], QUESTION])
    assert [item.turn for item in live_messages(messages)] == [1, 1, 3, 3]


def test_other_branches_are_left_out() -> None:
    def after(messages: int, **more: Any) -> list[Message]:
        return [user("why?", metadata=Metadata(input_type="messages", after=messages, **more)), assistant("because")]

    assert [item.seq for item in live_messages(stored([QUESTION, after(2)]))] == [0, 1, 2, 3]
    assert [item.seq for item in live_messages(stored([QUESTION, QUESTION, after(2)]))] == [0, 1, 4, 5]
    assert [item.seq for item in live_messages(stored([QUESTION, QUESTION, after(3)]))] == [0, 1, 2, 4, 5]
    assert [item.seq for item in live_messages(stored([QUESTION, after(0), after(4)]))] == [2, 3, 4, 5]
    assert [item.seq for item in live_messages(stored([QUESTION, after(2), after(2), after(6)]))] == [0, 1, 4, 5, 6, 7]
    failed = [after(0, failed=True)[0]]
    assert [item.seq for item in live_messages(stored([QUESTION, failed, QUESTION]))] == [0, 1, 3, 4]


BLOCKS = st.sampled_from(
    [text("some words"), image(), tool_use("a"), tool_use("b"), tool_result("a"), tool_result("b")]
)
MESSAGES = st.builds(
    lambda is_user, blocks: (user if is_user else assistant)(*blocks), st.booleans(), st.lists(BLOCKS, max_size=3)
)


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=8), st.integers(0, 5), st.integers(0, 5000), st.booleans())
def test_a_window_fits_and_is_whole(turns: list[list[Message]], most: int, tokens: int, more: bool) -> None:
    messages = stored(turns)
    limits = Window(turns=most, tokens=tokens, bytes=0)
    found = window_start(messages, limits, more)
    if found is None:
        assert more
        found = 0
        within = True
    else:
        sent = messages[found:]
        within = not most or len({item.turn for item in sent}) <= most
        within &= not tokens or sum(measure(item.message)[1] for item in sent) <= tokens
    assert within
    if 0 < found < len(messages):
        first = messages[found].message
        assert first.role == "user"
        assert not any("toolResult" in block for block in first.content)
        calls = list(accumulate((_call_ids(item.message) for item in messages), set.union))
        later = [item.message for item in messages[found:]]
        open_ids: set[str] = set()
        for message in later:
            open_ids |= _call_ids(message)
            assert _result_ids(message) <= open_ids or not (_result_ids(message) & calls[found - 1])


def _call_ids(message: Message) -> set[str]:
    return {block["toolUse"]["toolUseId"] for block in message.content if "toolUse" in block}


def _result_ids(message: Message) -> set[str]:
    return {block["toolResult"]["toolUseId"] for block in message.content if "toolResult" in block}


def test_members_without_a_value_are_no_calls_and_no_results() -> None:
    turn = [user({"text": "?", "toolResult": None}), assistant({"toolUse": None}), user("and?")]
    assert start([QUESTION, turn], Window(turns=1)) == 2
