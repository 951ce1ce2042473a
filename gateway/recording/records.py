"""Makes the record of an exchange, without its secrets, from what the data port left of it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.errors import GatewayError
from gateway.observe.media import Keep, Known, shorten_media
from gateway.observe.record import (
    Body,
    Delivery,
    ExchangeRecord,
    HttpMessage,
    Scheme,
    Step,
    Usage,
)
from gateway.observe.redaction import BadPattern, Pattern, Redactor, read_path
from gateway.observe.secrets import Secrets, may_hold_secret, secret_members
from gateway.observe.trace_context import read_trace_id
from gateway.proxy import content_coding
from gateway.proxy.capture import HELD_ANSWER, Bodies, BodyCopy, Captured, ResponseCopy, without_chunk_lines
from gateway.proxy.request_log import new_id
from gateway.proxy.routes import Intent
from gateway.recent import Recent
from gateway.recording.conversation import summarize

_CONTENT = 256 * 1024 * 1024
"""Most bytes of a content that is decoded to be recorded."""
_UNKNOWN_CODING = "Not recorded: its content coding can't be decoded."
_CUT_CODING = "Not recorded: its content coding can't be decoded, as it is cut."
_MAY_HOLD_SECRET = "Not recorded: it is not text, and may hold a secret."
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
"""First bytes of gzip, zstd, xz, bzip2 and zip. Such a body without `Content-Encoding` is not decompressed."""


class BodyMaker:
    """Makes bodies of records. keep: keeps the bytes of media; None if they are not kept."""

    def __init__(self, redactor: Redactor, keep: Keep | None) -> None:
        self._redactor = redactor
        self._keep = keep
        self._known: Known = []

    def forget(self) -> None:
        """Release the bodies of the exchange, whose record is made."""
        self._known = []

    def copied(self, copy: BodyCopy, chunk_lines: bool, codings: Sequence[str], found: Secrets) -> Body:
        """Return a copied body, which may be cut. chunk_lines: the copy has them."""
        content = without_chunk_lines(copy.pieces) if chunk_lines else b"".join(copy.pieces)
        if copy.is_whole:
            return self.make((content,), codings, found, copy.size)
        body = self.make((content,), codings, found, copy.size, cut=True)
        if body.omitted:
            return body
        if copy.size > copy.limit:
            omitted = f"Cut: {copy.size} bytes came, and the first {copy.limit} were recorded."
        else:
            omitted = "Cut: the rest did not arrive."
        return msgspec.structs.replace(body, omitted=omitted)

    def make(
        self,
        pieces: Sequence[bytes | memoryview],
        codings: Sequence[str],
        found: Secrets,
        size: int = -1,
        cut: bool = False,
    ) -> Body:
        """Return a body. pieces: of the body in its content coding; no medium reaches from one into the next.

        size: to report; -1: that of the pieces.
        """
        if size < 0:
            size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if codings and size:
            try:
                pieces = [content_coding.decompress_whole(b"".join(pieces), codings, _CONTENT)]
            except GatewayError:
                return Body(size, omitted=_CUT_CODING if cut else _UNKNOWN_CODING)
        content = self._without_media(pieces)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            if not (cut and error.end == len(content)):
                return self._binary(content, size, found)
            text = content[: error.start].decode()
        if "\0" in text and may_hold_secret(text.replace("\0", "")):  # UTF-16, which the cluster reads as well
            return Body(size, omitted=_MAY_HOLD_SECRET)
        return Body(size, self._redactor.text(text, found))

    def _without_media(self, pieces: Sequence[bytes | memoryview]) -> bytes:
        if len(pieces) == 1:
            return shorten_media(pieces[0], keep=self._keep, known=self._known)
        out: list[bytes] = []
        for piece in pieces:
            out.append(shorten_media(piece, out[-1] if out else b"", self._keep, self._known))
        return b"".join(out)

    def _binary(self, content: bytes, size: int, found: Secrets) -> Body:
        """Return a body that is not text, unless it may hold a secret, which could not be removed."""
        if content.startswith(_COMPRESSED):
            return Body(size, omitted=_MAY_HOLD_SECRET)
        text = content.decode("latin-1").replace("\0", "")
        if may_hold_secret(text) or self._redactor.text(text, found) != text or found.hide(text) != text:
            return Body(size, omitted=_MAY_HOLD_SECRET)
        return Body(size, base64.b64encode(content).decode("ascii"), "base64")


_LINES = 2048
"""Most redacted header lines that are kept."""


class Head(NamedTuple):
    """The redacted fields of a message, and what else is read from them."""

    headers: tuple[tuple[str, str], ...]
    user_agent: str
    trace_id: str
    codings: tuple[str, ...]


class HeadMaker:
    """Redacts the fields of messages. A line that comes again, as most do, is not redacted again."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._lines: Recent[tuple[tuple[str, str], tuple[str, ...]]] = Recent(_LINES)

    def read(self, lines: Sequence[bytes], found: Secrets) -> Head:
        """Return the head of a message. found: gets its secrets."""
        headers = tuple(self._header(line, found) for line in lines)
        agent = next((value for name, value in headers if name.lower() == "user-agent"), "")
        codings = tuple(value for name, value in headers if name.lower() == "content-encoding")
        return Head(headers, agent, read_trace_id(lines), codings)

    def _header(self, line: bytes, found: Secrets) -> tuple[str, str]:
        header, secrets = self._lines.peek(line) or self._lines.get(line, lambda: self._redact(line))
        if secrets:
            found.update(secrets)
        return header

    def _redact(self, line: bytes) -> tuple[tuple[str, str], tuple[str, ...]]:
        secrets = Secrets()
        return self._redactor.headers((line,), secrets)[0], tuple(secrets)


ReadUsage = Callable[[Delivery, bytes, bool], Usage | None]
"""Returns the usage that an agent's answer reports, and its cost. bytes: its content. bool: it may be an event stream.
"""
NOT_RECORDED = "Not recorded (inspector.passthrough)."
_JSON = (("Content-Type", "application/json; charset=UTF-8"),)
RENDERED_A_SECOND = 20
"""Most LLM calls that are rendered a second: agents call LLMs, so there are seldom more runs than that."""


class RecordMaker:
    """Makes records.

    worker: the process. keep: keeps the bytes of media; None if they are not kept. bodies: of runs, are recorded.
    scheme: of the data port.

    Raises:
        ConfigError: a path or an expression of the settings can't be used.
    """

    def __init__(
        self,
        settings: Inspector,
        worker: int,
        keep: Keep | None = None,
        read_usage: ReadUsage | None = None,
        bodies: bool = True,
        scheme: Scheme = "http",
    ) -> None:
        self._scheme = scheme
        self._records_bodies = bodies
        self._redactor = make_redactor(settings)
        self._bodies = BodyMaker(self._redactor, keep)
        self._worker = worker
        self._second = self._rendered = 0
        self._read_usage = read_usage
        self._heads = HeadMaker(self._redactor)

    def make(self, captured: Captured, offset: float) -> ExchangeRecord:
        """Return the record of an exchange. offset: seconds from `time.monotonic` to the time since the epoch."""
        try:
            return summarized(self._make(captured, offset))
        finally:
            self._bodies.forget()

    def _make(self, captured: Captured, offset: float) -> ExchangeRecord:
        bodies = captured.bodies
        if bodies is not None and isinstance(bodies.response, bytes):
            assert captured.head is not None
            bodies.response = ResponseCopy(HELD_ANSWER, captured.head, True, bodies.response, True)
        found = Secrets(names=secret_members(captured.target))
        head = self._heads.read(captured.fields.lines, found)
        if bodies is None or not self._records_bodies:
            size = captured.fields.length or 0
            request = HttpMessage(head.headers, Body(size, omitted=NOT_RECORDED))
            return self._record(captured, offset, head, found, request, self._response_line(captured, found))
        request = HttpMessage(head.headers, self._request_body(bodies, head, found))
        forwarded = self._forwarded(bodies, found)
        response = self._response(captured, bodies, found)
        answered = self._answered(captured, bodies, found)
        rendered = self._render(captured, bodies, (forwarded or request).body, found)
        record = self._record(captured, offset, head, found, request, response, forwarded, rendered, answered)
        return without_secrets(record, found) if found else record

    def _record(
        self,
        captured: Captured,
        offset: float,
        head: Head,
        found: Secrets,
        request: HttpMessage,
        response: HttpMessage | None,
        forwarded: HttpMessage | None = None,
        rendered: str = "",
        answered: HttpMessage | None = None,
    ) -> ExchangeRecord:
        route, started, bodies = captured.route, captured.started, captured.bodies
        content = run_content(bodies)
        error, trace, routed = captured.error, captured.trace, captured.routed
        agent_id = route.id if routed is None else routed.agent_id
        return ExchangeRecord(
            id=captured.id or new_id(),
            started=offset + started,
            seconds=captured.ended - started,
            method=captured.method.decode("ascii"),
            target=found.hide(self._redactor.target(captured.target, found)),
            intent=route.intent.value,
            status=captured.status,
            worker=self._worker,
            connection=captured.connection,
            client=captured.client,
            user_agent=head.user_agent,
            agent_id=agent_id if route.kind == "agents" else "",
            waited=captured.answered_at - started if captured.answered_at else None,
            delivery=None if bodies is None else bodies.delivery,
            error=None if error is None else error.recorded,
            usage=self._usage(captured, content),
            conversation=find_conversation(captured, content),
            trace_id=trace.trace_id if trace is not None else head.trace_id,
            steps=() if bodies is None or not bodies.read_at else _steps(captured, bodies),
            request=request,
            forwarded=forwarded,
            rendered=rendered,
            response=response,
            answered=answered,
            guardrails=self._guardrails(bodies, found) if bodies is not None and bodies.guardrails else (),
            trace=trace,
            protocol="HTTP/1.1" if captured.minor else "HTTP/1.0",
            scheme=self._scheme,
            route="" if routed is None else routed.route,
            cluster="" if routed is None else routed.cluster,
            mirror_of=captured.mirror_of,
        )

    def _render(self, captured: Captured, bodies: Bodies, sent: Body, found: Secrets) -> str:
        """Return the first LLM call's body. It costs more than the rest of a record, so only some a second have it."""
        if bodies.render is None or not sent.text or sent.encoding:
            return ""
        second = int(captured.ended)
        if second != self._second:
            self._second, self._rendered = second, 0
        self._rendered += 1
        if self._rendered > RENDERED_A_SECOND:
            return ""
        return self._redactor.text(bodies.render(sent.text), found)

    def _guardrails(self, bodies: Bodies, found: Secrets) -> tuple[dict[str, Any], ...]:
        text = self._redactor.text(json.dumps(list(bodies.guardrails)), found)
        return tuple(json.loads(found.hide(text)))

    def _usage(self, captured: Captured, content: bytes) -> Usage | None:
        bodies = captured.bodies
        if self._read_usage is None or bodies is None or bodies.delivery is None:
            return None
        if content.rfind(b"oken") < 0:  # a word of all reports of usage: totalTokens, prompt_tokens, token_usage
            return None
        return self._read_usage(bodies.delivery, content, captured.route.intent is Intent.EXECUTE_STREAM)

    def _request_body(self, bodies: Bodies, head: Head, found: Secrets) -> Body:
        if isinstance(bodies.request, bytes):
            return self._bodies.make((bodies.request,), head.codings, found)
        return self._bodies.copied(bodies.request, bodies.chunk_lines, head.codings, found)

    def _forwarded(self, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        """Return the request that was sent in place of the client's."""
        sent = bodies.sent
        if sent is None or not bodies.sent_head:
            return None
        headers = self._heads.read(bodies.sent_head[:-4].split(b"\r\n"), found).headers
        return HttpMessage(headers, self._bodies.make(sent, (), found))

    def _response_line(self, captured: Captured, found: Secrets) -> HttpMessage | None:
        """Return the cluster's response without its body."""
        if captured.head is None:
            return None
        head = self._heads.read(captured.head.lines, found)
        return HttpMessage(head.headers, Body(captured.head.length or 0, omitted=NOT_RECORDED))

    def _response(self, captured: Captured, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        copy = bodies.response
        if not isinstance(copy, ResponseCopy):  # there is none: `_make` has replaced bytes
            return self._response_line(captured, found)
        head = self._heads.read(copy.head.lines, found)
        return HttpMessage(head.headers, self._bodies.copied(copy, not copy.decoded, head.codings, found))

    def _answered(self, captured: Captured, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        """Return what the client got, if it is not the cluster's response."""
        answer, error = captured.answer, captured.error
        if error is not None:
            return HttpMessage(_JSON, self._bodies.make((error.body,), (), found))
        body = bodies.relayed if answer is None else [answer.body]
        if body is None:
            return None
        headers = () if captured.head is None else self._heads.read(captured.head.lines, found).headers
        if answer is not None:
            added = answer.headers.items()
            headers += tuple((str(name), self._redactor.header(name, value, found)) for name, value in added)
        return HttpMessage(headers or _JSON, self._bodies.make(body, (), found))


def _steps(captured: Captured, bodies: Bodies) -> tuple[Step, ...]:
    """Return the steps of an exchange whose request was read."""
    started, read_at, sent_at = captured.started, bodies.read_at, bodies.sent_at
    steps = [Step("read", 0.0, read_at - started)]
    if bodies.steps is not None:
        steps += [Step(name, begun - started, end - begun) for name, begun, end in bodies.steps.taken]
    elif sent_at:
        steps.append(Step("plan", read_at - started, sent_at - read_at))
    if sent_at:
        answered_at = captured.answered_at
        steps.append(Step("upstream", sent_at - started, (answered_at or captured.ended) - sent_at))
        if answered_at:
            steps.append(Step("answer", answered_at - started, captured.ended - answered_at))
    return tuple(steps)


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


_SEARCHED = 64 * 1024
"""Bytes at the beginning and the end of a body in which the id is searched; media are in between."""
_ID = rb'"([A-Za-z0-9_-]{1,128})"'
_MEMBER = re.compile(rb'"(?:memory_id|session_id)"\s*+:\s*+' + _ID)
_OUTPUT = re.compile(rb'"name"\s*+:\s*+"memory_id"\s*+,\s*+"result"\s*+:\s*+' + _ID)


def run_content(bodies: Bodies | None) -> bytes:
    """Return the cluster's response to a run, decoded; b"" if there is none, or it is not whole. It may take long."""
    if bodies is None or bodies.delivery is None or not isinstance(bodies.response, ResponseCopy):
        return b""
    return bodies.response.content()


def find_conversation(captured: Captured, content: bytes) -> str:
    """Return the memory or session id of a run; "" if it has none. content: of the cluster's response."""
    bodies = captured.bodies
    if bodies is None or bodies.delivery is None:
        return ""
    answer = captured.answer.body if captured.answer is not None else content
    return read_conversation(bodies.request if isinstance(bodies.request, bytes) else b"", answer)


def read_conversation(request: bytes, response: bytes) -> str:
    """Return the id that the response names, or else the request; "" if neither does. Both are JSON, or events."""
    for body in (response, request):
        if len(body) <= _SEARCHED and b"_id" not in body:
            continue
        for part in (body[:_SEARCHED], body[max(_SEARCHED, len(body) - _SEARCHED) :]):
            if b"_" not in part:  # base64 has none; for one byte, `in` is fast
                continue
            match = _OUTPUT.search(part) or _MEMBER.search(part)
            if match is not None:
                return match[1].decode("ascii")
    return ""


MESSAGES = ("request", "forwarded", "response", "answered")


def summarized(record: ExchangeRecord) -> ExchangeRecord:
    """Return the record, which has no secrets any more, with its summary."""
    summary = summarize(record)
    return record if summary is None else msgspec.structs.replace(record, summary=summary)


def without_secrets(record: ExchangeRecord, found: Secrets) -> ExchangeRecord:
    """Return the record without the secrets of any of its texts in any other."""
    changes: dict[str, HttpMessage | str] = {
        name: hidden
        for name in ("target", "user_agent", "rendered")
        if (hidden := found.hide(text := getattr(record, name))) != text
    }
    for name in MESSAGES:
        message: HttpMessage | None = getattr(record, name)
        if message is not None:
            headers = tuple([(key, found.hide(value)) for key, value in message.headers])
            body = _hide(message.body, found)
            if body is not message.body or headers != message.headers:
                changes[name] = HttpMessage(headers, body)
    return msgspec.structs.replace(record, **changes) if changes else record


def _hide(body: Body, found: Secrets) -> Body:
    if not body.text or body.encoding:
        return body
    hidden = found.hide(body.text)
    return body if hidden is body.text else msgspec.structs.replace(body, text=hidden)
