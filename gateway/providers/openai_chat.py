"""OpenAI chat completions: ``{"messages": [{role, content: [{"type": …}]}]}``.

Shapes from the openai SDK's `ChatCompletionMessageParam`; the service's rules from PROVIDERS.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, assert_never

from gateway.providers import recognition
from gateway.providers.base import Claim, ConnectorHints, Evidence, MappingOptions, Provider, ProviderRequest
from gateway.providers.capabilities import NEUTRAL_RESULT_TEXT, OPENAI, TOOL_ERROR_TEXT, Capabilities
from gateway.providers.conversation import prepare
from gateway.providers.findings import Findings
from gateway.providers.tools import Turn, role_runs
from gateway.unified.model import AgentInput, Base64, ConverseBlock, Json, Media, Text, ToolResult, ToolUse

# Not response_format, frequency_penalty, presence_penalty or image_url: Cohere's /v2/chat has those, too.
_OWN_MEMBERS = ("max_completion_tokens", "logit_bias", "stream_options")


class OpenAIChat(Provider):
    """OpenAI's chat completions API, and whatever speaks the same."""

    name: ClassVar[str] = "openai/v1/chat/completions"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"

    def __init__(self, capabilities: Capabilities = OPENAI) -> None:
        self.capabilities = capabilities

    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """System turns stay among the messages; each tool result is a message of its own (`Provider.map`)."""
        conversation = prepare(agent_input, options, self.capabilities)
        writer = _Writer(self.capabilities, conversation.findings)
        messages = [message for run in role_runs(conversation.turns) for message in writer.run(run)]
        return ProviderRequest(messages, conversation.system, tuple(conversation.findings.notices))

    def text_part(self, text: str) -> dict[str, Any]:
        """``{"type": "text", "text": …}``."""
        return _text(text)

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Always empty: system text is a message."""
        return {}

    def canonical(self, messages: Any) -> Any:
        """String content as one text part, absent content of a tool call as null, its arguments parsed."""
        return [_canonical(message) for message in messages] if isinstance(messages, list) else messages

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """By a URL that ends in ``/chat/completions``, on any host, or by a member that only this API has.

        Messages alone prove nothing: Claude's and Cohere's look the same.
        """
        if recognition.url_path(connector.url).endswith("/chat/completions"):
            return Claim(Evidence.URL, "its URL ends in /chat/completions")
        body = connector.request_body
        member = recognition.member_in(body, _OWN_MEMBERS)
        if member and recognition.member_in(body, ["messages"]) and not recognition.names_another_api(connector.url):
            return Claim(Evidence.TEMPLATE, f"its template has messages and {member}")
        return None


class _Writer:
    """Writes the messages of one request.

    Tool messages hold text only, so media of tool results wait in `_lifted` until all tool messages are out.
    """

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self._limits = limits
        self._findings = findings
        self._lifted: list[Media] = []
        self._documents = 0

    def run(self, turns: list[Turn]) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self._lifted:
            messages.append({"role": "user", "content": [self._media(block) for block in self._lifted]})
            self._lifted = []
        for turn in turns:
            if turn.role == "assistant":
                messages.append(self._assistant(turn))
                messages += [self._tool(result) for result in turn.answers]
            elif turn.others:
                messages.append({"role": turn.role, "content": self._parts(turn)})
        return messages

    def _assistant(self, turn: Turn) -> dict[str, Any]:
        parts = self._parts(turn)
        calls = [_call(block) for block in turn.content if isinstance(block, ToolUse)]
        return {"role": "assistant", "content": parts or None, **({"tool_calls": calls} if calls else {})}

    def _parts(self, turn: Turn) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for block in turn.content:
            match block:
                case Text(text=text):
                    parts.append(_text(text))
                case Media():
                    parts.append(self._media(block))
                case ToolUse() | ToolResult():
                    pass  # a member of the message, and messages of their own
                case ConverseBlock():
                    raise AssertionError("refused by the capability table")
                case _:
                    assert_never(block)
        return parts

    def _media(self, block: Media) -> dict[str, Any]:
        match block.kind:
            case "image":
                return {"type": "image_url", "image_url": {"url": self._url(block)}}
            case "document":
                self._documents += 1
                filename = block.name or f"document-{self._documents}.{block.format}"
                return {"type": "file", "file": {"file_data": self._url(block), "filename": filename}}
            case "audio":
                return {"type": "input_audio", "input_audio": {"data": _token(block), "format": block.format}}
            case "video":
                raise AssertionError("refused by the capability table")
            case _:
                assert_never(block.kind)

    def _url(self, block: Media) -> str:
        if isinstance(block.source, Base64):
            return f"data:{self._limits.mime_type(block.kind, block.format)};base64,{block.source.token}"
        return block.source.url

    def _tool(self, result: ToolResult) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        for part in result.content:
            match part:
                case Text(text=text):
                    parts.append(_text(text))
                case Json(value=value, at=at):
                    parts.append(_text(json.dumps(value, ensure_ascii=False)))
                    self._findings.note("TOOL_RESULT_STRINGIFIED", at, "The JSON value is sent as text")
                case Media(at=at):
                    self._lifted.append(part)
                    self._findings.note("TOOL_MEDIA_MOVED", at, "The media follows the tool messages in a user message")
                case _:
                    assert_never(part)
        if result.is_error:
            parts.insert(0, _text(TOOL_ERROR_TEXT))
            self._findings.note(
                "TOOL_ERROR_MARKED", result.at, "That the tool failed is said in a text before its output"
            )
        if not parts:
            parts.append(_text(NEUTRAL_RESULT_TEXT))
            self._findings.note("NEUTRAL_TEXT_ADDED", result.at, "A text is added: the tool result has none")
        return {"role": "tool", "tool_call_id": result.id, "content": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _token(block: Media) -> str:
    assert isinstance(block.source, Base64)
    return block.source.token


def _call(block: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _canonical(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    normal = dict(message)
    if isinstance(normal.get("content"), str):
        normal["content"] = [_text(normal["content"])]
    if isinstance(normal.get("tool_calls"), list):
        normal.setdefault("content", None)
        normal["tool_calls"] = [_canonical_call(call) for call in normal["tool_calls"]]
    return normal


def _canonical_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
