"""OpenAI's Responses API as a third party would add it: by the public interface alone.

``{"input": [{role, content: [{"type": "input_text", …}]}, {"type": "function_call", …}, …], "instructions": …}``.
The text parts of the assistant have a type of their own, and tool calls and results are items without a role.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.providers.base import (
    Capabilities,
    Claim,
    ConnectorHints,
    Evidence,
    Findings,
    LlmResponse,
    Provider,
    Role,
    ToolCall,
    Turn,
    Usage,
)
from gateway.unified.model import Base64, ContentBlock, Json, Media, Text, ToolResult, ToolUse

IMAGES = ("png", "jpeg", "gif", "webp")
MEDIA = {"image": {"base64": IMAGES, "https": IMAGES}, "document": {"base64": ("pdf",), "https": ("pdf",)}}


class OpenAIResponses(Provider):
    """OpenAI's Responses API."""

    name = "openai-responses/v1"
    messages_field = "input"
    content_field = "content"
    capabilities = Capabilities("OpenAI Responses", media=MEDIA, tool_media=MEDIA, calls_apart=True)  # type: ignore[arg-type]

    def write(self, turns: Sequence[Turn], findings: Findings) -> list[dict[str, Any]]:
        """Write each turn as a message, then its calls and their results as items of their own."""
        items: list[dict[str, Any]] = []
        for turn in turns:
            if turn.others:
                items.append(self._message(turn, len(items)))
            calls = [block for block in turn.content if isinstance(block, ToolUse)]
            items += [_call(block) for block in calls]
            items += [self._output(result, findings) for result in turn.answers]
        return items

    def _message(self, turn: Turn, position: int) -> dict[str, Any]:
        content = [self._part(block, turn.role) for block in turn.others]
        if turn.role == "assistant":
            own = {"type": "message", "id": f"msg_{position}", "status": "completed"}
            return {**own, "role": "assistant", "content": content}
        return {"role": turn.role, "content": content}

    def _part(self, block: ContentBlock | Json, role: Role) -> dict[str, Any]:
        match block:
            case Text(text=text):
                return self.text_part(text, role)
            case Json(value=value):
                return self.text_part(json.dumps(value, ensure_ascii=False), role)
            case Media(kind="image"):
                return {"type": "input_image", "detail": "auto", "image_url": self._url(block)}
            case Media(source=Base64()):
                name = block.name or f"document.{block.format}"
                return {"type": "input_file", "filename": name, "file_data": self._url(block)}
            case Media():
                return {"type": "input_file", "file_url": self._url(block)}
        raise AssertionError(f"refused by the capability table: {block}")

    def _url(self, block: Media) -> str:
        if isinstance(block.source, Base64):
            return f"data:{self.capabilities.mime_type(block.kind, block.format)};base64,{block.source.token}"
        return block.source.url

    def _output(self, result: ToolResult, findings: Findings) -> dict[str, Any]:
        parts = [self._part(part, "user") for part in result.content]
        if result.is_error:
            findings.note("TOOL_ERROR_MARKED", result.at, "A text before the output states that the tool failed")
            parts.insert(0, self.text_part("(the tool failed)"))
        return {"type": "function_call_output", "call_id": result.id, "output": parts or ""}

    def text_part(self, text: str, role: Role = "user") -> dict[str, Any]:
        """Return an `output_text` for the assistant, an `input_text` for any other role."""
        if role == "assistant":
            return {"type": "output_text", "text": text, "annotations": []}
        return {"type": "input_text", "text": text}

    def role_of(self, turn: Mapping[str, Any]) -> str:
        """Return the role; an item without one is the assistant's call, or the tool's result."""
        if "role" in turn:
            return str(turn["role"])
        return {"function_call": "assistant", "function_call_output": "tool"}.get(str(turn.get("type")), "")

    def system_fields(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the system text as `instructions`."""
        return {"instructions": "\n\n".join(texts)} if texts else {}

    def canonical(self, messages: Any) -> Any:
        """Write string content as one text part."""
        return [self._canonical(item) for item in messages] if isinstance(messages, list) else messages

    def _canonical(self, item: Any) -> Any:
        if not isinstance(item, dict) or not isinstance(item.get("content"), str):
            return item
        role: Role = "assistant" if item.get("role") == "assistant" else "user"
        return {**item, "content": [self.text_part(item["content"], role)]}

    def claims(self, connector: ConnectorHints) -> Claim | None:
        """Claim a URL that ends in ``/v1/responses``."""
        if connector.url.rstrip("/").endswith("/v1/responses"):
            return Claim(Evidence.URL, "its URL ends in /v1/responses")
        return None

    def read_response(self, response: Any) -> LlmResponse | None:
        """Read `output` and `usage`."""
        if not isinstance(response, dict) or response.get("object") != "response":
            return None
        items: list[Any] = response["output"]
        text = "".join(part["text"] for part in _parts(items) if part["type"] == "output_text")
        calls = [item for item in items if item["type"] == "function_call"]
        usage = response["usage"]
        return LlmResponse(
            text,
            tuple(ToolCall(call["call_id"], call["name"], json.loads(call["arguments"])) for call in calls),
            Usage(usage["input_tokens"], usage["output_tokens"]),
        )


def _call(block: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments}


def _parts(items: Iterable[Any]) -> list[Any]:
    return [part for item in items if item["type"] == "message" for part in item["content"]]
