"""Cohere's chat API, version 2: what the service accepts, and how it answers.

The rules are those of docs/evidence/providers.md, "Cohere chat".
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.simulator.llm.checks import Refused, a_list, a_text, an_object, base64_bytes, need

_MEMBERS = frozenset(
    {
        "citation_options", "documents", "frequency_penalty", "k", "logprobs", "max_tokens", "messages", "model", "p",
        "presence_penalty", "priority", "response_format", "safety_mode", "seed", "stop_sequences", "stream",
        "strict_tools", "temperature", "thinking", "tool_choice", "tools",
    }
)  # fmt: skip
_ROLES: dict[str, frozenset[str]] = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", "tool_plan", "citations"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
_PARTS: dict[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "image_url"}),
    "assistant": frozenset({"text", "thinking"}),
    "tool": frozenset({"text", "document"}),
}
_IMAGE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,(.*)", re.DOTALL)


def check(body: Any) -> None:
    """Raise `Refused` for a chat body that the service would not take."""
    an_object(body, "body", _MEMBERS, ("model", "messages"))
    a_text(body["model"], "model")
    open_calls: set[str] = set()
    messages = a_list(body["messages"], "messages")
    for position, message in enumerate(messages):
        place = f"messages[{position}]"
        need(isinstance(message, dict) and message.get("role") in _ROLES, f"{place}.role: unknown role")
        an_object(message, place, _ROLES[message["role"]])
        if message["role"] == "tool":
            need(message.get("tool_call_id") in open_calls, f"{place}: answers no open tool call")
            open_calls.discard(message["tool_call_id"])
        else:
            need(not open_calls, f"{place}: tool calls must be answered first: {', '.join(sorted(open_calls))}")
        _content(message, place)
        open_calls |= _calls(message, place)
    need(messages[-1]["role"] in ("user", "tool"), "messages: the last one must be of the user or a tool")


def _content(message: dict[str, Any], place: str) -> None:
    content, role = message.get("content"), message["role"]
    if "tool_plan" in message:
        need(message.get("tool_calls"), f"{place}.tool_plan: only beside tool_calls")
        need(isinstance(message["tool_plan"], str), f"{place}.tool_plan: must be a string")
    if content is None:
        need(role == "assistant" and message.get("tool_calls"), f"{place}.content: required")
    elif not isinstance(content, str):
        for position, part in enumerate(a_list(content, f"{place}.content")):
            _part(part, f"{place}.content[{position}]", _PARTS[role])


def _part(part: Any, place: str, kinds: frozenset[str]) -> None:
    listed = ", ".join(sorted(kinds))
    need(isinstance(part, dict) and part.get("type") in kinds, f"{place}.type: must be one of {listed}")
    kind = part["type"]
    an_object(part, place, {"type", kind}, ("type", kind))
    inner = part[kind]
    if kind == "image_url":
        an_object(inner, f"{place}.image_url", {"url", "detail"}, ("url",))
        need(inner.get("detail", "auto") in ("auto", "low", "high"), f"{place}.image_url.detail: unknown")
        _image(str(inner["url"]), f"{place}.image_url.url")
    elif kind == "document":
        an_object(inner, f"{place}.document", {"data", "id"}, ("data",))
        need(isinstance(inner["data"], dict | str) and inner["data"], f"{place}.document.data: must be an object")
    else:
        need(isinstance(inner, str), f"{place}.{kind}: must be a string")


def _image(url: str, place: str) -> None:
    match = _IMAGE.fullmatch(url)
    if match is None:
        need(url.startswith(("https://", "http://")), f"{place}: must be an http(s) address or a data URL of an image")
    else:
        base64_bytes(match.group(2), place)


def _calls(message: dict[str, Any], place: str) -> set[str]:
    calls: set[str] = set()
    for position, call in enumerate(message.get("tool_calls") or ()):
        where = f"{place}.tool_calls[{position}]"
        an_object(call, where, {"id", "type", "function"}, ("id", "type", "function"))
        function = an_object(call["function"], f"{where}.function", {"name", "arguments"}, ("name", "arguments"))
        try:
            json.loads(function["arguments"])
        except (TypeError, ValueError):
            raise Refused(f"{where}.function.arguments: must be a JSON string") from None
        calls.add(call["id"])
    return calls


def answer(text: str) -> dict[str, Any]:
    """Return the answer with `text`."""
    return _response({"role": "assistant", "content": [{"type": "text", "text": text}]}, "COMPLETE")


def tool_call(text: str, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return an answer that calls a tool; `text` is its plan."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return _response({"role": "assistant", "tool_plan": text, "tool_calls": calls}, "TOOL_CALL")


def _response(message: dict[str, Any], reason: str) -> dict[str, Any]:
    counts = {"input_tokens": 11, "output_tokens": 7}
    usage = {"billed_units": counts, "tokens": counts}
    return {"id": "chat-simulated", "message": message, "finish_reason": reason, "usage": usage}


def error(status: int, message: str) -> str:
    """Return the body of a failure; only the HTTP status has `status`."""
    return json.dumps({"id": "chat-simulated", "message": message})
