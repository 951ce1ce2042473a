"""Gemini generateContent (v1beta): ``{"contents": [{role, parts: […]}], "systemInstruction": {"parts": […]}}``.

Shapes from the v1beta protos and google-genai's types; the service's rules from PROVIDERS.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, assert_never

from gateway.providers import recognition
from gateway.providers.base import Claim, ConnectorHints, Evidence, MappingOptions, Provider, ProviderRequest
from gateway.providers.capabilities import GEMINI, Capabilities
from gateway.providers.conversation import prepare
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

_METHOD = re.compile(r":(streamG|g)enerateContent\Z")
_HOST = re.compile(r"https?://generativelanguage\.googleapis\.com(:\d+)?(/|\Z)")


class Gemini(Provider):
    """Google's generateContent API."""

    name: ClassVar[str] = "gemini/v1beta/generatecontent"
    messages_field: ClassVar[str] = "contents"
    content_field: ClassVar[str] = "parts"

    def __init__(self, capabilities: Capabilities = GEMINI) -> None:
        self.capabilities = capabilities

    def map(self, agent_input: AgentInput, options: MappingOptions) -> ProviderRequest:
        """The results of a turn's calls are one user content right behind it (`Provider.map`)."""
        conversation = prepare(agent_input, options, self.capabilities)
        writer = _Writer(self.capabilities, conversation.findings)
        contents: list[dict[str, Any]] = []
        for run in role_runs(conversation.turns):
            contents += writer.run(run, contents)
        return ProviderRequest(contents, conversation.system, tuple(conversation.findings.notices))

    def text_part(self, text: str) -> dict[str, Any]:
        """``{"text": …}``."""
        return {"text": text}

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """``{"systemInstruction": {"parts": [{"text": …}, …]}}``."""
        return {"systemInstruction": {"parts": [{"text": text} for text in texts]}} if texts else {}

    def canonical(self, messages: Any) -> Any:
        """The role, which may be left out, as ``user``."""
        if not isinstance(messages, list):
            return messages
        return [{"role": "user", **content} if isinstance(content, dict) else content for content in messages]

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """By a URL that ends in ``:generateContent`` or is on the API's host, or by ``contents`` with ``parts``.

        The host serves OpenAI's API as well, under ``/openai/``.
        """
        path = recognition.url_path(connector.url)
        if _METHOD.search(path):
            return Claim(Evidence.URL, "its URL ends in :generateContent")
        is_other = recognition.names_another_api(connector.url)
        if _HOST.match(path) and "/openai/" not in path and not is_other:
            return Claim(Evidence.URL, "its URL is on generativelanguage.googleapis.com")
        body = connector.request_body
        if not is_other and recognition.member_in(body, ["contents"]) and recognition.member_in(body, ["parts"]):
            return Claim(Evidence.TEMPLATE, "its template has contents with parts")
        return None


class _Writer:
    """Writes the contents of one request."""

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self._limits = limits
        self._findings = findings

    def run(self, turns: list[Turn], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The contents of a run of turns; what else the first turn with results holds joins them in `before`."""
        contents: list[dict[str, Any]] = []
        results = before[-1] if before and before[-1]["role"] == "user" else None
        for i, turn in enumerate(turns):
            if turn.role == "assistant":
                contents.append({"role": "model", "parts": self._parts(turn.content)})
                if turn.answers:
                    contents.append({"role": "user", "parts": self._parts(turn.answers)})
            elif i == 0 and results and any(isinstance(block, ToolResult) for block in turn.content):
                results["parts"] += self._parts(turn.others)
            elif turn.others:
                contents.append({"role": "user", "parts": self._parts(turn.others)})
        return contents

    def _parts(self, blocks: Iterable[ContentBlock]) -> list[dict[str, Any]]:
        return [self._part(block) for block in blocks]

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        match block:
            case Text(text=text):
                return {"text": text}
            case Media():
                return self._media(block)
            case ToolUse(id=id, name=name, input=input):
                return {"functionCall": {"id": id, "name": name, "args": input}}
            case ToolResult():
                return {"functionResponse": self._response(block)}
            case ConverseBlock():
                raise AssertionError("refused by the capability table")
            case _:
                assert_never(block)

    def _media(self, block: Media) -> dict[str, Any]:
        mime_type = self._limits.mime_type(block.kind, block.format)
        if block.name:
            self._findings.note("DOCUMENT_NAME_DROPPED", block.at, f"The name {block.name!r} has no place here")
        if isinstance(block.source, Base64):
            return {"inlineData": {"mimeType": mime_type, "data": block.source.token}}
        return {"fileData": {"mimeType": mime_type, "fileUri": block.source.url}}

    def _response(self, result: ToolResult) -> dict[str, Any]:
        """``response`` holds the text and JSON (a list when there are several), ``parts`` the media."""
        output: list[Any] = []
        media: list[dict[str, Any]] = []
        for part in result.content:
            match part:
                case Text(text=text):
                    output.append(text)
                case Json(value=value):
                    output.append(value)
                case Media():
                    media.append(self._media(part))
                case _:
                    assert_never(part)
        value = output[0] if len(output) == 1 else output or ""
        response = {"error" if result.is_error else "output": value}
        parts = {"parts": media} if media else {}
        return {"id": result.id, "name": result.name, "response": response, **parts}
