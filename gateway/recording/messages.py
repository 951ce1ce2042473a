"""What users and agents wrote, as OpenTelemetry's `gen_ai.input.messages` and `gen_ai.output.messages`.

Made of the record, so that it is redacted, with media as their type, size and hash. What is not understood is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.observe.record import ExchangeRecord, HttpMessage
from gateway.proxy.body_copy import ResponseCopy
from gateway.proxy.capture import Bodies, Captured

_MODALITIES = ("image", "video", "audio")
_ANSWERS = ("response", "output")
"""Names of outputs of an agent that hold its answer."""


def input_messages(record: ExchangeRecord) -> str:
    """Return the input of a run as JSON; "" if it is not recorded."""
    document = _document(record.request)
    if not isinstance(document, dict):
        return ""
    given = document.get("input")
    if given is None:
        parameters = document.get("parameters")
        given = parameters.get("question") if isinstance(parameters, dict) else None
    if isinstance(given, list) and given and all(isinstance(one, dict) and "content" in one for one in given):
        messages = [_message(str(one.get("role", "user")), one["content"]) for one in given]
    else:
        messages = [_message("user", given)]
    return _encode(messages)


def output_messages(record: ExchangeRecord) -> str:
    """Return the answer of a run as JSON; "" if it is not recorded, or is an event stream."""
    document = _document(record.answered or record.response)
    if not isinstance(document, dict) or record.status >= 400:
        return ""
    message = document.get("message")
    if isinstance(message, dict) and "content" in message:
        return _encode([_message("assistant", message["content"])])
    return _encode([_message("assistant", _answer(document))])


def _answer(document: dict[str, Any]) -> Any:
    """Return the answer in a legacy response: of the output `response`, or the last one that is text."""
    outputs = [
        output
        for result in _dicts(document.get("inference_results"))
        for output in _dicts(result.get("output"))
        if output.get("name") not in ("memory_id", "parent_interaction_id")
    ]
    named = [output for output in outputs if output.get("name") in _ANSWERS] or outputs
    for output in reversed(named):
        data = output.get("dataAsMap")
        text = data.get("response") if isinstance(data, dict) else output.get("result")
        if isinstance(text, str):
            return text
    return None


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _document(message: HttpMessage | None) -> Any:
    if message is None or not message.body.text or message.body.encoding:
        return None
    try:
        return msgspec.json.decode(message.body.text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _message(role: str, content: Any) -> dict[str, Any]:
    blocks = content if isinstance(content, list) else [content]
    return {"role": role, "parts": [part for block in blocks if (part := _part(block)) is not None]}


def _part(block: Any) -> dict[str, Any] | None:
    if isinstance(block, str):
        return {"type": "text", "content": block}
    if not isinstance(block, dict):
        return None
    if isinstance(block.get("text"), str):
        return {"type": "text", "content": block["text"]}
    source = block.get("source")
    if not isinstance(source, dict):
        return None
    kind = str(block.get("type", ""))
    part = {"modality": kind if kind in _MODALITIES else "file"}
    if isinstance(source.get("data"), str):
        return {"type": "blob", **part, "content": source["data"]}
    return {"type": "uri", **part, "uri": source["url"]} if isinstance(source.get("url"), str) else None


def _encode(messages: list[dict[str, Any]]) -> str:
    """Return messages as JSON; "" if they have no parts."""
    if not any(message["parts"] for message in messages):
        return ""
    return msgspec.json.encode(messages).decode()


_SEARCHED = 64 * 1024
"""Bytes at the beginning and the end of a body in which the id is searched; media are in between."""
_ID = rb'"([A-Za-z0-9_-]{1,128})"'
_MEMBER = re.compile(rb'"(?:memory_id|session_id)"\s*+:\s*+' + _ID)
_OUTPUT = re.compile(rb'"name"\s*+:\s*+"memory_id"\s*+,\s*+"result"\s*+:\s*+' + _ID)


def run_content(bodies: Bodies | None) -> bytes:
    """Return the cluster's response to a run, decoded; b"" if there is none, or it is not whole. It may take long."""
    if bodies is None or bodies.delivery is None or not isinstance(bodies.response, ResponseCopy):
        return b""
    return bodies.response.content()


def find_conversation(captured: Captured, content: bytes) -> str:
    """Return the memory or session id of a run; "" if it has none. content: of the cluster's response."""
    bodies = captured.bodies
    if bodies is None or bodies.delivery is None:
        return ""
    answer = captured.answer.body if captured.answer is not None else content
    return read_conversation(bodies.request if isinstance(bodies.request, bytes) else b"", answer)


def read_conversation(request: bytes, response: bytes) -> str:
    """Return the id that the response names, or else the request; "" if neither does. Both are JSON, or events."""
    for body in (response, request):
        if len(body) <= _SEARCHED and b"_id" not in body:
            continue
        for part in (body[:_SEARCHED], body[max(_SEARCHED, len(body) - _SEARCHED) :]):
            if b"_" not in part:  # base64 has none; for one byte, `in` is fast
                continue
            match = _OUTPUT.search(part) or _MEMBER.search(part)
            if match is not None:
                return match[1].decode("ascii")
    return ""
