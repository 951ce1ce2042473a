"""The plain-text question of a conversation: what `parameters.question` carries and memory stores."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.unified.model import AgentInput, Message, Text
from gateway.unified.roles import meaning_of

_NO_ROLES: Mapping[str, str] = {}


def last_user_turns(agent_input: AgentInput, roles: Mapping[str, str] = _NO_ROLES) -> tuple[Message, ...]:
    """The user's messages after the last assistant one; a turn of an unknown role counts as the user's.

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
    """The text of the last user turns: one block exactly as it is, several trimmed and joined by newlines.

    Blank blocks are left out of several. "" when the last turns hold no text (DESIGN.md, decision 4).
    """
    turns = last_user_turns(agent_input, roles)
    texts = [block.text for message in turns for block in message.content if isinstance(block, Text)]
    if len(texts) == 1:
        return texts[0]
    return "\n".join(filter(None, (text.strip() for text in texts)))
