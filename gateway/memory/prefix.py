"""What of a client's messages a session already holds, for clients that send the whole conversation each time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.memory.model import Block, Message, StoredMessage

_Key = tuple[str, list[Block]]


def count_known(sent: Sequence[Message], stored: Sequence[StoredMessage]) -> int:
    """Return how many of the first messages in `sent` are in the session already; the others are new.

    Metadata and white space around texts do not count. stored: the newest messages, oldest first. `sent` may begin
    before them, or later. A client that does not know what the tools did may leave out their messages.

    - The messages that end where the session ends are known.
    - Otherwise, in a conversation with an assistant's turn, the longest common prefix is known: the client has changed
      what follows it.
    - Otherwise all are new.
    """
    keys = [_key(message) for message in sent]
    whole = [_key(item.message) for item in stored]
    seen = [_key(message) for message in _seen_by_client(stored)]
    known = max(_overlap(keys, whole), _overlap(keys, seen))
    if known or all(message.role == "user" for message in sent):
        return known
    common = max(_common(keys, whole), _common(keys, seen))
    return common if common < len(keys) else 0


def _overlap(sent: list[_Key], stored: list[_Key]) -> int:
    """Return the greatest count of messages in `sent` whose end is the end of `stored`, as far as both go back."""
    for count in range(len(sent), 0, -1):
        length = min(count, len(stored))
        if length and sent[count - 1] == stored[-1] and sent[count - length : count] == stored[-length:]:
            return count
    return 0


def _common(sent: list[_Key], stored: list[_Key]) -> int:
    """Return the length of the longest common prefix."""
    pairs = zip(sent, stored, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(sent), len(stored)))


def _seen_by_client(stored: Sequence[StoredMessage]) -> list[Message]:
    """Return what clients sent, and the last message of each answer without tool calls.

    Only a message that a request brought has an `input_type`.
    """
    found: list[Message] = []
    for position, item in enumerate(stored):
        message = item.message
        is_last = position + 1 == len(stored) or stored[position + 1].turn != item.turn
        if message.metadata.input_type:
            found.append(message)
        elif is_last:
            found.append(Message(message.role, tuple(block for block in message.content if "toolUse" not in block)))
    return found


def _key(message: Message) -> _Key:
    return message.role, [_trimmed(block) for block in message.content]


def _trimmed(block: Block) -> dict[str, Any]:
    return {"text": block["text"].strip()} if isinstance(block.get("text"), str) else block
