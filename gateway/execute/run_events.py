"""What an agent's answer says, event by event, and the reader of event streams. Pure.

An agent sends ``data: {"inference_results": [{"output": [memory_id, …, {"name": "response", "dataAsMap": {"content",
"is_last"}}]}]}``, where the content is a piece of text, a piece of a tool call, a whole tool call, or a tool's output.
An AG-UI agent sends events with a `type`. Recorded on 3.8.0 (docs/evidence/facts.md, "Answers and memory").
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gateway.execute.run_answer import (
    MEMORY_ID,
    OutputReader,
    RunAnswer,
    assistant,
    decode,
    read_answer,
    signed,
    tool_result,
)
from gateway.memory.model import Block, Message, Usage
from gateway.mlcommons.generations import AgentType, Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model
from gateway.observe.record import Delivery
from gateway.observe.record import Usage as RecordedUsage
from gateway.policy.usage import Prices
from gateway.providers import registry
from gateway.providers.base import ToolCall
from gateway.providers.responses import member, objects, text


class TextDelta(Struct, frozen=True):
    """The next piece of the assistant's text."""

    text: str


class CallStart(Struct, frozen=True):
    """A tool call begins. signature: see `ToolUse.signature`."""

    id: str
    name: str
    signature: str = ""


class CallArguments(Struct, frozen=True):
    """The next piece of a call's arguments, as JSON text."""

    id: str
    text: str


class CallEnd(Struct, frozen=True):
    """All of a call's arguments have come."""

    id: str


class ToolResult(Struct, frozen=True):
    """The output of a tool."""

    id: str
    text: str


class TokensUsed(Struct, frozen=True):
    """The tokens of all LLM calls of the run so far."""

    usage: Usage


class SessionNamed(Struct, frozen=True):
    """The cluster's memory has the run under this id."""

    memory_id: str


class Snapshot(Struct, frozen=True):
    """The conversation as the cluster has it: messages of AG-UI."""

    messages: list[dict[str, Any]]


class RunFailed(Struct, frozen=True):
    """The run has failed. code: "" if the answer gives none. broken: the event that says so is no valid JSON."""

    code: str
    text: str
    broken: bool = False


class RunEnded(Struct, frozen=True):
    """The run has ended, which a failed one may do, too. reason: see `RunAnswer.stop_reason`."""

    reason: str = ""


RunEvent = (
    TextDelta
    | CallStart
    | CallArguments
    | CallEnd
    | ToolResult
    | TokensUsed
    | SessionNamed
    | Snapshot
    | RunFailed
    | RunEnded
)

_REMOTE_ERROR = "Error from remote service: "


class RunFold:
    """The events of one run, as a conversation."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._text: list[str] = []
        self._uses: dict[str, Block] = {}
        """Tool calls of the message that is being read, by id."""
        self._arguments: dict[str, list[str]] = {}
        self._memory_id = ""
        self._usage: Usage | None = None
        self._ended = self._failed = False

    def add(self, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case TextDelta():
                self._text.append(event.text)
            case CallStart():
                body = {"toolUseId": event.id, "name": event.name, "input": {}, **signed(event.signature)}
                self._uses[event.id] = {"toolUse": body}
                self._arguments[event.id] = []
            case CallArguments() if event.id in self._arguments:
                self._arguments[event.id].append(event.text)
            case ToolResult() if event.id in self._uses:
                use = self._finished(event.id)
                self._messages += [*assistant("".join(self._text), [use]), tool_result(use["toolUse"], event.text)]
                self._text = []
            case TokensUsed():
                self._usage = event.usage
            case SessionNamed():
                self._memory_id = event.memory_id
            case RunFailed():
                self._failed = True
            case RunEnded():
                self._ended = True

    def answer(self) -> RunAnswer:
        """Return what the events say so far. The run has failed if it has not ended."""
        uses = [self._finished(id) for id in list(self._uses)]
        reply = "".join(self._text)
        if self._failed or not self._ended or (reply.startswith(_REMOTE_ERROR) and not self._messages):
            return RunAnswer(None, tuple(self._messages), self._usage, memory_id=self._memory_id, failed=True)
        reason = "tool_use" if uses else ""
        return RunAnswer(reply, (*self._messages, *assistant(reply, uses)), self._usage, reason, self._memory_id)

    def _finished(self, id: str) -> Block:
        use = self._uses.pop(id)
        use["toolUse"]["input"] = _arguments("".join(self._arguments.pop(id)))
        return use


def _arguments(written: str) -> dict[str, Any]:
    """Return the arguments of a tool call as an object."""
    value = decode(written)
    if isinstance(value, dict):
        return value
    return {"input": written} if written else {}


_END = re.compile(rb"\r?\n\r?\n")
_LONGEST_END = 4


def is_whole(event: bytes) -> bool:
    """Return True if the empty line at the end of an event is there."""
    return _END.search(event, max(len(event) - _LONGEST_END, 0)) is not None


class EventSplitter:
    """Cuts a stream into its events. longest: bytes; a longer event is returned in pieces, as it comes."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes. Return the events that they complete, each with the empty line at its end."""
        searched = max(len(self._pending) - _LONGEST_END + 1, 0)  # an end may have begun there
        self._pending += piece
        begin, events = 0, []
        for end in _END.finditer(self._pending, searched):
            events.append(bytes(self._pending[begin : end.end()]))
            begin = end.end()
        if len(self._pending) - begin > self._longest:
            cut = len(self._pending) - _LONGEST_END + 1
            events.append(bytes(self._pending[begin:cut]))
            begin = cut
        del self._pending[:begin]
        return events

    def rest(self) -> bytes:
        """Return and forget what has come of the next event."""
        rest, self._pending = bytes(self._pending), bytearray()
        return rest


def event_data(event: bytes) -> bytes:
    """Return the data of an event; b"" for a comment."""
    return b"\n".join(line[5:].lstrip(b" ") for line in event.splitlines() if line.startswith(b"data:"))


BROKEN = "The cluster sent an event that is not valid JSON"
MOST = 16 * 1024 * 1024
"""Largest event that is read, and largest answer that is collected, in bytes."""
TOO_LONG = f"The cluster sent an event of more than {MOST >> 20} MiB"
_BROKEN_ERROR = re.compile(rb'data: ?\{"error": ?"(.*)"\}\s*', re.DOTALL)
"""An error of the cluster, which escapes only quotes and line breaks of its message (docs/evidence/facts.md)."""


class StreamReader:
    """Reads a stream of any length. An event that can't be read is a failure of the run."""

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile
        self._splitter = EventSplitter(MOST)
        self._parser: _Parser | None = None

    def feed(self, piece: bytes) -> list[RunEvent]:
        """Take the next bytes of the decoded body. Return what they say."""
        return [event for written in self._splitter.feed(piece) for event in self._read(written)]

    @property
    def has_ended(self) -> bool:
        """Return whether an event reported the end of the run."""
        return self._parser is not None and self._parser.has_ended

    def _read(self, event: bytes) -> list[RunEvent]:
        if not is_whole(event):
            return [RunFailed("", TOO_LONG)]
        data = event_data(event).strip()
        if data in (b"", b"[DONE]", b"null"):
            return []
        document = decode(data)
        if document is None:
            return [_repair(event)]
        if not isinstance(document, dict):
            return []
        if self._parser is None:
            reader = OutputReader(self._profile, hashlib.sha256(data).hexdigest()[:16])
            self._parser = _Parser(reader, self._profile.agent_type is AgentType.AG_UI)
        return list(self._parser.events(document))


def _repair(event: bytes) -> RunFailed:
    """Return what an event that is no valid JSON means: an error whose message the cluster did not escape, or that."""
    match = _BROKEN_ERROR.fullmatch(event)
    if match is None:
        return RunFailed("", BROKEN, broken=True)
    written = match[1].decode("utf-8", "replace")
    return RunFailed("", written.replace('\\"', '"').replace("\\n", "\n"), broken=True)


class AnswerReader(StreamReader):
    """Collects what a stream says. most: bytes; of a longer one nothing is kept."""

    def __init__(self, profile: AgentProfile, most: int = MOST) -> None:
        super().__init__(profile)
        self._left = most
        self._fold = RunFold()

    @override
    def feed(self, piece: bytes) -> list[RunEvent]:
        events = super().feed(piece)
        self._left -= len(piece)
        if self._left < 0:
            self._fold = RunFold()
            return events
        for event in events:
            self._fold.add(event)
        return events

    def answer(self) -> RunAnswer:
        """Return what was read. It has failed if an event reported an error, or the last event is missing."""
        return self._fold.answer()


WHOLE_CALLS = '{"choices":[{"finish_reason":"tool_calls","message":{"tool_calls":['
"""How the tool calls of one answer begin in a stream, in OpenAI's form."""


def events_of(answer: RunAnswer) -> Iterator[RunEvent]:
    """Return the events of a run whose answer came in one piece; nothing for one without text."""
    if answer.text is None:
        return
    if answer.memory_id:
        yield SessionNamed(answer.memory_id)
    for message in answer.messages:
        for block in message.content:
            yield from _block_events(block)
    if not any("text" in block for message in answer.messages[-1:] for block in message.content) and answer.text:
        yield TextDelta(answer.text)
    if answer.usage is not None:
        yield TokensUsed(answer.usage)
    yield RunEnded(answer.stop_reason)


def _block_events(block: Block) -> Iterator[RunEvent]:
    """Return the events of one content block. Reasoning and media of an answer have no events."""
    match block:
        case {"text": str(written)} if written:
            yield TextDelta(written)
        case {"toolUse": {"toolUseId": id, "name": name, "input": given, **more}}:
            yield CallStart(id, name, text(more.get("reasoningSignature")))
            yield CallArguments(id, msgspec.json.encode(given).decode())
            yield CallEnd(id)
        case {"toolResult": {"toolUseId": id, "content": content}}:
            yield ToolResult(id, "".join(text(one.get("text")) for one in objects(content)))


class _Parser:
    """Reads the documents of one stream, in order."""

    def __init__(self, reader: OutputReader, ag_ui: bool) -> None:
        self._reader = reader
        self._ag_ui = ag_ui
        self._has_text = self._has_results = self.has_ended = False
        self._memory_id = ""
        self._open: dict[str, bool] = {}
        """Calls without a result, in order; whether their arguments may go on."""
        self._starts: Counter[str] = Counter()
        """How often a call of each id has begun. An LLM may use an id again in a later answer."""

    def events(self, document: dict[str, Any]) -> Iterator[RunEvent]:
        """Return what a document says."""
        error = document.get("error")
        if error is not None:
            yield RunFailed(text(member(error, "type")), text(member(error, "reason")) or _plain(error))
        elif "type" in document:
            yield from self._ag_ui_event(document)
        outputs = list(objects(member(document, "inference_results", 0, "output")))
        usage = self._reader.token_usage(outputs)
        if usage is not None:
            yield TokensUsed(usage)
        for output in outputs:
            if output.get("name") == MEMORY_ID:
                yield from self._named(text(output.get("result")))
            elif output.get("name") == "response":
                content, is_last = text(member(output, "dataAsMap", "content")), member(output, "dataAsMap", "is_last")
                if content or is_last is not True:
                    yield from self._content(content)
                if is_last is True:
                    yield from self._ended(text(member(output, "dataAsMap", "stop_reason")))

    def _named(self, memory_id: str) -> Iterator[RunEvent]:
        if memory_id not in ("", self._memory_id):
            self._memory_id = memory_id
            yield SessionNamed(memory_id)

    def _ended(self, reason: str = "") -> Iterator[RunEvent]:
        for id in self._open:
            yield from self._end_call(id)
        if not self.has_ended:
            self.has_ended = True
            yield RunEnded(reason)

    def _content(self, content: str) -> Iterator[RunEvent]:
        if self._ag_ui:  # it was sent `input`
            event = decode(content)
            if isinstance(event, dict):
                yield from self._ag_ui_event(event)
        elif self._open:  # the cluster runs the tool before it calls the LLM again
            yield from self._result(next(iter(self._open)), content)
        elif content.startswith(_REMOTE_ERROR) and not self._has_text and not self._has_results:
            yield RunFailed("", content)
        elif not _is_piece_of_call(content):
            is_own = content.startswith(WHOLE_CALLS)
            response = registry.provider("openai").read_response(decode(content)) if is_own else None
            response = response or self._reader.response(content)
            if response is None or not response.tool_calls:
                yield from self._delta(content)
                return
            if not self._has_text:
                yield from self._delta(response.text)
            # The gateway's own streams show the calls of one answer together; a cluster runs the first one only.
            calls = response.tool_calls if is_own else response.tool_calls[:1]
            for block in self._reader.tool_uses(calls):
                use = block["toolUse"]
                yield from self._start(use["toolUseId"], use["name"], use.get("reasoningSignature", ""))
                id = self._unique(use["toolUseId"])
                yield CallArguments(id, msgspec.json.encode(use["input"]).decode())
                yield from self._end_call(id)

    def _ag_ui_event(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        own_id, delta = text(event.get("toolCallId")), text(event.get("delta"))
        id = self._unique(own_id)
        match event.get("type"):
            case "TEXT_MESSAGE_CONTENT":
                yield from self._delta(delta)
            case "TOOL_CALL_START" if own_id and id not in self._open:
                for block in self._reader.tool_uses((ToolCall(own_id, text(event.get("toolCallName")), {}),)):
                    yield from self._start(own_id, block["toolUse"]["name"])
            case "TOOL_CALL_ARGS" if delta and self._open.get(id):
                yield CallArguments(id, delta)
            case "TOOL_CALL_END":
                yield from self._end_call(id)
            case "TOOL_CALL_RESULT":
                yield from self._result(id, text(event.get("content")))
            case "MESSAGES_SNAPSHOT":
                yield Snapshot(list(objects(event.get("messages"))))
            case "RUN_ERROR":
                yield RunFailed(text(event.get("code")), text(event.get("message")))
            case "RUN_FINISHED":
                yield from self._ended()

    def _delta(self, piece: str) -> Iterator[RunEvent]:
        if piece:
            self._has_text = True
            yield TextDelta(piece)

    def _start(self, own_id: str, name: str, signature: str = "") -> Iterator[RunEvent]:
        self._starts[own_id] += 1
        id = self._unique(own_id)
        self._open[id] = True
        yield CallStart(id, name, signature)

    def _unique(self, own_id: str) -> str:
        """Return the id of the last call that the cluster calls so, as no other call of the run has it."""
        starts = self._starts[own_id]
        return own_id if starts < 2 else f"{own_id}_{starts}"

    def _end_call(self, id: str) -> Iterator[RunEvent]:
        if self._open.get(id):
            self._open[id] = False
            yield CallEnd(id)

    def _result(self, id: str, output: str) -> Iterator[RunEvent]:
        yield from self._end_call(id)
        if id in self._open:
            del self._open[id]
            self._has_text, self._has_results = False, True
            yield ToolResult(id, output)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_piece_of_call(content: str) -> bool:
    """Return True for ``[{"index": 0.0, "function": {…}}]``. The whole call follows the last piece."""
    pieces = decode(content) if content.startswith("[{") else None
    return isinstance(pieces, list) and all(isinstance(member(piece, "function"), dict) for piece in pieces)


_PIECE = 64 * 1024
"""Bytes of a stream that are searched for the end of an event at a time: the search blocks all other threads."""
NOT_READ = AgentProfile("", "", "", (), Generation.TEXT)
"""Stands for an agent that can't be read."""


def read_run(profile: AgentProfile, body: bytes, streaming: bool) -> RunAnswer:
    """Read the whole decoded answer of a run. streaming: it may be an event stream, all of it."""
    if not streaming or body.lstrip().startswith(b"{"):
        return read_answer(profile, body)
    reader = AnswerReader(profile)
    for start in range(0, len(body), _PIECE):
        reader.feed(body[start : start + _PIECE])
    return reader.answer()


def read_usage(profile: AgentProfile | None, body: bytes, streaming: bool) -> Usage | None:
    """Return the tokens of all LLM calls of a run; None if its answer does not report them.

    profile: None if the agent can't be read. body, streaming: see `read_run`.
    """
    return read_run(profile or NOT_READ, body, streaming).usage


_SOME_MODEL = Model("", Connector("", "", "", ""))


def recorded_usage(delivery: Delivery, body: bytes, streaming: bool, prices: Prices) -> RecordedUsage | None:
    """Return what a run used and cost, for its record; None if that is not known. See `read_usage`."""
    model = _SOME_MODEL if delivery.one_model else None
    profile = replace(NOT_READ, type=delivery.type, provider=delivery.provider, llm=model)
    tokens = read_usage(profile, body, streaming)
    if tokens is None or tokens.input is None or tokens.output is None:
        return None
    cost = prices.cost(delivery.provider, delivery.model, tokens.input, tokens.output)
    return RecordedUsage(tokens.input, tokens.output, *(cost or ()))
