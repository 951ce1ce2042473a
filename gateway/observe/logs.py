"""Structured logs to standard error, as JSON or for a console. Every field is redacted before it is written.

Only fields named in `_OWN_FIELDS` are shown as they are: they hold the gateway's own texts, ids and names. Any other
field is treated as a client's content and masked (`gateway.observe.redact.mask`), so that a new log line can't show it
by mistake.

The ids of a request (``request_id`` and the client's own) are bound once at the data port, as context variables, and
are in every line about that request.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from gateway.observe.redact import describe_exception, mask, redact
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets

Logger = structlog.typing.FilteringBoundLogger
Style = Literal["auto", "json", "console"]
"""auto: for people on a terminal, else JSON."""
_REDACTOR = Redactor()
_FINISHED = ("event", "level", "timestamp", "exception")
_OWN_FIELDS = frozenset(
    {"address", "again_in", "agent", "base64_bytes", "client", "client_request_id", "codes", "connections", "container"}
    | {"events", "failures", "generation", "http", "input", "intent", "kind", "made", "media", "messages", "method"}
    | {
        "node",
        "notices",
        "opaque_id",
        "outcome",
        "path",
        "pid",
        "problems",
        "provider",
        "reason",
        "request_id",
        "route",
    }
    | {
        "s",
        "seconds",
        "serves",
        "session",
        "sessions",
        "setting",
        "status",
        "step",
        "still_valid",
        "strategy",
        "tag",
        "tls",
        "tools",
    }
    | {"source", "trace_id", "type", "used_slots", "worker", "workers"}
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
