"""Makes the record of an exchange, without its secrets, from what the data port left of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.config.inspector import Inspector
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.observe.media import Keep
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
from gateway.observe.secrets import Secrets, secret_members
from gateway.observe.trace_context import read_trace_id
from gateway.proxy.capture import HELD_ANSWER, Bodies, Captured, ResponseCopy
from gateway.proxy.request_log import new_id
from gateway.proxy.routes import Intent
from gateway.recent import Recent
from gateway.recording.bodies import BodyMaker
from gateway.recording.conversation import summarize
from gateway.recording.messages import find_conversation, run_content

T = TypeVar("T", bound=Hashable)
_get_lines = attrgetter("lines")
_HEADS, _LINES = 512, 2048
"""Most redacted heads and header lines that are kept."""


class Head(NamedTuple):
    """The redacted fields of a message, its secrets, and what else is read from them."""

    headers: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    user_agent: str
    trace_id: str
    codings: tuple[str, ...]


class HeadMaker:
    """Redacts the fields of messages. found, of each method: gets their secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._heads: Recent[Head] = Recent(_HEADS)
        self._lines: dict[bytes, tuple[tuple[str, str], tuple[str, ...]]] = {}

    def request(self, fields: Fields, found: Secrets) -> Head:
        """Return the head of a request."""
        return self._known(fields, _get_lines, found)

    def response(self, response: ResponseHead, found: Secrets) -> Head:
        """Return the head of a response."""
        return self._known(response, _get_lines, found)

    def sent(self, head: bytes, found: Secrets) -> Head:
        """Return the head of a request to the cluster. head: its lines, with the empty one."""
        return self._known(head, _split, found)

    def _known(self, key: T, lines_of: Callable[[T], Sequence[bytes]], found: Secrets) -> Head:
        head = self._heads.peek(key)
        if head is None:
            head = self._heads.get(key, lambda: self._read(lines_of(key)))
        if head.secrets:
            found.update(head.secrets)
        return head

    def _headers(self, lines: Iterable[bytes], found: Secrets) -> tuple[tuple[str, str], ...]:
        """Return names and values of header lines."""
        known = self._lines
        headers = []
        for line in lines:
            entry = known.get(line)
            if entry is None:
                secrets = Secrets()
                entry = self._redactor.headers((line,), secrets)[0], tuple(secrets)
                if len(known) >= _LINES:
                    known.clear()
                known[line] = entry
            headers.append(entry[0])
            if entry[1]:
                found.update(entry[1])
        return tuple(headers)

    def _read(self, lines: Sequence[bytes]) -> Head:
        found = Secrets()
        headers = self._headers(lines, found)
        agent = next((value for name, value in headers if name.lower() == "user-agent"), "")
        codings = tuple(value for name, value in headers if name.lower() == "content-encoding")
        return Head(headers, tuple(found), agent, read_trace_id(lines), codings)


def _split(head: bytes) -> list[bytes]:
    return head[:-4].split(b"\r\n")


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
        head = self._heads.request(captured.fields, found)
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
        headers = self._heads.sent(bodies.sent_head, found).headers
        return HttpMessage(headers, self._bodies.make(sent, (), found))

    def _response_line(self, captured: Captured, found: Secrets) -> HttpMessage | None:
        """Return the cluster's response without its body."""
        if captured.head is None:
            return None
        head = self._heads.response(captured.head, found)
        return HttpMessage(head.headers, Body(captured.head.length or 0, omitted=NOT_RECORDED))

    def _response(self, captured: Captured, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        copy = bodies.response
        if not isinstance(copy, ResponseCopy):  # there is none: `_make` has replaced bytes
            return self._response_line(captured, found)
        head = self._heads.response(copy.head, found)
        return HttpMessage(head.headers, self._bodies.copied(copy, not copy.decoded, head.codings, found))

    def _answered(self, captured: Captured, bodies: Bodies, found: Secrets) -> HttpMessage | None:
        """Return what the client got, if it is not the cluster's response."""
        answer, error = captured.answer, captured.error
        if error is not None:
            return HttpMessage(_JSON, self._bodies.make((error.body,), (), found))
        body = bodies.relayed if answer is None else [answer.body]
        if body is None:
            return None
        headers = () if captured.head is None else self._heads.response(captured.head, found).headers
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
