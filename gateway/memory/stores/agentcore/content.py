"""Blocks of a message as the content objects, tool calls and tool results that Camunda's connectors store, and back.

A content object has a `type`. Blocks other than texts are wrapped whole, and marked, so that they come back as they
were: ``{"type": "object", "object": {"image": {…}}, "metadata": {"format": "strands"}}``. A document's `type` is
``document``. Content of other writers that no block can hold becomes text (docs/internals/agentcore-mapping.md).
"""

from __future__ import annotations

import json
from typing import Any

from gateway.memory.model import Block
from gateway.memory.stores.agentcore.envelope import MalformedBlob, UnknownContentType

_MARK = {"format": "strands"}
_CALL_KEYS = {"toolUseId", "name", "input"}
_CALL_MEMBERS = frozenset({"id", "name", "arguments", "properties"})
_RESULT_MEMBERS = frozenset({"id", "name", "content", "properties"})

_MEDIA = {"image": "image", "video": "video", "audio": "audio"}
_DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}


def text_of(block: Block) -> str | None:
    """Return the text of a block that is nothing but text; None for any other."""
    text = block.get("text")
    return text if isinstance(text, str) and len(block) == 1 else None


def content_from(block: Block) -> dict[str, Any]:
    """Return `block` as a content object."""
    text = text_of(block)
    if text is not None:
        return {"type": "text", "text": text}
    if len(block) == 1 and isinstance(block.get("document"), dict):
        return {"type": "document", "document": block["document"], "metadata": _MARK}
    return {"type": "object", "object": block, "metadata": _MARK}


def block_from(content: dict[str, Any], place: str) -> Block:
    """Return a content object as a block.

    Raises:
        MalformedBlob, UnknownContentType: it is not one that is known.
    """
    kind = content.get("type")
    marked = isinstance(content.get("metadata"), dict) and content["metadata"].get("format") == _MARK["format"]
    match kind:
        case "text" | "reasoning":
            if not isinstance(content.get("text"), str):
                raise MalformedBlob("expected a text", f"{place}.text")
            return {"text": content["text"]} if kind == "text" else _reasoning(content)
        case "document":
            document = _member(content, "document", place)
            return {"document": document} if marked else {"text": _json(document)}
        case "object":
            value = _member(content, "object" if "object" in content else "content", place)
            if not marked:
                return {"text": _json(value)}
            if not isinstance(value, dict):
                raise MalformedBlob("expected a block", f"{place}.object")
            return value
        case "blob":
            return _medium(content, place)
    raise UnknownContentType(f"unknown content type {str(kind)[:100]!r}", f"{place}.type")


def _member(content: dict[str, Any], key: str, place: str) -> Any:
    if content.get(key) is None:
        raise MalformedBlob(f"`{key}` is missing", place)
    return content[key]


def _reasoning(content: dict[str, Any]) -> Block:
    text = {"text": content["text"]}
    if content.get("signature"):
        text["signature"] = content["signature"]
    return {"reasoningContent": {"reasoningText": text}}


def _medium(content: dict[str, Any], place: str) -> Block:
    data, mime_type = content.get("blob"), content.get("mimeType")
    if not isinstance(data, str) or not isinstance(mime_type, str):
        raise MalformedBlob("expected `blob` and `mimeType`", place)
    source = {"bytes": data}
    main, _, sub = mime_type.partition(";")[0].strip().lower().partition("/")
    if main in _MEDIA:
        return {_MEDIA[main]: {"format": sub, "source": source}}
    known = _DOCUMENT_FORMATS.get(f"{main}/{sub}")
    if known is None:
        raise UnknownContentType(f"no block can hold content of type {mime_type[:100]!r}", f"{place}.mimeType")
    return {"document": {"format": known, "name": "document", "source": source}}


def is_call(block: Block) -> bool:
    """Return True for a tool use that a tool call can hold."""
    use = block.get("toolUse")
    return (
        len(block) == 1
        and isinstance(use, dict)
        and isinstance(use.get("toolUseId"), str)
        and isinstance(use.get("name"), str)
        and "input" in use
    )


def call_from(block: Block) -> dict[str, Any]:
    """Return a tool use (`is_call`) as a tool call. `properties` holds what a tool call has no place for."""
    use = block["toolUse"]
    call = {"id": use["toolUseId"], "name": use["name"], "arguments": use["input"]}
    others = {key: value for key, value in use.items() if key not in _CALL_KEYS}
    return {**call, "properties": others} if others else call


def use_from(call: dict[str, Any], place: str) -> Block:
    """Return a tool call as a block. Older ones may have neither id nor arguments."""
    name, id_ = call.get("name"), call.get("id")
    if not isinstance(name, str) or not isinstance(id_, str | None):
        raise MalformedBlob("expected a tool call with `id` and `name`", place)
    use = {"toolUseId": id_ or "", "name": name, "input": call.get("arguments", {})}
    return {"toolUse": {**_properties(call, place, _CALL_MEMBERS), **use}}


def is_result(block: Block) -> bool:
    """Return True for a tool result that Camunda's form can hold."""
    result = block.get("toolResult")
    return (
        len(block) == 1
        and isinstance(result, dict)
        and isinstance(result.get("toolUseId"), str)
        and isinstance(result.get("content"), list)
        and "contentFormat" not in result
    )


def result_from(block: Block, name: str | None) -> dict[str, Any]:
    """Return a tool result (`is_result`) in Camunda's form. name: of the tool, if known.

    A single text is the `content` itself. Anything else is the list of blocks, and `properties.contentFormat` says so.
    """
    result = block["toolResult"]
    content, properties = result["content"], {k: v for k, v in result.items() if k not in ("toolUseId", "content")}
    text = text_of(content[0]) if len(content) == 1 and isinstance(content[0], dict) else None
    if text is None:
        properties["contentFormat"] = _MARK["format"]
    named = {"id": result["toolUseId"], **({"name": name} if name is not None else {})}
    return {**named, "content": content if text is None else text, "properties": properties}


def result_block(result: dict[str, Any], place: str) -> Block:
    """Return a tool result in Camunda's form as a block. Content of other writers becomes a text or JSON."""
    id_, content, properties = result.get("id"), result.get("content"), _properties(result, place, _RESULT_MEMBERS)
    if not isinstance(id_, str | None):
        raise MalformedBlob("expected a text", f"{place}.id")
    blocks: list[Any]
    if properties.pop("contentFormat", None) == _MARK["format"]:
        if not isinstance(content, list):
            raise MalformedBlob("expected an array of blocks", f"{place}.content")
        blocks = content
    elif content is None:
        blocks = []
    else:
        blocks = [{"text": content} if isinstance(content, str) else {"json": content}]
    return {"toolResult": {**properties, "toolUseId": id_ or "", "content": blocks}}


def texts_of_result(block: Block) -> list[str]:
    """Return what a tool result says in words: its texts, and its JSON as text."""
    found = []
    for part in block["toolResult"]["content"]:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            found.append(part["text"])
        elif isinstance(part, dict) and "json" in part:
            found.append(_json(part["json"]))
    return found


def _properties(value: dict[str, Any], place: str, members: frozenset[str]) -> dict[str, Any]:
    """Return the properties of a tool call or result, and members of it other than `members`."""
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise MalformedBlob("expected an object", f"{place}.properties")
    return {**{name: other for name, other in value.items() if name not in members}, **properties}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
