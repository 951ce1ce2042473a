"""Event streams of runs: what is sent of the cluster's, and the stream that is made of a whole answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from gateway.errors import GatewayError
from gateway.execute.deliveries import Reporter, notice_header, with_notices
from gateway.execute.output import with_memory_id
from gateway.execute.rewrite import IN_ONE_PIECE
from gateway.execute.run_answer import MEMORY_ID, TOKEN_USAGE, RunAnswer, decode, read_answer
from gateway.execute.run_events import (
    BROKEN,
    TOO_LONG,
    AnswerReader,
    CallArguments,
    CallEnd,
    CallStart,
    EventSplitter,
    RunEnded,
    RunEvent,
    RunFailed,
    SessionNamed,
    StreamReader,
    TextDelta,
    TokensUsed,
    ToolResult,
    event_data,
    events_of,
    is_whole,
)
from gateway.memory.model import Usage
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import Answer, AnswerStage, Forward, Retry

_LONGEST_EVENT = 1 << 20
_DATA = b"data:"


class SessionStream:
    """Reads a stream, and returns it event by event, as it comes. An event over 1 MiB stays as it is.

    The last event is held until it is known whether the turn is stored, and only that one names a session that this
    turn makes. memory_id: of a session that exists, which all events name; "" for a new one.
    """

    def __init__(self, profile: AgentProfile, memory_id: str) -> None:
        self._memory_id = memory_id
        self._reader = AnswerReader(profile)
        self._splitter = EventSplitter(_LONGEST_EVENT)
        self._held: list[bytes] = []

    def feed(self, piece: bytes) -> bytes:
        """Return what to send of the stream so far."""
        return b"".join(map(self._take, self._splitter.feed(piece)))

    def _take(self, event: bytes) -> bytes:
        self._reader.feed(event)
        if self._held or self._reader.has_ended:
            self._held.append(event)
            return b""
        return _with_id(event, self._memory_id)

    def end(self, memory_id: str) -> bytes:
        """Return what is left to send. memory_id: of the session that has the turn now, "" for none."""
        rest, self._held = b"".join([*self._held, self._splitter.rest()]), []
        return _with_id(rest, memory_id)

    def answer(self) -> RunAnswer:
        """Return what the stream says about the run."""
        return self._reader.answer()


def _with_id(events: bytes, memory_id: str) -> bytes:
    if len(events) > _LONGEST_EVENT:
        return events
    return b"\n".join(_line_with_id(line, memory_id) for line in events.split(b"\n"))


def _line_with_id(line: bytes, memory_id: str) -> bytes:
    if not line.startswith(_DATA) or b"inference_results" not in line:
        return line
    value = line[len(_DATA) :].strip()
    before, after = line.split(value, 1)
    return before + with_memory_id(value, memory_id) + after


# Errors in a stream


def error_event(reason: str) -> bytes:
    """Return the event of an error, in the cluster's form."""
    return _event({"error": reason})


def _event(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(document)


_CUT = "The cluster's answer ended before the run did; what was sent of it is not the whole answer"


class StreamWatch(AnswerStage):
    """Reads a stream that is relayed. Events that are no JSON, and a stream without an end, become errors.

    A session's id and what a guardrail reads come after it.
    """

    def __init__(self, profile: AgentProfile, reporter: Reporter) -> None:
        self._agent_id = profile.id
        self._reporter = reporter
        self._reader = StreamReader(profile)
        self._splitter = EventSplitter(_LONGEST_EVENT)
        self._has_failed = self._is_inside = False

    @override
    def feed(self, piece: bytes) -> bytes:
        return b"".join(map(self._take, self._splitter.feed(piece)))

    def _take(self, event: bytes) -> bytes:
        """Take an event, or a piece of one that is too long to be held. Return what is sent of it."""
        begins, self._is_inside = not self._is_inside, not is_whole(event)
        shown = event
        for found in self._reader.feed(event):
            if isinstance(found, RunFailed):
                self._fail("broken" if found.text in (BROKEN, TOO_LONG) else "reported", found.text)
                if found.broken:
                    shown = error_event(found.text) if begins else event + self._error(found.text)
        return shown

    def _error(self, reason: str) -> bytes:
        """Return the event of an error; first the end of the event that is being sent, if there is one."""
        return (b"\n\n" if self._is_inside else b"") + error_event(reason)

    def _fail(self, kind: str, reason: str) -> None:
        self._has_failed = True
        self._reporter.stream_failed(self._agent_id, kind, reason)

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """Return the end of the stream: an error, if the cluster's has none. What is no stream stays as it is."""
        body = answer.body
        if not streamed and (answer.status >= 300 or body.lstrip().startswith(b"{")):
            return answer
        shown, rest = self.feed(body), self._splitter.rest()
        last = self._take(rest + b"\n\n") if decode(event_data(rest)) is not None else b""
        if not (self._reader.has_ended or self._has_failed):
            self._fail("cut", _CUT)
            last += self._error(_CUT)
        return replace(answer, body=shown + last)

    @override
    def cut(self, error: GatewayError) -> bytes:
        if self._reader.has_ended or self._has_failed:
            return b""
        self._fail("cut", error.reason)
        return self._error(error.summary)


# The stream that is made of a whole answer


_NO_STREAMS = (b"does not support HTTP streaming", b"plugins.ml_commons.stream_enabled", b"no handler found")
"""In the answers of clusters that could stream, but are not set up for it (docs/evidence/facts.md)."""


def retry_whole(again: Callable[[], Forward], retry: Retry | None) -> Retry:
    """Return the retry for a stream that the cluster turns out not to have. again: makes the request for all of it.

    retry: the one for other errors.
    """

    def retry_with(status: int, answer: bytes) -> Forward | Answer | Awaitable[Answer | Forward] | None:
        if status in (400, 500) and any(text in answer for text in _NO_STREAMS):
            return again()
        return None if retry is None else retry(status, answer)

    return retry_with


_NOT_TEXT = "The agent's answer has no text that a stream can bring. Send the request to `_execute`, without a stream."
_SMALL = 64 * 1024


class WholeAnswer(AnswerStage):
    """Makes a stream, in the cluster's form, of the answer of an agent that does not stream. Errors keep their form."""

    def __init__(self, profile: AgentProfile, reporter: Reporter, notice_header: bool) -> None:
        self._profile = profile
        self._reporter = reporter
        self._notice_header = notice_header

    @override
    def prepare(self, forward: Forward) -> Forward:
        self._reporter.noticed(IN_ONE_PIECE)
        headers, delivery = forward.response_headers, forward.delivery
        if self._notice_header:
            headers = {**headers, **notice_header([IN_ONE_PIECE], headers)}
        if delivery is not None:
            delivery = with_notices(delivery, [IN_ONE_PIECE])
        return msgspec.structs.replace(forward, whole=True, response_headers=headers, delivery=delivery)

    async def finish(self, answer: Answer, streamed: bool) -> Answer:
        """Return the stream."""
        if answer.status >= 300:
            return answer
        body = await run_here_if(len(answer.body) <= _SMALL, self._stream, answer.body)
        return Answer(answer.status, {**answer.headers, "Content-Type": "text/event-stream; charset=UTF-8"}, body)

    def _stream(self, body: bytes) -> bytes:
        answer = read_answer(self._profile, body)
        if answer.text is None:
            self._reporter.stream_failed(self._profile.id, "reported", _NOT_TEXT)
            return error_event(_NOT_TEXT)
        return b"".join(write_events(events_of(answer)))


def write_events(events: Iterable[RunEvent]) -> Iterator[bytes]:
    """Return the events of a run in the cluster's form, as its stream would bring them."""
    memory_id = ""
    calls: dict[str, dict[str, Any]] = {}
    for event in events:
        if calls and not isinstance(event, CallStart | CallArguments | CallEnd | TextDelta):
            yield _piece(memory_id, _whole_calls(calls))
            calls = {}
        match event:
            case SessionNamed():
                memory_id = event.memory_id
            case TextDelta():
                for text in _unmistakable(event.text):
                    yield _piece(memory_id, text)
            case CallStart():
                calls[event.id] = {
                    "function": {"name": event.name, "arguments": ""},
                    **google_signature(event.signature),
                }
            case CallArguments():
                calls[event.id]["function"]["arguments"] += event.text
            case ToolResult():
                yield _piece(memory_id, event.text)
            case TokensUsed():
                yield _event({"inference_results": [{"output": [_token_usage(event.usage)]}]})
            case RunFailed():
                yield error_event(event.text)
            case RunEnded():
                reason = {"stop_reason": event.reason} if event.reason else {}
                yield _piece(memory_id, "", is_last=True, **reason)


def _unmistakable(text: str) -> Iterator[str]:
    """Yield a text in pieces of which none can be read as a tool call: only JSON is."""
    rest = text.lstrip("[{")
    yield from filter(None, (text[: len(text) - len(rest)], rest))


def _piece(memory_id: str, content: str, is_last: bool = False, **more: str) -> bytes:
    named: list[dict[str, Any]] = [{"name": MEMORY_ID, "result": memory_id}] if memory_id else []
    response = {"name": "response", "dataAsMap": {"content": content, "is_last": is_last, **more}}
    return _event({"inference_results": [{"output": [*named, response]}]})


def google_signature(signature: str) -> dict[str, Any]:
    """Return the member of a tool call that has its signature, as Gemini writes it in OpenAI's form; none for ""."""
    return {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}


def _whole_calls(calls: dict[str, dict[str, Any]]) -> str:
    """Return tool calls as the cluster writes one in a stream: OpenAI's message, as text."""
    written = [{**call, "id": id, "type": "function"} for id, call in calls.items()]
    text = msgspec.json.encode({"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": written}}]})
    return text.decode()


def _token_usage(usage: Usage) -> dict[str, Any]:
    counts = {"input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total}
    known = {name: count for name, count in counts.items() if count is not None}
    return {"name": TOKEN_USAGE, "dataAsMap": {"per_model_usage": [known]}}
