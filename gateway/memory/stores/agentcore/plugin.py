"""Events that AWS's own plug-in for Strands writes (`AgentCoreMemorySessionManager`): read, never written. Pure.

A payload holds a message as the JSON of Strands' `SessionMessage`, in a conversational text, or, if it is long, in a
blob. Other events hold the plug-in's own state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.memory.model import Message, Metadata
from gateway.memory.stores.agentcore.envelope import MalformedBlob

_STATE = {"session", "agent"}
"""Lower-case values of the event metadata `stateType` of events that hold the plug-in's own state."""


def messages(payload: list[dict[str, Any]], values: Mapping[str, str]) -> list[Message] | None:
    """Return the messages of an event of the plug-in; None for an event of another writer. values: its metadata.

    Raises:
        MalformedBlob: the event is the plug-in's, but not in a form that is known.
    """
    if values.get("stateType", "").lower() in _STATE:
        return []
    records = [_record(item) for item in payload]
    if not records or any(record is None for record in records):
        return None
    found = (_message(record, f"payload[{number}]") for number, record in enumerate(records) if record)
    return [message for message in found if message.content]


def _record(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the plug-in's record of a payload, {} for its state, None if it is not the plug-in's."""
    if isinstance(item.get("blob"), str):
        return _record_of_blob(_parse(item["blob"]))
    match item:
        case {"conversational": {"content": {"text": str(text)}}}:
            return _session_message(text)
    return None


def _record_of_blob(value: Any) -> dict[str, Any] | None:
    match value:
        case {"_type": "agent_state"} | {"session_id": _, "session_type": _} | {"agent_id": _, "state": _}:
            return {}
        case {"_type": "message", "data": [str(text), str()]} | [str(text), str()]:
            return _session_message(text)
    return None


def _session_message(text: str) -> dict[str, Any] | None:
    value = _parse(text) if text.lstrip().startswith("{") else None
    match value:
        case {"message": {"role": _, "content": _}, "message_id": _}:
            return value
    return None


def _message(record: dict[str, Any], place: str) -> Message:
    kept = record.get("redact_message") or record["message"]
    if not isinstance(kept, dict):
        raise MalformedBlob("expected a message", place)
    role, blocks = kept.get("role"), kept.get("content")
    if role not in ("user", "assistant") or not isinstance(blocks, list):
        raise MalformedBlob("expected a message of the user or the assistant", place)
    if not all(isinstance(block, dict) for block in blocks):
        raise MalformedBlob("expected content blocks", place)
    created = record.get("created_at")
    try:
        seconds = datetime.fromisoformat(created).timestamp() if isinstance(created, str) else 0.0
    except ValueError:
        raise MalformedBlob("`created_at` is not a time", place) from None
    return Message(role, tuple(_with_base64(block) for block in blocks), Metadata(created=seconds))


def _with_base64(value: Any) -> Any:
    """Return `value` with its bytes as base64 text."""
    match value:
        case {"__bytes_encoded__": True, "data": str(data)}:
            return data
        case dict():
            return {key: _with_base64(inner) for key, inner in value.items()}
        case list():
            return [_with_base64(inner) for inner in value]
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
