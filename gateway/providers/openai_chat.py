"""OpenAI chat completions: ``{"messages": [{role, content: [{"type": …}]}]}``.

Shapes from the openai SDK's `ChatCompletionMessageParam`; the service's rules from docs/evidence/providers.md.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, assert_never

from msgspec.structs import replace

from gateway.providers import recognition, responses
from gateway.providers.base import Claim, ClusterSupport, ConnectorHints, Evidence, LlmResponse, Provider, ToolCall
from gateway.providers.capabilities import (
    IMAGES,
    IMAGES_BY_URL,
    NEUTRAL_RESULT_TEXT,
    TEXT_DOCUMENTS,
    TOOL_ERROR_TEXT,
    V2_LABEL,
    Capabilities,
    MediaTable,
    RequestLimits,
    Role,
)
from gateway.providers.connector import ConnectorTemplate, ModelSpec
from gateway.providers.tools import Turn, role_runs
from gateway.providers.values import Findings
from gateway.unified.model import Base64, ClientTools, ConverseBlock, Json, Media, Text, ToolResult, ToolSpec, ToolUse

# Not response_format, frequency_penalty, presence_penalty or image_url: Cohere's /v2/chat has those, too.
_OWN_MEMBERS = ("max_completion_tokens", "logit_bias", "stream_options")
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filtered",
}

_MEDIA: MediaTable = {
    "image": {"base64": IMAGES, "https": IMAGES_BY_URL},  # [D]
    "document": {"base64": ("pdf", *TEXT_DOCUMENTS)},  # [I] no other file type in chat completions
    "audio": {"base64": ("wav", "mp3")},  # [M]
}

OPENAI = Capabilities(
    label="OpenAI chat completions",
    image_details=frozenset({"low", "high", "original"}),  # [M]
    request=RequestLimits({"image": 500}, 50_000_000),  # [D] 500 images, 50 MB in all
    media=_MEDIA,
    tool_media=_MEDIA,  # moved to a user message after the tool messages
    text_documents=frozenset(TEXT_DOCUMENTS),
    hoists_system=False,
    calls_apart=True,  # [M] `tool_calls` is a member of the message, not a part
    strict_tools=True,  # [M]
)

# The cluster's `input` has a `format` in every source.
_V2_MEDIA: MediaTable = {"image": {"base64": IMAGES, "https": IMAGES}, "document": {"base64": TEXT_DOCUMENTS}}
OPENAI_V2 = replace(
    OPENAI,
    label=V2_LABEL,
    media=_V2_MEDIA,
    tool_media=_V2_MEDIA,
    tool_id_characters="\x00-#%-\U0010ffff",  # no dollar sign: the cluster would expand a placeholder
    tool_id_length=sys.maxsize,
)
"""The cluster sends OpenAI texts and images only (docs/evidence/facts.md, "conversational_v2")."""


class OpenAIConnector(ConnectorTemplate):
    """`openai/v1/chat/completions`. With `reasoning_effort` no sampling parameter is sent (3.8.0.0 source)."""

    url = "https://api.openai.com/v1/chat/completions"
    response_filter = "$.choices[0].message.content"
    credentials = (("openai_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {"Authorization": "Bearer ${credential.openai_api_key}"}
    lead: ClassVar[tuple[Mapping[str, Any], ...]] = ({"role": "system", "content": "${parameters.system_prompt}"},)
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "content": "${parameters.prompt}"}

    def sampling(self, spec: ModelSpec) -> dict[str, str]:
        """Return a temperature, unless it is a reasoning model."""
        return {} if "reasoning_effort" in spec.parameters else {"temperature": "1.0"}

    def left_out(self, spec: ModelSpec) -> tuple[str, ...]:
        """Leave out temperature and `top_p` beside `reasoning_effort`."""
        if "reasoning_effort" not in spec.parameters:
            return ()
        return tuple(name for name in ("temperature", "top_p") if name in spec.parameters)

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the body of a chat completion request."""
        if "reasoning_effort" in spec.parameters:
            chosen = '"reasoning_effort":"${parameters.reasoning_effort}"'
        else:
            chosen = '"temperature":${parameters.temperature}'
            chosen += ',"top_p":${parameters.top_p}' if "top_p" in spec.parameters else ""
        return (
            f'{{"model":"${{parameters.model}}","messages":{conversation},'
            f'"max_completion_tokens":${{parameters.max_tokens}},{chosen}}}'
        )


class OpenAIChat(Provider):
    """OpenAI's chat completions API, and other servers of the same format."""

    name: ClassVar[str] = "openai/v1/chat/completions"
    messages_field: ClassVar[str] = "messages"
    content_field: ClassVar[str] = "content"
    tools_member: ClassVar[str] = "tools"
    connector: ClassVar[ConnectorTemplate] = OpenAIConnector()
    cluster: ClassVar[ClusterSupport] = ClusterSupport(
        llm_interface="openai/v1/chat/completions",
        since=(3, 0),
        tool_config=', "tools": [${parameters._tools:-}]',
        user_turn='{"role":"user","content":"TEXT"}',
        body_members=frozenset({"model", "messages", "tools"}),
        has_system_slot=False,
        calling_parameters={"tool_choice": "auto", "parallel_tool_calls": "false"},
        v2=OPENAI_V2,
    )

    def __init__(self, capabilities: Capabilities = OPENAI) -> None:
        self.capabilities: Capabilities = capabilities

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Leave system turns among the messages; write each tool result as its own message (`Provider.write`)."""
        writer = ChatWriter(self.capabilities, findings)
        return [message for run in role_runs(turns) for message in writer.run(run)]

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return ``{"type": "text", "text": …}``."""
        return _text(text)

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return {}: system text is a message."""
        return {}

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return ``tools`` and ``tool_choice``."""
        functions = [
            {**tool.label, "parameters": tool.schema, **({"strict": True} if tool.strict else {})} for tool in tools
        ]
        body: dict[str, Any] = {"tools": [{"type": "function", "function": function} for function in functions]}
        if choice is not None and choice.required:
            only = {"type": "function", "function": {"name": choice.only}}
            body["tool_choice"] = only if choice.only else "required"
        return body

    def simplest(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write content that is one text as a string: DeepSeek's API, among others, takes no array [I]."""
        match message.get("content"):
            case [{"type": "text", "text": text, **others}] if not others:
                return {**message, "content": text}
        return message

    def canonical(self, messages: Any) -> Any:
        """Write string content as one text part, absent content of a tool call as null, and its arguments parsed."""
        return [canonical_message(message) for message in messages] if isinstance(messages, list) else messages

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/chat/completions``, on any host, or a member that only this API has.

        Messages alone prove nothing: Claude's and Cohere's look the same.
        """
        if recognition.url_path(connector.url).endswith("/chat/completions"):
            return Claim(Evidence.URL, "its URL ends in /chat/completions")
        body = connector.request_body
        member = recognition.member_in(body, _OWN_MEMBERS)
        if member and recognition.member_in(body, ["messages"]) and not recognition.names_another_api(connector.url):
            return Claim(Evidence.TEMPLATE, f"its template has messages and {member}")
        return None

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read the first choice's message and ``usage``; a refusal counts as text."""
        message = responses.member(response, "choices", 0, "message")
        if not isinstance(message, dict):
            return None
        text = responses.text(message.get("content")) or responses.text(message.get("refusal"))
        calls = tuple(read_call(call) for call in responses.objects(message.get("tool_calls")))
        counts = responses.usage(response.get("usage"), ("prompt_tokens",), ("completion_tokens",))
        reason = responses.member(response, "choices", 0, "finish_reason")
        return LlmResponse(text, calls, counts, responses.stop_reason(reason, _STOP_REASONS))


class ChatWriter:
    """Writes the messages of one request; also for APIs that differ from OpenAI's in the methods without an underscore.

    Tool messages hold no media, so those of tool results are collected in `_moved` and follow all tool messages.
    """

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self.limits = limits
        self.findings = findings
        self._moved: list[Media] = []
        self._documents = 0

    def run(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """Return the messages of a run of turns (`role_runs`)."""
        messages: list[dict[str, Any]] = []
        if self._moved:
            messages.append({"role": "user", "content": [self._media(block) for block in self._moved]})
            self._moved = []
        for turn in turns:
            if turn.role == "assistant":
                messages.append(self.assistant(self._parts(turn), turn))
                messages += [self._tool(result) for result in turn.answers]
            elif turn.others:
                messages.append({"role": self.role(turn.role), "content": self._parts(turn)})
        return messages

    def role(self, role: Role) -> str:
        """Return the API's name of a role other than the assistant's."""
        return role

    def assistant(self, parts: list[dict[str, Any]], turn: Turn) -> dict[str, Any]:
        """Return the assistant's message. parts: of the turn's blocks other than tool calls."""
        calls = [write_call(block) for block in turn.content if isinstance(block, ToolUse)]
        return {"role": "assistant", "content": parts or None, **({"tool_calls": calls} if calls else {})}

    def json_part(self, value: Any, at: str) -> dict[str, Any]:
        """Return the part of a tool message for a JSON value."""
        self.findings.note("TOOL_RESULT_STRINGIFIED", at, "The JSON value is sent as text")
        return _text(json.dumps(value, ensure_ascii=False))

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
                detail = {"detail": block.detail} if block.detail in self.limits.image_details else {}
                return {"type": "image_url", "image_url": {"url": self._url(block), **detail}}
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
            return f"data:{self.limits.mime_type(block.kind, block.format)};base64,{block.source.token}"
        return block.source.url

    def _tool(self, result: ToolResult) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        for part in result.content:
            match part:
                case Text(text=text):
                    parts.append(_text(text))
                case Json(value=value, at=at):
                    parts.append(self.json_part(value, at))
                case Media(at=at):
                    self._moved.append(part)
                    self.findings.note("TOOL_MEDIA_MOVED", at, "The media follows the tool messages in a user message")
                case _:
                    assert_never(part)
        if result.is_error:
            parts.insert(0, _text(TOOL_ERROR_TEXT))
            self.findings.note("TOOL_ERROR_MARKED", result.at, "A text before the output states that the tool failed")
        if not parts:
            parts.append(_text(NEUTRAL_RESULT_TEXT))
            self.findings.note("NEUTRAL_TEXT_ADDED", result.at, "A text is added: the tool result has none")
        return {"role": "tool", "tool_call_id": result.id, "content": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _token(block: Media) -> str:
    assert isinstance(block.source, Base64)
    return block.source.token


def write_call(block: ToolUse) -> dict[str, Any]:
    """Return a tool call, its arguments as JSON text."""
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def canonical_message(message: Any) -> Any:
    """Return a message with string content as one text part, and the arguments of its tool calls parsed."""
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


def read_call(call: dict[str, Any]) -> ToolCall:
    """Read a call of a response; arguments that are not JSON remain a string."""
    arguments = responses.member(call, "function", "arguments")
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        arguments = json.loads(arguments)
    read = responses.tool_call(call.get("id"), responses.member(call, "function", "name"), arguments)
    signature = responses.text(responses.member(call, "extra_content", "google", "thought_signature"))
    return replace(read, signature=signature) if signature else read
