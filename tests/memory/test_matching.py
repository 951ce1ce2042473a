"""What a client's messages and its session have in common."""

from __future__ import annotations

import pytest

from gateway.memory.matching import Match, is_same, match
from gateway.memory.model import Message, Metadata, StoredMessage
from tests.memory.conversations import assistant, image, text, tool_result, tool_use, user

SENT = Metadata(input_type="messages", created=5.0)


def of_client(*messages: Message, after: int | None = None) -> list[Message]:
    metadata = Metadata(input_type="messages", after=after)
    return [Message(message.role, message.content, metadata) for message in messages]


def stored(*turns: list[Message]) -> list[StoredMessage]:
    messages = [(number, message) for number, turn in enumerate(turns, 1) for message in turn]
    return [StoredMessage(seq, number, f"t{number}", message) for seq, (number, message) in enumerate(messages)]


ONE = [*of_client(user("what is this?", image())), assistant("A dot.")]
TWO = [*of_client(user("sure?")), assistant(tool_use("c1")), user(tool_result("c1", text("yes"))), assistant(" Yes. ")]
SESSION = stored(ONE, TWO)
OF_WHOLE = stored(ONE, [*of_client(TWO[0], after=2), *TWO[1:]])
"""The same, of a client that sent the whole conversation with the second turn."""
WHOLE = [item.message for item in SESSION]
PLAIN = [*ONE, TWO[0], assistant("Yes.")]
NEW = user("and now?")


def parted(sent: list[Message], session: list[StoredMessage], more: bool = False) -> tuple[int, ...] | None:
    """Begin, end, the first new message, those before, and the number of those answered again."""
    found = match(of_client(*sent), session, more)
    return found and (found.begin, found.end, found.new, found.before, len(found.again))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param([NEW], None, id="new"),
        pytest.param([*WHOLE, NEW], (0, 6, 6, 0, 0), id="all of it"),
        pytest.param(WHOLE, (0, 6, 6, 0, 0), id="nothing new"),
        pytest.param([*PLAIN, NEW], (0, 6, 4, 0, 0), id="without steps"),
        pytest.param([*WHOLE[2:], NEW], (2, 6, 4, 0, 0), id="the last turn"),
        pytest.param([*PLAIN[2:], NEW], (2, 6, 2, 0, 0), id="the last turn, without steps"),
        pytest.param([assistant("Yes."), NEW], (5, 6, 1, 0, 0), id="the last answer"),
        pytest.param([*PLAIN[:3], assistant("No."), NEW], (0, 3, 3, 0, 0), id="another last answer"),
        pytest.param([PLAIN[0], assistant("A spot."), NEW], (0, 1, 1, 0, 0), id="another first answer"),
        pytest.param([user("?"), *PLAIN[1:], NEW], (0, 0, 0, 0, 0), id="another first question"),
        pytest.param([*PLAIN[2:], *PLAIN[:2], NEW], (0, 0, 0, 0, 0), id="in another order"),
        pytest.param([*PLAIN[:2], NEW], (0, 2, 2, 0, 0), id="another question"),
        pytest.param([user("hi"), *PLAIN, NEW], (0, 0, 0, 0, 0), id="with one before"),
        pytest.param(PLAIN[:3], (0, 2, 3, 0, 1), id="answered again"),
        pytest.param([user("what is this?"), *PLAIN[1:], NEW], (0, 6, 4, 0, 0), id="a forgotten image"),
        pytest.param([PLAIN[0]], None, id="the first question, alone"),
        pytest.param([PLAIN[0], NEW], None, id="the first question and more"),
        pytest.param([user("other"), assistant("conversation"), NEW], None, id="another conversation"),
    ],
)
def test_a_client_that_sent_what_was_new(sent: list[Message], expected: tuple[int, ...] | None) -> None:
    assert parted(sent, SESSION) == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param([PLAIN[0]], (0, 0, 1, 0, 1), id="the first question"),
        pytest.param([PLAIN[0], NEW], (0, 1, 1, 0, 0), id="without an answer"),
        pytest.param([NEW], (0, 0, 0, 0, 0), id="another question"),
        pytest.param([user("other"), assistant("conversation"), NEW], (0, 0, 0, 0, 0), id="another conversation"),
        pytest.param(PLAIN[:3], (0, 2, 3, 0, 1), id="answered again"),
    ],
)
def test_a_client_that_sent_its_whole_conversation(sent: list[Message], expected: tuple[int, ...]) -> None:
    assert parted(sent, OF_WHOLE) == expected


@pytest.mark.parametrize(
    ("sent", "expected"), [([ONE[0]], (0, 0, 1, 0, 1)), ([NEW], None), ([ONE[0], NEW], (0, 1, 1, 0, 0))]
)
def test_a_session_of_one_turn(sent: list[Message], expected: tuple[int, ...] | None) -> None:
    assert parted(sent, stored(ONE)) == expected


def test_an_empty_session_has_nothing_in_common() -> None:
    assert match([NEW], []) is None


def test_a_question_without_an_answer_is_answered() -> None:
    assert parted([NEW], stored(ONE, [*of_client(NEW)])) == (2, 2, 1, 0, 1)


def test_what_was_sent_before_the_newest_messages_was_known_too() -> None:
    older = [user("older"), assistant("no longer loaded")]
    assert parted([*older, *PLAIN, NEW], SESSION, more=True) == (0, 6, 6, 2, 0)
    assert parted([*older, *PLAIN[:3]], SESSION, more=True) == (0, 2, 5, 2, 1)


def test_the_text_of_all_steps_is_the_answer_as_a_stream_shows_it() -> None:
    steps = [assistant("I look. ", tool_use("c1")), user(tool_result("c1", text("yes"))), assistant("Yes.")]
    session = stored([*of_client(user("sure?")), *steps])
    assert parted([user("sure?"), assistant("I look. Yes."), NEW], session) == (0, 4, 2, 0, 0)


@pytest.mark.parametrize(
    ("sent", "known", "expected"),
    [
        (user("a\nb"), user("a", "b"), True),
        (user("a", "b"), user(" a b "), True),
        (user("ab"), user("a", "b"), True),
        (user("a b"), user("ab"), False),
        (user("a"), user("a", "b"), False),
        (user("a", "b"), user("a"), False),
        (user("a"), user("a", image()), True),
        (user("a", image()), user("a"), False),
        (user("a", image("QUJD")), user("a", image("QUJE")), False),
        (user("a"), assistant("a"), False),
        (assistant("a"), assistant("a", tool_use("1")), True),
        (assistant("a", tool_use("2")), assistant("a", tool_use("1")), False),
        (user("a"), user("a", tool_result("1", text("b"))), False),
        (assistant("a"), assistant({"reasoningContent": {"reasoningText": {"text": "b"}}}, "a"), True),
        (user(), user(), True),
    ],
)
def test_messages_mean_the_same(sent: Message, known: Message, expected: bool) -> None:
    assert is_same(sent, known) is expected


def test_a_match_is_of_positions() -> None:
    assert match(of_client(*PLAIN[:3]), SESSION) == Match(0, 2, 3, 0, (SESSION[2],))
