"""Bedrock Converse: ``{"messages": [{role, content: [{<kind>: …}]}], "system": [{"text": …}]}``.

Shapes from botocore's `bedrock-runtime` model, operation `Converse`; the service's rules from PROVIDERS.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, assert_never

from gateway.providers import recognition
from gateway.providers.base import Claim, ConnectorHints, Evidence, MappingOptions, Provider, ProviderRequest
from gateway.providers.capabilities import BEDROCK, NEUTRAL_DOCUMENT_TEXT, NEUTRAL_RESULT_TEXT, Capabilities
from gateway.providers.conversation import prepare
from gateway.providers.documents import DocumentNames
from gateway.providers.findings import Findings
from gateway.providers.tools import Turn, role_runs
from gateway.unified.model import (
    AgentInput,
    Base64,
    ContentBlock,
    ConverseBlock,
    Json,
    Media,
    Text,
    ToolResult,
    ToolUse,
)

_URL = re.compile(r"/converse(-stream)?\Z")
_TEXT_PART = re.compile(r'"content"\s*:\s*\[\s*\{\s*"text"\s*:')
_OTHER_MEMBERS = ("anthropic_version", "schemaVersion")  # Claude's and Nova's own bodies, for /invoke


class BedrockConverse(Provider):
    """Amazon Bedrock's Converse API."""

    name: ClassVar[str] = "bedrock/converse"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"

    def __init__(self, capabilities: Capabilities = BEDROCK) -> None:
        self.capabilities = capabilities

    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """Turns of one role in a row become one message; system texts are taken out (`Provider.map`)."""
        conversation = prepare(agent_input, options, self.capabilities)
        writer = _Writer(self.capabilities, conversation.findings)
        groups = (
            role_runs(conversation.turns) if self.capabilities.merges_turns else [[turn] for turn in conversation.turns]
        )
        messages = [writer.message(group) for group in groups]
        return ProviderRequest(messages, conversation.system, tuple(conversation.findings.notices))

    def text_part(self, text: str) -> dict[str, Any]:
        """``{"text": …}``."""
        return {"text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """``{"system": [{"text": …}, …]}``."""
        return {"system": [{"text": text} for text in texts]} if texts else {}

    def canonical(self, messages: Any) -> Any:
        """As it is: Converse has one spelling."""
        return messages

    def required_members(self, messages: Sequence[Any]) -> frozenset[str]:
        """``toolConfig`` when a message holds a tool call or result: the service refuses them without it."""
        tools = any({"toolUse", "toolResult"} & part.keys() for message in messages for part in message["content"])
        return frozenset({"toolConfig"}) if tools else frozenset()

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """By a URL that ends in ``/converse``, or by content parts without a ``type``. ``/invoke`` is another API."""
        if _URL.search(recognition.url_path(connector.url)):
            return Claim(Evidence.URL, "its URL ends in /converse")
        body = connector.request_body
        is_other = recognition.names_another_api(connector.url) or recognition.member_in(body, _OTHER_MEMBERS)
        if not is_other and recognition.member_in(body, ["messages"]) and _TEXT_PART.search(body):
            return Claim(Evidence.TEMPLATE, 'the content parts of its messages are {"text": …} without a type')
        return None


class _Writer:
    """Writes the messages of one request; document names are unique over all of it."""

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self._limits = limits
        self._findings = findings
        self._names = DocumentNames(findings)

    def message(self, turns: list[Turn]) -> dict[str, Any]:
        blocks = sorted((block for turn in turns for block in turn.content), key=_rank)
        content = [self._part(block) for block in blocks]
        document = next((b for b in blocks if isinstance(b, Media) and b.kind == "document"), None)
        if document and self._limits.document_needs_text and not any(isinstance(block, Text) for block in blocks):
            content.append({"text": NEUTRAL_DOCUMENT_TEXT})
            self._findings.note(
                "NEUTRAL_TEXT_ADDED", document.at, "A text is added: a document can't stand without one"
            )
        return {"role": turns[0].role, "content": content}

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        match block:
            case Text(text=text):
                return {"text": text}
            case Media():
                return self._media(block)
            case ToolUse(id=id, name=name, input=input):
                return {"toolUse": {"toolUseId": id, "name": name, "input": input}}
            case ToolResult():
                return self._result(block)
            case ConverseBlock(kind=kind, value=value):
                return {kind: value}
            case _:
                assert_never(block)

    def _media(self, block: Media) -> dict[str, Any]:
        name = {"name": self._names.name(block)} if block.kind == "document" else {}
        return {block.kind: {"format": block.format, **name, "source": _source(block)}}

    def _result(self, block: ToolResult) -> dict[str, Any]:
        content = [self._result_part(part) for part in block.content]
        if not content:
            content = [{"text": NEUTRAL_RESULT_TEXT}]
            self._findings.note("NEUTRAL_TEXT_ADDED", block.at, "A text is added: the tool result is empty")
        result: dict[str, Any] = {"toolUseId": block.id, "content": content}
        if block.is_error:
            result["status"] = "error"
        elif self._limits.success_status:
            result["status"] = "success"
        return {"toolResult": result}

    def _result_part(self, part: Text | Json | Media) -> dict[str, Any]:
        match part:
            case Text(text=text):
                return {"text": text}
            case Json(value=value, at=at):
                if isinstance(value, dict) or not self._limits.object_results:
                    return {"json": value}
                self._findings.note("TOOL_RESULT_STRINGIFIED", at, "The JSON value is sent as text: it is no object")
                return {"text": json.dumps(value, ensure_ascii=False)}
            case Media():
                return self._media(part)
            case _:
                assert_never(part)


def _rank(block: ContentBlock) -> int:
    """Tool results first, tool calls last; all else in the client's order."""
    return {ToolResult: 0, ToolUse: 2}.get(type(block), 1)


def _source(block: Media) -> dict[str, Any]:
    if isinstance(block.source, Base64):
        return {"bytes": block.source.token}
    owner = {"bucketOwner": block.source.bucket_owner} if block.source.bucket_owner else {}
    return {"s3Location": {"uri": block.source.url, **owner}}
