"""What users and agents wrote, as OpenTelemetry's `gen_ai.input.messages` and `gen_ai.output.messages`.

Made of the record, so that it is redacted. A medium is a `file` part with its MIME type and its SHA-256, or a `uri`
part without account and query, which may hold secrets. What is not understood is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
import pybase64
from msgspec.structs import replace

from gateway.execute.run_answer import RunAnswer, read_answer
from gateway.execute.run_events import NOT_READ, AnswerReader
from gateway.observe.record import Delivery, ExchangeRecord, HttpMessage
from gateway.unified.formats import FORMATS, normalise
from gateway.unified.model import MEDIA_KINDS, MediaKind

_SHOWN_MEDIUM = re.compile(r"\[MEDIA type=(\S+) length=\d+ sha256=([0-9a-f]{64})\]")
"""What stands for a medium in a record (`gateway.observe.media`)."""
_DATA = ("data", "bytes", "base64", "file_data", "value", "image", "image_url", "url", "uri", "fileUri", "file_uri")
_TYPES = ("media_type", "mime_type", "mimeType", "mediaType")
_KINDS: dict[str, str] = {
    **dict(zip(MEDIA_KINDS, MEDIA_KINDS, strict=True)),
    **{"image_url": "image", "input_image": "image", "input_audio": "audio"},
    **dict.fromkeys(("file", "input_file", "binary", "inlineData", "inline_data", "fileData", "file_data"), "document"),
}
"""Kinds of media by the type of their block, or by its only member."""
_REASONS = {"max_tokens": "length", "tool_use": "tool_call", "guardrail_intervened": "content_filter"}
"""The conventions' names of reasons to stop; `stop` for all others."""

_ACCOUNT = re.compile(r"//[^/@]*@")

Part = dict[str, Any]


def message_attributes(record: ExchangeRecord) -> dict[str, str]:
    """Return the attributes of a run's span that hold what was written; {} if nothing is recorded.

    `input.value` and `output.value` (OpenInference) are the last turn of the input and the answer as text, for the list
    of runs in Phoenix.
    """
    sent, answer = _sent(record), _answer(record)
    attributes = {"gen_ai.input.messages": _encode(sent), "gen_ai.output.messages": _encode(_answered(answer))}
    if attributes["gen_ai.input.messages"]:
        attributes["input.value"] = _as_text(sent[-1])
    if answer.text:
        attributes["output.value"] = answer.text
    return {name: text for name, text in attributes.items() if text}


def _sent(record: ExchangeRecord) -> list[dict[str, Any]]:
    """Return the messages of a run's input."""
    document = _document(record.request)
    if not isinstance(document, dict):
        return []
    given = document.get("input")
    if given is None:
        parameters = document.get("parameters")
        given = parameters.get("question") if isinstance(parameters, dict) else None
    if isinstance(given, list) and given and all(isinstance(one, dict) and "role" in one for one in given):
        return [_message(one) for one in given]
    return [_message({"role": "user", "content": given})]


def _answer(record: ExchangeRecord) -> RunAnswer:
    """Return what the client got of the run, whole or as a stream; an empty answer for an error."""
    message = record.answer
    if message is None or not message.body.text or message.body.encoding or record.status >= 400:
        return RunAnswer()
    delivery = record.delivery or Delivery()
    profile = replace(NOT_READ, type=delivery.type, provider=delivery.provider)
    body = message.body.text.encode("utf-8", "replace")
    if body.lstrip().startswith(b"{"):
        return read_answer(profile, body)
    reader = AnswerReader(profile)
    reader.feed(body + b"\n\n")
    return reader.answer()


def _answered(answer: RunAnswer) -> list[dict[str, Any]]:
    """Return the messages that the run added: calls of tools and their results, then the answer."""
    messages = []
    for message in answer.messages:
        written = _message({"role": message.role, "content": list(message.content)})
        kinds = {part["type"] for part in written["parts"]}
        if kinds == {"tool_call_response"}:
            written["role"] = "tool"
        written["finish_reason"] = "tool_call" if "tool_call" in kinds else "stop"
        messages.append(written)
    if messages and answer.stop_reason in _REASONS:
        messages[-1]["finish_reason"] = _REASONS[answer.stop_reason]
    return messages


def _document(message: HttpMessage) -> Any:
    if not message.body.text or message.body.encoding:
        return None
    try:
        return msgspec.json.decode(message.body.text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _message(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of the unified input, in any of its spellings."""
    role, content = str(written.get("role", "user")), written.get("content")
    blocks = content if isinstance(content, list) else [content]
    call_id = written.get("tool_call_id") or written.get("toolCallId")
    if call_id:
        return {"role": "tool", "parts": [_response(call_id, content)]}
    calls = written.get("tool_calls") or written.get("toolCalls")
    parts = [part for block in blocks if (part := _part(block)) is not None]
    return {"role": role, "parts": [*parts, *map(_call, _dicts(calls))]}


def _part(block: Any) -> Part | None:
    """Return the part that a content block is; None if it is of a kind that is not known."""
    match block:
        case str(text) | {"text": str(text)}:
            return {"type": "text", "content": text}
        case {"toolUse": {**call}} | {"functionCall": {**call}} | {"function_call": {**call}}:
            return _call(call)
        case {"type": "tool_use" | "tool-call", **call}:
            return _call(call)
        case {"toolResult": {**result}} | {"type": "tool_result" | "tool-result", **result}:
            call_id = result.get("toolUseId") or result.get("tool_use_id") or result.get("toolCallId")
            return _response(call_id, result.get("content", result.get("output")))
        case dict():
            name = block.get("type") or next(iter(block), "")
            return _medium(_KINDS[name], block) if name in _KINDS else None
    return None


def _call(call: Mapping[Any, Any]) -> Part:
    function = call.get("function")
    named = function if isinstance(function, dict) else call
    id = call.get("toolUseId") or call.get("id") or call.get("toolCallId")
    name = named.get("name") or named.get("toolName") or ""
    arguments = next((named[key] for key in ("input", "arguments", "args") if key in named), None)
    return {"type": "tool_call", **({"id": str(id)} if id else {}), "name": str(name), "arguments": arguments}


def _response(call_id: Any, content: Any) -> Part:
    """Return the answer to a tool call: its text if it is all text, else its parts."""
    blocks = content if isinstance(content, list) else [content]
    parts = [part or block for block in blocks if (part := _part(block)) is not None or isinstance(block, dict)]
    texts = [part["content"] for part in parts if part.get("type") == "text"]
    response = "\n".join(texts) if len(texts) == len(parts) else parts
    return {"type": "tool_call_response", **({"id": str(call_id)} if call_id else {}), "response": response}


def _medium(kind: str, block: Mapping[str, Any]) -> Part | None:
    """Return a medium by its address or its hash, never its bytes."""
    found = dict(_strings(block))
    data = next((found[name] for name in _DATA if found.get(name)), "")
    if not data:
        return None
    shown, in_url = _SHOWN_MEDIUM.search(data), re.match("data:([^;,]+)", data)
    known = cast(MediaKind, kind)
    declared = next((found[name] for name in _TYPES if name in found), "")
    mime = declared or FORMATS[known].get(normalise(known, found.get("format", "")) or "", "")
    mime = mime or next((match[1] for match in (in_url, shown) if match), "")
    part = {"modality": kind, **({"mime_type": mime} if mime else {})}
    if re.match(r"(?:https?|s3|gs)://", data):
        return {"type": "uri", **part, "uri": _ACCOUNT.sub("//", data.partition("?")[0].partition("#")[0])}
    return {"type": "file", **part, "file_id": f"sha256:{shown[2] if shown else _hash(data)}"}


def _strings(block: Mapping[str, Any], depth: int = 3) -> Iterator[tuple[str, str]]:
    """Yield the texts in a block, the innermost first, so that those of outer members replace them in a dictionary."""
    for name, value in block.items():
        if isinstance(value, dict) and depth:
            yield from _strings(value, depth - 1)
        elif isinstance(value, str):
            yield name, value


def _hash(data: str) -> str:
    """Return the SHA-256 of a medium that is too short to be replaced in the record."""
    try:
        content = pybase64.b64decode(data.rpartition(",")[2], validate=True)
    except ValueError:
        content = data.encode("utf-8", "replace")
    return hashlib.sha256(content).hexdigest()


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _as_text(message: Mapping[str, Any]) -> str:
    """Return a message as lines of text, with a word for everything else."""
    lines = []
    for part in message["parts"]:
        match part["type"]:
            case "text":
                lines.append(part["content"])
            case "tool_call":
                lines.append(f"[call of {part['name']}]")
            case "tool_call_response":
                lines.append("[answer of a tool]")
            case _:
                lines.append(f"[{part.get('mime_type', part['modality'])} {part.get('uri') or part['file_id'][:15]}]")
    return "\n".join(lines)


def _encode(messages: list[dict[str, Any]]) -> str:
    """Return messages as JSON; "" if they have no parts."""
    if not any(message["parts"] for message in messages):
        return ""
    return msgspec.json.encode(messages).decode()
