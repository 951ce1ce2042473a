"""The oracle's rules of the question, of memory, and of conversations that were changed and reported as such."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gateway.unified.model import AgentInput, Base64, Json, Media, Message, Text, ToolResult, ToolUse
from tests.delivery.frames import Mismatch
from tests.delivery.simulated_cluster import Pairs
from tests.oracle_bodies import NEUTRAL
from tests.wire_formats import standard_role

FORM = re.compile(r"\$\$?\{parameters\.gw_[0-9a-f]{32}:-([^{}]*)\}")  # a text that later turns read as its default
BRACES = str.maketrans(
    {"{": "\uff5b", "}": "\uff5d", "\uff5b": "\u2060\uff5b", "\uff5d": "\u2060\uff5d", "\u2060": "\u2060\u2060"}
)
_WRITTEN = {changed: chr(own) for own, changed in BRACES.items()}


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
        return Text(f"[{part.kind}{name} ({f'{part.format}{size}'.lstrip()}) was not delivered]", part.at)

    def block(one: Any) -> Any:
        return replace(one, content=tuple(map(note, one.content))) if isinstance(one, ToolResult) else note(one)

    messages = tuple(replace(message, content=tuple(map(block, message.content))) for message in conversation.messages)
    if left:
        raise Mismatch(f"MEDIA_DESCRIBED where there is no medium: {sorted(left)}")
    return replace(conversation, messages=messages)


def check_memory(
    stored: str | None, question: str, conversation: AgentInput, codes: frozenset[str], roles: Mapping[str, str]
) -> None:
    """What memory holds is the question, or reads as the question, and a notice says so.

    conversation: what the client sent.
    """
    right: set[str] = set()
    if stored is not None and stored != question:
        form = FORM.fullmatch(stored)
        right.add("MEMORY_HOLDS_CODE" if form else "MEMORY_HOLDS_NOTE")
        seen = form[1] if form else stored
        if seen != _readable(conversation, roles).translate(BRACES) or (form is None and question.strip()):
            raise Mismatch(f"memory holds {stored!r} for {question!r}")
    if stored is not None and form_is_missing(stored):
        raise Mismatch(f"memory holds {stored!r}, which a later turn can't read")
    reported = {code for code in codes if code.startswith("MEMORY_HOLDS")}
    if reported != right:
        raise Mismatch(f"memory holds {stored!r} for {question!r}, and the notices are {sorted(reported)}")


def readable(stored: str) -> str:
    """What a later turn reads of a stored text."""
    return FORM.sub(lambda form: form[1], stored)


def as_written(stored: str) -> str:
    """What the client wrote, of a stored text."""
    return FORM.sub(lambda form: re.sub("\u2060?.", lambda one: _WRITTEN.get(one[0], one[0]), form[1]), stored)


def form_is_missing(stored: str) -> bool:
    """Whether a stored text holds a placeholder that is not the form."""
    return "${parameters" in FORM.sub("", stored)


def _readable(conversation: AgentInput, roles: Mapping[str, str]) -> str:
    blocks = [block for turn in _user_turns(conversation, roles) for block in turn.content]
    if len(blocks) == 1 and isinstance(blocks[0], Text):
        return blocks[0].text
    return "\n".join(filter(None, map(_note, blocks))) or "[no text]"


def _note(block: Any) -> str:
    if isinstance(block, Text):
        return block.text.strip()
    if isinstance(block, Media):
        return f"[{block.kind}: {block.format}]"
    return "[tool result]" if isinstance(block, ToolResult) else f"[{block.kind}]"


def _user_turns(conversation: AgentInput, roles: Mapping[str, str]) -> list[Message]:
    turns: list[Message] = []
    for message in conversation.messages:
        role = standard_role(message.role, roles)
        if role == "assistant":
            turns = []
        elif role in ("user", ""):
            turns.append(message)
    return turns


def with_remembered(conversation: AgentInput, pairs: Pairs, roles: Mapping[str, str]) -> AgentInput:
    """The conversation with the memory's turns after the system turns at its start."""
    turns = [
        Message(role, (Text(text, f"memory[{index}].{role}"),), f"memory[{index}].{role}")
        for index, pair in enumerate(pairs)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    own = conversation.messages
    is_system = [standard_role(message.role, roles) in ("system", "developer") for message in own]
    first = is_system.index(False) if False in is_system else len(own)
    return replace(conversation, messages=(*own[:first], *turns, *own[first:]))


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


def with_tools_as_text(conversation: AgentInput, roles: Mapping[str, str], places: set[str]) -> AgentInput:
    """Tool blocks as JSON text in their places, and a tool's turns as the user's; reported at the first block."""
    tools = [
        block
        for message in conversation.messages
        for block in message.content
        if isinstance(block, ToolUse | ToolResult)
    ]
    if not tools or places != {tools[0].at}:
        raise Mismatch(f"TOOLS_AS_TEXT at {sorted(places)}, which is not the first tool block")

    def written(message: Message) -> Message:
        role = "user" if standard_role(message.role, roles) == "tool" else message.role
        content = tuple(_written(one) if one in tools else one for one in message.content)
        return replace(message, role=role, content=content)

    return replace(conversation, messages=tuple(map(written, conversation.messages)))


def _written(block: Any) -> Text:
    if isinstance(block, ToolUse):
        shown: Any = {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
    else:
        parts = [{"json": part.value} if isinstance(part, Json) else {"text": part.text} for part in block.content]
        shown = {"toolResult": {"toolUseId": block.id, "content": parts}}
        shown["toolResult"].update({"name": block.name} if block.name else {})
        shown["toolResult"].update({"status": "error"} if block.is_error else {})
    return Text(json.dumps(shown, ensure_ascii=False, separators=(",", ":")), block.at)


def media_of(conversation: AgentInput) -> list[Media]:
    """The media of all turns."""
    return [block for message in conversation.messages for block in message.content if isinstance(block, Media)]


def without_slot_medium(conversation: AgentInput, reported: list[Media]) -> AgentInput:
    """The conversation without the one medium that is reported to be in the agent's own part.

    The part is before everything else, so no earlier turn may have media. A turn with nothing else is the neutral text.
    """
    messages = list(conversation.messages)
    index = next((at for at, turn in enumerate(messages) if any(isinstance(b, Media) for b in turn.content)), 0)
    if len(reported) != 1 or reported[0] not in messages[index].content:
        raise Mismatch(f"MEDIA_IN_SLOT where no medium can have been: {[medium.at for medium in reported]}")
    content = tuple(block for block in messages[index].content if block is not reported[0])
    messages[index] = replace(messages[index], content=content or (Text(NEUTRAL[1], reported[0].at),))
    return replace(conversation, messages=tuple(messages))


def slot_parameters(planned: Mapping[str, str], medium: Media) -> dict[str, str]:
    """The parameters of an image slot, with the medium's bytes in place of its token."""
    data, token = (
        (bytes(medium.source.data).decode(), medium.source.token) if isinstance(medium.source, Base64) else ("", "")
    )
    named = {name: planned[name] for name in ("image", "image_type") if name in planned}
    return {name: value.replace(token, data) if token else value for name, value in named.items()}
