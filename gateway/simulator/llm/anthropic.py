"""Anthropic Messages and Bedrock's InvokeModel with its body: what the services accept, and how they answer.

The rules are those of docs/evidence/providers.md, "Anthropic Messages".
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.simulator.llm.checks import a_list, a_text, an_object, base64_bytes, need

_FIELDS = frozenset(
    {"max_tokens", "messages", "system", "metadata", "stop_sequences", "stream", "temperature", "thinking"}
    | {"tool_choice", "tools", "top_k", "top_p"}
)
_PARTS: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "document": frozenset({"type", "source", "title", "context", "citations", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
}
_SOURCES: dict[str, frozenset[str]] = {
    "base64": frozenset({"type", "media_type", "data"}),
    "url": frozenset({"type", "url"}),
    "text": frozenset({"type", "media_type", "data"}),
}
_MEDIA_TYPES = {
    ("image", "base64"): frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
    ("document", "base64"): frozenset({"application/pdf"}),
    ("document", "text"): frozenset({"text/plain"}),
}
_BY_ROLE = {
    "user": frozenset({"text", "image", "document", "tool_result"}),
    "assistant": frozenset({"text", "tool_use"}),
}
_RESULT_PARTS = frozenset({"text", "image", "document"})
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAX_IMAGE_BYTES = 10 * 1024 * 1024
VERSION = "bedrock-2023-05-31"


_CONTINUES = re.compile(r"claude-3-(haiku|sonnet|opus|5-haiku|5-sonnet|7-sonnet)-")
"""The models that continue an assistant turn: Claude 3, 3.5 and 3.7."""


def check_end(model: str, role: str, text: Any, is_thinking: bool) -> None:
    """Raise `Refused` if `model` would not take a conversation with this end. text: the last text; None for no text."""
    if role == "user":
        return
    can_continue = _CONTINUES.search(model) and not is_thinking
    need(can_continue, "This model does not support assistant message prefill. It must end with a user message.")
    is_trimmed = isinstance(text, str) and text == text.rstrip()
    need(is_trimmed, "messages: final assistant content cannot end with trailing whitespace")


def check(body: Any) -> None:
    """Raise `Refused` for a message request that Anthropic's API would not take."""
    request = an_object(body, "body", {*_FIELDS, "model"}, ("model", "max_tokens", "messages"))
    a_text(request["model"], "model")
    _check(request, request["model"], by_url=True)


def check_invoke(body: Any, model: str = "") -> None:
    """Raise `Refused` for a body that InvokeModel would not take for one of Anthropic's models."""
    allowed = {*_FIELDS, "anthropic_version", "anthropic_beta"} - {"stream"}
    request = an_object(body, "body", allowed, ("anthropic_version", "max_tokens", "messages"))
    need(request["anthropic_version"] == VERSION, "anthropic_version: is not supported")
    _check(request, model, by_url=False)


def _check(request: dict[str, Any], model: str, by_url: bool) -> None:
    need(isinstance(request["max_tokens"], int), "max_tokens: Input should be a valid integer")
    system = request.get("system")
    for index, part in enumerate([] if system is None or isinstance(system, str) else a_list(system, "system")):
        need(isinstance(part, dict) and part.get("type") == "text", f"system.{index}: must be a text")
        _part(part, f"system.{index}", frozenset({"text"}), by_url)
    conversation = _Conversation(by_url)
    for position, message in enumerate(a_list(request["messages"], "messages")):
        conversation.message(message, f"messages.{position}")
    check_end(model, conversation.role, conversation.last_text, "thinking" in request)
    if conversation.ids:
        need(request.get("tools"), "Requests which include `tool_use` or `tool_result` blocks must define tools.")


class _Conversation:
    """The rules that hold across messages: roles, and tool calls with their results.

    Consecutive messages of one role count as one, as the service joins them.
    """

    def __init__(self, by_url: bool) -> None:
        self.by_url = by_url
        self.role = ""
        self.last_text: Any = None
        self.ids: set[str] = set()
        self.open: set[str] = set()

    def message(self, message: Any, place: str) -> None:
        an_object(message, place, {"role", "content"}, ("role", "content"))
        role = message["role"]
        need(role in _BY_ROLE, f"{place}.role: Input should be 'user' or 'assistant'")
        need(self.role or role == "user", 'messages: first message must use the "user" role')
        if isinstance(message["content"], str):
            a_text(message["content"], f"{place}.content")
            parts: list[Any] = [{"type": "text", "text": message["content"]}]
        else:
            parts = a_list(message["content"], f"{place}.content")
        for index, part in enumerate(parts):
            _part(part, f"{place}.content.{index}", _BY_ROLE[role], self.by_url)
        self._tools(parts, place, new_turn=role != self.role)
        self.role = role
        self.last_text = parts[-1].get("text")

    def _tools(self, parts: list[Any], place: str, new_turn: bool) -> None:
        results = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        if new_turn:
            need(set(results) == self.open, f"{place}: each `tool_use` block must have a `tool_result` block next")
            self.open = set()
        else:
            need(not results, f"{place}: unexpected `tool_result` block")
        calls = [part["id"] for part in parts if part["type"] == "tool_use"]
        need(len(set(calls)) == len(calls) and not self.ids & set(calls), f"{place}: `tool_use` ids must be unique")
        self.ids |= set(calls)
        self.open |= set(calls)
        kinds = [part["type"] for part in parts]
        late = [kind for kind in kinds[kinds.index("tool_use") :] if kind != "tool_use"] if calls else []
        need(not late, f"{place}: other blocks must come before `tool_use`")
        first = next((at for at, kind in enumerate(kinds) if kind != "tool_result"), len(kinds))
        need("tool_result" not in kinds[first:], f"{place}: `tool_result` blocks must come first")


def _part(part: Any, place: str, kinds: frozenset[str], by_url: bool) -> None:
    need(isinstance(part, dict) and part.get("type") in kinds, f"{place}: must be one of {', '.join(sorted(kinds))}")
    kind = part["type"]
    place = f"{place}.{kind}"
    an_object(part, place, _PARTS[kind])
    match kind:
        case "text":
            a_text(part.get("text"), f"{place}.text")
        case "image" | "document":
            _source(kind, part.get("source"), f"{place}.source", by_url)
        case "tool_use":
            need(_TOOL_ID.fullmatch(str(part.get("id"))), f"{place}.id: String should match the pattern")
            need(_TOOL_NAME.fullmatch(str(part.get("name"))), f"{place}.name: String should match the pattern")
            need(isinstance(part.get("input"), dict), f"{place}.input: Input should be an object")
        case "tool_result":
            need(_TOOL_ID.fullmatch(str(part.get("tool_use_id"))), f"{place}.tool_use_id: Field required")
            _result(part, place, by_url)


def _result(part: dict[str, Any], place: str, by_url: bool) -> None:
    content = part.get("content", [])
    failed = part.get("is_error", False)
    need(content or not failed, f"{place}: content cannot be empty if `is_error` is true")
    for index, inner in enumerate([] if isinstance(content, str) else content):
        _part(inner, f"{place}.content.{index}", _RESULT_PARTS, by_url)
        need(not failed or inner["type"] == "text", f'{place}: all content must be type "text" if `is_error` is true')


def _source(kind: str, source: Any, place: str, by_url: bool) -> None:
    need(isinstance(source, dict) and source.get("type") in _SOURCES, f"{place}: unknown source")
    form = source["type"]
    an_object(source, place, _SOURCES[form], _SOURCES[form])
    if form == "url":
        need(by_url, f"{place}: URL sources are not supported")
        need(str(source["url"]).startswith("https://"), f"{place}.url: Only HTTPS URLs are supported")
        return
    media_types = _MEDIA_TYPES.get((kind, form), frozenset())
    need(source["media_type"] in media_types, f"{place}.media_type: must be one of {', '.join(sorted(media_types))}")
    if form == "text":
        a_text(source["data"], f"{place}.data")
    else:
        size = base64_bytes(source["data"], f"{place}.data")
        need(kind != "image" or size <= _MAX_IMAGE_BYTES, f"{place}: image exceeds the maximum")


def answer(text: str) -> dict[str, Any]:
    """Return a message."""
    return _message([{"type": "text", "text": text}], "end_turn")


def tool_call(text: str, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a message that calls a tool."""
    call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    return _message([{"type": "text", "text": text}, call] if text else [call], "tool_use")


def _message(content: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    return {
        "id": "msg_simulated",
        "type": "message",
        "role": "assistant",
        "model": "simulated",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def error(status: int, message: str) -> str:
    """Return the body of a failure."""
    types = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    types |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
    return json.dumps({"type": "error", "error": {"type": types.get(status, "api_error"), "message": message}})
