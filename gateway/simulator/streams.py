"""Streamed runs (3.3 and later), which are those with a parameter `stream`: what the model gets, and the pieces of its
answer.

By the sources of 3.3.0 to 3.8.0 and the recordings of 3.8.0. A run that nobody reads the pieces of is never answered
(tried on 3.6.0). AWS's binary event stream is not simulated: a Converse model answers as without a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.simulator.errors import ExecuteFailure
from gateway.simulator.values import RawJson, to_json

CHAT, CONVERSE = "openai/v1/chat/completions", "bedrock/converse/claude"
_PROTOCOLS = {"http": CHAT, "aws_sigv4": CONVERSE}
NO_STREAM = "Fail to execute streaming"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer, with the ids of its turn."""

    content: str
    is_last: bool = False
    memory_id: str = ""
    parent_id: str = ""

    def frame(self) -> str:
        """Return the piece as an event."""
        ids = {"memory_id": self.memory_id, "parent_interaction_id": self.parent_id}
        tensors: list[Any] = [{"name": name, "result": value} for name, value in ids.items()]
        tensors.append({"name": "response", "dataAsMap": {"content": self.content, "is_last": self.is_last}})
        return f"data: {to_json({'inference_results': [{'output': tensors}]}, True)}\n\n"


class StreamEnded(Exception):
    """The last piece was sent, and the run has no answer."""


def error_frame(failure_body: Mapping[str, Any]) -> str:
    """Return the event for an error of the cluster. Only quotes and line breaks are escaped."""
    error = failure_body["error"]
    message = error.get("details", error["reason"]) or "Stream error"
    escaped = message.replace('"', '\\"').replace("\n", "\\n")
    return f'data: {{"error": "{escaped}"}}\n\n'


def is_streamed(parameters: Mapping[str, str | None], modern: bool) -> bool:
    """Return True for a streamed run."""
    return modern and "stream" in parameters


def interface_of(values: Mapping[str, str | None]) -> str:
    """Return the name of the LLM's interface; the values are escaped."""
    return (values.get("_llm_interface") or "").strip().lower().replace("\\/", "/")


def can_stream(connector: Mapping[str, Any], values: Mapping[str, str | None]) -> bool:
    """Return True if the connector's protocol can stream what the LLM's interface answers."""
    return _PROTOCOLS.get(connector["protocol"]) == interface_of(values)


def with_stream(body: str) -> str:
    """Return the body of an OpenAI connector, read and written again with ``"stream": true``.

    Numbers stay as they are written. A body that only the lenient parser takes is left as it is, unlike on a cluster.
    """
    try:
        document = json.loads(body, parse_int=RawJson, parse_float=RawJson, parse_constant=RawJson)
    except (ValueError, RecursionError):
        return body
    return to_json({**document, "stream": True}, True)


def converse_request(body: str, has_images: bool) -> str:
    """Return the body that AWS's SDK makes of a Converse connector's. It knows few members; images from 3.5 on.

    Raises:
        ExecuteFailure: a member is missing.
    """
    try:
        document = json.loads(body)
        made: dict[str, Any] = {}
        if "system" in document:
            made["system"] = [{"text": block["text"]} for block in document["system"] if "text" in block]
        made["messages"] = [_message(turn, has_images) for turn in document["messages"]]
        if "tools" in document.get("toolConfig", {}):
            specs = (tool["toolSpec"] for tool in document["toolConfig"]["tools"])
            members = ("name", "description", "inputSchema")
            made["toolConfig"] = {"tools": [{"toolSpec": {name: spec[name] for name in members}} for spec in specs]}
    except (KeyError, TypeError, IndexError, ValueError):
        raise ExecuteFailure(500, "MLException", NO_STREAM) from None
    return json.dumps(made)


def _message(turn: dict[str, Any], has_images: bool) -> dict[str, Any]:
    content: list[Any] = []
    for block in turn["content"] if isinstance(turn.get("content"), list) else []:
        if "text" in block:
            content.append({"text": block["text"]})
        if has_images and "bytes" in block.get("image", {}).get("source", {}):
            source = {"bytes": block["image"]["source"]["bytes"]}
            content.append({"image": {"format": block["image"].get("format", "png"), "source": source}})
        if "toolResult" in block:
            result = {"toolUseId": block["toolResult"]["toolUseId"], "content": [_first_text(block["toolResult"])]}
            content.append({"toolResult": result})
        if "toolUse" in block:
            members = ("toolUseId", "name", "input")
            content.append({"toolUse": {name: block["toolUse"][name] for name in members}})
    return {"role": turn.get("role", "assistant"), "content": content}


def _first_text(result: dict[str, Any]) -> dict[str, Any]:
    return {"text": result["content"][0]["text"] if result["content"] else ""}


def chat_pieces(body: str) -> tuple[list[str], dict[str, Any]]:
    """Return the pieces of OpenAI's event stream, and the whole answer."""
    pieces: list[str] = []
    text, call = "", {"name": "", "arguments": "", "id": ""}
    for event in _events(body):
        choice = event["choices"][0]
        delta = choice.get("delta") or {}
        if delta.get("content"):
            text += delta["content"]
            pieces.append(delta["content"])
        if calls := delta.get("tool_calls"):
            # Parallel calls become one: with the last name and id, and all arguments joined.
            for each in calls:
                call["id"] = each.get("id") or call["id"]
                call["name"] = each["function"].get("name") or call["name"]
                call["arguments"] += each["function"].get("arguments") or ""
            pieces.append(to_json([{**each, "index": float(each["index"])} for each in calls], True))
    if not call["id"]:
        return pieces, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    function = {"name": call["name"], "arguments": call["arguments"]}
    message = {"tool_calls": [{"function": function, "id": call["id"], "type": "function"}]}
    whole = {"choices": [{"finish_reason": "tool_calls", "message": message}]}
    pieces.append(to_json(whole, True))
    message["role"] = "assistant"  # type: ignore[assignment]
    return pieces, whole


def converse_pieces(answer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the pieces of a Converse answer, and the whole answer."""
    blocks = answer["output"]["message"]["content"]
    return [word for block in blocks if "text" in block for word in _words(block["text"])], answer


def _events(body: str) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split()]
