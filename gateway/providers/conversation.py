"""The part of a mapping that all providers share: roles, blank text, and every check against the capability table.

`prepare` turns the client's messages into turns that a provider can write block by block: each block is allowed in its
turn, tool calls and results are paired and have their final ids, and documents that are sent as text are text blocks.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from gateway.providers import media
from gateway.providers.capabilities import Capabilities, Role
from gateway.providers.tools import Turn, pair_tool_calls
from gateway.providers.values import Findings, MappingOptions
from gateway.unified.model import (
    AgentInput,
    Base64,
    ContentBlock,
    ConverseBlock,
    Json,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
)
from gateway.unified.roles import meaning_of


class Conversation(msgspec.Struct, frozen=True):
    """A checked conversation: the hoisted system texts, the turns to write, and the changes so far."""

    system: list[str]
    turns: list[Turn]
    findings: Findings


def prepare(agent_input: AgentInput, options: MappingOptions, limits: Capabilities) -> Conversation:
    """Check and normalise the conversation for a provider with these `limits`.

    Raises:
        Inexpressible: with every block and turn the provider can't carry.
    """
    findings = Findings()
    turns = [turn for message in agent_input.messages if (turn := _turn(message, options, limits, findings)).content]
    system: list[str] = []
    if limits.hoists_system:
        system, turns = _hoist(turns, findings)
    turns = pair_tool_calls(turns, limits, findings)
    _check_ends(turns, options, limits, findings)
    findings.raise_refusals()
    return Conversation(system, turns, findings)


def _turn(message: Message, options: MappingOptions, limits: Capabilities, findings: Findings) -> Turn:
    meaning = meaning_of(message, options.roles)
    findings.notices += meaning.notices(message.at)
    role: Role = "user" if meaning.standard == "tool" else meaning.standard
    blocks = [_block(block, role, limits, findings) for block in message.content]
    content = tuple(block for block in blocks if block is not None)
    if meaning.standard == "tool" and content and not any(isinstance(block, ToolResult) for block in content):
        findings.refuse(
            "TOOL_RESULT_MISSING",
            message.at,
            "A turn of role tool must answer a tool call, but this one names none",
            expected="a toolResult block, or toolCallId beside the content",
            received=f"role {message.role[:80]}",
            help="Name the call that the turn answers, or give the turn the role user.",
        )
    if meaning.prefix and content:
        first, *rest = content
        if isinstance(first, Text):
            content = (Text(f"{meaning.prefix} {first.text}", first.at), *rest)
        else:
            content = (Text(meaning.prefix, message.at), *content)
    return Turn(role, content, message.at)


def _block(block: ContentBlock, role: Role, limits: Capabilities, findings: Findings) -> ContentBlock | None:
    """Return the block as the provider gets it; None for blank text.

    A refused block is returned too, because later checks need it.
    """
    match block:
        case Text():
            _check_signature(block, limits, findings)
            return _unless_blank(block, findings)
        case Media():
            if not media.check(block, role, limits, findings):
                return block
            return _readable(block, limits, findings)
        case ToolUse():
            _check_call(block, role, limits, findings)
            _check_signature(block, limits, findings)
            return block
        case ToolResult():
            if role != "user":
                _refuse_role(block, "tool result", role, ["tool", "user"], limits, findings)
            parts = [_result_part(part, limits, findings) for part in block.content]
            return msgspec.structs.replace(block, content=tuple(part for part in parts if part is not None))
        case ConverseBlock():
            _check_native(block, role, limits, findings)
            return block
        case _:
            assert_never(block)


def _check_signature(block: Text | ToolUse, limits: Capabilities, findings: Findings) -> None:
    if block.signature and not limits.signatures:
        findings.note("SIGNATURE_LEFT_OUT", block.at, f"{limits.label} has no signatures of texts and tool calls")


def _result_part(part: Text | Json | Media, limits: Capabilities, findings: Findings) -> Text | Json | Media | None:
    match part:
        case Text():
            return _unless_blank(part, findings)
        case Json():
            return part
        case Media():
            if not media.check_in_result(part, limits, findings):
                return part
            return _readable(part, limits, findings)
        case _:
            assert_never(part)


def _unless_blank(block: Text, findings: Findings) -> Text | None:
    if block.text.strip():
        return block
    findings.note("BLANK_TEXT_DROPPED", block.at, "The block holds nothing but white space")
    return None


def _readable(block: Media, limits: Capabilities, findings: Findings) -> Media | Text | None:
    """Return an inline document as text where the provider has no other form for it; None for blank text."""
    if block.kind != "document" or not isinstance(block.source, Base64):
        return block
    if block.format in limits.text_documents:
        text = media.as_text(block, findings)
        return block if text is None else _unless_blank(text, findings)
    if block.format in limits.text_sources:
        content = media.read_text(block, findings)
        return block if content is None or _unless_blank(Text(content, block.at), findings) else None
    return block


def _check_call(block: ToolUse, role: Role, limits: Capabilities, findings: Findings) -> None:
    if role != "assistant":
        _refuse_role(block, "tool call", role, ["assistant"], limits, findings)
    if not limits.takes_tool_name(block.name):
        findings.refuse(
            "TOOL_NAME_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept this tool name",
            expected=f"a name that matches {limits.tool_name}",
            received=block.name[:80],
            help="Name the tool as the agent's own tool list does.",
        )


def _check_native(block: ConverseBlock, role: Role, limits: Capabilities, findings: Findings) -> None:
    if block.kind not in limits.native:
        findings.refuse(
            "NATIVE_BLOCK_UNSUPPORTED",
            block.at,
            f"{limits.label} has no {block.kind}",
            expected=", ".join(["text", *limits.media, "toolUse", "toolResult", *limits.native]),
            received=block.kind,
            help="Leave the block out, or use a model on Bedrock Converse.",
        )
    elif role not in limits.native[block.kind]:
        _refuse_role(block, block.kind, role, sorted(limits.native[block.kind]), limits, findings)


def _refuse_role(
    block: ContentBlock, what: str, role: Role, roles: list[str], limits: Capabilities, findings: Findings
) -> None:
    findings.refuse(
        "BLOCK_ROLE_UNSUPPORTED",
        block.at,
        f"{limits.label} does not accept a {what} in a turn of role {role}",
        expected=f"role {' or '.join(roles)}",
        received=f"role {role}",
        help=f"Put the {what} into a turn of role {roles[0]}.",
    )


def _hoist(turns: list[Turn], findings: Findings) -> tuple[list[str], list[Turn]]:
    """Return system and developer texts in their order, and the turns without them."""
    system: list[str] = []
    others: list[Turn] = []
    for turn in turns:
        if turn.role not in ("system", "developer"):
            others.append(turn)
            continue
        if others:
            findings.note("SYSTEM_HOISTED", turn.at, f"The {turn.role} text is moved before the conversation")
        system += [block.text for block in turn.content if isinstance(block, Text)]
    return system, others


ALLOW_PREFILL = "if the model continues assistant turns, set `agents.allow_prefill: true` in the gateway's settings"


def _check_ends(turns: list[Turn], options: MappingOptions, limits: Capabilities, findings: Findings) -> None:
    if not turns:
        findings.refuse(
            "EMPTY_INPUT",
            "input",
            f"There is nothing to send: {limits.label} accepts neither blank text nor system text alone",
            expected="a turn with text or media",
            received="blank or system text only",
            help="Send at least one user turn that is not blank.",
        )
        return
    first, last = turns[0], turns[-1]
    if first.role == "assistant" and not limits.assistant_first:
        findings.refuse(
            "ASSISTANT_FIRST",
            first.at,
            f"{limits.label} does not accept a conversation that starts with the assistant",
            expected="a user turn first",
            received="role assistant",
            help="Start with a user turn.",
        )
    allowed = limits.assistant_last == "yes" or (limits.assistant_last == "prefill" and options.allow_prefill)
    if last.role == "assistant" and not allowed:
        prefill = f", or {ALLOW_PREFILL}" if limits.assistant_last == "prefill" else ""
        findings.refuse(
            "ASSISTANT_LAST",
            last.at,
            f"{limits.label} does not accept a conversation that ends with the assistant",
            expected="a user turn or a tool result last",
            received="role assistant",
            help=f"End with a user turn{prefill}.",
        )
