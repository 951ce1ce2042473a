"""The plain-text question of a conversation, which is sent as `parameters.question` and stored by memory."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.unified.model import AgentInput, ContentBlock, ConverseBlock, Media, Message, Text, ToolResult
from gateway.unified.roles import meaning_of

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
