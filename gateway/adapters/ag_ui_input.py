"""What an AG-UI request asks, as the unified input; the body of an AG_UI agent; and a session as AG-UI messages. Pure.

AG-UI 1.0 and the form before it, in which media are parts of the type `binary` (docs/reference/ag-ui.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_ui.core import RunAgentInput
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from gateway.adapters.errors import refuse
from gateway.execute.streams import google_signature
from gateway.memory.model import Block, StoredMessage
from gateway.unified.formats import FORMATS

MESSAGES_LEFT_OUT = "MESSAGES_LEFT_OUT"
_MEDIA = ("image", "audio", "video")
_OF_THE_PAGE = frozenset({"canResend", "toolResult", "toolCallId"})
"""Members of the system messages that OpenSearch Dashboards writes into its own timeline, to show them."""
_UNKNOWN = "application/octet-stream"
_LISTS = ("tools", "context")


def read_request(document: Any) -> RunAgentInput:
    """Return a request; parts of the type `binary` become those of 1.0.

    Raises:
        AdapterError: it breaks a rule of the protocol.
    """
    if not isinstance(document, dict):
        raise refuse(400, "The body is not an AG-UI request: an object with threadId, runId and messages.")
    messages = document.get("messages")
    if isinstance(messages, list):
        document = {**document, "messages": [modern(one, f"messages[{i}]") for i, one in enumerate(messages)]}
    document = {name: value for name, value in document.items() if value is not None or name not in _LISTS}
    try:
        return RunAgentInput.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise refuse(400, f"The body is not an AG-UI request: {place}: {first['msg']}.", place) from None


def refuse_resume(request: RunAgentInput) -> None:
    """Refuse the answers to interrupts: no agent behind the gateway interrupts a run.

    Raises:
        AdapterError: there are some.
    """
    if request.resume:
        text = (
            "`resume` can't be sent to an agent of ML Commons, as none interrupts a run. Leave it out, and send the "
            "answer as a message: of a tool if it is that of a call, otherwise of the user."
        )
        raise refuse(400, text, "resume")


def modern(message: Any, at: str) -> Any:
    """Return a message with parts of 1.0. at: its place.

    Raises:
        AdapterError: a part is wrong.
    """
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_modern_part(part, f"{at}.content[{i}]") for i, part in enumerate(content)]}


def _modern_part(part: Any, at: str) -> Any:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime, data, url = part.get("mimeType"), part.get("data"), part.get("url")
    if not isinstance(mime, str) or not (isinstance(data, str) or isinstance(url, str)):
        raise refuse(400, f"{at}: a binary part needs its mimeType and its data or url.", at)
    source = {"type": "data", "value": data} if isinstance(data, str) else {"type": "url", "value": url}
    name = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return {"type": _kind(mime), "source": {**source, "mimeType": mime}, **name}


def _kind(mime: str) -> str:
    kind = mime.partition("/")[0].lower()
    return kind if kind in _MEDIA else "document"


def write_input(request: RunAgentInput) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return the conversation as the unified input, the place of each turn in the request, and what is left out.

    A place is "" for what is no message of the client's. What is left out is named by codes.

    Context and state of the application come as system text after the client's own.

    Raises:
        AdapterError: a part can't be expressed.
    """
    turns: list[dict[str, Any]] = []
    places: list[str] = []
    left_out = False
    for index, message in enumerate(_dump(request)["messages"]):
        turn = _turn(message, f"messages[{index}]")
        if turn is None:
            left_out = left_out or message["role"] != "assistant"  # an assistant's message without content is empty
        else:
            turns.append(turn)
            places.append(f"messages[{index}]")
    if about := _about(request):
        leading = next((i for i, turn in enumerate(turns) if turn["role"] not in ("system", "developer")), len(turns))
        turns.insert(leading, {"role": "system", "content": about})
        places.insert(leading, "")
    return turns, places, [MESSAGES_LEFT_OUT] if left_out else []


def _dump(request: RunAgentInput) -> dict[str, Any]:
    """Return the members of a request, and of all in it.

    Raises:
        AdapterError: they are nested too deeply to be written.
    """
    try:
        document: dict[str, Any] = request.model_dump(by_alias=True, exclude_none=True, mode="json")
    except PydanticSerializationError:
        raise refuse(400, "The values of the request are nested too deeply.") from None
    return document


def _turn(message: Mapping[str, Any], at: str) -> dict[str, Any] | None:
    """Return a turn; None for a message that no LLM gets."""
    role, content = message["role"], message.get("content")
    match role:
        case "system" | "developer":
            return None if _OF_THE_PAGE & message.keys() else {"role": role, "content": content}
        case "user":
            return {"role": "user", "content": _content(content, at)}
        case "assistant":
            calls = message.get("toolCalls") or []
            called = {"toolCalls": [_call(call) for call in calls]}
            if not calls:
                return {"role": "assistant", "content": content} if content else None
            return {"role": "assistant", **({"content": content} if content else {}), **called}
        case "tool":
            result = {"toolUseId": message["toolCallId"], "content": _result(content, at)}
            if message.get("error"):
                result |= {"status": "error", "content": [*result["content"], {"text": message["error"]}]}
            return {"role": "tool", "content": [{"toolResult": result}]}
        case _:
            return None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: call[name] for name in ("id", "type", "function")}
    return {**written, **google_signature(call.get("encryptedValue", ""))}


def _result(content: Any, at: str) -> list[dict[str, Any]]:
    """Return what a tool has answered. An empty answer is an empty text."""
    return [{"text": content}] if isinstance(content, str) else _parts(content, at, typed=False) or [{"text": ""}]


def _content(content: Any, at: str) -> Any:
    return content if isinstance(content, str) else _parts(content, at, typed=True)


def _parts(parts: Sequence[Mapping[str, Any]], at: str, typed: bool) -> list[dict[str, Any]]:
    """Return content blocks. typed: with their `type`; a tool's result takes both spellings."""
    return [_part(part, f"{at}.content[{index}]", typed) for index, part in enumerate(parts)]


def _part(part: Mapping[str, Any], at: str, typed: bool) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]} if typed else {"text": part["text"]}
    source = part["source"]
    if source["type"] == "file":
        raise refuse(400, f"{at}: a file of a provider can't be sent to an agent. Send its data, or a URL.", at)
    by_url = source["type"] == "url"
    written = {"type": "url", "url": source["value"]} if by_url else {"type": "base64", "data": source["value"]}
    mime = source.get("mimeType")
    name = {"name": part["filename"]} if part["type"] == "document" and part.get("filename") else {}
    return {"type": part["type"], "source": {**written, **({"format": mime} if mime else {}), **name}}


def _about(request: RunAgentInput) -> str:
    """Return the context and the state of the application as text; "" if there is neither."""
    lines = [f"- {one.description}: {one.value}" for one in request.context or []]
    texts = ["\n".join(("Context of the application:", *lines))] if lines else []
    if request.state not in (None, {}, [], ""):
        texts.append(f"State of the application, as JSON: {json.dumps(request.state, ensure_ascii=False)}")
    return "\n\n".join(texts)


def native_body(request: RunAgentInput) -> dict[str, Any]:
    """Return the request for an agent of the type AG_UI, whose cluster reads the form before 1.0.

    It takes it for an AG-UI request only with all seven members, and drops every other medium than an inline image.

    Raises:
        AdapterError: it would drop one.
    """
    document = _dump(request)
    for index, message in enumerate(document["messages"]):
        if isinstance(message.get("content"), list):
            at = f"messages[{index}].content"
            message["content"] = [_binary(part, f"{at}[{i}]") for i, part in enumerate(message["content"])]
    members = ("threadId", "runId", "messages", "tools", "context", "state", "forwardedProps")
    empty: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return {name: document.get(name, empty.get(name)) for name in members}


def _binary(part: Mapping[str, Any], at: str) -> dict[str, Any]:
    if part["type"] == "text":
        return dict(part)
    source = part["source"]
    if part["type"] != "image" or source["type"] != "data":
        raise refuse(400, f"{at}: the cluster drops this from a request to an AG_UI agent. Send images inline.", at)
    return {"type": "binary", "mimeType": source.get("mimeType", "image/png"), "data": source["value"]}


def snapshot(messages: Iterable[StoredMessage], session_id: str) -> list[dict[str, Any]]:
    """Return the messages of a session, each with an id that stays the same."""
    written: list[dict[str, Any]] = []
    for stored in messages:
        id = f"{session_id}-{stored.seq}"
        content = stored.message.content
        results = [block["toolResult"] for block in content if "toolResult" in block]
        for number, result in enumerate(results):
            tool = {"role": "tool", "toolCallId": result["toolUseId"], "content": _texts(result.get("content", []))}
            written.append({"id": f"{id}-{number}", **tool})
        if stored.message.role == "assistant":
            written.append({"id": id, **_assistant(content)})
        elif parts := [part for block in content if (part := _shown(block)) is not None]:
            only_text = all(part["type"] == "text" for part in parts)
            text = "\n".join(part["text"] for part in parts) if only_text else parts
            written.append({"id": id, "role": "user", "content": text})
    return written


def _assistant(content: Sequence[Block]) -> dict[str, Any]:
    calls = [
        {
            "id": block["toolUse"]["toolUseId"],
            "type": "function",
            "function": {"name": block["toolUse"]["name"], "arguments": json.dumps(block["toolUse"]["input"])},
            **({"encryptedValue": signature} if (signature := block["toolUse"].get("reasoningSignature")) else {}),
        }
        for block in content
        if "toolUse" in block
    ]
    return {"role": "assistant", "content": _texts(content), **({"toolCalls": calls} if calls else {})}


def _texts(content: Sequence[Block]) -> str:
    texts = [block["text"] for block in content if isinstance(block.get("text"), str)]
    texts += [json.dumps(block["json"], ensure_ascii=False) for block in content if "json" in block]
    return "\n".join(texts)


def _shown(block: Block) -> dict[str, Any] | None:
    """Return a user's block as a part; None for one that AG-UI has no part for."""
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    for kind, mime_types in FORMATS.items():
        if isinstance(body := block.get(kind), dict):
            source, mime = body.get("source", {}), mime_types.get(body.get("format", ""), _UNKNOWN)
            if isinstance(source.get("bytes"), str):
                return {"type": kind, "source": {"type": "data", "value": source["bytes"], "mimeType": mime}}
            if isinstance(source.get("url"), str):
                named = {"mimeType": mime} if "format" in body else {}
                return {"type": kind, "source": {"type": "url", "value": source["url"], **named}}
    return None
