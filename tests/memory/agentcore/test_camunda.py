"""The events that Camunda's connectors wrote, of August 2026, are read, and written again as they are.

fixtures/camunda_events.jsonl: a case a line. `message` is in the connectors' own form, `payload` what they wrote of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.memory.model import Block, Message, Metadata
from gateway.memory.stores.agentcore.mapping import from_payload, to_payload

CASES: dict[str, Any] = {
    case["case"]: case
    for case in map(json.loads, (Path(__file__).parent / "fixtures/camunda_events.jsonl").read_text().splitlines())
}
ROLES = {"user": "user", "assistant": "assistant", "tool_call_result": "user"}


@pytest.mark.parametrize("name", CASES)
def test_events_of_camunda(name: str) -> None:
    case = CASES[name]
    [message] = from_payload(case["payload"], {"seq": "0"})
    assert message == expected(case["message"])
    tools = {result["id"]: result["name"] for result in case["message"].get("results", ())}
    written = to_payload(message, tools=tools)
    assert written[:-1] == case["payload"][:-1]  # byte for byte
    # Camunda keeps metadata and properties in hash maps, whose order is none
    assert json.loads(written[-1]["blob"]) == json.loads(case["payload"][-1]["blob"])


def expected(camunda: dict[str, Any]) -> Message:
    """Return a message of Camunda's as the gateway has it."""
    content = [block for part in camunda.get("content", ()) for block in [block_of(part)]]
    content += [
        {"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": call["arguments"]}}
        for call in camunda.get("toolCalls", ())
    ]
    content += [result_of(result) for result in camunda.get("results", ())]
    properties = {"name": "userName", "messageId": "camunda.messageId", "stopReason": "camunda.stopReason"}
    others = {member: camunda[name] for name, member in properties.items() if name in camunda}
    extra = {**camunda["metadata"], **({"camunda": others} if others else {})}
    role: Any = ROLES[camunda["role"]]
    return Message(role, tuple(content), Metadata(model=camunda.get("modelId", ""), extra=extra))


def block_of(part: dict[str, Any]) -> Block:
    if part["type"] == "text":
        return {"text": part["text"]}
    reference = part.get("document")  # the connectors write a reference twice
    return {"camunda": {**part, "document": {"m": reference, **reference}} if reference else part}


def result_of(result: dict[str, Any]) -> Block:
    parts = [{"json": part["content"]} if part["type"] == "object" else block_of(part) for part in result["content"]]
    others = {name: value for name, value in result.items() if name not in ("id", "name", "content")}
    if "completedAt" in others:
        others["completedAt"] = others["completedAt"].replace(":00Z", "Z")
    return {"toolResult": {**others, "toolUseId": result["id"], "content": parts}}
