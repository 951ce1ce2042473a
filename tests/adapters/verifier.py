"""Rules for the events of an AG-UI run: those of the client's own verifier, and those that it lacks."""

from __future__ import annotations

import json
from typing import Any

_TEXT = ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END")


def verify(events: list[dict[str, Any]]) -> None:
    """Check the order of events, exactly one terminal event, and that every call ends, with a result or pending."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "RUN_STARTED"
    assert kinds.count("RUN_STARTED") == 1
    assert kinds[-1] in ("RUN_FINISHED", "RUN_ERROR")
    assert sum(kind in ("RUN_FINISHED", "RUN_ERROR") for kind in kinds) == 1
    assert None not in [value for event in events for value in event.values()]
    text, seen = "", set()
    open_calls: dict[str, str] = {}
    unanswered: list[str] = []
    for event in events:
        kind = event["type"]
        if kind == "TEXT_MESSAGE_START":
            assert not text
            assert event["messageId"] not in seen
            text = event["messageId"]
            seen.add(text)
        elif kind in _TEXT:
            assert event["messageId"] == text
            assert event.get("delta") != ""
            text = "" if kind == "TEXT_MESSAGE_END" else text
        elif kind == "TOOL_CALL_START":
            assert not text, "a call within a text"
            assert event["toolCallId"] not in seen
            seen.add(event["toolCallId"])
            open_calls[event["toolCallId"]] = ""
        elif kind == "TOOL_CALL_ARGS":
            assert event["delta"]
            open_calls[event["toolCallId"]] += event["delta"]
        elif kind == "TOOL_CALL_END":
            assert isinstance(json.loads(open_calls.pop(event["toolCallId"])), dict)
            unanswered.append(event["toolCallId"])
        elif kind == "TOOL_CALL_RESULT":
            unanswered.remove(event["toolCallId"])
    if kinds[-1] == "RUN_FINISHED":
        assert not text
        assert not open_calls
        assert events[-1].get("outcome", {}).get("pendingToolCallIds", []) == unanswered
        assert (events[-1]["threadId"], events[-1]["runId"]) == (events[0]["threadId"], events[0]["runId"])


def replay(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that a client makes of the events."""
    messages: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    for event in events:
        match event["type"]:
            case "TEXT_MESSAGE_START":
                messages[event["messageId"]] = {"role": event["role"], "content": ""}
            case "TEXT_MESSAGE_CONTENT":
                messages[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_START":
                parent = event.get("parentMessageId", event["toolCallId"])
                message = messages.setdefault(parent, {"role": "assistant", "content": ""})
                function = {"name": event["toolCallName"], "arguments": ""}
                calls[event["toolCallId"]] = {"id": event["toolCallId"], "type": "function", "function": function}
                message.setdefault("toolCalls", []).append(calls[event["toolCallId"]])
            case "TOOL_CALL_ARGS":
                calls[event["toolCallId"]]["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                result = {"role": event["role"], "toolCallId": event["toolCallId"], "content": event["content"]}
                messages[event["messageId"]] = result
    return list(messages.values())
