"""A message's content as every model of Strands takes it, and back. Pure.

Strands' formatters for Bedrock, OpenAI and Gemini raise an error for content that their API has no place for, and some
APIs refuse blank text and documents without a name. Such blocks are shown in another form; what they were is kept
beside them (docs/operate/memory.md, "strands_files").
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from gateway.memory.conversion import NO_OUTPUT
from gateway.memory.model import Block

NOTHING = "(no content)"
_BY_BYTES = ("image", "document")
_MEDIA = ("image", "document", "video", "audio")
Kept = list[Any]
"""What each block was: the position of the block that shows it unchanged, ``{"unnamed": position}`` for a document
without its name, or ``{"was": block}``."""


def show(content: Sequence[Block], number: int) -> tuple[list[Block], Kept | None]:
    """Return the content as Strands' models take it, and what it was; None if nothing is changed.

    number: of the message in its session, for the names of documents.
    """
    shown: list[Block] = []
    kept: Kept = []
    for block in content:
        position = len(shown)
        own = _shown(block, f"document-{number}-{position}")
        if own is not None:
            shown.append(own)
        if own == block:
            kept.append(position)
        elif own is not None and _without_name(own) == block:
            kept.append({"unnamed": position})
        else:
            kept.append({"was": block})
    if not shown:
        shown.append({"text": NOTHING})
    return shown, kept if shown != list(content) else None


def restore(shown: Sequence[Block], kept: Kept) -> list[Block]:
    """Return the content that `show` was given.

    Raises:
        LookupError, TypeError: `kept` is not what `show` returned.
    """
    found: list[Block] = []
    for one in kept:
        if isinstance(one, int):
            found.append(shown[one])
        elif "unnamed" in one:
            found.append(_without_name(shown[one["unnamed"]]))
        else:
            found.append(one["was"])
    return found


def _without_name(block: Block) -> Block:
    document = block.get("document")
    if not isinstance(document, dict):
        return block
    return {"document": {key: value for key, value in document.items() if key != "name"}}


def _shown(block: Block, name: str, of_tool: bool = False) -> Block | None:
    """Return a block as every model takes it; None to leave it out. name: for a document without one."""
    match block:
        case {"text": str(text)} if len(block) == 1:
            return block if text.strip() else None
        case {"toolUse": {"input": dict()}} | {"cachePoint": _}:
            return block
        case {"json": _} if of_tool:
            return block
        case {"toolUse": dict(use)}:
            given = use.get("input")
            return {"toolUse": {**use, "input": {} if given is None else {"input": given}}}
        case {"toolResult": {"content": list(parts)} as result}:
            own = (_shown(part, f"{name}-{n}", of_tool=True) for n, part in enumerate(parts))
            content = [part for part in own if part is not None] or [{"text": NO_OUTPUT}]
            return {"toolResult": {**result, "status": result.get("status", "success"), "content": content}}
        case {"reasoningContent": {"reasoningText": {"text": str()} as reasoning}}:
            return block if _is_base64(reasoning.get("signature", "")) else None
        case {"reasoningContent": _}:
            return None
        case {"guardContent": {"text": {"text": str(text)}}}:
            return {"text": text} if text.strip() else None
        case {"citationsContent": {"content": list(parts)}}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            return {"text": "".join(texts)} if "".join(texts).strip() else None
    for kind in _MEDIA:
        if isinstance(block.get(kind), dict):
            return _medium(block, kind, name, of_tool)
    return {"text": json.dumps(block, ensure_ascii=False)}


def _medium(block: Block, kind: str, name: str, of_tool: bool) -> Block:
    medium = block[kind]
    match medium.get("source"):
        case {"bytes": _} if kind in _BY_BYTES and isinstance(medium.get("format"), str):
            return block if kind != "document" or medium.get("name") else {kind: {**medium, "name": name}}
        case {"s3Location": {"uri": str(uri), **rest}}:
            if kind in _BY_BYTES and not of_tool:
                own = {**medium, "source": {"location": {"type": "s3", "uri": uri, **rest}}}
                return {kind: own if kind != "document" or medium.get("name") else {**own, "name": name}}
            where = uri
        case {"url": str(url)}:
            where = url
        case _:
            where = "in the session"
    named = f" {medium['name']}" if medium.get("name") else ""
    return {"text": f"({kind}{named}, {medium.get('format') or 'unknown format'}: {where})"}


def _is_base64(text: Any) -> bool:
    try:
        base64.b64decode(text)
        return True
    except (ValueError, TypeError):
        return False
