"""Why an input can't be delivered: which of its parts, what would make it work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gateway.agents.profile import AgentProfile
from gateway.delivery.rendering import first_llm
from gateway.delivery.systems import SYSTEM_ROLES
from gateway.errors import Problem
from gateway.providers.base import Provider
from gateway.unified.model import AgentInput, ContentBlock, Media, Message, Native, Text, ToolResult, ToolUse

_ASK = Text("x", "input")
_EXPECTED = {"HISTORY_NEEDS_UPGRADE": "one user turn", "SYSTEM_NEEDS_SLOT": "user and assistant turns"}
MEMORY_NOT_SAFE = Problem(
    "parameters.memory_id",
    "what this memory holds can't be told to the agent beside this input without being changed",
    code="MEMORY_NOT_SAFE",
    help='send "message_history_limit": "0" to leave the remembered turns out, or start a new memory',
)


def problems(
    profile: AgentProfile,
    provider: Provider,
    agent_input: AgentInput,
    params: Mapping[str, str],
    deliverable: Callable[[AgentInput], bool],
) -> list[Problem]:
    """Every part that can't reach the LLM of this agent, found by trying each kind of part by itself.

    deliverable: whether a conversation can be delivered to this agent.
    """
    remedy = upgrade(profile, provider, params)
    found = [
        Problem(place, reason, expected=_EXPECTED.get(code, "text"), received=received, code=code, help=remedy)
        for code, reason, places, sample in _parts(agent_input)
        if places and not deliverable(sample)
        for place, received in places
    ]
    if found:
        return found
    if not deliverable(_conversation(agent_input, [Message("user", (_ASK,), "input")])):
        reason = "this agent can't be called: its own prompt and connector don't render to a valid request"
        return [Problem("input", reason, code="AGENT_NOT_CALLABLE", help=remedy)]
    last = agent_input.messages[-1]
    is_answer = all(isinstance(block, ToolResult) for block in last.content)
    if last.role.lower() in ("assistant", "tool") or is_answer:
        reason = "the agent's own prompt stands around a question, and this conversation ends without one"
        help = "end the conversation with a user turn"
        return [Problem(last.at, reason, "a user turn", last.role, "QUESTION_MISSING", help)]
    kinds = sorted({type(block).__name__.lower() for m in agent_input.messages for block in m.content})
    if kinds == ["text"] and len(agent_input.messages) == 1:
        reason = "this text can't be put into the agent's template without being changed"
        return [Problem("input", reason, received="text", code="TEXT_NOT_SAFE", help=remedy)]
    reason = "each part could be delivered by itself, but not all of them together"
    return [Problem("input", reason, received=", ".join(kinds), code="COMBINATION_NOT_DELIVERABLE", help=remedy)]


Part = tuple[str, str, list[tuple[str, str]], AgentInput]


def _parts(agent_input: AgentInput) -> Iterator[Part]:
    """The kinds of part an agent may not take: code, reason, their places, and a conversation of just that kind."""
    messages = agent_input.messages
    media = [block for m in messages for block in m.content if isinstance(block, Media)]
    tools = [block for m in messages for block in m.content if isinstance(block, ToolUse | ToolResult)]
    native = [block for m in messages for block in m.content if isinstance(block, Native)]
    system = [m for m in messages if m.role.lower() in SYSTEM_ROLES]
    turns = [m for m in messages if m.role.lower() not in SYSTEM_ROLES]

    def places(blocks: list[Media] | list[Native] | list[ToolUse | ToolResult]) -> list[tuple[str, str]]:
        return [(block.at, _named(block)) for block in blocks]

    asking = Message("user", (_ASK,), "input")
    yield (
        "MEDIA_NEEDS_UPGRADE",
        "this agent's connector has no place for media",
        places(media),
        _conversation(agent_input, [Message("user", (_ASK, *media), "input")]),
    )
    yield (
        "TOOLS_NEED_UPGRADE",
        "this agent's connector can't carry tool calls and results",
        places(tools),
        _conversation(agent_input, [*_without_media(turns), asking]),
    )
    yield (
        "NATIVE_BLOCK_NEEDS_UPGRADE",
        "this agent's connector has no place for this block",
        places(native),
        _conversation(agent_input, [Message("user", (_ASK, *native), "input")]),
    )
    earlier = [(message.at, message.role) for message in turns[:-1]]
    told = [Message(role, (_ASK,), "input") for role in ("user", "assistant", "user")]
    yield (
        "HISTORY_NEEDS_UPGRADE",
        "this agent's connector and prompt have no place for earlier turns",
        earlier,
        _conversation(agent_input, told),
    )
    yield (
        "SYSTEM_NEEDS_SLOT",
        "this agent's connector has no place for system text",
        [(message.at, message.role) for message in system],
        _conversation(agent_input, [*system, asking]),
    )


def _named(block: ContentBlock) -> str:
    match block:
        case Media():
            return f"{block.kind} ({block.format})"
        case ToolUse():
            return "tool use"
        case ToolResult():
            return "tool result"
        case Native():
            return block.kind
    return "text"


def _without_media(turns: list[Message]) -> list[Message]:
    kept = [replace(m, content=tuple(b for b in m.content if not isinstance(b, Media))) for m in turns]
    return [message for message in kept if message.content]


def _conversation(agent_input: AgentInput, messages: list[Message]) -> AgentInput:
    return replace(agent_input, messages=tuple(messages))


def upgrade(profile: AgentProfile, provider: Provider, params: Mapping[str, str]) -> str:
    """The smallest change of the agent's connector that lets it take everything (FACTS.md, 10_upgrade)."""
    model, _ = first_llm(profile, params)
    if model is None or not provider.name:
        return "see docs/limitations.md"
    connector = f"connector {model.connector.id}" if model.connector.id else f"the connector inside model {model.id}"
    field = provider.messages_field
    return (
        f'let {connector} of model {model.id} send "{field}":${{parameters.{field}}} and give it the parameter '
        f'"{field}" with one user turn holding ${{parameters.prompt}}: old callers are not affected, and every '
        f"input type arrives; see docs/limitations.md"
    )
