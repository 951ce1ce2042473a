"""A client's `input` as model objects, and mapped data with the inline media in place of their tokens."""

import json
from typing import Any

from gateway.unified.model import AgentInput, Base64, Media, ToolResult
from gateway.unified.request import read_execute


def parse(value: Any) -> AgentInput:
    """Parse `value`, the value of `input`."""
    agent_input = read_execute(json.dumps({"input": value}).encode(), is_stored=True).input
    assert agent_input is not None
    return agent_input


def media(agent_input: AgentInput) -> list[Media]:
    """All media of the conversation, those in tool results too, in order."""
    found: list[Media] = []
    for message in agent_input.messages:
        for block in message.content:
            inner = block.content if isinstance(block, ToolResult) else (block,)
            found += [part for part in inner if isinstance(part, Media)]
    return found


def fill(data: Any, agent_input: AgentInput) -> Any:
    """Return `data` with each token replaced by its base64 text."""
    text = json.dumps(data)
    for block in media(agent_input):
        if isinstance(block.source, Base64):
            text = text.replace(block.source.token, bytes(block.source.data).decode())
    return json.loads(text)
