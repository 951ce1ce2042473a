"""Which of the messages that a client sends its session holds already, and where the two part. Pure.

A client sends what is new, or the whole conversation as it knows it. Of that it may have changed the form: a client
joins text blocks, trims them, leaves out media, and knows an answer as it was shown, without the tool calls before it.
So messages are compared by meaning (`is_same`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.memory.model import Block, Message, StoredMessage
from gateway.memory.window import MEDIA


class Match(msgspec.Struct, frozen=True):
    """What a client's messages and its session have in common.

    before: messages sent that the session had before those it was compared with. begin, end: the stored messages that
    were sent next; the client does not have those from `end` on. new: position of the first new message among those
    sent. again: the stored messages that are answered again, in place of new ones.
    """

    begin: int
    end: int
    new: int
    before: int = 0
    again: tuple[StoredMessage, ...] = ()


def match(sent: Sequence[Message], stored: Sequence[StoredMessage], more: bool = False) -> Match | None:
    """Compare the messages of a request with the newest of its session; return None if all of them are new.

    - Messages of the user alone are new, unless the client is known to send whole conversations, or they begin the only
      turn there is.
    - Messages that end with what the session has last are followed by the new ones.
    - Messages that end before, with the user, ask for another answer.
    - Where they differ, the conversation is continued from there. It begins again if they are in another order.

    stored: oldest first. more: the session has older ones.
    """
    if not stored:
        return None
    if all(message.role == "user" for message in sent):
        return _match_asked(sent, stored, more)
    found = _longest(sent, stored, more)
    if found is not None and not (found.begin and _has_known(sent[found.sent :], stored)):
        return _match_at(sent, stored, found)
    if found is not None or _sends_whole(stored) or _has_known(sent, stored):
        return Match(0, 0, 0)
    return None


def _match_asked(sent: Sequence[Message], stored: Sequence[StoredMessage], more: bool) -> Match | None:
    """Compare messages of the user alone."""
    is_whole = _sends_whole(stored)
    if is_whole or (stored[0].turn == stored[-1].turn and not more):
        found = None if more else _walk(sent, stored, 0, 0)
        if found is not None:
            return _match_at(sent, stored, found)
    return Match(0, 0, 0) if is_whole else _unanswered(sent, stored)


def _unanswered(sent: Sequence[Message], stored: Sequence[StoredMessage]) -> Match | None:
    """Return the match with messages of the user at the end of the session, which has no answer to them."""
    start = len(stored)
    while start and stored[start - 1].message.role == "user" and len(stored) - start < len(sent):
        start -= 1
    found = _walk(sent, stored, 0, start) if start < len(stored) else None
    if found is None or found.end < len(stored):
        return None
    return _match_at(sent, stored, found)


class _Common(msgspec.Struct, frozen=True):
    """Messages in a row that both have. ends: for each one sent, the position after it among the stored."""

    before: int
    begin: int
    ends: tuple[int, ...]
    has_answer: bool

    @property
    def end(self) -> int:
        return self.ends[-1]

    @property
    def sent(self) -> int:
        """Number of messages sent that are known."""
        return self.before + len(self.ends)


def _match_at(sent: Sequence[Message], stored: Sequence[StoredMessage], found: _Common) -> Match:
    if found.sent < len(sent) or sent[-1].role == "assistant":
        return Match(found.begin, found.end, found.sent, found.before)
    asked = 0  # messages of the user at the end
    while asked < len(found.ends) and sent[-1 - asked].role == "user":
        asked += 1
    known = len(found.ends) - asked
    end = found.ends[known - 1] if known else found.begin
    return Match(found.begin, end, len(sent), found.before, tuple(stored[end : found.end]))


def _longest(sent: Sequence[Message], stored: Sequence[StoredMessage], more: bool) -> _Common | None:
    """Return the most messages in a row that both have: from the first one sent on, or from the first one stored on.

    A client may have forgotten the session's first messages, and the session's window the client's. Of equally long
    ones, the one from the beginning of both comes first, then the last one.
    """
    places = [(0, at) for at in range(len(stored))] + ([(at, 0) for at in range(1, len(sent))] if more else [])
    best: _Common | None = None
    for before, begin in places:
        found = _walk(sent, stored, before, begin)
        if found is None or ((before or begin) and not (found.has_answer or found.end == len(stored))):
            continue  # a text that was sent before is no sign that the client repeats its conversation
        is_longer = best is None or len(found.ends) > len(best.ends)
        if is_longer or (best is not None and len(found.ends) == len(best.ends) and best.begin + best.before):
            best = found
    return best


def _walk(sent: Sequence[Message], stored: Sequence[StoredMessage], before: int, begin: int) -> _Common | None:
    """Return what both have in a row from two positions on; None for nothing."""
    ends: list[int] = []
    at, has_answer = begin, False
    for message in sent[before:]:
        end = _end_of(message, stored, at) if at < len(stored) else None
        if end is None:
            break
        ends.append(end)
        has_answer |= message.role == "assistant"
        at = end
    return _Common(before, begin, tuple(ends), has_answer) if ends else None


def _end_of(message: Message, stored: Sequence[StoredMessage], at: int) -> int | None:
    """Return the position after what `message` is of the stored messages from `at` on; None if it is something else.

    That is one message, or all messages of an answer, of which the client knows the text.
    """
    end = _end_of_answer(stored, at)
    if end - at > 1 and message.role == "assistant":
        answers = [item.message for item in stored[at:end] if item.message.role == "assistant"]
        texts = tuple(block for answer in answers for block in answer.content if "text" in block)
        shown = (answers[-1].content, texts)
        if any(is_same(message, Message("assistant", content)) for content in shown):
            return end
    return at + 1 if is_same(message, stored[at].message) else None


def _end_of_answer(stored: Sequence[StoredMessage], at: int) -> int:
    """Return the position after the answer that begins at `at`; `at` if none begins there."""
    end = at
    if stored[at].message.role == "assistant" and not _is_asked(stored[at]):
        turn = stored[at].turn
        while end < len(stored) and stored[end].turn == turn and not _is_asked(stored[end]):
            end += 1
    return end


def _is_asked(item: StoredMessage) -> bool:
    """Return True if a request brought the message; only such a one has an `input_type`."""
    message = item.message
    has_result = any("toolResult" in block for block in message.content)
    return bool(message.metadata.input_type) or (message.role == "user" and not has_result)


def _has_known(sent: Sequence[Message], stored: Sequence[StoredMessage]) -> bool:
    """Return True if the text of any of `sent` but the last is in the session: the client repeats its conversation."""
    known = {_letters(item.message) for item in stored}
    for at in range(len(stored)):
        answer = stored[at : _end_of_answer(stored, at)] if at == 0 or _is_asked(stored[at - 1]) else ()
        blocks = [block for item in answer if item.message.role == "assistant" for block in item.message.content]
        known.add(_letters(Message("assistant", tuple(blocks))))
    return any(letters in known for message in sent[:-1] if (letters := _letters(message))[1])


def _letters(message: Message) -> tuple[str, str]:
    """Return the role and the text without white space, which messages that mean the same have in common."""
    return message.role, "".join("".join(_texts(message)).split())


def _sends_whole(stored: Sequence[StoredMessage]) -> bool:
    """Return True if the client has sent the conversation with a turn, and not what was new alone."""
    asked = [(item.turn, item.message.metadata.after) for item in stored if item.message.metadata.input_type]
    later = [after for turn, after in asked if turn != stored[0].turn]
    return any(after is not None for _, after in asked) and None not in later


def is_same(sent: Message, stored: Message) -> bool:
    """Return True if two messages mean the same: white space at the ends of texts, and how they are divided, aside.

    sent: may lack media, reasoning, and the tool calls of an answer.
    """
    if sent.role != stored.role:
        return False
    return (
        _is_same_text(_texts(sent), _texts(stored))
        and _is_part([_source(block) for block in _media(sent)], [_source(block) for block in _media(stored)])
        and _is_same_rest(_rest(sent), _rest(stored))
    )


def _texts(message: Message) -> list[str]:
    texts = (block["text"].strip() for block in message.content if isinstance(block.get("text"), str))
    return [text for text in texts if text]


def _is_same_text(one: list[str], other: list[str]) -> bool:
    """Return True if texts are the same, however they are divided, with or without white space where they are."""
    ones, others = one[::-1], other[::-1]
    while ones and others:
        left, right = ones.pop(), others.pop()
        if left == right:
            continue
        if right.startswith(left):
            others.append(right[len(left) :].lstrip())
        elif left.startswith(right):
            ones.append(left[len(right) :].lstrip())
        else:
            return False
    return not ones and not others


def _media(message: Message) -> list[Block]:
    return [block for block in message.content if not block.keys().isdisjoint(MEDIA)]


def _source(block: Block) -> object:
    """Return a medium's data: a client may write its format or name in another way."""
    value = next(block[kind] for kind in MEDIA if kind in block)
    return value.get("source") if isinstance(value, dict) else value


def _is_part(some: list[object], all_: list[object]) -> bool:
    """Return True if `some` are in `all_`, in this order."""
    left = iter(all_)
    return all(any(one == other for other in left) for one in some)


def _rest(message: Message) -> list[Block]:
    """Return blocks that are neither text nor media nor reasoning. A client may not have kept a call's signature."""
    known = MEDIA | {"text", "reasoningContent"}
    return [_unsigned(block) for block in message.content if block.keys().isdisjoint(known)]


def _unsigned(block: Block) -> Block:
    match block:
        case {"toolUse": {"reasoningSignature": str(), **use}}:
            return {"toolUse": use}
    return block


def _is_same_rest(sent: list[Block], stored: list[Block]) -> bool:
    """Return True if other blocks are the same, or are calls that the client was not shown."""
    return sent == stored or (not sent and all("toolUse" in block for block in stored))
