"""OpenAI chat completions: what the service accepts, and how it answers.

The rules are those of docs/evidence/providers.md, "OpenAI chat completions".
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.simulator.llm.checks import Refused, a_list, a_text, an_object, base64_bytes, need

_ROLES: dict[str, frozenset[str]] = {
    "developer": frozenset({"role", "content", "name"}),
    "system": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "audio", "function_call", "annotations"}
    ),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
_PARTS: dict[str, frozenset[str]] = {
    "developer": frozenset({"text"}),
    "system": frozenset({"text"}),
    "tool": frozenset({"text"}),
    "assistant": frozenset({"text", "refusal"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
}
_IMAGE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,(.*)", re.DOTALL)
_FILE = re.compile(r"data:application/pdf;base64,(.*)", re.DOTALL)


def check(body: Any) -> None:
    """Raise `Refused` for a chat completions body that the service would not take."""
    need(isinstance(body, dict), "body: must be an object")
    a_text(body.get("model"), "model")
    check_deployment(body)


def check_deployment(body: Any) -> None:
    """Check a body for an Azure deployment, whose URL names the model."""
    need(isinstance(body, dict), "body: must be an object")
    if body.get("tools") is not None:
        need(isinstance(body["tools"], list), "tools: must be an array")
        need(body["tools"], "tools: [] is too short")
    open_calls: set[str] = set()
    for position, message in enumerate(a_list(body.get("messages"), "messages")):
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
    need(not open_calls, f"tool calls are not answered: {', '.join(sorted(open_calls))}")


def _content(message: dict[str, Any], place: str) -> None:
    content, role = message.get("content"), message["role"]
    if content is None:
        need(role == "assistant" and message.get("tool_calls"), f"{place}.content: required")
    elif not isinstance(content, str):
        for position, part in enumerate(a_list(content, f"{place}.content")):
            _part(part, f"{place}.content[{position}]", _PARTS[role])


def _part(part: Any, place: str, kinds: frozenset[str]) -> None:
    need(
        isinstance(part, dict) and part.get("type") in kinds, f"{place}.type: must be one of {', '.join(sorted(kinds))}"
    )
    kind = part["type"]
    an_object(part, place, {"type", kind}, ("type", kind))
    inner = part[kind]
    if kind in ("text", "refusal"):
        need(isinstance(inner, str), f"{place}.{kind}: must be a string")
    elif kind == "image_url":
        an_object(inner, f"{place}.image_url", {"url", "detail"}, ("url",))
        _image(str(inner["url"]), f"{place}.image_url.url")
    elif kind == "input_audio":
        an_object(inner, f"{place}.input_audio", {"data", "format"}, ("data", "format"))
        need(inner["format"] in ("wav", "mp3"), f"{place}.input_audio.format: must be wav or mp3")
        base64_bytes(inner["data"], f"{place}.input_audio.data")
    else:
        an_object(inner, f"{place}.file", {"file_data", "filename", "file_id"})
        need("file_id" in inner or "file_data" in inner, f"{place}.file: file_data or file_id required")
        if "file_data" in inner:
            match = _FILE.fullmatch(str(inner["file_data"]))
            need(match, f"{place}.file.file_data: must be a data URL of a PDF")
            base64_bytes(match and match.group(1), f"{place}.file.file_data")


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
    """Return a chat completion."""
    return _completion({"role": "assistant", "content": text, "refusal": None}, "stop")


def tool_call(text: str, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a chat completion that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    message = {"role": "assistant", "content": text or None, "refusal": None, "tool_calls": calls}
    return _completion(message, "tool_calls")


def _completion(message: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-simulated",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "simulated",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def as_stream(completion: dict[str, Any]) -> str:
    """Return a chat completion as an event stream: a word or a call an event."""
    (choice,) = completion["choices"]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [
        {"content": word} for word in re.findall(r"\S*\s*", message["content"] or "") if word
    ]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(message.get("tool_calls") or ())]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    events = [json.dumps({**completion, "object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def error(status: int, message: str) -> str:
    """Return the body of a failure; only the HTTP status has `status`."""
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
