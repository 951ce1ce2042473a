"""Reads the answer of ``_execute/stream``: events, each with a piece of the answer. Pure.

An agent sends ``data: {"inference_results": [{"output": [memory_id, …, {"name": "response", "dataAsMap": {"content",
"is_last"}}]}]}``, where the content is a piece of text, a piece of a tool call, a whole tool call, or a tool's output.
An AG-UI agent sends events with a `type`. Recorded on 3.8.0 (docs/internals/facts.md, "Answers and memory").
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from gateway.execute.legacy_outputs import OutputReader
from gateway.execute.run_answer import MEMORY_ID, RunAnswer, assistant, decode, tool_result
from gateway.memory.model import Block, Message, Usage
from gateway.mlcommons.generations import AgentType
from gateway.mlcommons.profile import AgentProfile
from gateway.providers.base import ToolCall
from gateway.providers.responses import member, objects, text

MOST = 16 * 1024 * 1024
"""Largest answer that is collected, in bytes."""

_REMOTE_ERROR = "Error from remote service: "
_END = re.compile(rb"\r?\n\r?\n")


class StreamReader:
    """Collects what a stream's events say. most: bytes; of a longer answer nothing is kept."""

    def __init__(self, profile: AgentProfile, most: int = MOST) -> None:
        self._profile = profile
        self._most = most
        self._size = 0
        self._pending = bytearray()
        self._events: _Events | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the decoded body."""
        self._size += len(piece)
        if self._size > self._most:
            self._pending, self._events = bytearray(), None
            return
        searched = max(len(self._pending) - 3, 0)  # an end may have begun there
        self._pending += piece
        begin = 0
        for end in _END.finditer(self._pending, searched):
            self._read(bytes(self._pending[begin : end.start()]))
            begin = end.end()
        del self._pending[:begin]

    @property
    def has_ended(self) -> bool:
        """Return whether an event reported the end of the run."""
        return self._events is not None and self._events.ended

    def answer(self) -> RunAnswer:
        """Return what was read. It has failed if an event reported an error, or the last event is missing."""
        return RunAnswer(failed=True) if self._events is None else self._events.answer()

    def _read(self, event: bytes) -> None:
        lines = event.splitlines()
        data = b"\n".join(line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:"))
        document = decode(data)
        if isinstance(document, dict):
            if self._events is None:
                reader = OutputReader(self._profile, hashlib.sha256(data).hexdigest()[:16])
                self._events = _Events(reader, self._profile.agent_type is AgentType.AG_UI)
            self._events.read(document)


class _Events:
    """The events of one run, as a conversation."""

    def __init__(self, reader: OutputReader, ag_ui: bool) -> None:
        self._reader = reader
        self._ag_ui = ag_ui
        self._messages: list[Message] = []
        self._text: list[str] = []
        self._uses: dict[str, Block] = {}
        """Tool calls of the message that is being read, by id."""
        self._arguments: dict[str, str] = {}
        self._memory_id = ""
        self._usage: Usage | None = None
        self.ended = self._failed = False

    def read(self, document: dict[str, Any]) -> None:
        """Read one event."""
        if "error" in document:
            self._failed = True
        elif "type" in document:
            self._read_ag_ui(document)
        outputs = list(objects(member(document, "inference_results", 0, "output")))
        self._usage = self._reader.token_usage(outputs) or self._usage
        for output in outputs:
            if output.get("name") == MEMORY_ID:
                self._memory_id = text(output.get("result")) or self._memory_id
            elif output.get("name") == "response":
                content, is_last = text(member(output, "dataAsMap", "content")), member(output, "dataAsMap", "is_last")
                if content or is_last is not True:
                    self._read_content(content)
                self.ended = self.ended or is_last is True

    def answer(self) -> RunAnswer:
        """Return what was read so far."""
        for id, arguments in self._arguments.items():
            self._uses[id]["toolUse"]["input"] = _arguments(arguments)
        reply = "".join(self._text)
        failed = self._failed or not self.ended
        if reply.startswith(_REMOTE_ERROR) and not self._messages:
            failed = True
        if failed:
            return RunAnswer(None, tuple(self._messages), self._usage, memory_id=self._memory_id, failed=True)
        final = assistant(reply, list(self._uses.values()))
        reason = "tool_use" if self._uses else ""
        return RunAnswer(reply, (*self._messages, *final), self._usage, reason, self._memory_id)

    def _read_content(self, content: str) -> None:
        if self._ag_ui:  # it was sent `input`
            event = decode(content)
            if isinstance(event, dict):
                self._read_ag_ui(event)
        elif self._uses:  # the cluster runs the tool before it calls the LLM again
            self._add_result(next(iter(self._uses)), content)
        elif not _is_piece_of_call(content):
            response = self._reader.response(content)
            if response is None or not response.tool_calls:
                self._text.append(content)
                return
            if not self._text:
                self._text.append(response.text)
            self._add_uses(response.tool_calls[:1])

    def _add_uses(self, calls: tuple[ToolCall, ...]) -> None:
        for block in self._reader.tool_uses(calls):
            self._uses[block["toolUse"]["toolUseId"]] = block

    def _add_result(self, id: str, output: str) -> None:
        """Add a tool's result after the assistant's message with its call."""
        use = self._uses.pop(id, None)
        if use is None:
            return
        use["toolUse"]["input"] = (
            _arguments(self._arguments.pop(id)) if id in self._arguments else use["toolUse"]["input"]
        )
        self._messages += [*assistant("".join(self._text), [use]), tool_result(use["toolUse"], output)]
        self._text = []

    def _read_ag_ui(self, event: dict[str, Any]) -> None:
        id, delta = text(event.get("toolCallId")), text(event.get("delta"))
        match event.get("type"):
            case "TEXT_MESSAGE_CONTENT":
                self._text.append(delta)
            case "TOOL_CALL_START" if id:
                self._add_uses((ToolCall(id, text(event.get("toolCallName")), {}),))
                if id in self._uses:  # a call without a name is left out
                    self._arguments[id] = ""
            case "TOOL_CALL_ARGS" if id in self._arguments:
                self._arguments[id] += delta
            case "TOOL_CALL_RESULT":
                self._add_result(id, text(event.get("content")))
            case "RUN_ERROR":
                self._failed = True
            case "RUN_FINISHED":
                self.ended = True


def _arguments(written: str) -> dict[str, Any]:
    """Return the arguments of a tool call as an object."""
    value = decode(written)
    if isinstance(value, dict):
        return value
    return {"input": written} if written else {}


def _is_piece_of_call(content: str) -> bool:
    """Return True for ``[{"index": 0.0, "function": {…}}]``. The whole call follows the last piece."""
    pieces = decode(content) if content.startswith("[{") else None
    return isinstance(pieces, list) and all(isinstance(member(piece, "function"), dict) for piece in pieces)
