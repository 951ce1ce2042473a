"""Content blocks: finds the reader for the spelling of a block.

The kind of a block is its `type` or, in the Converse spelling, the name of its only member. A new spelling is a row in
one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gateway.unified import sources, spellings, tools
from gateway.unified.model import MEDIA_KINDS, ContentBlock, ConverseBlock, Json, Media, MediaKind, Text
from gateway.unified.validate import Fields, Reading, child, did_you_mean, json_type, shorten

# Blocks that only Bedrock Converse has (docs/evidence/providers.md, "Bedrock Converse").
NATIVE_KINDS = ("reasoningContent", "guardContent", "cachePoint", "citationsContent", "searchResult")
MESSAGE_MEMBERS = frozenset({"role", "content", "toolCalls", "tool_calls", "toolCallId", "tool_call_id"})

Block = ContentBlock | Json
Reader = Callable[[Fields], Block | None]


def _text(block: Fields) -> Text | None:
    text = block.string("text")
    signature = tools.read_signature(block)
    return None if text is None else Text(text, block.at, signature)


def _json(block: Fields) -> Json | None:
    value = block.require("json", "any JSON value but null")
    return None if value is None else Json(block.reading.plain(value, block.place("json")), block.at)


def _typed_media(kind: MediaKind) -> Reader:
    def read(block: Fields) -> Media | None:
        if spellings.is_flat(block):
            return spellings.read_flat(kind, block)
        if isinstance(block.peek(kind), str):
            return spellings.read_own_member(kind, block)
        return sources.read_typed(kind, block)

    return read


def _file(block: Fields) -> Media | None:
    return sources.read_file(block) if block.peek("file") is not None else spellings.read_by_mime_type(block)


def _bare_media(kind: MediaKind) -> Reader:
    def read(block: Fields) -> Media | None:
        body = block.object(kind)
        return sources.read_named(kind, body, block.at) if body else None

    return read


def _native(kind: str) -> Reader:
    def read(block: Fields) -> ConverseBlock | None:
        value = block.value(kind)
        return None if value is None else ConverseBlock(kind, _unwrap_bytes(value), block.at)

    return read


def _result(block: Fields) -> Block | None:
    return tools.read_tool_result(block, read_result_content)


def _typed_result(block: Fields) -> Block | None:
    return tools.read_typed_tool_result(block, read_result_content)


# Blocks without a `type`, by the name of their only member. A tool result may hold those of the first lines.
_BARE_RESULT: dict[str, Reader] = {
    "text": _text,
    **{kind: _bare_media(kind) for kind in MEDIA_KINDS},
    **dict.fromkeys(("inlineData", "inline_data"), spellings.read_inline_data),
    **dict.fromkeys(("fileData", "file_data"), spellings.read_file_data),
}
_BARE: dict[str, Reader] = {
    **_BARE_RESULT,
    "toolUse": tools.read_tool_use,
    "toolResult": _result,
    **dict.fromkeys(("functionCall", "function_call"), spellings.read_function_call),
    **dict.fromkeys(("functionResponse", "function_response"), spellings.read_function_response),
    **{kind: _native(kind) for kind in NATIVE_KINDS},
}
_TYPED_RESULT: dict[str, Reader] = {
    "text": _text,
    **{kind: _typed_media(kind) for kind in MEDIA_KINDS},
    "image_url": sources.read_image_url,
    "input_audio": sources.read_input_audio,
    "file": _file,
    "input_text": spellings.read_responses_text,
    "output_text": spellings.read_responses_text,
    "input_image": spellings.read_input_image,
    "input_file": spellings.read_input_file,
    "binary": spellings.read_by_mime_type,
}
_TYPED: dict[str, Reader] = {
    **_BARE,
    **_TYPED_RESULT,
    "tool_use": tools.read_typed_tool_use,
    "tool_result": _typed_result,
    "tool-call": spellings.read_tool_call,
    "tool-result": spellings.read_tool_output,
}

BLOCK_TYPES = tuple(_TYPED)
_ALIASES = frozenset(
    {
        "functionCall", "function_call", "functionResponse", "function_response", "inlineData", "inline_data",
        "fileData", "file_data", "input_text", "output_text", "input_image", "input_file", "binary", "tool-call",
        "tool-result",
    }
)  # fmt: skip
"""Clients' own spellings, which errors do not list."""


_UNSUPPORTED = "Unsupported content block type"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name for name in names if name not in _ALIASES)


def is_block(item: dict[str, Any]) -> bool:
    """Return True if an object without a `role` is a content block rather than a message."""
    return item.get("type") not in (None, "message") or not MESSAGE_MEMBERS & item.keys()


def read_blocks(reading: Reading, items: list[Any], at: str) -> list[ContentBlock]:
    """Return the content blocks of a non-empty array. Errors in them are added to the problems."""
    reading.add_items(len(items), at)
    blocks = (read_block(reading, item, child(at, index)) for index, item in enumerate(items))
    return [block for block in blocks if block is not None]


def read_block(reading: Reading, item: Any, at: str) -> ContentBlock | None:
    """Return one content block."""
    block = _read(reading, item, at, _TYPED, _BARE)
    assert not isinstance(block, Json)
    return block


def read_result_content(reading: Reading, written: Any, at: str) -> list[tools.ResultContent]:
    """Return the content of a tool result, which is a string or an array of blocks."""
    if isinstance(written, str):
        return [Text(reading.text(written, at), at)]
    if not isinstance(written, list):
        reason = "The content has the wrong type"
        reading.problems.add(at, reason, "string, or array of content blocks", json_type(written))
        return []
    reading.add_items(len(written), at)
    typed, bare = {**_TYPED_RESULT, "json": _json}, {**_BARE_RESULT, "json": _json}
    blocks = [_read(reading, item, child(at, index), typed, bare) for index, item in enumerate(written)]
    return [block for block in blocks if isinstance(block, (Text, Json, Media))]


def _read(reading: Reading, item: Any, at: str, typed: dict[str, Reader], bare: dict[str, Reader]) -> Block | None:
    if not isinstance(item, dict):
        reading.problems.add(at, "This item is not a content block", "object", json_type(item))
        return None
    block = Fields(reading, item, at)
    reader = _reader(block, item, typed, bare)
    if reader is None:
        return None
    found = reader(block)
    block.done()
    return found


def _reader(block: Fields, item: dict[str, Any], typed: dict[str, Reader], bare: dict[str, Reader]) -> Reader | None:
    if block.has("type"):
        kind = block.string("type")
        if kind is not None and kind not in typed:
            expected = f"one of {_listed(typed)}"
            block.problem("type", _UNSUPPORTED, expected, shorten(kind), did_you_mean(kind, typed))
        return typed.get(kind) if kind is not None else None
    present = [name for name in bare if item.get(name) is not None] or [name for name in bare if name in item]
    if len(present) == 1:
        return bare[present[0]]
    if present:
        reason = f"A content block may hold only one of {', '.join(present)}"
        block.reading.problems.add(block.at, reason, "one member", ", ".join(present))
    elif misplaced := [name for name in item if name in _BARE]:
        expected = f"one of {_listed(bare)}"
        block.problem(misplaced[0], f'A content block "{misplaced[0]}" is not allowed here', expected, misplaced[0])
    else:
        names = list(item)[:5]
        got = ", ".join(map(shorten, names)) or "an empty object"
        help = next(filter(None, (did_you_mean(name, bare) for name in names)), "")
        block.problem("type", 'Missing "type"', f"one of {_listed(typed)}", got, help)
    return None


def _unwrap_bytes(value: Any) -> Any:
    """Replace every ``{"__bytes_encoded__": true, "data": …}`` in `value` by its base64 string."""
    match value:
        case {"__bytes_encoded__": True, "data": str(data), **rest} if not rest:
            return data
        case dict():
            return {key: _unwrap_bytes(item) for key, item in value.items()}
        case list():
            return [_unwrap_bytes(item) for item in value]
        case _:
            return value
