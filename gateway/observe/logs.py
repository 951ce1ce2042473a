"""Structured logs to standard error, as JSON or for a console. Every field is redacted before it is written.

Secrets are never shown. The gateway's own texts (events, types, codes, reasons), ids and names are logged as they are.
What a client sent (texts, parameters, names of unknown members, bad values) is logged as its length and hash, unless a
setting allows more. Only fields named in `_OWN_FIELDS` are shown as they are. Any other field is treated as a client's
content and masked (`mask`), so that a new log line can't show it by mistake.

The ids of a request (``request_id`` and the client's own) are bound once at the data port, as context variables, and
are in every line about that request.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog

from gateway.errors import GatewayError, Problem
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets, is_secret_name

LONGEST = 512
_MESSAGE = 256
"""Most characters of an error's message."""

_HIDDEN = "[hidden]"

_MEMBERS = frozenset(
    {"agent_id", "agents", "arguments", "async", "audio", "audio_url", "blocks", "bucketOwner", "bytes"}
    | {"cascade", "cluster", "config", "connector", "connectors", "content", "contents", "credential"}
    | {"data", "description", "detail", "document", "documents", "endpoint", "error", "file"}
    | {"file_id", "filename", "format", "function", "headers", "id", "image", "image_url", "input"}
    | {"input_audio", "is_error", "json", "llm", "mcp", "mcp_connectors", "memory", "memory_id", "message"}
    | {"messages", "method", "model", "model_id", "model_parameters", "model_provider", "models"}
    | {"name", "parameters", "path", "prompt", "protocol", "question", "reason", "region", "role"}
    | {"roles", "selected_tools", "session_id", "settings", "size", "source", "status", "stream", "system"}
    | {"text", "toolCallId", "toolCalls", "toolResult", "toolUse", "toolUseId", "tool_call_id"}
    | {"tool_calls", "tool_result", "tool_use"}
    | {"tool_use_id", "tools", "type", "types", "uri", "url", "version", "video", "video_url"}
)
"""Names of members that the gateway knows. They are shown; other names are the client's and are masked."""
_OWN_NAME = re.compile(r"gw_[a-z]{0,2}[0-9]*")

_DOCUMENT = ("agents/", "models/", "connectors/")
_PLACE_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\].?"]+')
_QUOTED = re.compile(r"""\"(?:[^"\\]|\\.)*\"|(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)""")
_INDEX = re.compile(r"[0-9]+")


def measure(data: str | bytes | bytearray | memoryview) -> str:
    """Return a text or payload as its length and the start of its SHA-256."""
    if isinstance(data, str):
        raw: bytes | bytearray | memoryview = data.encode("utf-8", "surrogatepass")
        return f"[{len(data)} characters, sha256 {hashlib.sha256(raw).hexdigest()[:12]}]"
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    return f"[{size} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}]"


def shorten(data: str | bytes | bytearray | memoryview) -> str:
    """Return a long text or any payload as its length and hash, a short text as it is.

    Bytes are always payload; text is long if it has more than `LONGEST` characters.
    """
    return data if isinstance(data, str) and len(data) <= LONGEST else measure(data)


def redact(value: Any, name: str = "", hide: Callable[[str], str] | None = None) -> Any:
    """Return `value` with every secret hidden and every payload shortened, at any depth.

    name: its field or member. hide: removes secrets from a text, such as JSON or the words of an error.
    """
    if _is_hidden(value, name):
        return _HIDDEN
    match value:
        case str():
            return shorten(value) if hide is None else shorten(hide(value))
        case bytes() | bytearray() | memoryview():
            return shorten(value)
        case Mapping():
            return {key: redact(item, str(key), hide) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [redact(item, "", hide) for item in value]
        case _:
            return value


def mask(value: Any, name: str = "") -> Any:
    """Return a client's `value` with secrets hidden, and each text, number and unknown name as length and hash."""
    if _is_hidden(value, name):
        return _HIDDEN
    match value:
        case None | bool():
            return value
        case str() | bytes() | bytearray() | memoryview():
            return measure(value)
        case Mapping():
            return {_mask_name(str(key)): mask(item, str(key)) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [mask(item) for item in value]
        case _:
            return measure(str(value))


def mask_place(place: str) -> str:
    """Return a problem's place with each name that is not the gateway's as length and hash."""
    if place.startswith(_DOCUMENT):
        return shorten(place)
    return _PLACE_PART.sub(lambda part: _mask_part(part[0]), place)


def describe_error(error: GatewayError, payloads: bool) -> dict[str, Any]:
    """Return a refusal for the log. payloads: show the whole error, which repeats parts of the request."""
    if payloads:
        return {"type": error.type, "reason": error.reason, "problems": describe_problems(error.problems, True)}
    place = error.problems[0].place if error.problems else ""
    start = f"[{place}] "
    reason = error.reason.removeprefix(start)
    shown = _own_words(reason, error.repeats)
    if place and reason != error.reason:
        shown = f"[{mask_place(place)}] {shown}"
    return {"type": error.type, "reason": shown, "problems": describe_problems(error.problems, False)}


def describe_problems(problems: Sequence[Problem], payloads: bool) -> list[dict[str, str]]:
    """Return problems for the log; see `describe_error`."""
    if payloads:
        return [_show_problem(problem) for problem in problems]
    return [_describe_problem(problem) for problem in problems]


def _show_problem(problem: Problem) -> dict[str, str]:
    members = problem.as_dict()
    if problem.received and any(map(is_secret_name, _PLACE_PART.findall(problem.place))):
        members["received"] = _HIDDEN
    return members


def _describe_problem(problem: Problem) -> dict[str, str]:
    reason = _own_words(problem.reason, problem.repeats)
    members = {"field": mask_place(problem.place), "reason": reason, "code": problem.code}
    return {name: value for name, value in members.items() if value}


def describe_exception(error: BaseException, payloads: bool) -> str:
    """Return a traceback. payloads: show the messages of the exceptions, which may repeat what a client sent."""
    if payloads:
        return "".join(traceback.format_exception(error)).rstrip("\n")
    return "".join(_trace(error, [])).rstrip("\n")


def describe_fault(error: BaseException) -> str:
    """Return an error of the gateway in one line: class, message and the line of code, without what a client sent.

    Python's messages quote the values that they repeat; what is quoted is shown as length and hash.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = _QUOTED.sub(lambda quoted: measure(quoted[0][1:-1]), str(error).replace("\n", " "))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{name}: {message[:_MESSAGE]}{place}" if message else f"{name}{place}"


def _trace(error: BaseException, seen: list[BaseException]) -> Iterator[str]:
    seen.append(error)
    cause = error.__cause__
    before = cause if cause is not None or error.__suppress_context__ else error.__context__
    if before is not None and not any(one is before for one in seen):
        yield from _trace(before, seen)
        yield "\nThe cause of:\n\n" if cause is not None else "\nWhile that was handled:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__}: {measure(str(error))}\n"
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _trace(one, seen)


def _is_hidden(value: Any, name: str) -> bool:
    if not name or value is None or isinstance(value, bool) or not is_secret_name(name):
        return False
    return not (isinstance(value, (int, float)) and "token" in name.lower())


def _mask_part(part: str) -> str:
    if part.startswith('"'):  # a name that is not the gateway's
        return measure(part[1:-1])
    return part if _INDEX.fullmatch(part) else _mask_name(part)


def _mask_name(name: str) -> str:
    return name if name in _MEMBERS or _OWN_NAME.fullmatch(name) else measure(name)


def _own_words(reason: str, repeats: str) -> str:
    """Return `reason` without `repeats`, and without quoted texts that are not names of the gateway's."""
    if repeats:
        reason = reason.replace(repeats, measure(repeats))
    return _QUOTED.sub(lambda quoted: _mask_quoted(quoted[0]), reason)


def _mask_quoted(quoted: str) -> str:
    return quoted if quoted[1:-1] in _MEMBERS else measure(quoted[1:-1])


Logger = structlog.typing.FilteringBoundLogger
Style = Literal["auto", "json", "console"]
"""auto: for people on a terminal, else JSON."""
_REDACTOR = Redactor()
_FINISHED = ("event", "level", "timestamp", "exception")
_OWN_FIELDS = frozenset(
    {"address", "again_in", "agent", "base64_bytes", "client", "client_request_id", "codes", "connections"}
    | {"container", "events", "failures", "generation", "http", "input", "intent", "kind", "made", "media"}
    | {"messages", "method", "node", "notices", "opaque_id", "outcome", "path", "pid", "problems", "provider"}
    | {"reason", "request_id", "route", "s", "seconds", "serves", "session", "sessions", "setting", "source"}
    | {"status", "step", "still_valid", "strategy", "tag", "tls", "tools", "trace_id", "type", "used_slots", "worker"}
    | {"workers"}
)


def is_console(style: Style, stream: TextIO) -> bool:
    """Return True if the lines are for people: by choice, or because the stream is a terminal."""
    return style == "console" or (style == "auto" and stream.isatty())


def configure(level: str, style: Style, stream: TextIO | None = None, payloads: bool = False) -> Logger:
    """Build the gateway's logger.

    level: debug, info, warning or error. stream: standard error by default. payloads: show what clients sent.
    """
    renderer: Any = structlog.processors.JSONRenderer()
    timestamps = structlog.processors.TimeStamper(fmt="iso", utc=True)
    if is_console(style, stream or sys.stderr):
        renderer = structlog.dev.ConsoleRenderer(
            colors=(stream or sys.stderr).isatty(), pad_event_to=0, pad_level=False
        )
        timestamps = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    logger: Logger = structlog.wrap_logger(
        _LineLogger(stream or sys.stderr),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            timestamps,
            structlog.processors.ExceptionRenderer(lambda info: describe_exception(info[1], payloads)),
            _show if payloads else _mask,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=True,
    )
    return logger.bind()  # so that a call below the level costs nothing


class _LineLogger(structlog.WriteLogger):
    """Writes each line with one call, because worker processes share the stream.

    An error of the stream (its reader is gone, the disk is full) must not fail the request that is logged.
    """

    def msg(self, message: str) -> None:
        """Write `message`; do nothing if that fails."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def _show(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if name not in _FINISHED:
            event[name] = redact(value, name, _hide)
        elif name == "exception":
            event[name] = _hide(value)
    return event


def _hide(text: str) -> str:
    return _REDACTOR.text(text, Secrets())


def _mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if name not in _FINISHED:
            event[name] = redact(value, name) if name in _OWN_FIELDS else mask(value, name)
    return event


def warn_of_payloads(log: Logger) -> None:
    """Log a warning that the log contains what clients send."""
    reason = "the log contains what clients send, including their users' texts; switch this off when the fault is found"
    log.warning("payloads are logged", setting="logs.payloads", reason=reason)


def step(log: Logger, name: str, **fields: Any) -> None:
    """Log one step of a rewrite and its result, at debug level."""
    log.debug("step", step=name, **fields)
