"""A remembered conversation as plain values: the messages of Strands, with what the gateway knows about each.

A content block is JSON data in Strands' form, which is Bedrock Converse's: ``{"text": …}``,
``{"image": {"format": "png", "source": {"bytes": "<base64>"}}}``, ``{"toolUse": {"toolUseId", "name", "input"}}``,
``{"toolResult": {"toolUseId", "status", "content"}}``. Bytes are standard base64 text. The unified input also has
what Strands does not: media by URL is ``"source": {"url": "https://…"}`` and audio is ``{"audio": {…}}``.
`gateway.unified` reads each of these blocks, so stored messages and new ones are read in the same way.

Roles are ``user`` and ``assistant``. Tool results are blocks of a ``user`` message. System text is not a message: it
belongs to the session.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

Role = Literal["user", "assistant"]
Block = dict[str, Any]

PREFIX = "gws-"
"""Every session id of the gateway starts with it. No id of the cluster does: those are of letters, digits, - and _, 20
characters long, and start with a letter or digit that the cluster chooses at random."""


class Owner(Struct, frozen=True, order=True):
    """Whom sessions belong to. One owner never sees another's.

    tenant: "" if there is only one. caller: the caller's identity, "" if sessions are not kept apart by caller.
    """

    agent_id: str
    tenant: str = ""
    caller: str = ""


class SessionKey(Struct, frozen=True, order=True):
    """A session: its owner, and its id, which starts with `PREFIX` and has at most 100 of ``[A-Za-z0-9_-]``."""

    owner: Owner
    id: str


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens that the LLM reported; None for what it did not report."""

    input: int | None = None
    output: int | None = None
    total: int | None = None


class Metadata(Struct, frozen=True, omit_defaults=True):
    """What is known about a message. Empty for what is not known.

    created: seconds since the epoch. input_type: text, content_blocks or messages; of the request that brought it.
    failed: the run failed, so the turn has no answer (`as_failed`). after: how many messages the session had, for a
    client that sent the conversation with the turn: those from this `seq` up to the turn are another branch, which is
    not sent again. None where it sent what is new alone. cluster_copy: what the cluster has of the turn
    (`gateway.memory.cluster_copies`). extra: other values, as other programs store them.
    """

    created: float = 0.0
    input_type: str = ""
    agent_id: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    failed: bool = False
    after: int | None = None
    cluster_copy: str = ""
    extra: dict[str, Any] = {}


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: tuple[Block, ...]
    metadata: Metadata = Metadata()


class Turn(Struct, frozen=True):
    """What one request adds to a session: the new input, then the tools' messages and the answer.

    id: unique for all time. A store that holds a turn with this id does not store it again.
    system: the system text from now on; None to leave it as it is.
    """

    id: str
    messages: tuple[Message, ...]
    system: str | None = None


NO_ANSWER = "(The run failed: there is no answer.)"


def as_failed(turn: Turn) -> Turn:
    """Return a turn whose run failed, with a text in place of the answer.

    The gateway sends neither again. The text is for other programs that continue the session: roles alternate.
    """
    messages = [
        msgspec.structs.replace(message, metadata=msgspec.structs.replace(message.metadata, failed=True))
        for message in turn.messages
    ]
    if messages and messages[-1].role == "user":
        known = messages[-1].metadata
        messages.append(Message("assistant", ({"text": NO_ANSWER},), msgspec.structs.replace(known, input_type="")))
    return Turn(turn.id, tuple(messages), turn.system)


class StoredMessage(Struct, frozen=True):
    """A message in a session. seq: 0, 1, 2 … without gaps. turn: 1, 2, 3 …: the turn that brought it."""

    seq: int
    turn: int
    turn_id: str
    message: Message


class Session(Struct, frozen=True):
    """What is known about a session without its messages. created, updated: seconds since the epoch."""

    key: SessionKey
    turns: int
    messages: int
    created: float
    updated: float
    system: str = ""
    pinned: bool = False


class Page(Struct, frozen=True):
    """Messages in the order of the conversation, and whether the session has older ones."""

    messages: tuple[StoredMessage, ...]
    more: bool


class SessionPage(Struct, frozen=True):
    """Sessions, and the `after` of the next page; "" for the last one.

    same_moment: the list is as it was when the page before was read, so no session has moved between the two.
    """

    sessions: tuple[Session, ...]
    next: str = ""
    same_moment: bool = False
