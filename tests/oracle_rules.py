"""The oracle's rules of the question, of memory, and of conversations that were changed and reported as such."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.unified.model import AgentInput, Base64, Media, Message, Text, ToolResult
from tests.delivery.frames import Mismatch
from tests.delivery.simulated_cluster import Pairs
from tests.wire_formats import standard_role

CODE = re.compile(r"\$\$?\{parameters\.(gw_\w+)\}")  # a parameter of the gateway's that the cluster fills in


def question_of(conversation: AgentInput, roles: Mapping[str, str]) -> str:
    """What memory must store: the text of the user's turns after the last assistant turn.

    One block exactly as it is; several trimmed and joined by newlines, blank ones left out.
    """
    texts = [
        block.text for turn in _user_turns(conversation, roles) for block in turn.content if isinstance(block, Text)
    ]
    return texts[0] if len(texts) == 1 else "\n".join(text.strip() for text in texts if text.strip())


def with_notes(conversation: AgentInput, places: set[str]) -> AgentInput:
    """The conversation with a note for each medium at one of the places."""
    left = set(places)

    def note(part: Any) -> Any:
        if not isinstance(part, Media) or part.at not in places:
            return part
        left.discard(part.at)
        name = f" {part.name!r}" if part.name else ""
        where = f" at {part.source.url}" if not isinstance(part.source, Base64) else ""
        size = f", {len(base64.b64decode(bytes(part.source.data)))} bytes" if isinstance(part.source, Base64) else where
        return Text(f"[{part.kind}{name} ({part.format}{size}) was not delivered]", part.at)

    def block(one: Any) -> Any:
        return replace(one, content=tuple(map(note, one.content))) if isinstance(one, ToolResult) else note(one)

    messages = tuple(replace(message, content=tuple(map(block, message.content))) for message in conversation.messages)
    if left:
        raise Mismatch(f"MEDIA_DESCRIBED where there is no medium: {sorted(left)}")
    return replace(conversation, messages=messages)


def check_memory(
    stored: str | None,
    question: str,
    conversation: AgentInput,
    codes: frozenset[str],
    roles: Mapping[str, str],
    parameters: Mapping[str, str],
) -> None:
    """What memory holds is the question, or a notice says what else it is.

    conversation: as it is sent, so that folded system text is in the user's turn. parameters: as sent.
    """
    right: set[str] = set()
    if stored is not None and stored != question:
        names = CODE.findall(stored)
        if names:
            right.add("MEMORY_HOLDS_CODE")
        if any(set(parameters[name]) - {"$"} for name in names):
            right.add("MEMORY_HOLDS_REFERENCE")  # to blocks; what else memory holds is the text around them
        else:
            plain = CODE.sub(lambda code: parameters[code[1]], stored)
            _is_users(plain, _user_turns(conversation, roles), roles)
            if not names:
                right.add("MEMORY_HOLDS_MORE" if question.strip() in stored else "MEMORY_PARTIAL")
    reported = {code for code in codes if code == "MEMORY_PARTIAL" or code.startswith("MEMORY_HOLDS")}
    if reported != right:
        raise Mismatch(f"memory holds {stored!r} for {question!r}, and the notices are {sorted(reported)}")


def _is_users(stored: str, turns: Sequence[Message], roles: Mapping[str, str]) -> None:
    """Memory holds a text of these turns; what else it holds are their texts, documents and unknown roles' names."""
    texts = [block.text.strip() for turn in turns for block in turn.content if isinstance(block, Text)]
    names = [f"[{turn.role}]:" for turn in turns if not standard_role(turn.role, roles)]
    documents = [_document_text(block) for turn in turns for block in turn.content if isinstance(block, Media)]
    left = stored
    for text in (*sorted(texts + documents, key=len, reverse=True), *names):
        left = left.replace(text, "", 1)
    if left.strip() or not any(text and text in stored for text in texts):
        raise Mismatch(f"memory holds {stored!r}, which is not the user's text")


def _document_text(block: Media) -> str:
    """A document that a provider can be sent as text; "" for other media."""
    if block.kind != "document" or not isinstance(block.source, Base64):
        return ""
    try:
        return base64.b64decode(bytes(block.source.data)).decode().strip()
    except UnicodeDecodeError:
        return ""


def _user_turns(conversation: AgentInput, roles: Mapping[str, str]) -> list[Message]:
    turns: list[Message] = []
    for message in conversation.messages:
        role = standard_role(message.role, roles)
        if role == "assistant":
            turns = []
        elif role in ("user", ""):
            turns.append(message)
    return turns


def with_remembered(conversation: AgentInput, pairs: Pairs) -> AgentInput:
    turns = [
        Message(role, (Text(text, ""),), "")
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return replace(conversation, messages=(*turns, *conversation.messages))


def with_folded_system(conversation: AgentInput, roles: Mapping[str, str], places: set[str]) -> AgentInput:
    """System texts at the start of the first user turn; reported at the first of them."""
    system = [
        message for message in conversation.messages if standard_role(message.role, roles) in ("system", "developer")
    ]
    others = [message for message in conversation.messages if message not in system]
    first = next((at for at, m in enumerate(others) if standard_role(m.role, roles) == "user"), None)
    blocks = [block for message in system for block in message.content]
    if first is None or not blocks or places != {blocks[0].at}:
        raise Mismatch(f"SYSTEM_FOLDED at {sorted(places)}, where no system text can have been folded")
    others[first] = replace(others[first], content=(*blocks, *others[first].content))
    return replace(conversation, messages=tuple(others))
