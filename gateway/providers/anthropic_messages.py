"""Anthropic Messages: ``{"messages": [{role, content: [{"type": …}]}], "system": [{"type": "text", "text": …}]}``.

Two providers: Anthropic's own API, and Amazon Bedrock's InvokeModel, which takes the same messages, with
`anthropic_version` in the body and without `model`. Shapes from the anthropic SDK's `MessageParam`; the services'
rules from docs/evidence/providers.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, assert_never
from urllib.parse import unquote

import msgspec

from gateway.providers import media, recognition, responses
from gateway.providers.base import Claim, ConnectorHints, Evidence, LlmResponse, Provider
from gateway.providers.capabilities import (
    IMAGES,
    IMAGES_BY_URL,
    NEUTRAL_RESULT_TEXT,
    TEXT_DOCUMENTS,
    TOOL_ERROR_TEXT,
    UNNAMED,
    Capabilities,
    MediaTable,
    RequestLimits,
    Role,
)
from gateway.providers.connector import ConnectorTemplate, ModelSpec
from gateway.providers.tools import Turn, role_runs, run_content
from gateway.providers.values import Findings
from gateway.unified.model import (
    Base64,
    ClientTools,
    ContentBlock,
    ConverseBlock,
    Json,
    Media,
    Text,
    ToolResult,
    ToolSpec,
    ToolUse,
)

API_VERSION = "2023-06-01"
BEDROCK_VERSION = "bedrock-2023-05-31"

_STOP_REASONS = {"refusal": "content_filtered"}
_INVOKE = re.compile(r"/invoke(-with-response-stream)?\Z")
_MODEL = re.compile(r"/model/([^/]+)/invoke(-with-response-stream)?\Z")

_MEDIA: MediaTable = {
    "image": {"base64": IMAGES, "https": IMAGES_BY_URL},  # [M]
    "document": {"base64": ("pdf", *TEXT_DOCUMENTS), "https": ("pdf", UNNAMED)},  # [M] always a PDF by URL
}
_BEDROCK_MEDIA: MediaTable = {kind: {"base64": forms["base64"]} for kind, forms in _MEDIA.items()}  # [I] no URLs

ANTHROPIC = Capabilities(
    label="Anthropic Messages",
    request=RequestLimits({"image": 100}, 32_000_000),  # [D] 100 images, 32 MB in all
    media=_MEDIA,
    tool_media=_MEDIA,  # [M]
    text_sources=frozenset(TEXT_DOCUMENTS),  # [M]
    tool_id_characters="a-zA-Z0-9_-",  # [I]
    unique_tool_ids=True,  # [I]
    assistant_first=False,  # [I]
    assistant_last="prefill",  # [D] newer models refuse it
    merges_turns=True,  # [D] results must be in the message right after their calls
    calls_apart=True,  # [I]
)
BEDROCK_INVOKE = msgspec.structs.replace(
    ANTHROPIC, label="Anthropic Messages on Bedrock", media=_BEDROCK_MEDIA, tool_media=_BEDROCK_MEDIA
)


class AnthropicConnector(ConnectorTemplate):
    """`anthropic/v1/messages`. Only one of `temperature` and `top_p` is sent: newer models refuse both together."""

    url = "https://api.anthropic.com/v1/messages"
    response_filter = "$.content[0].text"
    credentials: ClassVar[tuple[tuple[str, ...], ...]] = (("anthropic_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {
        "x-api-key": "${credential.anthropic_api_key}",
        "anthropic-version": API_VERSION,
    }
    user_turn: ClassVar[Mapping[str, Any]] = {
        "role": "user",
        "content": [{"type": "text", "text": "${parameters.prompt}"}],
    }
    first_member: ClassVar[str] = '"model":"${parameters.model}"'

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """Return a temperature, unless `top_p` was given."""
        return {} if "top_p" in spec.parameters else {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Leave out a temperature beside `top_p`."""
        return ("temperature",) if {"top_p", "temperature"} <= spec.parameters.keys() else ()

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the body of a message request."""
        name = "top_p" if "top_p" in spec.parameters else "temperature"
        return (
            f'{{{self.first_member},"max_tokens":${{parameters.max_tokens}},"{name}":${{parameters.{name}}},'
            f'"system":[{{"type":"text","text":"${{parameters.system_prompt}}"}}],"messages":{conversation}}}'
        )


class BedrockInvokeConnector(AnthropicConnector):
    """`bedrock-invoke/anthropic`: signed with SigV4; the model is in the URL and the version in the body."""

    url = "https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/invoke"
    protocol = "aws_sigv4"
    credentials = (("access_key", "secret_key"), ("roleArn",))
    optional_credentials = ("session_token",)

    headers: ClassVar[Mapping[str, str]] = {}
    fixed: ClassVar[Mapping[str, str]] = {"region": "us-east-1", "service_name": "bedrock"}
    first_member = f'"anthropic_version":"{BEDROCK_VERSION}"'

    def model_name(self, spec: ModelSpec) -> str:
        """Return the id, or an ARN with its slashes escaped so that they don't end the path segment."""
        return spec.model_id.replace("/", "%2F")


class AnthropicMessages(Provider):
    """Anthropic's Messages API, and other servers of the same format."""

    name: ClassVar[str] = "anthropic/v1/messages"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"
    tools_member: ClassVar[str] = "tools"
    needs_declarations: ClassVar[bool] = True  # [I]
    connector: ClassVar[ConnectorTemplate] = AnthropicConnector()

    def __init__(self, capabilities: Capabilities = ANTHROPIC) -> None:
        self.capabilities: Capabilities = capabilities

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Join turns of one role in a row into one message (`Provider.write`)."""
        writer = _Writer(findings)
        groups = role_runs(turns) if self.capabilities.merges_turns else [[turn] for turn in turns]
        return [writer.message(group) for group in groups]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return ``{"type": "text", "text": …}``."""
        return _text(text)

    def is_tool_result(self, part: Any) -> bool:
        """Return True for ``{"type": "tool_result", …}``."""
        return isinstance(part, dict) and part.get("type") == "tool_result"

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return ``{"system": [{"type": "text", "text": …}, …]}``."""
        return {"system": [_text(text) for text in texts]} if texts else {}

    def canonical(self, messages: Any) -> Any:
        """Write string content, of a message or of a tool result, as one text part."""
        return [_canonical(message) for message in messages] if isinstance(messages, list) else messages

    def called_tools(self, messages: Sequence[Any]) -> list[str]:
        """Return the names in ``tool_use``."""
        parts = (part for message in messages for part in message["content"] if part["type"] == "tool_use")
        return list(dict.fromkeys(part["name"] for part in parts))

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return ``tools`` and ``tool_choice``."""
        body: dict[str, Any] = {"tools": [{**tool.label, "input_schema": tool.schema} for tool in tools]}
        if choice is not None and choice.required:
            body["tool_choice"] = {"type": "tool", "name": choice.only} if choice.only else {"type": "any"}
        return body

    def continues_assistant(self, url: str, body: Mapping[str, Any]) -> bool:
        """Return True for a model that does. One that thinks first does not [D]."""
        return recognition.continues_assistant(self.model_of(url, body)) and "thinking" not in body

    def model_of(self, url: str, body: Mapping[str, Any]) -> str:
        """Return the id of the model that gets `body`; "" if it is not known."""
        model = body.get("model")
        return model if isinstance(model, str) else ""

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/v1/messages``, on any host."""
        if recognition.url_path(connector.url).endswith("/v1/messages"):
            return Claim(Evidence.URL, "its URL ends in /v1/messages")
        return None

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read ``content`` and ``usage``; ``input_tokens`` does not count cached tokens."""
        if responses.member(response, "type") != "message" or not isinstance(response.get("content"), list):
            return None
        parts = list(responses.objects(response["content"]))
        text = "".join(responses.text(part.get("text")) for part in parts if part.get("type") == "text")
        calls = [part for part in parts if part.get("type") == "tool_use"]
        counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        return LlmResponse(
            text,
            tuple(responses.tool_call(call.get("id"), call.get("name"), call.get("input")) for call in calls),
            responses.usage(response.get("usage"), counts, ("output_tokens",)),
            responses.stop_reason(response.get("stop_reason"), _STOP_REASONS),
        )


class BedrockInvokeAnthropic(AnthropicMessages):
    """Amazon Bedrock's InvokeModel with the body of Anthropic's models. It takes no media by URL."""

    name: ClassVar[str] = "bedrock-invoke/anthropic"
    connector: ClassVar[ConnectorTemplate] = BedrockInvokeConnector()

    def __init__(self, capabilities: Capabilities = BEDROCK_INVOKE) -> None:
        super().__init__(capabilities)

    def model_of(self, url: str, body: Mapping[str, Any]) -> str:
        """Return the id in the URL's path."""
        model = _MODEL.search(recognition.url_path(url))
        return unquote(model[1]) if model else ""

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/invoke`` if the template has Anthropic's version and messages.

        The model's name in the URL decides nothing: inference profiles have any name, and older Claude models take a
        body without messages.
        """
        members = [recognition.member_in(connector.request_body, [name]) for name in ("anthropic_version", "messages")]
        if _INVOKE.search(recognition.url_path(connector.url)) and all(members):
            return Claim(Evidence.URL, "its URL ends in /invoke and its template has anthropic_version")
        return None


class _Writer:
    """Writes the messages of one request."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def message(self, turns: Sequence[Turn]) -> dict[str, Any]:
        return {"role": turns[0].role, "content": [self._part(block) for block in run_content(turns)]}

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        match block:
            case Text(text=text):
                return _text(text)
            case Media():
                return self._media(block)
            case ToolUse(id=id, name=name, input=input):
                return {"type": "tool_use", "id": id, "name": name, "input": input}
            case ToolResult():
                return self._result(block)
            case ConverseBlock():
                raise AssertionError("refused by the capability table")
            case _:
                assert_never(block)

    def _media(self, block: Media) -> dict[str, Any]:
        match block.kind:
            case "image":
                return {"type": "image", "source": _source(block)}
            case "document":
                title = {"title": block.name} if block.name else {}
                return {"type": "document", "source": self._document_source(block), **title}
            case "video" | "audio":
                raise AssertionError("refused by the capability table")
            case _:
                assert_never(block.kind)

    def _document_source(self, block: Media) -> dict[str, Any]:
        """Return the source of a PDF, or the text of a document that is text."""
        if block.format == "pdf" or not isinstance(block.source, Base64):
            return _source(block)
        if block.format != "txt":
            self._findings.note("DOCUMENT_AS_TEXT", block.at, f"The {block.format} document is sent as plain text")
        return {"type": "text", "media_type": "text/plain", "data": media.decode(block)}

    def _result(self, result: ToolResult) -> dict[str, Any]:
        """Return a tool result. One with `is_error` may hold text only, and must hold some."""
        content = [self._result_part(part) for part in result.content]
        failed = {"is_error": True} if result.is_error else {}
        if failed and any(part["type"] != "text" for part in content):
            failed = {}
            content.insert(0, _text(TOOL_ERROR_TEXT))
            self._findings.note("TOOL_ERROR_MARKED", result.at, "A text before the output states that the tool failed")
        elif failed and not content:
            content.append(_text(NEUTRAL_RESULT_TEXT))
            self._findings.note("NEUTRAL_TEXT_ADDED", result.at, "A text is added: the tool result is empty")
        members = {"content": content} if content else {}
        return {"type": "tool_result", "tool_use_id": result.id, **members, **failed}

    def _result_part(self, part: Text | Json | Media) -> dict[str, Any]:
        match part:
            case Text(text=text):
                return _text(text)
            case Json(value=value, at=at):
                self._findings.note("TOOL_RESULT_STRINGIFIED", at, "The JSON value is sent as text")
                return _text(json.dumps(value, ensure_ascii=False))
            case Media():
                return self._media(part)
            case _:
                assert_never(part)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _source(block: Media) -> dict[str, Any]:
    if isinstance(block.source, Base64):
        media_type = ANTHROPIC.mime_type(block.kind, block.format)
        return {"type": "base64", "media_type": media_type, "data": block.source.token}
    return {"type": "url", "url": block.source.url}


def _canonical(message: Any) -> Any:
    if not isinstance(message, dict) or "content" not in message:
        return message
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": [_text(content)]}
    if not isinstance(content, list):
        return message
    return {**message, "content": [_canonical_part(part) for part in content]}


def _canonical_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "tool_result" and isinstance(part.get("content"), str):
        return {**part, "content": [_text(part["content"])]}
    return part
