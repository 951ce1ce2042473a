"""Makes the record of an exchange, redacted, from what the data port left of it. It runs in the recorder's thread."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.errors import GatewayError
from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.observe.json_path import read_path
from gateway.observe.media import Keep, shorten_media
from gateway.observe.patterns import BadPattern, Pattern
from gateway.observe.record import (
    Body,
    ExchangeRecord,
    HttpMessage,
    RecordedError,
    RecordedProblem,
    Step,
    Usage,
)
from gateway.observe.redact import describe_error
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets
from gateway.ports import Answer
from gateway.proxy import content_coding
from gateway.proxy.body_copy import BodyCopy, without_chunk_lines
from gateway.proxy.capture import Bodies, Captured
from gateway.recent import Recent

ReadUsage = Callable[[Captured, bytes], Usage | None]
"""Returns the usage that a cluster's answer reports. bytes: its content; b"" if it is not known."""
_CONTENT = 256 * 1024 * 1024
"""Most bytes of a content that is decoded to be recorded."""
_NOT_RECORDED = "Not recorded (inspector.passthrough)."
_JSON = (("Content-Type", "application/json; charset=UTF-8"),)


class _Head(NamedTuple):
    """The redacted fields of a message, its secrets, and what else is read from them."""

    headers: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    user_agent: str
    codings: list[str]


class RecordMaker:
    """Makes records. worker: the process. keep: keeps the bytes of media; None if they are not kept.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(
        self,
        settings: Inspector,
        worker: int,
        keep: Keep | None = None,
        read_usage: ReadUsage | None = None,
    ) -> None:
        self._redactor = make_redactor(settings)
        self._worker = worker
        self._keep = keep
        self._read_usage = read_usage
        self._heads: Recent[_Head] = Recent(512)

    def make(self, captured: Captured) -> ExchangeRecord:
        """Return the record of an exchange."""
        found = Secrets()
        request, bodies = captured.request, captured.bodies
        head = self._request_head(request.fields)
        found.update(head.secrets)
        record = ExchangeRecord(
            id=captured.id,
            started=time.time() - time.monotonic() + captured.started,
            seconds=captured.ended - captured.started,
            method=request.method.decode("ascii"),
            target=self._redactor.target(request.target, found),
            intent=captured.route.intent.value,
            status=captured.status,
            worker=self._worker,
            connection=captured.connection,
            client=captured.client,
            user_agent=head.user_agent,
            agent_id=captured.route.id if captured.route.kind == "agents" else "",
            waited=captured.answered_at - captured.started if captured.answered_at else None,
            delivery=captured.delivery,
            error=describe(captured.error) if captured.error is not None else None,
            steps=tuple([Step(name, begun - captured.started, end - begun) for name, begun, end in captured.steps]),
            request=HttpMessage(head.headers, Body(request.fields.length or 0, omitted=_NOT_RECORDED)),
            response=self._response_line(captured, found),
        )
        if bodies is None:
            return record
        return _without_secrets(self._with_bodies(record, captured, bodies, head, found), found)

    def _response_line(self, captured: Captured, found: Secrets) -> HttpMessage | None:
        """Return the cluster's response without its body."""
        if captured.head is None:
            return None
        head = self._response_head(captured.head)
        found.update(head.secrets)
        return HttpMessage(head.headers, Body(captured.head.length or 0, omitted=_NOT_RECORDED))

    def _with_bodies(
        self, record: ExchangeRecord, captured: Captured, bodies: Bodies, head: _Head, found: Secrets
    ) -> ExchangeRecord:
        if isinstance(bodies.request, bytes):
            request = self._body([bodies.request], head.codings, found)
        else:
            request = self._copied(bodies.request, bodies.chunk_lines, head.codings, found)
        forwarded = None
        if bodies.sent is not None and bodies.sent_head:
            lines = bodies.sent_head[:-4].split(b"\r\n")
            forwarded = HttpMessage(self._redactor.headers(lines, found), self._body(bodies.sent, [], found))
        response, usage = record.response, None
        copy = bodies.response
        if copy is not None and copy.head is not None:
            kept = self._response_head(copy.head)
            response = HttpMessage(kept.headers, self._copied(copy, not copy.decoded, kept.codings, found))
        if self._read_usage is not None:
            usage = self._read_usage(captured, copy.content() if copy is not None else b"")
        return msgspec.structs.replace(
            record,
            request=HttpMessage(head.headers, request),
            forwarded=forwarded,
            response=response,
            answered=self._answered(captured, bodies, found),
            usage=usage,
        )

    def _answered(self, captured: Captured, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        """Return what the client got, if it is not the cluster's response."""
        if bodies.relayed is not None and captured.answer is None and captured.error is None:
            return HttpMessage((), self._body(bodies.relayed, [], found))
        answer = captured.answer
        if captured.error is not None:
            answer = Answer(captured.error.status, {}, msgspec.json.encode(captured.error.body()))
        if answer is None:
            return None
        headers = [(name, self._redactor.header(name, value, found)) for name, value in answer.headers.items()]
        return HttpMessage(tuple(headers) or _JSON, self._body([answer.body], [], found))

    def _copied(self, copy: BodyCopy, chunk_lines: bool, codings: list[str], found: Secrets) -> Body:
        pieces: Sequence[bytes] = [without_chunk_lines(copy.pieces)] if chunk_lines else copy.pieces
        body = self._body(pieces, codings, found, cut=copy.size > copy.limit)
        omitted = body.omitted
        if not omitted and copy.size > copy.limit:
            omitted = f"Cut: {copy.size} bytes came, and the first {copy.limit} were recorded."
        elif not omitted and not copy.complete:
            omitted = "Cut: the rest did not arrive."
        return msgspec.structs.replace(body, size=copy.size, omitted=omitted)

    def _body(
        self, pieces: Iterable[bytes | memoryview], codings: list[str], found: Secrets, cut: bool = False
    ) -> Body:
        """Return a body, decoded, without media and secrets. pieces: of the body in its content coding."""
        pieces = list(pieces)
        size = sum(map(len, pieces))
        if codings and size:
            try:
                pieces = [content_coding.decompress_whole(b"".join(pieces), codings, _CONTENT)]
            except GatewayError:
                return Body(size, omitted="Not recorded: its content coding can't be decoded" + ", as it is cut." * cut)
        content = self._without_media(pieces)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            if not (cut and error.end == len(content)):
                return self._binary(content, size, found)
            text = content[: error.start].decode()
        return Body(size, self._redactor.text(text, found))

    def _without_media(self, pieces: Sequence[bytes | memoryview]) -> bytes:
        if len(pieces) == 1:
            return shorten_media(pieces[0], keep=self._keep)
        out: list[bytes] = []
        for piece in pieces:
            out.append(shorten_media(piece, out[-1] if out else b"", self._keep))
        return b"".join(out)

    def _binary(self, content: bytes, size: int, found: Secrets) -> Body:
        """Return a body that is no text, unless it may hold a secret: there is no way to remove that."""
        text = content.decode("latin-1")
        if self._redactor.text(text, found) != text or found.hide(text) != text:
            return Body(size, omitted="Not recorded: it is no text, and may hold a secret.")
        return Body(size, base64.b64encode(content).decode("ascii"), "base64")

    def _request_head(self, fields: Fields) -> _Head:
        return self._heads.get(fields, lambda: self._read_head(fields.lines))

    def _response_head(self, head: ResponseHead) -> _Head:
        return self._heads.get(head, lambda: self._read_head(head.lines))

    def _read_head(self, lines: Iterable[bytes]) -> _Head:
        found = Secrets()
        headers = self._redactor.headers(lines, found)
        agent = next((value for name, value in headers if name.lower() == "user-agent"), "")
        codings = [value for name, value in headers if name.lower() == "content-encoding"]
        return _Head(headers, tuple(found), agent, codings)


def describe(error: GatewayError) -> RecordedError:
    """Return an error as the log shows it."""
    shown = describe_error(error, payloads=False)
    problems = [RecordedProblem(one.get("code", ""), one["field"], one["reason"]) for one in _full(shown["problems"])]
    return RecordedError(shown["type"], shown["reason"], tuple(problems))


def _full(problems: list[dict[str, str]]) -> Iterable[dict[str, str]]:
    return ({"field": "", "reason": "", **problem} for problem in problems)


def _without_secrets(record: ExchangeRecord, found: Secrets) -> ExchangeRecord:
    """Return the record without the secrets of any of its texts in any other."""
    messages = {
        name: HttpMessage(
            tuple([(key, found.hide(value)) for key, value in message.headers]), _hide(message.body, found)
        )
        for name in ("request", "forwarded", "response", "answered")
        if (message := getattr(record, name)) is not None
    }
    error = record.error
    if error is not None:
        problems = [RecordedProblem(one.code, found.hide(one.place), found.hide(one.reason)) for one in error.problems]
        error = RecordedError(error.type, found.hide(error.reason), tuple(problems))
    return msgspec.structs.replace(record, target=found.hide(record.target), error=error, **messages)


def _hide(body: Body, found: Secrets) -> Body:
    if not body.text or body.encoding:
        return body
    hidden = found.hide(body.text)
    return body if hidden is body.text else msgspec.structs.replace(body, text=hidden)


def make_redactor(settings: Inspector) -> Redactor:
    """Return the redactor of the settings.

    Raises:
        ConfigError: a path or an expression can't be used.
    """
    problems, paths, patterns = [], [], []
    for index, path in enumerate(settings.redact_paths):
        try:
            paths.append(read_path(path))
        except ValueError:
            problems.append(
                ConfigProblem(f"inspector.redact_paths[{index}]", "is not a path", repr(path), "such as a.b[*].c")
            )
    for index, pattern in enumerate(settings.redact_patterns):
        try:
            patterns.append(Pattern(pattern))
        except BadPattern as error:
            problems.append(ConfigProblem(f"inspector.redact_patterns[{index}]", str(error), repr(pattern)))
    if problems:
        raise ConfigError(problems)
    return Redactor(paths, patterns)
