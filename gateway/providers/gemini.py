"""Gemini generateContent (v1beta): ``{"contents": [{role, parts: […]}], "systemInstruction": {"parts": […]}}``.

Shapes from the v1beta protos and google-genai's types; the service's rules from docs/evidence/providers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, assert_never

from msgspec.structs import replace

from gateway.providers import recognition, responses
from gateway.providers.base import Claim, ClusterSupport, ConnectorHints, Evidence, LlmResponse, Provider, ToolCall
from gateway.providers.capabilities import TEXT_DOCUMENTS, Capabilities, RequestLimits, Role
from gateway.providers.connector import ConnectorTemplate, ModelSpec
from gateway.providers.tools import Turn, role_runs
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

_INPUT_COUNTS = ("promptTokenCount", "toolUsePromptTokenCount")  # [D] the first includes cached tokens
_OUTPUT_COUNTS = ("candidatesTokenCount", "thoughtsTokenCount")
_FILTERED = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_STOP_REASONS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens", **dict.fromkeys(_FILTERED, "content_filtered")}
_METHOD = re.compile(r":(streamG|g)enerateContent\Z")
_HOST = re.compile(r"https?://generativelanguage\.googleapis\.com(:\d+)?(/|\Z)")

_IMAGES = ("png", "jpeg", "webp")  # [I] image/gif is refused
_FILES = ("pdf", "txt", "csv", "html")  # [D]
_VIDEO = ("mp4", "mpeg", "mpg", "mov", "flv", "webm", "wmv", "three_gp")  # [D] mkv is in no list
_AUDIO = ("mp3", "wav", "flac", "ogg", "aac", "m4a")  # [D], m4a [U]

GEMINI = Capabilities(
    signatures=True,
    label="Gemini generateContent",
    request=RequestLimits({"image": 3000, "video": 10, "audio": 1}, 100_000_000),  # [D] of 2.5 Pro
    media={
        "image": {"base64": _IMAGES, "https": _IMAGES, "gs": _IMAGES},
        "document": {"base64": ("pdf", *TEXT_DOCUMENTS), "https": _FILES, "gs": _FILES},
        "video": {"base64": _VIDEO, "https": _VIDEO, "gs": _VIDEO},
        "audio": {"base64": _AUDIO, "https": _AUDIO, "gs": _AUDIO},
    },
    tool_media={  # [D] `functionResponse.parts` holds inline data only
        "image": {"base64": _IMAGES},
        "document": {"base64": ("pdf", *TEXT_DOCUMENTS)},
    },
    media_roles=frozenset({"user", "assistant"}),  # [D] image models answer with inline data
    text_documents=frozenset(TEXT_DOCUMENTS),
    mime_overrides={("video", "wmv"): "video/wmv"},  # [D]
    tool_name=r"[a-zA-Z0-9_.:-]{1,64}",  # [D]
    assistant_last="no",  # [I]
)


class GeminiConnector(ConnectorTemplate):
    """`gemini/v1beta/generatecontent`."""

    url = "https://generativelanguage.googleapis.com/v1beta/models/${parameters.model}:generateContent"
    response_filter = "$.candidates[0].content.parts[0].text"
    array = "contents"
    credentials = (("gemini_api_key",),)

    headers: ClassVar[Mapping[str, str]] = {"x-goog-api-key": "${credential.gemini_api_key}"}
    user_turn: ClassVar[Mapping[str, Any]] = {"role": "user", "parts": [{"text": "${parameters.prompt}"}]}

    def template(self, conversation: str, spec: ModelSpec) -> str:
        """Return the body of a generateContent request."""
        top_p = ',"topP":${parameters.top_p}' if "top_p" in spec.parameters else ""
        return (
            f'{{"systemInstruction":{{"parts":[{{"text":"${{parameters.system_prompt}}"}}]}},"contents":{conversation},'
            f'"generationConfig":{{"maxOutputTokens":${{parameters.max_tokens}},'
            f'"temperature":${{parameters.temperature}}{top_p}}}}}'
        )


class Gemini(Provider):
    """Google's generateContent API."""

    name: ClassVar[str] = "gemini/v1beta/generatecontent"
    messages_field: ClassVar[str] = "contents"
    content_field: ClassVar[str] = "parts"
    tools_member: ClassVar[str] = "tools"
    connector: ClassVar[ConnectorTemplate] = GeminiConnector()
    cluster: ClassVar[ClusterSupport] = ClusterSupport(
        llm_interface="gemini/v1beta/generatecontent",
        since=(3, 5),
        tool_config=', "tools": [{"functionDeclarations": [${parameters._tools:-}]}]',
        user_turn='{"role":"user","parts":[{"text":"TEXT"}]}',
        body_members=frozenset({"systemInstruction", "contents", "tools"}),
    )

    def __init__(self, capabilities: Capabilities = GEMINI) -> None:
        self.capabilities: Capabilities = capabilities

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write the results of a turn's calls as one user content right after it (`Provider.write`)."""
        writer = _Writer(self.capabilities, findings)
        contents: list[dict[str, Any]] = []
        for run in role_runs(turns):
            contents += writer.run(run, contents)
        return contents

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return ``{"text": …}``."""
        return {"text": text}

    def role_of(self, turn: Mapping[str, Any]) -> str:
        """Return ``assistant`` for ``model``, and ``user`` where the role is left out."""
        role = turn.get("role", "user")
        return "assistant" if role == "model" else role if isinstance(role, str) else ""

    def is_tool_result(self, part: Any) -> bool:
        """Return True for ``{"functionResponse": …}``."""
        return isinstance(part, dict) and "functionResponse" in part

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return ``{"systemInstruction": {"parts": [{"text": …}, …]}}``."""
        return {"systemInstruction": {"parts": [{"text": text} for text in texts]}} if texts else {}

    def declare(self, tools: Sequence[ToolSpec], choice: ClientTools | None) -> dict[str, Any]:
        """Return ``tools`` and ``toolConfig``. `parametersJsonSchema` takes what `parameters` would refuse [D]."""
        functions = [{"description": "", **tool.label, "parametersJsonSchema": tool.schema} for tool in tools]
        body: dict[str, Any] = {"tools": [{"functionDeclarations": functions}]}
        if choice is not None and choice.required:
            only = {"allowedFunctionNames": [choice.only]} if choice.only else {}
            body["toolConfig"] = {"functionCallingConfig": {"mode": "ANY", **only}}
        return body

    def canonical(self, messages: Any) -> Any:
        """Write a role that was left out as ``user``."""
        if not isinstance(messages, list):
            return messages
        return [{"role": "user", **content} if isinstance(content, dict) else content for content in messages]

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``:generateContent`` or is on the API's host, or ``contents`` with ``parts``.

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

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read the first candidate's parts and ``usageMetadata``; thoughts are no text.

        A candidate has no parts if it was filtered, or if its thoughts used up all tokens [I].
        """
        candidate = responses.member(response, "candidates", 0)
        parts = responses.member(candidate, "content", "parts")
        if not isinstance(parts, list) and responses.member(candidate, "finishReason") is None:
            return None
        text = "".join(responses.text(part.get("text")) for part in responses.objects(parts) if not part.get("thought"))
        calls = tuple(map(_read_call, (part for part in responses.objects(parts) if part.get("functionCall"))))
        reason = responses.stop_reason(responses.member(candidate, "finishReason"), _STOP_REASONS)
        return LlmResponse(
            text,
            calls,
            responses.usage(response.get("usageMetadata"), _INPUT_COUNTS, _OUTPUT_COUNTS),
            "tool_use" if calls and reason == "end_turn" else reason,
        )


def _read_call(part: dict[str, Any]) -> ToolCall:
    call = part["functionCall"] if isinstance(part["functionCall"], dict) else {}
    read = responses.tool_call(call.get("id"), call.get("name"), call.get("args", {}))
    return replace(read, signature=responses.text(part.get("thoughtSignature")))


def _signed(signature: str) -> dict[str, str]:
    return {"thoughtSignature": signature} if signature else {}


class _Writer:
    """Writes the contents of one request."""

    def __init__(self, limits: Capabilities, findings: Findings) -> None:
        self._limits = limits
        self._findings = findings

    def run(self, turns: Sequence[Turn], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write the contents of a run of turns.

        If the first turn holds tool results, its other blocks are appended to the content in `before` that has them.
        """
        contents: list[dict[str, Any]] = []
        results = before[-1] if before and before[-1]["role"] == "user" else None
        for i, turn in enumerate(turns):
            if turn.role == "assistant":
                contents.append({"role": "model", "parts": self._parts(turn.content)})
                if turn.answers:
                    contents.append({"role": "user", "parts": self._parts(self._in_order_of_calls(turn))})
            elif i == 0 and results and any(isinstance(block, ToolResult) for block in turn.content):
                results["parts"] += self._parts(turn.others)
            elif turn.others:
                contents.append({"role": "user", "parts": self._parts(turn.others)})
        return contents

    def _in_order_of_calls(self, turn: Turn) -> list[ToolResult]:
        """Return the results of a turn's calls in the calls' order, which the service requires [I]."""
        answers = {result.id: result for result in turn.answers}
        ordered = [answers[block.id] for block in turn.content if isinstance(block, ToolUse)]
        moved = next((old for old, new in zip(turn.answers, ordered, strict=True) if old is not new), None)
        if moved is not None:
            self._findings.note("BLOCKS_REORDERED", moved.at, "The tool results are in the order of their calls")
        return ordered

    def _parts(self, blocks: Iterable[ContentBlock]) -> list[dict[str, Any]]:
        return [self._part(block) for block in blocks]

    def _part(self, block: ContentBlock) -> dict[str, Any]:
        match block:
            case Text(text=text, signature=signature):
                return {"text": text, **_signed(signature)}
            case Media():
                return self._media(block)
            case ToolUse(id=id, name=name, input=input, signature=signature):
                return {"functionCall": {"id": id, "name": name, "args": input}, **_signed(signature)}
            case ToolResult():
                return {"functionResponse": self._response(block)}
            case ConverseBlock():
                raise AssertionError("refused by the capability table")
            case _:
                assert_never(block)

    def _media(self, block: Media) -> dict[str, Any]:
        mime_type = self._limits.mime_type(block.kind, block.format)
        if block.name:
            self._findings.note(
                "DOCUMENT_NAME_DROPPED", block.at, f"The name {block.name!r} is dropped: the API has no member for it"
            )
        if isinstance(block.source, Base64):
            return {"inlineData": {"mimeType": mime_type, "data": block.source.token}}
        return {"fileData": {"mimeType": mime_type, "fileUri": block.source.url}}

    def _response(self, result: ToolResult) -> dict[str, Any]:
        """Write text and JSON into ``response`` (a list when there are several), and media into ``parts``."""
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
