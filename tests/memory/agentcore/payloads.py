"""Blocks of messages, and the payloads of the events that hold them."""

from __future__ import annotations

import json
from typing import Any

from gateway.memory.model import Block

IMAGE: Block = {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}
DOCUMENT: Block = {"document": {"format": "pdf", "name": "Report", "source": {"bytes": "JVBERg=="}}}
USE: Block = {"toolUse": {"toolUseId": "1", "name": "search", "input": {"query": "cats", "most": None}}}
RESULT: Block = {"toolResult": {"toolUseId": "1", "status": "success", "content": [{"text": "3 cats"}]}}
JSON_RESULT: Block = {"toolResult": {"toolUseId": "2", "content": [{"json": {"cats": 3}}, IMAGE]}}


def spoken(role: str, text: str) -> dict[str, Any]:
    return {"conversational": {"role": role, "content": {"text": text}}}


def blob(value: Any) -> dict[str, str]:
    """Return a payload item as Camunda's connectors write it: the JSON text of `value`, without blanks."""
    return {"blob": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}


def content(value: dict[str, Any]) -> dict[str, str]:
    return blob({"blobType": "camunda.messageContent", "version": 1, "content": value})


def wrapped(block: Block) -> dict[str, str]:
    return content(marked(block))


def marked(block: Block) -> dict[str, Any]:
    return {"type": "object", "content": block, "metadata": {"format": "strands"}}


def calls(*data: dict[str, Any]) -> dict[str, str]:
    return blob({"blobType": "camunda.toolCalls", "version": 1, "toolCalls": list(data)})


def results(*data: dict[str, Any]) -> dict[str, str]:
    return blob({"blobType": "camunda.toolCallResults", "version": 1, "results": list(data)})


def metadata(data: dict[str, Any], **properties: Any) -> dict[str, str]:
    envelope = {"blobType": "camunda.messageMetadata", "version": 1, "metadata": data}
    return blob({**envelope, "properties": properties} if properties else envelope)


CALL = {"id": "1", "name": "search", "arguments": {"query": "cats", "most": None}}
STORED_RESULT = {"id": "1", "content": [{"type": "text", "text": "3 cats"}], "status": "success"}
STORED_JSON_RESULT = {"id": "2", "content": [{"type": "object", "content": {"cats": 3}}, marked(IMAGE)]}
