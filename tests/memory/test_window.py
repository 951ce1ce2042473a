"""What of a session is sent: the newest messages that fit, repaired, with the media that fit."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.memory import Window
from gateway.memory.model import Block, Message, Metadata, StoredMessage
from gateway.memory.window import INTERRUPTED, Placed, live_messages, measure, repair, window_start, within_limits
from gateway.providers.capabilities import RequestLimits
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


ERROR: Block = tool_result("c1", text(INTERRUPTED), status="error")


def repaired(stored: list[Message], following: list[Message]) -> tuple[list[Message], list[tuple[str, str]]]:
    found, notices = repair([Placed(message, f"memory[{n}]") for n, message in enumerate(stored)], following)
    return [placed.message for placed in found], [(notice.code, notice.place) for notice in notices]


REPAIR_CALL = [user("weather?"), assistant("Let me see.", tool_use("c1"))]
REPAIRED = ("MEMORY_REPAIRED", "memory[1]")


def test_a_whole_conversation_stays_as_it_is() -> None:
    whole = [*REPAIR_CALL, user(tool_result("c1", text("sunny"))), assistant("It is sunny.")]
    assert repaired(whole, [user("and tomorrow?")]) == (whole, [])


def test_a_call_at_the_end_gets_a_result_that_says_it_was_interrupted() -> None:
    assert repaired(REPAIR_CALL, [user("hello?")]) == ([*REPAIR_CALL, user(ERROR)], [REPAIRED])


def test_a_call_that_the_new_input_answers_is_not_repaired() -> None:
    assert repaired(REPAIR_CALL, [user(tool_result("c1", text("sunny")))]) == (REPAIR_CALL, [])


def test_one_of_two_calls_is_answered_by_the_new_input() -> None:
    stored = [user("both?"), assistant(tool_use("c1"), tool_use("c2"))]
    assert repaired(stored, [user(tool_result("c2", text("2")))]) == ([*stored, user(ERROR)], [REPAIRED])


def test_a_call_in_the_middle_is_repaired_before_the_next_message() -> None:
    rest = [user("hello?"), assistant("Yes?")]
    assert repaired([*REPAIR_CALL, *rest], [user("x")]) == ([*REPAIR_CALL, user(ERROR), *rest], [REPAIRED])


def test_results_without_a_call_are_left_out() -> None:
    orphan = user(tool_result("c9", text("lost")))
    stored = [orphan, user("hi", tool_result("c8")), assistant("hello")]
    expected = [user("hi"), assistant("hello")]
    assert repaired(stored, []) == (expected, [("MEMORY_REPAIRED", "memory[0]"), ("MEMORY_REPAIRED", "memory[1]")])


def test_a_second_result_of_a_call_is_left_out() -> None:
    results = user(tool_result("c1", text("sunny")), tool_result("c1", text("again")))
    found, notices = repaired([*REPAIR_CALL, results], [])
    assert found == [*REPAIR_CALL, user(tool_result("c1", text("sunny")))]
    assert notices == [("MEMORY_REPAIRED", "memory[2]")]


def test_content_that_can_not_be_sent_is_replaced_and_reported() -> None:
    stored = [user("a"), assistant(), assistant("b\0")]
    assert repaired(stored, []) == ([user("a"), assistant("b\ufffd")], [("MEMORY_REPAIRED", "memory[2]")])


REPAIR_BLOCKS = st.sampled_from(
    [text("words"), *(make(id_) for make in (tool_use, tool_result) for id_ in ("a", "b"))],
)
REPAIR_MESSAGES = st.builds(
    lambda is_user, blocks: (user if is_user else assistant)(*blocks),
    st.booleans(),
    st.lists(REPAIR_BLOCKS, min_size=1, max_size=3, unique_by=str),
)


def is_sane(message: Message) -> bool:
    kind = "toolUse" if message.role == "user" else "toolResult"
    return not any(kind in block for block in message.content)


@given(st.lists(REPAIR_MESSAGES.filter(is_sane), max_size=8))
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


def image(data: str = "QUJD") -> Block:
    return {"image": {"format": "png", "source": {"bytes": data}}}


def document(name: str = "") -> Block:
    return {"document": {"format": "pdf", **({"name": name} if name else {}), "source": {"bytes": "QUJD"}}}


def placed(*messages: Message) -> list[Placed]:
    return [Placed(message, f"memory[{number}]") for number, message in enumerate(messages)]


def bounded(
    stored: list[Placed], limits: RequestLimits, new: Any = (), sent: Any = ()
) -> tuple[list[Message], list[str]]:
    kept, notices = within_limits(stored, sent, new, limits)
    assert {notice.code for notice in notices} <= {"MEMORY_MEDIA_LEFT_OUT"}
    return [one.message for one in kept], [notice.place for notice in notices]


IMAGE_TEXT = {"text": "(Here was the image, png. It is not sent again.)"}
TWO = RequestLimits({"image": 2, "document": 1})


def test_the_oldest_become_texts_that_name_them() -> None:
    stored = placed(user("a", image()), user(document("Plan"), image()), user(image(), document()))
    messages, places = bounded(stored, TWO)
    assert [message.content for message in messages] == [
        ({"text": "a"}, IMAGE_TEXT),
        ({"text": "(Here was the document 'Plan', pdf. It is not sent again.)"}, image()),
        (image(), document()),
    ]
    assert places == ["memory[0].content[1]", "memory[1].content[0]"]


def test_media_in_results_of_tools_count_and_are_named() -> None:
    stored = placed(user(tool_result("1", {"text": "x"}, image())), user(image()))
    messages, places = bounded(stored, TWO, [user(image())])
    assert messages[0].content[0]["toolResult"]["content"] == [{"text": "x"}, IMAGE_TEXT]
    assert (messages[1], places) == (user(image()), ["memory[0].content[0].toolResult.content[1]"])


def test_what_the_client_sends_is_never_cut() -> None:
    stored = placed(user(image("QUJD")), user(image("REVG")))
    new = [user(image("R0hJ"), image("R0hJ"), image("R0hJ"))]
    messages, places = bounded(stored, TWO, new, [user(image("REVG"))])
    assert (messages, places) == ([user(IMAGE_TEXT), user(image("REVG"))], ["memory[0].content[0]"])


def test_media_that_the_client_left_out_of_its_conversation_are_only_remembered() -> None:
    stored = placed(user("a", image("QUJD")), user("b", image("REVG")))
    messages, places = bounded(stored, TWO, [user(image("R0hJ"))], [user("a"), user("b")])
    assert places == ["memory[0].content[1]"]
    assert messages[1] == stored[1].message


def test_bytes_of_all_media() -> None:
    stored = placed(user(image("A" * 60)), user(image("B" * 40)), user({"image": {"source": {"url": "https://x"}}}))
    messages, places = bounded(stored, RequestLimits({}, 100), [user(image("C" * 50))])
    assert places == ["memory[0].content[0]"]
    assert messages[1:] == [one.message for one in stored[1:]]


def test_without_limits_nothing_changes() -> None:
    stored = placed(*(user(image(), document()) for _ in range(30)))
    kept, notices = within_limits(stored, (), (), RequestLimits())
    assert (kept, notices) == (stored, ())
    assert kept[0] is stored[0]


@given(
    st.lists(st.lists(st.sampled_from(["image", "document", "text"]), max_size=3), max_size=8),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_a_request_holds_no_more_than_the_llm_takes(
    kinds: list[list[str]], new: int, images: int, documents: int
) -> None:
    blocks = {"image": image(), "document": document(), "text": {"text": "a"}}
    stored = placed(*(user(*(blocks[kind] for kind in one)) for one in kinds))
    messages, places = bounded(stored, RequestLimits({"image": images, "document": documents}), [user(image())] * new)
    for kind, most, fixed in (("image", images, new), ("document", documents, 0)):
        before = sum(one.count(kind) for one in kinds)
        after = sum(kind in block for message in messages for block in message.content)
        assert after == min(before, max(0, most - fixed))
    assert len(places) == sum(
        ("text" in block) != (kind == "text")
        for one, message in zip(kinds, messages, strict=True)
        for kind, block in zip(one, message.content, strict=True)
    )
