"""Plain chat: turns with a role and one text, ``{"role": "user", "content": "…"}``. Most chat APIs take them.

For an LLM whose format is unknown, if the agent's template shows such turns or takes all `messages` in a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from msgspec.structs import replace

from gateway.codes import Notice
from gateway.delivery.advice import NAME_OR_TEXT
from gateway.delivery.call_model import CallModel
from gateway.delivery.slots import SlotKind
from gateway.delivery.strategies.text import join_texts
from gateway.delivery.tool_slot import tools_as_text
from gateway.errors import Problem
from gateway.providers.base import (
    Capabilities,
    ConnectorHints,
    Conversation,
    Findings,
    Inexpressible,
    MappingOptions,
    Provider,
    ProviderRequest,
    Role,
    Turn,
)
from gateway.providers.recognition import member_in
from gateway.providers.tools import role_runs
from gateway.unified.model import AgentInput, ConverseBlock, Media, Message, Text
from gateway.unified.roles import meaning_of

FORMAT_GUESSED = Notice(
    "FORMAT_GUESSED", "the format of the agent's LLM is not known, so the turns are sent as role and text"
)

_ROLES = frozenset({"system", "developer", "user", "assistant"})
_MEMBERS_WITH_PARTS = ("inferenceConfig", "schemaVersion")
"""Members beside `messages` in Bedrock's Converse and in Nova's format, where content is never a string."""


class PlainChat(Provider):
    """Turns of user and assistant with one text each, in turn, the user's first and last. No media, no tools."""

    name: ClassVar[str] = "plain chat"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"
    capabilities = Capabilities(
        label="an LLM of unknown format",
        media={},
        tool_media={},
        assistant_first=False,
        assistant_last="no",
        merges_turns=True,
    )

    def prepare(self, agent_input: AgentInput, options: MappingOptions) -> Conversation:
        """Write tool calls and results as text; check the rest as every provider does.

        Raises:
            Inexpressible: with every block that is not text, and every turn that is out of order.
        """
        written = tools_as_text(agent_input, options.roles)
        conversation = super().prepare(agent_input if written is None else written[0], options)
        if written is not None:
            conversation.findings.notices.extend(written[1])
        return conversation

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write one text for all turns of a role in a row."""
        return [self._message(run, findings) for run in role_runs(turns)]

    def _message(self, run: Sequence[Turn], findings: Findings) -> dict[str, Any]:
        texts = [block.text for turn in run for block in turn.content if isinstance(block, Text)]
        if len(texts) > 1:
            findings.note("TEXT_JOINED", run[0].at, "the texts of this turn arrive as one, joined by newlines")
        text, _ = join_texts(texts)
        return {"role": run[0].role, "content": [self.text_part(text)]}

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return the text as the only part of its turn."""
        return {"text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return {}: system text goes into the user's first turn, as not every such API has a role for it."""
        return {}

    def simplest(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the only text as a string."""
        match message["content"]:
            case [{"text": text}]:
                return {**message, "content": text}
        return message

    def canonical(self, messages: Any) -> Any:
        """Write string content as one text part."""
        return [_canonical(message) for message in messages] if isinstance(messages, list) else messages

    def claims(self, connector: ConnectorHints) -> None:
        """Claim no connector: this is for those that no provider claims."""


PLAIN_CHAT = PlainChat()


def shows_plain_chat(call: CallModel) -> bool:
    """Return True if the template's turns are plain chat, with the question in a turn of the user.

    If it has none, a variable must take all of them, and nothing may show another format.

    call: that of `PLAIN_CHAT`.

    Raises:
        RenderFailure: the agent can't be called.
    """
    if any(slot.takes is SlotKind.CONTENT for slot in call.slots):
        return False  # that variable may take parts
    if own := own_turns(call):
        position = call.position(call.legacy_body)
        return position is not None and own[position.turn].get("role") == "user" and all(map(_is_plain, own))
    template = call.model.connector.request_body
    is_other = member_in(template, _MEMBERS_WITH_PARTS) or "amazon.nova" in call.url
    return not is_other and any(slot.takes is SlotKind.ARRAY for slot in call.slots)


def own_turns(call: CallModel) -> list[Any]:
    """Return the turns that the LLM gets for a plain question; [] if the agent can't be asked one.

    call: that of `PLAIN_CHAT`.
    """
    body = call.legacy_body
    turns = body.get(call.provider.messages_field) if isinstance(body, dict) else None
    return turns if isinstance(turns, list) else []


def _is_plain(turn: Mapping[str, Any]) -> bool:
    return turn.get("role") in _ROLES and isinstance(turn.get("content"), str)


def _canonical(message: Any) -> Any:
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        return {**message, "content": [{"text": message["content"]}]}
    return message


class TextOnly(Provider):
    """Turns of text only. Strategies that need the place of the messages find none.

    help: what to do to send other blocks.
    """

    name = ""
    messages_field = ""
    content_field = "content"
    capabilities = Capabilities("this agent's provider", {}, {})

    def __init__(self, help: str = NAME_OR_TEXT) -> None:
        self._help = help

    def prepare(self, agent_input: AgentInput, options: MappingOptions) -> Conversation:
        """Take the texts of the conversation, turn by turn; roles stay as they are. Tool calls and results become text.

        Raises:
            Inexpressible: with every block that is not text (code PROVIDER_UNKNOWN).
        """
        notices: list[Notice] = []
        if written := tools_as_text(agent_input, options.roles):
            agent_input, of_tools = written
            notices.extend(of_tools)
        problems = [
            Problem(
                block.at,
                "no provider is known for this agent, so only text can be delivered to it",
                expected="text",
                received=block.kind if isinstance(block, Media | ConverseBlock) else type(block).__name__.lower(),
                code="PROVIDER_UNKNOWN",
                help=self._help,
            )
            for message in agent_input.messages
            for block in message.content
            if not isinstance(block, Text)
        ]
        if problems:
            raise Inexpressible(problems)
        for message in agent_input.messages:
            notices += meaning_of(message, options.roles).notices(message.at)
            blank = (block for block in message.content if isinstance(block, Text) and not block.text.strip())
            notices += (Notice("BLANK_TEXT_DROPPED", "The block holds nothing but white space", b.at) for b in blank)
        turns = [turn for message in agent_input.messages if (turn := self._turn(message, options)).content]
        return Conversation([], turns, Findings(notices=notices))

    def _turn(self, message: Message, options: MappingOptions) -> Turn:
        role = meaning_of(message, options.roles)
        texts = [block for block in message.content if isinstance(block, Text) and block.text.strip()]
        if role.prefix and texts:
            texts[0] = replace(texts[0], text=f"{role.prefix} {texts[0].text}")
        return Turn(cast(Role, role.standard), tuple(texts), message.at)  # also `tool`, as nothing is mapped

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write one turn for each message."""
        return [
            {"role": turn.role, "content": [self.text_part(b.text) for b in turn.content if isinstance(b, Text)]}
            for turn in turns
        ]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """A text by itself."""
        return {"text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return {}: no place for system text is known."""
        return {}

    def canonical(self, messages: Any) -> Any:
        """Return `messages` unchanged: their format is unknown."""
        return messages

    def claims(self, connector: ConnectorHints) -> None:
        """Claim no connector."""

    def fields(self, request: ProviderRequest) -> dict[str, Any]:
        """Return {}: no body members are known."""
        return {}
