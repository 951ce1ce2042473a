"""Messages and system text against the anthropic SDK's TypedDicts, rebuilt closed (`.closed`)."""

import base64
import binascii
import json
from typing import Any

from pydantic import ValidationError

from . import Rejected
from .closed import adapter


def check(fields: dict[str, Any]) -> None:
    if not {"messages"} <= set(fields) <= {"messages", "system"}:
        raise Rejected(f"members {sorted(fields)}")
    # Here, as its import takes more than a second, which every process that collects the tests would spend.
    from anthropic.types import AssistantMessageParam, TextBlockParam, UserMessageParam

    # Without SystemMessageParam, which only newer models take.
    message_type = UserMessageParam | AssistantMessageParam
    try:
        adapter(message_type).validate_json(json.dumps(fields["messages"]), strict=True)
        if "system" in fields:
            adapter(TextBlockParam).validate_json(json.dumps(fields["system"]), strict=True)
    except ValidationError as error:
        raise Rejected(str(error)) from None
    former = "assistant"
    for message in fields["messages"]:
        if message["role"] == former:
            raise Rejected(f"two messages of role {former} in a row, or the assistant first")
        former = message["role"]
        _check_message(message)


def check_on_bedrock(fields: dict[str, Any]) -> None:
    """The same, and no source by URL."""
    check(fields)
    if '"type": "url"' in json.dumps(fields):
        raise Rejected("a URL source")


def _check_message(message: dict[str, Any]) -> None:
    """What the types leave open: payloads, and which role may hold what."""
    if isinstance(message["content"], str):
        return
    late = False
    for part in message["content"]:
        if part["type"] == "tool_result":
            if late or message["role"] != "user":
                raise Rejected("a tool result after another block, or of the assistant")
            inner = part.get("content", [])
            if part.get("is_error") and (not inner or any(one["type"] != "text" for one in inner)):
                raise Rejected("a failed tool result that is empty or not text")
            for one in inner if isinstance(inner, list) else ():
                _check_part(one)
        else:
            late = True
            if part["type"] == "tool_use" and message["role"] != "assistant":
                raise Rejected("a tool call of the user")
            if part["type"] in ("image", "document") and message["role"] != "user":
                raise Rejected("media of the assistant")
            _check_part(part)


def _check_part(part: dict[str, Any]) -> None:
    if part["type"] == "text" and not part["text"].strip():
        raise Rejected("a blank text")
    source = part.get("source", {})
    if source.get("type") == "base64":
        try:
            base64.b64decode(source["data"], validate=True)
        except binascii.Error as error:
            raise Rejected(f"base64: {error}") from None
    if source.get("type") == "url" and not source["url"].startswith("https://"):
        raise Rejected(f"url {source['url']!r}")
