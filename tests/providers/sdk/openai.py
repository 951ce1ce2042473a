"""Chat messages against the openai SDK's TypedDicts, rebuilt closed (`.closed`)."""

import base64
import binascii
import json
import re
from typing import Any

from pydantic import ValidationError

from . import Rejected
from .closed import adapter

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,(.*)", re.DOTALL)


def check(fields: dict[str, Any]) -> None:
    if set(fields) != {"messages"}:
        raise Rejected(f"members {sorted(fields)}")
    # Here, as its import takes half a second, which every process that collects the tests would spend.
    from openai.types.chat import ChatCompletionMessageParam

    try:
        adapter(ChatCompletionMessageParam).validate_json(json.dumps(fields["messages"]), strict=True)
    except ValidationError as error:
        raise Rejected(str(error)) from None
    for message in fields["messages"]:
        _check_message(message)


def _check_message(message: dict[str, Any]) -> None:
    """What the types leave open: payloads, arguments, and that an assistant message has text or a call."""
    if message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls"):
        raise Rejected("an assistant message without content and tool_calls")
    for call in message.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError as error:
            raise Rejected(f"arguments: {error}") from None
        if not isinstance(arguments, dict):
            raise Rejected("arguments that are no object")
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        match part["type"]:
            case "image_url" if not part["image_url"]["url"].startswith("https://"):
                _check_data_url(part["image_url"]["url"], r"image/(png|jpeg|webp|gif)")
            case "file":
                _check_data_url(part["file"]["file_data"], r"application/pdf")
            case "input_audio":
                _check_base64(part["input_audio"]["data"])


def _check_data_url(url: str, mime_type: str) -> None:
    match = _DATA_URL.fullmatch(url)
    if not match or not re.fullmatch(mime_type, match[1]):
        raise Rejected(f"not a data URL of {mime_type}: {url[:60]}")
    _check_base64(match[2])


def _check_base64(data: str) -> None:
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise Rejected(f"base64: {error}") from None
