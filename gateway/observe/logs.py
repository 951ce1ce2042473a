"""Structured logs, JSON or for reading, to standard error; every field is redacted on its way out.

What a request is known by (``request_id``, the client's own id) is bound once at the edge, as context
variables, and stands in every line of that request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from gateway.observe.redact import redact

Logger = structlog.typing.FilteringBoundLogger
_OWN_FIELDS = ("event", "level", "timestamp", "exception")


def configure(level: str, style: Literal["json", "console"], stream: TextIO | None = None) -> Logger:
    """The gateway's logger. level: debug, info, warning or error. stream: standard error unless given."""
    renderer: Any = structlog.processors.JSONRenderer()
    if style == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=(stream or sys.stderr).isatty())
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(stream or sys.stderr),  # one write a line, as workers share the stream
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=True,
    )
    return logger.bind()  # so that a call below the level costs nothing


def _redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if name not in _OWN_FIELDS:
            event[name] = redact(value, name)
    return event


def step(log: Logger, name: str, **fields: Any) -> None:
    """A debug line for one step of a rewrite: what was done and with what result."""
    log.debug("step", step=name, **fields)
