"""How a conversation must be mapped for each provider. The oracle's own rules, from the providers' documentation.

Nothing is shared with the gateway's mapping but the model of the input. `map_conversation` returns the turns, the
separate system text, and the changes that must be reported; inline media stay in the turns.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.unified.model import (
    AgentInput,
    Base64,
    ContentBlock,
    ConverseBlock,
    Json,
    Media,
    Message,
    Text,
    ToolResult,
    ToolUse,
)

Turn = dict[str, Any]
Found = set[tuple[str, str]]  # (code, place) of notices

MIME = {
    "png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "pdf": "application/pdf", "csv": "text/csv", "html": "text/html", "txt": "text/plain", "md": "text/markdown",
    "mkv": "video/x-matroska", "mov": "video/quicktime", "mpeg": "video/mpeg", "mpg": "video/mpeg",
    "flv": "video/x-flv", "wmv": "video/wmv", "three_gp": "video/3gpp",
    "mp3": "audio/mpeg", "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac",
    "m4a": "audio/mp4",
}  # fmt: skip
MIME_BY_KIND = {("video", "mp4"): "video/mp4", ("video", "webm"): "video/webm"}
EXTENSION = re.compile(r"\.(pdf|csv|docx?|xlsx?|html|htm|txt|md|markdown|jpg|3gp|3gpp|3g2)\Z", re.IGNORECASE)


class NotMappable(Exception):
    """The provider has no way to say it, so it must not have been sent."""


def standard_role(name: str, roles: Mapping[str, str]) -> str:
    """What a role means, in any case; "" for a role that nobody knows."""
    table = {role.lower(): to for role, to in roles.items()}
    role = table.get(name.lower(), name.lower())
    return role if role in ("system", "developer", "user", "assistant", "tool") else ""


class Mapped(msgspec.Struct):
    """A conversation in a provider's form. notices: exactly what must be reported."""

    messages: list[Turn] = msgspec.field(default_factory=list)
    system: list[str] = msgspec.field(default_factory=list)
    notices: Found = msgspec.field(default_factory=set)


@dataclass(frozen=True)
class Format:
    """One wire format. messages, content: the members that hold the turns, and a turn's parts."""

    messages: str
    content: str
    typed: bool = False

    def text(self, text: str) -> Turn:
        return {"type": "text", "text": text} if self.typed else {"text": text}


BEDROCK = Format("messages", "content")
NOVA = Format("messages", "content")  # of Amazon on InvokeModel: as Converse, without documents
OPENAI = Format("messages", "content", typed=True)
GEMINI = Format("contents", "parts")
ANTHROPIC = Format("messages", "content", typed=True)
INVOKE = Format("messages", "content", typed=True)  # Anthropic's on Bedrock: no media by URL
COHERE = Format("messages", "content", typed=True)  # version 2
PLAIN = Format("messages", "content")  # where no provider is known: one string a turn, user and assistant in turn
FORMATS = {
    "amazon-nova/invoke": NOVA,
    "anthropic/v1/messages": ANTHROPIC,
    "bedrock-invoke/anthropic": INVOKE,
    "bedrock/converse": BEDROCK,
    "cohere/v2/chat": COHERE,
    "openai/v1/chat/completions": OPENAI,
    "gemini/v1beta/generatecontent": GEMINI,
}


def is_claude(wire: Format) -> bool:
    return wire is ANTHROPIC or wire is INVOKE


def is_chat(wire: Format) -> bool:
    return wire is OPENAI or wire is COHERE


def is_converse(wire: Format) -> bool:
    return wire is BEDROCK or wire is NOVA


def canonical(wire: Format, messages: Any) -> Any:
    """Turns in one spelling: string content as a part, a missing role as the user's, arguments as JSON data."""
    if not isinstance(messages, list):
        return messages
    turns = []
    for turn in messages:
        if wire is BEDROCK and isinstance(turn, dict) and isinstance(turn.get("content"), list):
            turn = {**turn, "content": [_without_type(block) for block in turn["content"]]}
        if wire is PLAIN:
            if not isinstance(turn.get("content"), str):
                raise NotMappable(f"content that is no string: {turn}")
            turn = {**turn, "content": [wire.text(turn["content"])]}
        if wire is GEMINI and isinstance(turn, dict):
            turn = {"role": "user", **turn}
        if wire.typed and isinstance(turn, dict):
            turn = dict(turn)
            if isinstance(turn.get("content"), str):
                turn["content"] = [wire.text(turn["content"])]
            if "tool_calls" in turn:
                if wire is OPENAI:
                    turn.setdefault("content", None)
                turn["tool_calls"] = [_arguments_read(call) for call in turn["tool_calls"]]
        turns.append(turn)
    return turns


def _without_type(block: Any) -> Any:
    """A block of Converse without the `type` that some templates give it, and the service ignores."""
    return {name: value for name, value in block.items() if name != "type"} if isinstance(block, dict) else block


def _arguments_read(call: Any) -> Any:
    return {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}


def map_conversation(wire: Format, conversation: AgentInput, roles: Mapping[str, str]) -> Mapped:
    """The conversation as the provider must get it.

    Raises:
        NotMappable: it has no way to say a part of it.
    """
    mapped = Mapped()
    turns: list[Message] = []
    for message in conversation.messages:
        turn = _turn(wire, message, roles, mapped)
        if not turn.content:
            continue
        if turn.role in ("system", "developer") and not is_chat(wire):
            mapped.system += [block.text for block in turn.content if isinstance(block, Text)]
            if turns:
                mapped.notices.add(("SYSTEM_HOISTED", turn.at))
        else:
            turns.append(turn)
    runs = [list(run) for _, run in itertools.groupby(turns, key=lambda turn: turn.role == "assistant")]
    runs = [_run(wire, run, mapped) for run in runs]
    _number(wire, runs, mapped)
    if is_claude(wire):
        _claude(runs, mapped, by_url=wire is ANTHROPIC)
    else:
        by_format = (
            (BEDROCK, _bedrock),
            (NOVA, _nova),
            (OPENAI, _openai),
            (COHERE, _cohere),
            (GEMINI, _gemini),
            (PLAIN, _plain),
        )
        next(write for other, write in by_format if other is wire)(runs, mapped)
    return mapped


def _turn(wire: Format, message: Message, roles: Mapping[str, str], mapped: Mapped) -> Message:
    """The message in a standard role, without blank texts, documents of text as text."""
    role = standard_role(message.role, roles)
    if role != message.role.lower():
        mapped.notices.add(("ROLE_MAPPED", message.at))
    content: list[Any] = []
    for block in message.content:
        if isinstance(block, ToolResult):
            content.append(replace(block, content=tuple(_readable(wire, block.content, mapped))))
        else:
            content += _readable(wire, [block], mapped)
    if not role and content:
        prefix = f"[{message.role}]:"
        if isinstance(content[0], Text):
            content[0] = replace(content[0], text=f"{prefix} {content[0].text}")
        else:
            content.insert(0, Text(prefix, message.at))
    return Message({"tool": "user", "": "user"}.get(role, role), tuple(content), message.at)


def _readable(wire: Format, parts: Iterable[Any], mapped: Mapped) -> Iterator[Any]:
    for part in parts:
        if wire is not BEDROCK and _is_inline_text(part):
            text = _text_of(part)
            is_document = is_claude(wire) and bool(text.strip())
            if part.format != "txt" if is_document else not is_claude(wire):
                mapped.notices.add(("DOCUMENT_AS_TEXT", part.at))
            if not is_document:
                part = Text(text, part.at)
        if isinstance(part, Text) and not part.text.strip():
            mapped.notices.add(("BLANK_TEXT_DROPPED", part.at))
        else:
            yield part


def _text_of(part: Any) -> str:
    return base64.b64decode(bytes(part.source.data)).decode()


def _is_inline_text(part: Any) -> bool:
    """Whether a document has no form of its own where only PDF has."""
    is_text = isinstance(part, Media) and part.format in ("txt", "md", "csv", "html")
    return is_text and isinstance(part.source, Base64)


def _run(wire: Format, run: list[Message], mapped: Mapped) -> list[Message]:
    """Turns of one side. Calls go last, results first; a turn between a call and its result would part them."""
    blocks = [block for turn in run for block in turn.content]
    if run[0].role == "assistant":
        is_late = [isinstance(block, ToolUse) for block in blocks]
        reorders = wire is not GEMINI
    else:
        is_late = [not isinstance(block, ToolResult) for block in blocks]
        reorders = True
    moved = [block.at for at, block in enumerate(blocks) if not is_late[at] and any(is_late[:at])]
    if reorders and moved:
        mapped.notices.add(("BLOCKS_REORDERED", moved[0]))
    calls_early = any(isinstance(block, ToolUse) for turn in run[:-1] for block in turn.content)
    if (is_chat(wire) or wire is GEMINI) and run[0].role == "assistant" and calls_early:
        mapped.notices.add(("TURNS_JOINED", run[1].at))
        return [replace(run[0], content=tuple(blocks))]
    return run


def _number(wire: Format, runs: list[list[Message]], mapped: Mapped) -> None:
    """Ids that the provider takes, each call's own; its result gets the same, and the tool's name."""
    unchanged = {
        block.id for block in _blocks(runs) if isinstance(block, ToolUse) and _clean(wire, block.id) == block.id
    }
    used: set[str] = set()
    waiting: list[tuple[str, ToolUse]] = []
    made = 0

    def new(block: ContentBlock) -> ContentBlock:
        nonlocal made
        if isinstance(block, ToolUse):
            made += 1
            clean = _clean(wire, block.id) or f"call_{made}"
            options = itertools.chain([clean], (f"{clean[: 64 - len(f'-{n}')]}-{n}" for n in itertools.count(2)))
            found = next(o for o in options if o not in used and (o == block.id or o not in unchanged))
            used.add(found)
            if found != block.id:
                mapped.notices.add(("TOOL_ID_CLEANED" if block.id else "TOOL_ID_ADDED", block.at))
            waiting.append((block.id, replace(block, id=found)))
            return waiting[-1][1]
        if isinstance(block, ToolResult):
            call = next((c for c in waiting if c[0] == block.id and (block.id or block.name in ("", c[1].name))), None)
            if call is None:
                raise NotMappable(f"a result without a call at {block.at}")
            waiting.remove(call)
            return replace(block, id=call[1].id, name=call[1].name)
        return block

    for run in runs:
        if run[0].role == "assistant" and (is_chat(wire) or wire is GEMINI):
            used.clear()
        run[:] = [replace(turn, content=tuple(new(block) for block in turn.content)) for turn in run]


def _clean(wire: Format, id: str) -> str:
    if is_claude(wire):
        return re.sub(r"[^a-zA-Z0-9_-]", "_", id)[:64]
    return re.sub(r"[^a-zA-Z0-9_.:-]", "_", id)[:64] if is_converse(wire) else id


def _blocks(runs: Iterable[Iterable[Message]]) -> Iterator[ContentBlock]:
    return (block for run in runs for turn in run for block in turn.content)


def _bedrock(runs: list[list[Message]], mapped: Mapped) -> None:
    names: set[str] = set()
    count = 0

    def name(block: Media) -> str:
        nonlocal count
        count += 1
        given = EXTENSION.sub("", block.name or "")
        wanted = re.sub(r"[^a-zA-Z0-9()\[\]-]+", " ", given).strip()[:200].rstrip() or f"document-{count}"
        copies = itertools.chain([wanted], (f"{wanted[: 200 - len(f'-{n}')]}-{n}" for n in itertools.count(2)))
        found = next(copy for copy in copies if copy not in names)
        names.add(found)
        if block.name and found != given:
            mapped.notices.add(("DOCUMENT_RENAMED", block.at))
        return found

    def part(block: Any) -> Turn:
        match block:
            case Text():
                return {"text": block.text}
            case Json() if isinstance(block.value, dict):
                return {"json": block.value}
            case Json():
                mapped.notices.add(("TOOL_RESULT_STRINGIFIED", block.at))
                return {"text": json.dumps(block.value, ensure_ascii=False)}
            case Media():
                named = {"name": name(block)} if block.kind == "document" else {}
                return {block.kind: {"format": block.format, **named, "source": _converse_source(block)}}
            case ToolUse():
                return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
            case ConverseBlock():
                return {block.kind: block.value}
            case ToolResult():
                content = [part(inner) for inner in block.content]
                if not content:
                    mapped.notices.add(("NEUTRAL_TEXT_ADDED", block.at))
                failed = {"status": "error"} if block.is_error else {}
                result = {"toolUseId": block.id, "content": content or [{"text": "(no text output)"}], **failed}
                return {"toolResult": result}
        raise AssertionError(block)

    for run in runs:
        blocks = list(_blocks([run]))
        results = [block for block in blocks if isinstance(block, ToolResult)]
        calls = [block for block in blocks if isinstance(block, ToolUse)]
        others = [block for block in blocks if not isinstance(block, ToolResult | ToolUse)]
        content = [part(block) for block in [*results, *others, *calls]]
        documents = [block for block in others if isinstance(block, Media) and block.kind == "document"]
        if documents and not any(isinstance(block, Text) for block in others):
            content.append({"text": "(document attached)"})
            mapped.notices.add(("NEUTRAL_TEXT_ADDED", documents[0].at))
        mapped.messages.append({"role": run[0].role, "content": content})


def _nova(runs: list[list[Message]], mapped: Mapped) -> None:
    for block in _blocks(runs):
        for part in block.content if isinstance(block, ToolResult) else [block]:
            if isinstance(part, Media) and part.kind == "document":
                raise NotMappable(f"InvokeModel takes no document: {part.at}")
            if isinstance(part, Media) and part.kind == "image" and not isinstance(part.source, Base64):
                raise NotMappable(f"InvokeModel takes no image by URL: {part.at}")
    _bedrock(runs, mapped)


def _plain(runs: list[list[Message]], mapped: Mapped) -> None:
    if not runs or "assistant" in (runs[0][0].role, runs[-1][0].role):
        raise NotMappable("a conversation that does not begin and end with the user")
    for run in runs:
        texts = []
        for block in _blocks([run]):
            if not isinstance(block, Text):
                raise NotMappable(f"plain chat has text only, not {block.at}")
            texts.append(block.text)
        if len(texts) > 1:
            mapped.notices.add(("TEXT_JOINED", run[0].at))
            texts = ["\n".join(text.strip() for text in texts)]
        mapped.messages.append({"role": run[0].role, "content": [PLAIN.text(texts[0])]})


def _converse_source(block: Media) -> Turn:
    if isinstance(block.source, Base64):
        return {"bytes": _data(block.source)}
    if block.source.scheme != "s3":
        raise NotMappable(f"Bedrock takes no {block.source.scheme} URL: {block.at}")
    if not block.format:
        raise NotMappable(f"Bedrock needs a format: {block.at}")
    owner = {"bucketOwner": block.source.bucket_owner} if block.source.bucket_owner else {}
    return {"s3Location": {"uri": block.source.url, **owner}}


def _openai(runs: list[list[Message]], mapped: Mapped) -> None:
    files = 0

    def part(block: ContentBlock) -> Turn:
        nonlocal files
        match block:
            case Text():
                return OPENAI.text(block.text)
            case Media(kind="image"):
                return {"type": "image_url", "image_url": {"url": _url(block)}}
            case Media(kind="audio", source=Base64() as source):
                return {"type": "input_audio", "input_audio": {"data": _data(source), "format": block.format}}
            case Media(kind="document", source=Base64()):
                files += 1
                name = block.name or f"document-{files}.{block.format}"
                return {"type": "file", "file": {"file_data": _url(block), "filename": name}}
        raise NotMappable(f"OpenAI takes no such block: {block.at}")

    def answer(result: ToolResult) -> Turn:
        parts = []
        if result.is_error:
            parts.append(OPENAI.text("(the tool failed)"))
            mapped.notices.add(("TOOL_ERROR_MARKED", result.at))
        for inner in result.content:
            if isinstance(inner, Text):
                parts.append(OPENAI.text(inner.text))
            elif isinstance(inner, Json):
                parts.append(OPENAI.text(json.dumps(inner.value, ensure_ascii=False)))
                mapped.notices.add(("TOOL_RESULT_STRINGIFIED", inner.at))
            else:
                mapped.notices.add(("TOOL_MEDIA_MOVED", inner.at))
        if not parts:
            parts.append(OPENAI.text("(no text output)"))
            mapped.notices.add(("NEUTRAL_TEXT_ADDED", result.at))
        return {"role": "tool", "tool_call_id": result.id, "content": parts}

    for run in runs:
        results = [block for block in _blocks([run]) if isinstance(block, ToolResult)]
        mapped.messages += [answer(result) for result in results]
        moved = [inner for result in results for inner in result.content if isinstance(inner, Media)]
        if moved:
            mapped.messages.append({"role": "user", "content": [part(block) for block in moved]})
        for turn in run:
            parts = [part(block) for block in turn.content if not isinstance(block, ToolUse | ToolResult)]
            calls = [
                {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.input}}
                for use in turn.content
                if isinstance(use, ToolUse)
            ]
            if calls:
                mapped.messages.append({"role": turn.role, "content": parts or None, "tool_calls": calls})
            elif parts:
                mapped.messages.append({"role": turn.role, "content": parts})


def _cohere(runs: list[list[Message]], mapped: Mapped) -> None:
    def part(block: ContentBlock) -> Turn:
        match block:
            case Text():
                return COHERE.text(block.text)
            case Media(kind="image", source=source) if isinstance(source, Base64) or source.scheme == "https":
                detail = {"detail": block.detail} if block.detail in ("low", "high") else {}
                if block.detail and not detail:
                    mapped.notices.add(("IMAGE_DETAIL_LEFT_OUT", block.at))
                return {"type": "image_url", "image_url": {"url": _url(block), **detail}}
        raise NotMappable(f"Cohere takes no such block: {block.at}")

    def answer(result: ToolResult) -> Turn:
        parts: list[Turn] = []
        if result.is_error:
            parts.append(COHERE.text("(the tool failed)"))
            mapped.notices.add(("TOOL_ERROR_MARKED", result.at))
        for inner in result.content:
            match inner:
                case Text():
                    parts.append(COHERE.text(inner.text))
                case Json(value={**data}) if data:
                    parts.append({"type": "document", "document": {"data": data}})
                case Json():
                    parts.append(COHERE.text(json.dumps(inner.value, ensure_ascii=False)))
                    mapped.notices.add(("TOOL_RESULT_STRINGIFIED", inner.at))
                case Media():
                    mapped.notices.add(("TOOL_MEDIA_MOVED", inner.at))
        if not parts:
            parts.append(COHERE.text("(no text output)"))
            mapped.notices.add(("NEUTRAL_TEXT_ADDED", result.at))
        return {"role": "tool", "tool_call_id": result.id, "content": parts}

    if runs and runs[-1][0].role == "assistant":
        raise NotMappable("Cohere's conversation does not end with the assistant")
    for run in runs:
        results = [block for block in _blocks([run]) if isinstance(block, ToolResult)]
        mapped.messages += [answer(result) for result in results]
        moved = [inner for result in results for inner in result.content if isinstance(inner, Media)]
        if moved:
            mapped.messages.append({"role": "user", "content": [part(block) for block in moved]})
        for turn in run:
            parts = [part(block) for block in turn.content if not isinstance(block, ToolUse | ToolResult)]
            calls = [
                {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.input}}
                for use in turn.content
                if isinstance(use, ToolUse)
            ]
            if calls:
                plan = {"tool_plan": "\n".join(part["text"] for part in parts)} if parts else {}
                if len(parts) > 1:
                    mapped.notices.add(("TEXT_JOINED", turn.at))
                mapped.messages.append({"role": "assistant", **plan, "tool_calls": calls})
            elif parts:
                role = "system" if turn.role == "developer" else turn.role
                mapped.messages.append({"role": role, "content": parts})


def _gemini(runs: list[list[Message]], mapped: Mapped) -> None:
    def signed(block: Text | ToolUse) -> Turn:
        return {"thoughtSignature": block.signature} if block.signature else {}

    def part(block: Any) -> Turn:
        match block:
            case Text():
                return {"text": block.text, **signed(block)}
            case Media():
                if not block.format:
                    raise NotMappable(f"Gemini needs a MIME type: {block.at}")
                if block.name:
                    mapped.notices.add(("DOCUMENT_NAME_DROPPED", block.at))
                mime = _mime(block)
                if isinstance(block.source, Base64):
                    return {"inlineData": {"mimeType": mime, "data": _data(block.source)}}
                return {"fileData": {"mimeType": mime, "fileUri": block.source.url}}
            case ToolUse():
                return {"functionCall": {"id": block.id, "name": block.name, "args": block.input}, **signed(block)}
            case ToolResult():
                values = [x.text if isinstance(x, Text) else x.value for x in block.content if not isinstance(x, Media)]
                media = [part(inner) for inner in block.content if isinstance(inner, Media)]
                output = values[0] if len(values) == 1 else values or ""
                response = {"error" if block.is_error else "output": output}
                parts = {"parts": media} if media else {}
                return {"functionResponse": {"id": block.id, "name": block.name, "response": response, **parts}}
        raise NotMappable(f"Gemini takes no such block: {block.at}")

    called: list[str] = []
    for run in runs:
        results = [block for block in _blocks([run]) if isinstance(block, ToolResult)]
        if results:
            ordered = sorted(results, key=lambda result: called.index(result.id))
            moved = [old.at for old, new in zip(results, ordered, strict=True) if old is not new]
            mapped.notices |= {("BLOCKS_REORDERED", at) for at in moved[:1]}
            mapped.messages.append({"role": "user", "parts": [part(block) for block in ordered]})
        called = [block.id for block in _blocks([run]) if isinstance(block, ToolUse)]
        for at, turn in enumerate(run):
            parts = [part(block) for block in turn.content if not isinstance(block, ToolResult)]
            if at == 0 and any(isinstance(block, ToolResult) for block in turn.content):
                mapped.messages[-1]["parts"] += parts
            elif parts:
                mapped.messages.append({"role": "model" if turn.role == "assistant" else "user", "parts": parts})


def _claude(runs: list[list[Message]], mapped: Mapped, by_url: bool) -> None:
    def source(block: Media) -> Turn:
        if isinstance(block.source, Base64):
            if _is_inline_text(block):
                return {"type": "text", "media_type": "text/plain", "data": _text_of(block)}
            return {"type": "base64", "media_type": _mime(block), "data": _data(block.source)}
        if (
            not by_url
            or block.source.scheme != "https"
            or block.format not in ("", "png", "jpeg", "gif", "webp", "pdf")
        ):
            raise NotMappable(f"no such URL: {block.at}")
        return {"type": "url", "url": block.source.url}

    def part(block: Any) -> Turn:
        match block:
            case Text():
                return ANTHROPIC.text(block.text)
            case Json():
                mapped.notices.add(("TOOL_RESULT_STRINGIFIED", block.at))
                return ANTHROPIC.text(json.dumps(block.value, ensure_ascii=False))
            case Media(kind="image"):
                return {"type": "image", "source": source(block)}
            case Media(kind="document", format="" | "pdf" | "txt" | "md" | "csv" | "html"):
                return {"type": "document", "source": source(block), **({"title": block.name} if block.name else {})}
            case ToolUse():
                return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
            case ToolResult():
                return result(block)
        raise NotMappable(f"Anthropic takes no such block: {block.at}")

    def result(block: ToolResult) -> Turn:
        content = [part(inner) for inner in block.content]
        failed = {"is_error": True} if block.is_error else {}
        if failed and not content:
            content.append(ANTHROPIC.text("(no text output)"))
            mapped.notices.add(("NEUTRAL_TEXT_ADDED", block.at))
        if failed and any(inner["type"] != "text" for inner in content):
            content.insert(0, ANTHROPIC.text("(the tool failed)"))
            mapped.notices.add(("TOOL_ERROR_MARKED", block.at))
            failed = {}
        filled = {"content": content} if content else {}
        return {"type": "tool_result", "tool_use_id": block.id, **filled, **failed}

    for run in runs:
        blocks = list(_blocks([run]))
        results = [block for block in blocks if isinstance(block, ToolResult)]
        calls = [block for block in blocks if isinstance(block, ToolUse)]
        others = [block for block in blocks if not isinstance(block, ToolResult | ToolUse)]
        mapped.messages.append({"role": run[0].role, "content": [part(block) for block in [*results, *others, *calls]]})


def _data(source: Base64) -> str:
    return bytes(source.data).decode()


def _mime(block: Media) -> str:
    return MIME_BY_KIND.get((block.kind, block.format)) or MIME[block.format]


def _url(block: Media) -> str:
    return f"data:{_mime(block)};base64,{_data(block.source)}" if isinstance(block.source, Base64) else block.source.url
