"""Stored content that no request can hold, in a form that one can. Pure.

Answers of LLMs, outputs of tools and messages of other programs may break the rules of strict JSON that
`gateway.unified.jsontext` has for input. A request with such a message would be refused, and so would each later one of
the session.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.memory.model import Block, Message

_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_INT64 = range(-(2**63), 2**63)
_LEVELS = 100
"""Most levels of nesting in a block, so that a request with it keeps within the limit for input."""


def make_readable(message: Message) -> Message:
    """Return the message with what can't be sent replaced, or the same one if there is nothing.

    U+0000 and lone surrogates become U+FFFD, integers beyond 64 bits their digits as text, what is nested too deeply
    JSON text, arguments of a tool call that are not an object the member ``input`` of one, and a tool's JSON null text.
    """
    content = tuple(_as_read(_readable(block, _LEVELS)) for block in message.content)
    return message if content == message.content else msgspec.structs.replace(message, content=content)


def _readable(value: Any, levels: int) -> Any:
    match value:
        case str():
            return value if value.isascii() and "\0" not in value else _UNSAFE.sub("\ufffd", value)
        case int() if value not in _INT64:
            return str(value)
        case dict() | list() if not levels:
            return msgspec.json.encode(value).decode()
        case dict():
            return {_readable(key, levels): _readable(item, levels - 1) for key, item in value.items()}
        case list():
            return [_readable(item, levels - 1) for item in value]
        case _:
            return value


def _as_read(block: Block) -> Block:
    match block:
        case {"toolUse": {"input": dict()}}:
            return block
        case {"toolUse": dict(use)}:
            given = use.get("input")
            return {"toolUse": {**use, "input": {} if given in (None, "") else {"input": given}}}
        case {"json": None}:
            return {"text": "null"}
        case {"toolResult": {"content": list(content)} as result}:
            return {"toolResult": {**result, "content": [_as_read(part) for part in content]}}
        case _:
            return block
