"""Messages as Strands stores them, and as the gateway does.

A record is the JSON of Strands' `SessionMessage`: ``{"message": {"role", "content", …}, "message_id", "redact_message",
"created_at", "updated_at"}``. It has bytes as ``{"__bytes_encoded__": true, "data": "<base64>"}``, where a message of
the gateway has base64 text.

- What Strands knows besides role and content is in `Metadata.extra` under ``strands``, and comes back in the record.
- What the gateway knows of a message is in the record under ``message.metadata.custom.gateway``. Strands keeps what it
  finds in ``custom``, and never sends it to an LLM. It includes what the content was, if that is not what is shown.
- Of a redacted message, the content is what the guardrail put in its place. The original is in
  ``extra["strands"]["original"]``, as Strands has it.
- Strands' formatters for Bedrock, OpenAI and Gemini raise an error for content that their API has no place for, and
  some APIs refuse blank text and documents without a name. Such blocks are shown in another form; what they were is
  kept beside them (docs/operate/memory.md, "strands_files").
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.memory.conversion import NO_OUTPUT
from gateway.memory.model import Block, Message, Metadata, Usage
from gateway.unified.model import MEDIA_KINDS

Record = dict[str, Any]


def to_record(message: Message, number: int, turn_id: str = "", before: Sequence[Block] = ()) -> Record:
    """Return the record of message `number` (0, 1, 2 …).

    turn_id: id of its turn; "" to leave out this and what else only the gateway knows. before: content of records, of
    earlier messages of the same role, that is shown with it.

    Raises:
        AttributeError, TypeError: a block, or what only Strands knows, has a form that Strands does not have.
        OverflowError, ValueError: its time has no date.
    """
    metadata = message.metadata
    kept = _kept_of(metadata)
    own: Record = {}
    blocks = list(message.content)
    if turn_id:
        own = {**msgspec.to_builtins(metadata), "turn": turn_id}
        if kept:
            own["extra"] = {name: value for name, value in metadata.extra.items() if name != "strands"}
            own["strands"] = "created_at" in kept
        else:
            blocks, was = show(blocks, number)
            own |= {"content": was} if was is not None else {}
        own |= {"before": len(before)} if before else {}
    content = [*before, *(_map_bytes(block, _mark_bytes) for block in blocks)]
    shown = {"role": message.role, "content": content, **_with_own(kept.get("message", {}), own)}
    original = kept.get("original")
    created = kept.get("created_at") or _iso(metadata.created or time.time())
    return {
        "message": original or shown,
        "message_id": number,
        "redact_message": shown if original else None,
        "created_at": created,
        "updated_at": kept.get("updated_at") or created,
    }


def from_record(record: Record) -> tuple[Message, str]:
    """Return the message of a record, and the id of its turn; "" if Strands wrote it.

    Raises:
        ValueError: the record is not one of Strands' messages.
    """
    try:
        original, redacted = record["message"], record.get("redact_message")
        shown = original if redacted is None else redacted
        role, content = shown["role"], shown["content"]
        if role not in ("user", "assistant") or not isinstance(content, list):
            raise ValueError("it has no role `user` or `assistant`, or no list of content")
        rest, own = _split(shown)
        own = own or _split(original)[1]
        kept = _kept(record, rest, own)
        if redacted is not None:
            kept["original"] = original
        metadata = msgspec.convert(own, Metadata) if own else _metadata(record, rest)
        if kept:
            metadata = msgspec.structs.replace(metadata, extra={**metadata.extra, "strands": kept})
        blocks = [_map_bytes(block, _unmark_bytes) for block in content[own.get("before", 0) :]]
        if "content" in own:
            blocks = restore(blocks, own["content"])
        return Message(role, tuple(blocks), metadata), msgspec.convert(own.get("turn", ""), str)
    except (LookupError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"it is not a message of Strands ({error!r})") from error


def shown_message(record: Record) -> Record:
    """Return the message that Strands sends: the redacted one, if there is one."""
    shown: Record = record.get("redact_message") or record["message"]
    return shown


def shows_more(record: Record) -> bool:
    """Return whether a record also shows the message before it, which has the same role."""
    return bool(_split(shown_message(record))[1].get("before"))


def encode_record(record: Record) -> bytes:
    """Return a record as Strands writes it to a file.

    Raises:
        TypeError, ValueError, RecursionError: it can't be written as JSON in UTF-8.
    """
    data = json.dumps(record, ensure_ascii=False).encode()
    try:
        return msgspec.json.format(data, indent=2)  # as below, 20 times faster
    except msgspec.DecodeError:  # Python's JSON has NaN
        return json.dumps(record, ensure_ascii=False, indent=2).encode()


def session_record(session_id: str, now: float) -> Record:
    """Return the record of a new session. now: seconds since the epoch."""
    return {"session_id": session_id, "session_type": "AGENT", "created_at": _iso(now), "updated_at": _iso(now)}


def agent_record(agent_id: str, now: float) -> Record:
    """Return the record of a new agent, with Strands' default conversation manager, which has removed no message."""
    return {
        "agent_id": agent_id,
        "state": {},
        "conversation_manager_state": {"__name__": "SlidingWindowConversationManager", "removed_message_count": 0},
        "_internal_state": {},
        "created_at": _iso(now),
        "updated_at": _iso(now),
    }


def starts_turn(message: Message) -> bool:
    """Return whether this is new input of the user, and not only tool results."""
    return message.role == "user" and any("toolResult" not in block for block in message.content)


def _split(message: Record) -> tuple[Record, Record]:
    """Return what a message has besides role and content, and what the gateway knows of it."""
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    custom = rest.get("metadata", {}).get("custom", {})
    own = custom.get("gateway", {})
    if own:
        custom = {name: value for name, value in custom.items() if name != "gateway"}
        metadata = {**rest["metadata"], "custom": custom}
        if not custom:
            del metadata["custom"]
        rest["metadata"] = metadata
        if not metadata:
            del rest["metadata"]
    return rest, own


def _with_own(rest: Record, own: Record) -> Record:
    """Return `rest` with what the gateway knows of the message."""
    if not own:
        return rest
    metadata = rest.get("metadata", {})
    return {**rest, "metadata": {**metadata, "custom": {**metadata.get("custom", {}), "gateway": own}}}


def _kept_of(metadata: Metadata) -> Record:
    """Return what only Strands knows of a message."""
    kept = metadata.extra.get("strands")
    return kept if isinstance(kept, dict) else {}


def _kept(record: Record, rest: Record, own: Record) -> Record:
    """Return what only Strands knows of a message, as `Metadata.extra` keeps it. own: empty if Strands wrote it."""
    kept: Record = {}
    if not own or own.get("strands"):
        kept = {name: record[name] for name in ("created_at", "updated_at") if record.get(name)}
    return {**kept, "message": rest} if rest else kept


def _metadata(record: Record, rest: Record) -> Metadata:
    """Return the metadata of a message that Strands wrote."""
    usage = rest.get("metadata", {}).get("usage")
    names = {"input": "inputTokens", "output": "outputTokens", "total": "totalTokens"}
    tokens = {name: usage.get(theirs) for name, theirs in names.items()} if usage else None
    return Metadata(_seconds(record.get("created_at", "")), usage=msgspec.convert(tokens, Usage | None))


def _map_bytes(block: Any, change: Callable[[Any], Any]) -> Block:
    """Return the block with `change` applied to each of its values that Strands has as bytes."""
    changed: Block = {}
    for kind, body in block.items():
        if not isinstance(body, dict):
            continue
        source = body.get("source")
        if kind in MEDIA_KINDS and isinstance(source, dict) and "bytes" in source:
            changed[kind] = {**body, "source": {**source, "bytes": change(source["bytes"])}}
        elif kind == "reasoningContent" and "redactedContent" in body:
            changed[kind] = {**body, "redactedContent": change(body["redactedContent"])}
        elif kind == "toolResult" and isinstance(body.get("content"), list):
            changed[kind] = {**body, "content": [_map_bytes(part, change) for part in body["content"]]}
    return {**block, **changed} if changed else block


def _mark_bytes(value: Any) -> Any:
    return {"__bytes_encoded__": True, "data": value} if isinstance(value, str) else value


def _unmark_bytes(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("__bytes_encoded__") is True and isinstance(value.get("data"), str):
        return value["data"]
    return value


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _seconds(iso: str) -> float:
    """Return seconds since the epoch; 0 if `iso` is not a time."""
    try:
        time_ = datetime.fromisoformat(iso)
    except ValueError:
        return 0.0
    return (time_ if time_.tzinfo else time_.replace(tzinfo=UTC)).timestamp()


NOTHING = "(no content)"
_BY_BYTES = ("image", "document")
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
    for kind in MEDIA_KINDS:
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
