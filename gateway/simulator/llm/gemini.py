"""Gemini generateContent, v1beta: what the service accepts, and how it answers.

The rules are those of docs/evidence/providers.md, "Gemini v1beta generateContent".
"""

from __future__ import annotations

import json
from typing import Any

from gateway.simulator.llm.checks import a_list, an_object, base64_bytes, need

_DATA = frozenset({"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode"})
_BESIDE = frozenset({"thoughtSignature", "thought", "videoMetadata", "mediaResolution"})
_FIELDS = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "generationConfig", "cachedContent"}
    | {"labels", "model"}
)
_REFUSED_TYPES = ("image/gif", "image/jpg")
_MAX_INLINE = 100 * 1024 * 1024


def check(body: Any) -> None:
    """Raise `Refused` for a generateContent body that the service would not take."""
    request = an_object(body, "body", _FIELDS, ("contents",))
    if "systemInstruction" in request:
        system = an_object(request["systemInstruction"], "systemInstruction", {"role", "parts"}, ("parts",))
        for position, part in enumerate(a_list(system["parts"], "systemInstruction.parts")):
            an_object(part, f"systemInstruction.parts[{position}]", {"text"}, ("text",))
    called: list[str] = []
    for position, content in enumerate(a_list(request["contents"], "contents")):
        place = f"contents[{position}]"
        an_object(content, place, {"role", "parts"}, ("parts",))
        role = content.get("role", "user")
        need(role in ("user", "model"), f"{place}.role: Please use a valid role: user, model.")
        parts = a_list(content["parts"], f"{place}.parts")
        for index, part in enumerate(parts):
            _part(part, f"{place}.parts[{index}]")
        answered = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if answered or called:
            need(answered == called, f"{place}: function responses must equal the function calls of the turn before")
        called = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    need(role == "user", "contents: the last turn must be the user's")


def _part(part: Any, place: str) -> None:
    an_object(part, place, _DATA | _BESIDE)
    kinds = [name for name in part if name in _DATA]
    need(len(kinds) == 1, f"{place}: required oneof field 'data' must have one initialized field")
    kind, inner = kinds[0], part[kinds[0]]
    if kind == "text":
        need(isinstance(inner, str), f"{place}.text: must be a string")
    elif kind == "inlineData":
        an_object(inner, f"{place}.inlineData", {"mimeType", "data", "displayName"}, ("mimeType", "data"))
        _mime(inner["mimeType"], f"{place}.inlineData.mimeType")
        need(base64_bytes(inner["data"], f"{place}.inlineData.data") <= _MAX_INLINE, f"{place}: too large")
    elif kind == "fileData":
        an_object(inner, f"{place}.fileData", {"mimeType", "fileUri", "displayName"}, ("fileUri",))
        need(str(inner["fileUri"]).startswith(("https://", "gs://")), f"{place}.fileData.fileUri: unsupported address")
        if "mimeType" in inner:
            _mime(inner["mimeType"], f"{place}.fileData.mimeType")
    elif kind == "functionCall":
        an_object(inner, f"{place}.functionCall", {"id", "name", "args"}, ("name",))
        need(isinstance(inner.get("args", {}), dict), f"{place}.functionCall.args: must be an object")
    elif kind == "functionResponse":
        allowed = {"id", "name", "response", "parts", "willContinue", "scheduling"}
        an_object(inner, f"{place}.functionResponse", allowed, ("name", "response"))
        need(isinstance(inner["response"], dict), f"{place}.functionResponse.response: must be an object")


def _mime(value: Any, place: str) -> None:
    need(isinstance(value, str) and value.count("/") == 1, f"{place}: is no MIME type")
    need(value not in _REFUSED_TYPES and "officedocument" not in value, f"{place}: Unsupported MIME type: {value}")


def answer(text: str) -> dict[str, Any]:
    """Return a generateContent response."""
    return _completion([{"text": text}])


def tool_call(text: str, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a generateContent response that calls a function."""
    call = {"functionCall": {"id": call_id, "name": name, "args": arguments}}
    return _completion([{"text": text}, call] if text else [call])


def _completion(parts: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    content = {"role": "model", "parts": parts}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}


def error(status: int, message: str) -> str:
    """Return the body of a failure."""
    names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}
    return json.dumps({"error": {"code": status, "message": message, "status": names.get(status, "INTERNAL")}})
