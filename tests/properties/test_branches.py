"""A client that sends its whole conversation, changed or not: the LLM gets what it sent, and nothing twice.

The client retries, edits, cuts and reorders its conversation, forgets media, and writes messages in another form. It
does not know the tool calls of an answer, which the LLM gets as well.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway.config.memory import Window
from gateway.execute.session_request import Earlier, SessionRequest, compose
from gateway.memory.model import Message, Metadata, StoredMessage
from gateway.memory.window import live_messages
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.request import read_execute
from tests.conftest import examples
from tests.memory.conversations import assistant, image, text, tool_result, tool_use, user

PROFILE = AgentProfile("a", "name", "flow", (2, 19, 0), Generation.TEXT)
MOST_SENDS = 8
CHANGES = (
    "go on",
    "again",
    "answer again",
    "edit a question",
    "edit an answer",
    "leave out",
    "reorder",
    "forget the first",
)
Said = tuple[str, list[str], list[str]]
"""Of a message: the role, the texts, and the data of its images."""
Json = dict[str, Any]


class Chat:
    """A session, and what a client knows of it. Each text is said once, so that it can be told apart."""

    def __init__(self, data: st.DataObject, window: Window) -> None:
        self.draw = data.draw
        self.window = window
        self.stored: list[StoredMessage] = []
        self.known: list[Said] = []
        self.said = 0
        self.has_older = False  # than what the client knows
        self.images: dict[str, set[str]] = {}

    def send(self) -> None:
        change = self.draw(st.sampled_from(CHANGES)) if len(self.known) > 1 else "go on"
        sent = self._changed(change)
        event(change)
        written = [self._written(message, is_new=at >= len(self.known)) for at, message in enumerate(sent)]
        request = self._compose(written)
        self.check(change, sent, written, [said_in(message) for message in json.loads(request.body)["input"]])
        self._store(request)
        self.learn(written)

    def check(self, change: str, sent: list[Said], written: list[Json], received: list[Said]) -> None:
        """Assert that the LLM got what the client sent, and of the session what it can't know."""
        turns = len({item.turn for item in live_messages(self.stored)})
        heard = [message for message in received if message[1] or message[2]]
        before = heard[: len(heard) - len(sent)]
        live = [_said_by(item.message) for item in _shown(live_messages(self.stored))]
        has_known = any(_letters(message) in map(_letters, live) for message in sent[:-1])
        has_answer = any(role == "assistant" for role, *_ in sent)
        begins = bool(live) and _letters(sent[0]) == _letters(live[0])
        is_known = turns > 1 or begins or (has_answer and has_known)  # that the client sends whole conversations
        assert not before or self.has_older or self._is_cut(sent) or not is_known, change
        assert any(before == live[at : at + len(before)] for at in range(len(live) + 1))
        for got, wanted in zip(heard[len(before) :], map(said_in, written), strict=True):
            assert (got[0], _letters(got)) == (wanted[0], _letters(wanted)), change
            assert set(wanted[2]) <= set(got[2]) <= self.images.get(_letters(wanted), set())

    def learn(self, written: list[Json]) -> None:
        """The client knows what it sent, and the answer."""
        self.known = [said_in(message) for message in written]
        now = [_letters(_said_by(item.message)) for item in _shown(live_messages(self.stored))]
        begins = _letters(self.known[0])
        self.has_older = bool(now) and (now[0] != begins or begins in now[1:])
        self._hear_answer()

    def _is_cut(self, sent: list[Said]) -> bool:
        """Whether the client goes on, without the first messages of what it knew."""
        kept = len(sent) - 1
        return 0 < kept < len(self.known) and sent[:-1] == self.known[-kept:]

    def _changed(self, change: str) -> list[Said]:
        """What the client sends: its conversation so far, changed, with the user's message last."""
        known, asked = list(self.known), [at for at, message in enumerate(self.known) if message[0] == "user"]
        at = self.draw(st.sampled_from(asked)) if asked else 0
        match change:
            case "again":
                return known[: asked[-1] + 1]
            case "answer again":
                return known[: at + 1]
            case "edit a question":
                return [
                    *known[:at],
                    self._question(),
                    *self.draw(st.sampled_from([[], [*known[at + 1 :], self._question()]])),
                ]
            case "edit an answer":
                return [*known[: at + 1], ("assistant", [self._word()], []), *known[at + 2 :], self._question()]
            case "leave out":
                del known[at : at + 2]
            case "reorder":
                known = [*known[at:], *known[:at]]
            case "forget the first":
                known = known[asked[1] :] if len(asked) > 1 else known
        return [*known, self._question()]

    def _word(self) -> str:
        self.said += 1
        return f"word{self.said}."

    def _question(self) -> Said:
        images = [f"QUJD{self.said:04}"] if self.draw(st.integers(0, 2)) == 0 else []
        said = "user", [self._word() for _ in range(self.draw(st.integers(1, 2)))], images
        self.images[_letters(said)] = set(images)
        return said

    def _written(self, message: Said, is_new: bool) -> Json:
        """A message as the client writes it: one that it knows in another form, perhaps."""
        role, texts, images = message
        if not is_new and self.draw(st.booleans()):
            texts = [self.draw(st.sampled_from(["", " ", "\n"])).join(texts) + " "]
        if not is_new and self.draw(st.booleans()):
            images = []
        return {"role": role, "content": [*map(text, texts), *map(image, images)]}

    def _compose(self, written: list[Json]) -> SessionRequest:
        request = read_execute(json.dumps({"input": written}).encode())
        earlier = Earlier(live_messages(self.stored), self.window)
        return compose(PROFILE, request, earlier, Metadata(), {}, "turn")

    def _store(self, request: SessionRequest) -> None:
        said = self._word()
        steps = (
            [assistant("Hm. ", tool_use("c")), user(tool_result("c", text("x")))] if self.draw(st.booleans()) else []
        )
        turn = 1 + (self.stored[-1].turn if self.stored else 0)
        failed = self.draw(st.integers(0, 5)) == 0
        messages = [*request.new, *steps, assistant(said)]
        if failed:
            messages = [Message(m.role, m.content, Metadata(input_type="messages", failed=True)) for m in request.new]
        self.keep(turn, messages)
        self.answer: Said | None = None if failed else ("assistant", [said], [])

    def keep(self, turn: int, messages: list[Message]) -> None:
        """Store a turn."""
        seq = len(self.stored)
        self.stored += [StoredMessage(seq + at, turn, f"t{turn}", message) for at, message in enumerate(messages)]

    def _hear_answer(self) -> None:
        if self.answer is not None:
            self.known = [*self.known, self.answer]


def _letters(said: Said) -> str:
    return "".join("".join(said[1]).split())


def _shown(messages: list[StoredMessage]) -> list[StoredMessage]:
    """Those that have more than tool calls and results."""
    return [item for item in messages if _said_by(item.message)[1] or _said_by(item.message)[2]]


def _said_by(message: Message) -> Said:
    return said_in({"role": message.role, "content": list(message.content)})


def said_in(message: Json) -> Said:
    blocks = [] if any("toolUse" in block for block in message["content"]) else message["content"]
    texts = [block["text"].strip() for block in blocks if "text" in block]
    return message["role"], texts, [block["image"]["source"]["bytes"] for block in blocks if "image" in block]


def converse(chat: Chat) -> None:
    for _ in range(chat.draw(st.integers(1, MOST_SENDS))):
        chat.send()


WINDOWS = st.sampled_from([Window(), Window(turns=1), Window(turns=2), Window(tokens=20)])


@examples(300)
@given(st.data(), WINDOWS)
def test_the_llm_gets_what_the_client_sent(data: st.DataObject, window: Window) -> None:
    converse(Chat(data, window))


@pytest.mark.slow(60)
@examples(10_000)
@given(st.data(), WINDOWS)
def test_the_llm_gets_what_the_client_sent_in_many_conversations(data: st.DataObject, window: Window) -> None:
    converse(Chat(data, window))
