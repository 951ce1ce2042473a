"""An LLM endpoint for tests: keeps every body it receives and answers in the shape its path asks for.

Bedrock Converse ``/model/…/converse``, OpenAI ``/v1/chat/completions``, Gemini ``/v1beta/…:generateContent``.
It accepts anything: what arrived is for the test to judge.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.http_thread import Handler, HttpThread

ANSWER = "the answer"
PLAN = '{"steps": [], "result": "done"}'  # what a planner takes for the end of its work


@dataclass(frozen=True)
class ToolCall:
    """A reply that asks for a tool instead of ending the turn."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A reply that is an error."""

    status: int
    body: dict[str, Any]


Reply = str | ToolCall | Failure


def completion(path: str, reply: str | ToolCall) -> dict[str, Any]:
    """`reply` as the API under `path` would word it."""
    if path.endswith("/converse"):
        return _converse(reply)
    if path.endswith(":generateContent"):
        return _gemini(reply)
    return _openai(reply)


def _converse(reply: str | ToolCall) -> dict[str, Any]:
    if isinstance(reply, ToolCall):
        block: dict[str, Any] = {"toolUse": {"toolUseId": "call_1", "name": reply.name, "input": reply.arguments}}
    else:
        block = {"text": reply}
    return {
        "output": {"message": {"role": "assistant", "content": [block]}},
        "stopReason": "tool_use" if "toolUse" in block else "end_turn",
        "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
        "metrics": {"latencyMs": 1},
    }


def _openai(reply: str | ToolCall) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(reply, ToolCall):
        function = {"name": reply.name, "arguments": json.dumps(reply.arguments)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    else:
        message["content"] = reply
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "test",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def _gemini(reply: str | ToolCall) -> dict[str, Any]:
    if isinstance(reply, ToolCall):
        part: dict[str, Any] = {"functionCall": {"name": reply.name, "args": reply.arguments}}
    else:
        part = {"text": reply}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage}


class LLM(HttpThread):
    """The endpoint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: list[Any] = []
        self._replies: deque[Reply] = deque()
        super().__init__(self._handler())

    def replies(self, *replies: Reply) -> None:
        """What to answer next, one a request; afterwards `ANSWER` again."""
        with self._lock:
            self._replies.extend(replies)

    def taken(self) -> list[Any]:
        """The bodies (JSON data) received since the last call; forgets them, and replies not yet given."""
        with self._lock:
            bodies, self._bodies = self._bodies, []
            self._replies.clear()
        return bodies

    def _receive(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self._bodies.append(json.loads(body))
            reply = self._replies.popleft() if self._replies else ANSWER
        if isinstance(reply, Failure):
            return reply.status, reply.body
        return 200, completion(path, reply)

    def _handler(self) -> type[Handler]:
        endpoint = self

        class LlmHandler(Handler):
            def do_POST(self) -> None:
                status, answer = endpoint._receive(self.path, self.read_body())
                self.send(status, json.dumps(answer).encode())

        return LlmHandler
