"""Which of a client's messages a session holds already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.conversion import count_known
from gateway.memory.model import Message, Metadata, StoredMessage
from tests.memory.conversations import assistant, image, text, tool_result, tool_use, user

SENT = Metadata(input_type="messages", created=5.0)


def of_client(*messages: Message) -> list[Message]:
    return [Message(message.role, message.content, SENT) for message in messages]


def stored(*turns: list[Message]) -> list[StoredMessage]:
    messages = [(number, message) for number, turn in enumerate(turns, 1) for message in turn]
    return [StoredMessage(seq, number, f"t{number}", message) for seq, (number, message) in enumerate(messages)]


ONE = [*of_client(user("what is this?", image())), assistant("A dot.")]
TWO = [*of_client(user("sure?")), assistant(tool_use("c1")), user(tool_result("c1", text("yes"))), assistant(" Yes. ")]
SESSION = stored(ONE, TWO)
WHOLE = [item.message for item in SESSION]
PLAIN = [*ONE, TWO[0], assistant("Yes.")]
NEW = user("and now?")


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ([NEW], 0),
        ([*WHOLE, NEW], 6),
        (WHOLE, 6),
        ([*PLAIN, NEW], 4),
        ([*WHOLE[2:], NEW], 4),
        ([*PLAIN[2:], NEW], 2),
        ([user("older"), assistant("dropped from the window"), *WHOLE, NEW, user("more")], 8),
        ([*PLAIN[:3], assistant("No, another answer"), NEW], 3),
        ([PLAIN[0], assistant("A spot."), NEW], 1),
        ([PLAIN[0]], 0),
        ([PLAIN[0], NEW], 0),
        ([user("other"), assistant("conversation"), NEW], 0),
        ([assistant("Yes."), NEW], 1),
    ],
)
def test_known(sent: list[Message], known: int) -> None:
    assert count_known(of_client(*sent), SESSION) == known


def test_an_empty_session_knows_nothing() -> None:
    assert count_known([NEW], []) == 0


TEXTS = st.sampled_from(["yes", "no", " no ", "why?"])
TURNS = st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), TEXTS), min_size=1, max_size=5)


@given(TURNS, st.lists(TEXTS, min_size=1, max_size=3), st.data())
def test_a_client_that_sends_the_conversation_again_sends_nothing_twice(
    turns: list[tuple[list[str], str]], new: list[str], data: st.DataObject
) -> None:
    session = stored(*([*of_client(*map(user, asked)), assistant(answer)] for asked, answer in turns))
    messages = [item.message for item in session]
    window = data.draw(st.integers(0, len(messages) - 1))
    sent = [*of_client(*messages), *of_client(*map(user, new))]
    assert count_known(sent, session[window:]) == len(messages)
    assert count_known(sent[window:], session) == len(messages) - window
