"""Content blocks as clients' own libraries write them, where a spelling means one thing.

input_text, output_text, input_image, input_file      OpenAI's Responses API
{"type": "image", "url" | "base64" | "data", "mime_type"}, {"type": "file", …}        LangChain
{"type": "image", "image": <data or URL>}, {"type": "file", "data", "mediaType"}      Vercel's AI SDK
tool-call, tool-result                                Vercel's AI SDK
{"type": "binary", "mimeType", "data" | "url"}        AG-UI before 1.0; its parts of 1.0 are in `sources`
inlineData, fileData, functionCall, functionResponse  Gemini's parts
"""

from __future__ import annotations

from typing import Any, get_args

from gateway.unified.model import Json, Media, MediaKind, Text, ToolResult, ToolUse
from gateway.unified.sources import (
    FORMAT_NAMES,
    SCHEMES,
    Found,
    read_base64,
    read_image_url,
    read_reference,
    read_url_source,
    starts_as_url,
)
from gateway.unified.tools import read_nested, read_signature
from gateway.unified.validate import Fields, json_type, shorten

_DATA = ("data", "base64")
_TYPES = ("base64", "url")


def read_input_image(part: Fields) -> Media | None:
    """Read ``input_image``: `image_url` (text), and `detail` beside it."""
    refuse_file_id(part)
    return read_image_url(part) if not part.has("file_id") else None


def read_responses_text(part: Fields) -> Text | None:
    """Read ``{"type": "input_text" | "output_text", "text"}``."""
    text = part.string("text")
    return None if text is None else Text(text, part.at)


def read_input_file(part: Fields) -> Media | None:
    """Read ``input_file``: `file_data` (a data: URL) with `filename`, or `file_url`."""
    refuse_file_id(part)
    member = part.one_of(("file_data", "file_url"))
    name = part.name("filename", required=False)
    if not member:
        if not part.has("file_id"):
            part.require("file_data", "a data: URL, or file_url")
        return None
    return _media("document", part, read_reference("document", part, member, name or ""), name)


def refuse_file_id(part: Fields) -> None:
    """Add a problem for a file that is stored at a provider."""
    if part.has("file_id"):
        reason = '"file_id" names a file stored at a provider, which the gateway can\'t read'
        part.problem("file_id", reason, "the data itself, or a URL", "file_id")


def is_flat(block: Fields) -> bool:
    """Return True for a medium whose data or URL is a member of the block itself."""
    return any(block.peek(name) is not None for name in (*_DATA, "url", "source_type"))


def read_flat(kind: MediaKind, block: Fields) -> Media | None:
    """Read a medium whose data or URL is a member of the block itself, beside its MIME type."""
    written = block.string("source_type", required=False)
    if written not in (None, *_TYPES):
        block.problem("source_type", "Unsupported source type", '"base64" or "url"', shorten(written or ""))
    name = block.name("filename", required=False) if kind == "document" else None
    member = block.one_of((*_DATA, "url"))
    if not member:
        block.require("data", "base64 data, or a URL in url")
        return None
    if member == "url" or starts_as_url(block, member):
        found = read_url_source(kind, block, block, SCHEMES, (member,))
    else:
        found = read_base64(kind, block, member, block)
    return _media(kind, block, found, name)


def read_own_member(kind: MediaKind, block: Fields) -> Media | None:
    """Read ``{"type": "image", "image": <base64, data: URL or URL>}``."""
    if starts_as_url(block, kind):
        return _media(kind, block, read_url_source(kind, block, block, SCHEMES, (kind,)), None)
    return _media(kind, block, read_base64(kind, block, kind, block), None)


def read_by_mime_type(block: Fields) -> Media | None:
    """Read ``{"type": "file" | "binary"}``, whose MIME type says what it is."""
    refuse_file_id(block)
    return read_flat(_kind(block), block)


def _kind(block: Fields) -> MediaKind:
    for name in FORMAT_NAMES:
        written = block.peek(name)
        kind = written.partition("/")[0].lower() if isinstance(written, str) else ""
        for known in get_args(MediaKind):
            if kind == known:
                return known  # type: ignore[no-any-return]
    return "document"


def read_inline_data(block: Fields) -> Media | None:
    """Read Gemini's ``inlineData``: `mimeType` and `data`."""
    return _read_part(block, ("inlineData", "inline_data"))


def read_file_data(block: Fields) -> Media | None:
    """Read Gemini's ``fileData``: `mimeType` and `fileUri`."""
    return _read_part(block, ("fileData", "file_data"))


def _read_part(block: Fields, names: tuple[str, ...]) -> Media | None:
    member = block.one_of(names)
    body = block.object(member)
    if body is None:
        return None
    kind = _kind(body)
    if body.peek("data") is not None:
        found = read_base64(kind, body, "data", body)
    else:
        found = read_url_source(kind, body, body, SCHEMES, ("fileUri", "file_uri"))
    name = body.name("displayName", required=False) if kind == "document" else None
    body.done()
    return _media(kind, block, found, name)


def _media(kind: MediaKind, block: Fields, found: Found, name: str | None) -> Media | None:
    return Media(kind, found[0], found[1], block.at, name) if found else None


def read_tool_call(block: Fields) -> ToolUse | None:
    """Read ``{"type": "tool-call", "toolCallId", "toolName", "input"}``; before version 5, `args`."""
    id, name = block.name("toolCallId", required=False), block.name("toolName")
    member = block.one_of(("input", "args")) or "input"
    arguments = block.value(member)
    signature = _of_options(block)
    return ToolUse(id or "", name, arguments, block.at, signature) if name and arguments is not None else None


def _of_options(block: Fields) -> str:
    """Return the signature in `providerOptions`: of `google`, or of `vertex` for Google's models on Vertex AI."""
    options = block.object("providerOptions", required=False)
    if options is None:
        return ""
    found = [read_nested(options, (name, "thoughtSignature")) for name in ("google", "vertex")]
    options.done()
    return next(filter(None, found), "")


def read_function_call(block: Fields) -> ToolUse | None:
    """Read Gemini's ``functionCall``: `name`, `args` and perhaps `id`, with a `thoughtSignature` beside it."""
    member = block.one_of(("functionCall", "function_call"))
    call = block.object(member)
    if call is None:
        return None
    id, name = call.name("id", required=False), call.name("name")
    arguments = call.value("args", required=False) or {}
    call.done()
    signature = read_signature(block)
    return ToolUse(id or "", name, arguments, block.at, signature) if name else None


def read_function_response(block: Fields) -> ToolResult | None:
    """Read Gemini's ``functionResponse``: `name`, `response` and perhaps `id`.

    A `response` of one member `output` or `error` is that value; any other is the output itself, as for Gemini.
    """
    member = block.one_of(("functionResponse", "function_response"))
    body = block.object(member)
    if body is None:
        return None
    id, name = body.name("id", required=False), body.name("name")
    response = body.value("response")
    place = body.place("response")
    body.done()
    if name is None or response is None:
        return None
    failed = response.keys() == {"error"}
    (value,) = response.values() if failed or response.keys() == {"output"} else (response,)
    content = Text(value, place) if isinstance(value, str) else Json(value, place)
    return ToolResult(id or "", (content,), failed, block.at, name)


_OUTPUTS = ("text", "json", "error-text", "error-json")


def read_tool_output(block: Fields) -> ToolResult | None:
    """Read ``{"type": "tool-result", "toolCallId", "toolName", "output": {"type", "value"}}``."""
    id, name = block.name("toolCallId"), block.name("toolName", required=False)
    output = block.object("output", f"object with type ({', '.join(_OUTPUTS)}) and value")
    if output is None:
        return None
    kind = output.string("type", ", ".join(_OUTPUTS))
    content: Text | Json | None = None
    if kind in ("text", "error-text"):
        text = output.string("value")
        content = None if text is None else Text(text, output.place("value"))
    elif kind in ("json", "error-json"):
        value: Any = output.require("value", "any JSON value but null")
        content = (
            None if value is None else Json(block.reading.plain(value, output.place("value")), output.place("value"))
        )
    elif kind is not None:
        output.problem("type", "Unsupported type of output", ", ".join(_OUTPUTS), shorten(kind) or json_type(kind))
    output.done()
    if not id or content is None:
        return None
    return ToolResult(id, (content,), bool(kind and kind.startswith("error")), block.at, name or "")
