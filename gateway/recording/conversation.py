"""Reads a recorded run as a person does: what was asked, what the agent answered and did, or why it failed. Pure.

The record's bodies are redacted, and a mark stands for each medium. To be read by `read_execute`, which knows every
spelling of an input, the hash in a mark takes the place of the medium's base64: it is base64, too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import GatewayError
from gateway.execute.run_answer import RunAnswer, decode, read_answer
from gateway.execute.run_events import NOT_READ, AnswerReader, RunFailed, TextDelta, ToolResult
from gateway.observe.media import MARK
from gateway.observe.record import Body, Delivery, ExchangeRecord, HttpMessage, Summary
from gateway.proxy.routes import Intent
from gateway.unified import model
from gateway.unified.request import parameters_as_strings, read_execute

LONGEST = 240
"""Characters of a summary's texts."""
BROWSER_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Images that browsers show."""
_RUNS = (Intent.EXECUTE.value, Intent.EXECUTE_STREAM.value, Intent.QUICK_EXECUTE.value)
_LARGEST_IMAGE = 8_000_000
"""Bytes of an image that a list shows."""
_LARGEST = 1_000_000
"""Characters of a body that is read. Reading more would keep Python's lock for too long."""
_TOO_LARGE = "The answer is too large to be read here: see the response."


class Text(Struct, frozen=True):
    """A text."""

    text: str


class Attachment(Struct, frozen=True):
    """A medium. kind: image, video, document, audio. sha256: "" for one that `url` names. length: in bytes."""

    kind: str
    type: str = ""
    length: int = 0
    sha256: str = ""
    url: str = ""
    name: str = ""

    @property
    def is_shown(self) -> bool:
        """Return True if browsers show it as an image."""
        return bool(self.sha256) and self.type in BROWSER_IMAGES and self.length <= _LARGEST_IMAGE


class Call(Struct, frozen=True):
    """A tool call. arguments: JSON text."""

    id: str
    name: str
    arguments: str


class Result(Struct, frozen=True):
    """What a tool returned."""

    id: str
    text: str
    failed: bool = False


Part = Text | Attachment | Call | Result


class Message(Struct, frozen=True):
    """A message. role: the client's own word for who speaks."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Return its texts, with a line between each two."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class Conversation(Struct, frozen=True):
    """A run. asked: the client's messages, the question last. answered: what the agent did and answered, so far.

    failure: why the run failed, or why its answer is not shown, in words; "" for neither. broken: see `Summary`.
    """

    asked: tuple[Message, ...] = ()
    answered: tuple[Message, ...] = ()
    failure: str = ""
    broken: bool = False


def is_run(record: ExchangeRecord) -> bool:
    """Return True if the exchange runs an agent."""
    return record.intent in _RUNS


def read_run(record: ExchangeRecord) -> Conversation:
    """Return the conversation of a run; of another exchange, only why it failed."""
    failure = failure_of(record)
    if not is_run(record):
        return Conversation(failure=failure)
    answered, reason, broken = ((), failure, False) if failure else _answered(record)
    return Conversation(_asked(record), answered, reason, broken)


def failure_of(record: ExchangeRecord) -> str:
    """Return why an exchange failed, in words: the gateway's reason, or what the cluster answered; "" if it did not."""
    if record.error is not None:
        return record.error.reason or record.error.type
    if record.status == 0:
        return "The response was cut, or the client was gone."
    if record.status < 400:
        return ""
    response = record.answer
    reason = _reason(_document(response.body)) if response is not None else ""
    if reason:
        return f"The cluster answered {record.status}: {reason}"
    if response is not None and response.body.text and not response.body.encoding:
        return f"The cluster answered {record.status}: {response.body.text}"
    unknown = response.body.omitted if response is not None else ""
    return f"The cluster answered {record.status}. {unknown or 'Its answer had no body.'}"


def _reason(document: Any) -> str:
    """Return the reason in an error of OpenSearch, or of a proxy before it."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error", document.get("message", ""))
    if not isinstance(error, dict):
        return error if isinstance(error, str) else ""
    causes = error.get("root_cause")
    first = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else {}
    return str(error.get("details") or error.get("reason") or first.get("reason") or error.get("type") or "")


# The summary


def summarize(record: ExchangeRecord) -> Summary | None:
    """Return what a list shows of an exchange as text; None if there is nothing."""
    run = read_run(record)
    question = run.asked[-1].text if run.asked else ""
    answer = run.failure or next((message.text for message in reversed(run.answered) if message.text), "")
    if record.intent == Intent.REGISTER:
        question, answer = _registration(record, answer)
    media = [part for message in run.asked for part in message.parts if isinstance(part, Attachment)]
    image = next((medium.sha256 for medium in media if medium.is_shown), "")
    found = Summary(one_line(question), one_line(answer), image, len(media), run.broken)
    return None if found == Summary() else found


def _registration(record: ExchangeRecord, failure: str) -> tuple[str, str]:
    asked = _document(record.request.body)
    response = record.answer
    made = _document(response.body) if response is not None else None
    name = asked.get("name") if isinstance(asked, dict) else ""
    id = made.get("agent_id") if isinstance(made, dict) else ""
    return (f"Register {name}" if name else ""), failure or (f"Made agent {id}" if id else "")


def one_line(text: str) -> str:
    """Return a text as one line, cut, with the kind of each medium in place of its mark."""
    text = MARK.sub(lambda mark: f"[{mark[1] or 'medium'}]", text[: 4 * LONGEST])
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


# What was asked


def _asked(record: ExchangeRecord) -> tuple[Message, ...]:
    body = record.request.body
    if not body.text or body.encoding or len(body.text) > _LARGEST:
        return ()
    if record.intent == Intent.QUICK_EXECUTE.value:
        return _loose(_document(body))
    marks = {mark[3]: (mark[1], int(mark[2])) for mark in MARK.finditer(body.text)}
    text = MARK.sub(r"\3", body.text)
    try:
        request = read_execute(text.encode("utf-8", "surrogatepass"), is_stored=True)
    except GatewayError:
        return _loose(_document(body))
    if request.input is None:
        question = parameters_as_strings(request.parameters).get("question", "")
        return (Message("user", (Text(question),)),) if question else ()
    return tuple(Message(message.role, tuple(_parts(message.content, marks))) for message in request.input.messages)


def _parts(content: Iterable[Any], marks: Mapping[str, tuple[str, int]]) -> Iterator[Part]:
    for block in content:
        match block:
            case model.Text():
                yield Text(_named(block.text, marks))
            case model.Media():
                yield _attachment(block, marks)
            case model.ToolUse():
                yield Call(block.id, block.name, _json(block.input))
            case model.ToolResult():
                inner = list(_parts(block.content, marks))
                yield Result(block.id, "\n".join(part.text for part in inner if isinstance(part, Text)), block.is_error)
                yield from (part for part in inner if isinstance(part, Attachment))
            case model.Json():
                yield Text(_json(block.value))
            case model.ConverseBlock():
                yield Text(f"[{block.kind}]")


def _named(text: str, marks: Mapping[str, tuple[str, int]]) -> str:
    """Return a text with what is known of a medium in place of its hash: base64 may stand in any text."""
    for sha256, (kind, length) in marks.items():
        text = text.replace(sha256, f"[{kind or 'medium'}, {length} bytes]")
    return text


def _attachment(block: model.Media, marks: Mapping[str, tuple[str, int]]) -> Attachment:
    name, source = block.name or "", block.source
    if isinstance(source, model.Url):
        return Attachment(block.kind, url=source.url, name=name)
    data = bytes(source.data)
    mark = marks.get(data.decode("ascii", "replace"))
    if mark is not None:
        return Attachment(block.kind, mark[0], mark[1], data.decode("ascii"), name=name)
    decoded = _decoded(data)  # a small one stands in the body as it is
    return Attachment(block.kind, f"{block.kind}/{block.format}", len(decoded), name=name)


def _decoded(data: bytes) -> bytes:
    try:
        return base64.b64decode(data)
    except binascii.Error:
        return b""


def _loose(document: Any) -> tuple[Message, ...]:
    """Return the texts and media of an input that can't be read by its rules, such as one that was refused."""
    given = document.get("input") if isinstance(document, dict) else None
    if given is None and isinstance(document, dict) and isinstance(document.get("parameters"), dict):
        given = document["parameters"].get("question")
    parts = tuple(_loose_parts(given))
    return (Message("user", parts),) if parts else ()


def _loose_parts(value: Any, depth: int = 0) -> Iterator[Part]:
    if isinstance(value, str):
        mark = MARK.search(value)
        if mark is not None:
            kind = mark[1].partition("/")[0]
            yield Attachment(kind if kind in model.MEDIA_KINDS else "document", mark[1], int(mark[2]), mark[3])
        elif depth == 0 or value:
            yield Text(value)
    elif isinstance(value, list) and depth < _DEPTH:
        for one in value:
            yield from _loose_parts(one, depth + 1)
    elif isinstance(value, dict) and depth < _DEPTH:
        for name in ("text", "content", "source", "data", "bytes", "url", "image_url", "input"):
            if name in value:
                yield from _loose_parts(value[name], depth + 1)


_DEPTH = 16


# What was answered


def _answered(record: ExchangeRecord) -> tuple[tuple[Message, ...], str, bool]:
    """Return what the agent did and answered; why this is not all, or not shown, "" if it is; and if it is broken."""
    response = record.answer
    if response is None or not response.body.text or response.body.encoding:
        return (), _unread(response), False
    if len(response.body.text) > _LARGEST:
        return (), _TOO_LARGE, False
    delivery = record.delivery or Delivery()
    profile = replace(NOT_READ, type=delivery.type, provider=delivery.provider)
    content = response.body.text.encode("utf-8", "replace")
    if record.intent != Intent.EXECUTE_STREAM.value or content.lstrip().startswith(b"{"):
        answer = read_answer(profile, content)
        return _whole(answer, decode(content)), "", answer.failed
    reader = AnswerReader(profile)
    events = reader.feed(content)
    answer = reader.answer()
    if not answer.failed:
        return _messages(answer), "", False
    failure = next((event.text for event in events if isinstance(event, RunFailed)), "")
    last = max((number for number, event in enumerate(events) if isinstance(event, ToolResult)), default=-1)
    written = "".join(event.text for event in events[last + 1 :] if isinstance(event, TextDelta))
    partial = Message("assistant", (Text(written),)) if written and written != failure else None
    return (
        (*_messages(answer), *([partial] if partial else [])),
        failure or "The stream broke off before the agent had ended its answer.",
        True,
    )


def _unread(message: HttpMessage | None) -> str:
    if message is None or not message.body.omitted:
        return ""
    return f"The answer is not shown. {message.body.omitted}"


def _whole(answer: RunAnswer, document: Any) -> tuple[Message, ...]:
    messages = _messages(answer)
    if not messages and isinstance(document, dict) and document.get("task_id"):
        messages = (
            Message("assistant", (Text(f"The run goes on in the background, as task {document['task_id']}."),)),
        )
    return messages


def _messages(answer: RunAnswer) -> tuple[Message, ...]:
    messages = tuple(Message(one.role, tuple(_blocks(one.content))) for one in answer.messages)
    if answer.text and not any(one.text for one in messages[-1:]):
        messages = (*messages, Message("assistant", (Text(answer.text),)))
    return messages


def _blocks(content: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    for block in content:
        match block:
            case {"text": str(text)}:
                yield Text(text)
            case {"toolUse": {"name": str(name), **use}}:
                yield Call(str(use.get("toolUseId", "")), name, _json(use.get("input")))
            case {"toolResult": {"toolUseId": str(id), **result}}:
                yield Result(id, "\n".join(_texts(result.get("content"))), result.get("status") == "error")
            case _:
                for kind in block:
                    mark = MARK.search(_json(block[kind]))
                    if kind in model.MEDIA_KINDS and mark is not None:
                        yield Attachment(kind, mark[1], int(mark[2]), mark[3])
                    else:
                        yield Text(f"[{kind}]")


def _texts(content: Any) -> Iterator[str]:
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict):
            yield one["text"] if isinstance(one.get("text"), str) else _json(one.get("json", one))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _document(body: Body) -> Any:
    return decode(body.text) if body.text and not body.encoding and len(body.text) <= _LARGEST else None
