"""The meaning of a client's role: one rule for the question, the validation and every provider.

Roles are compared case-insensitively, in the client's messages and in the operator's table (`agents.roles`). White
space around a role is part of its name. The operator's table is looked up first and may give a standard role another
meaning. A role in neither table is unknown: its turn counts as the user's, and the role's name is inserted before the
text. Every role that is sent as another one is reported (`ROLE_MAPPED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from gateway.codes import Notice
from gateway.unified.model import AgentInput, ContentBlock, ConverseBlock, Media, Message, Text, ToolResult

StandardRole = Literal["system", "developer", "user", "assistant", "tool"]
STANDARD_ROLES: tuple[StandardRole, ...] = get_args(StandardRole)

_STANDARD: Mapping[str, StandardRole] = {role: role for role in STANDARD_ROLES}
NO_ROLES: Mapping[str, str] = {}
"""A table of the operator's without an entry."""


class RoleMeaning(msgspec.Struct, frozen=True):
    """The meaning of a role.

    name: the role as the client wrote it. standard: the role it is sent as. is_known: False for a role that is
    neither standard nor in the operator's table.
    """

    name: str
    standard: StandardRole
    is_known: bool = True

    @property
    def is_system(self) -> bool:
        """True if turns of this role are system text."""
        return self.standard in ("system", "developer")

    @property
    def is_renamed(self) -> bool:
        """True if the turn is sent with another role than the client's."""
        return not self.is_known or self.name.casefold() != self.standard

    @property
    def prefix(self) -> str:
        """The text that names an unknown role (``[reviewer]:``); "" for a known one."""
        return "" if self.is_known else f"[{self.name}]:"

    def notices(self, place: str) -> tuple[Notice, ...]:
        """Return the notices for a turn of this role at `place`."""
        if not self.is_renamed:
            return ()
        sent = self.standard if self.is_known else "user, its name before the text"
        return (Notice("ROLE_MAPPED", f"The role {self.name!r} is sent as {sent}", place),)


def meaning(name: str, table: Mapping[str, str] = NO_ROLES) -> RoleMeaning:
    """Return the meaning of the role `name`.

    Args:
        name: the role as the client wrote it.
        table: client role → standard role, as the operator mapped them (`MappingOptions.roles`).
    """
    folded = name.casefold()
    mapped = next((to for role, to in table.items() if role.casefold() == folded), folded)
    standard = _STANDARD.get(mapped.casefold())
    return RoleMeaning(name, "user", is_known=False) if standard is None else RoleMeaning(name, standard)


def meaning_of(message: Message, table: Mapping[str, str] = NO_ROLES) -> RoleMeaning:
    """Return the meaning of a message's role (`meaning`)."""
    return meaning(message.role, table)


_NO_ROLES: Mapping[str, str] = {}


def last_user_turns(agent_input: AgentInput, roles: Mapping[str, str] = _NO_ROLES) -> tuple[Message, ...]:
    """Return the user's messages after the last assistant message. An unknown role counts as the user.

    Args:
        agent_input: the conversation.
        roles: client role → standard role, as the operator mapped them (`MappingOptions.roles`).
    """
    turns: list[Message] = []
    for message in agent_input.messages:
        match meaning_of(message, roles).standard:
            case "assistant":
                turns.clear()
            case "user":
                turns.append(message)
            case "system" | "developer" | "tool":
                pass
    return tuple(turns)


def question_text(agent_input: AgentInput, roles: Mapping[str, str] = _NO_ROLES) -> str:
    """Return the text of the last user turns, "" if they have none.

    A single block is returned exactly as it is; several are stripped and joined by newlines, without blank ones.
    """
    turns = last_user_turns(agent_input, roles)
    texts = [block.text for message in turns for block in message.content if isinstance(block, Text)]
    if len(texts) == 1:
        return texts[0]
    return "\n".join(filter(None, (text.strip() for text in texts)))


def readable_text(agent_input: AgentInput, roles: Mapping[str, str] = _NO_ROLES) -> str:
    """Return the last user turns as a text that is never blank: a note, such as ``[image: png]``, for other blocks."""
    blocks = [block for message in last_user_turns(agent_input, roles) for block in message.content]
    if len(blocks) == 1 and isinstance(blocks[0], Text) and blocks[0].text.strip():
        return blocks[0].text
    return "\n".join(filter(None, map(_readable, blocks))) or "[no text]"


def _readable(block: ContentBlock) -> str:
    match block:
        case Text(text=text):
            return text.strip()
        case Media(kind=kind, format=format):
            return f"[{kind}: {format}]"
        case ToolResult():
            return "[tool result]"
        case ConverseBlock(kind=kind):
            return f"[{kind}]"
    return "[tool use]"
