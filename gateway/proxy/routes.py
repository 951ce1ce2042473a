"""The route table: what the gateway does with a request. The first match counts; everything else is passed through.

Paths are matched undecoded, segment by segment, as the cluster's own router does. Literal segments are compared
byte by byte, an id is decoded, slashes at the end are ignored, and an empty segment matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from gateway.memory.model import PREFIX


class Intent(StrEnum):
    """What the gateway does with a request.

    EXECUTE, EXECUTE_STREAM: read it and ask the execute use case what to send.
    REGISTER, QUICK_EXECUTE, UPDATE_AGENT, DELETE_AGENT: read it and ask the use case that manages agents; without that
    use case, treat it as WRITE.
    WRITE: pass it through, and remove its subject from the cache.
    READ_MEMORY: pass it through, and show the answer readable (`memory.readable`).
    ROUTED_MEMORY: about a conversation whose id has the mark of a route's target: ask the use case of routes.
    SESSION: a session of the gateway's own: ask the use case that shows and deletes them; without it, pass it through.
    PASSTHROUGH: pass it through unchanged.
    """

    EXECUTE = "execute"
    EXECUTE_STREAM = "execute_stream"
    REGISTER = "register"
    QUICK_EXECUTE = "quick_execute"
    UPDATE_AGENT = "update_agent"
    DELETE_AGENT = "delete_agent"
    WRITE = "write"
    READ_MEMORY = "read_memory"
    ROUTED_MEMORY = "routed_memory"
    SESSION = "session"
    PASSTHROUGH = "passthrough"


class Route(Struct, frozen=True, array_like=True, gc=False):
    """A request's intent, and the kind and id of the document it concerns; "" if there is none.

    The kinds of SESSION are memory, messages, message and traces (the conversation API), and session and working (the
    API of memory containers). READ_MEMORY has the kind search if its body may be a search for messages of a session.
    """

    intent: Intent
    kind: str = ""
    id: str = ""


RUNS = (Intent.EXECUTE, Intent.EXECUTE_STREAM)
MANAGED = (Intent.REGISTER, Intent.QUICK_EXECUTE, Intent.UPDATE_AGENT, Intent.DELETE_AGENT)
WRITES = frozenset({Intent.WRITE, *MANAGED})

Make = Callable[[str], Route]


def _agent(intent: Intent) -> Make:
    return lambda id: Route(intent, "agents", id)


def _write(kind: str) -> Make:
    return lambda id: Route(Intent.WRITE, kind, id)


def _memory(_: str) -> Route:
    return Route(Intent.READ_MEMORY)


def _search(_: str) -> Route:
    return Route(Intent.READ_MEMORY, "search")


def _session(kind: str, other: Intent) -> Make:
    """Return the route of the gateway's own sessions, which their ids tell. other: the intent for any other id."""
    return lambda id: Route(Intent.SESSION, kind, id) if id.startswith(PREFIX) else Route(other)


_ML = "/_plugins/_ml"
_CONTAINER = f"{_ML}/memory_containers/{{id}}/memories"
_MEMORIES = f"{_CONTAINER}/{{id}}"
_TABLE: tuple[tuple[str, str, Make], ...] = (
    ("POST", f"{_ML}/agents/{{id}}/_execute", _agent(Intent.EXECUTE)),
    ("POST", f"{_ML}/agents/{{id}}/_execute/stream", _agent(Intent.EXECUTE_STREAM)),
    # An unknown id may exist after a registration, so a registration invalidates the cache too.
    ("POST", f"{_ML}/agents/_register", _agent(Intent.REGISTER)),
    ("POST", f"{_ML}/agents/_execute", _agent(Intent.QUICK_EXECUTE)),
    ("PUT", f"{_ML}/agents/{{id}}", _agent(Intent.UPDATE_AGENT)),
    ("DELETE", f"{_ML}/agents/{{id}}", _agent(Intent.DELETE_AGENT)),
    ("POST", f"{_ML}/models/_register", _write("models")),
    ("PUT", f"{_ML}/models/{{id}}", _write("models")),
    ("DELETE", f"{_ML}/models/{{id}}", _write("models")),
    ("POST", f"{_ML}/connectors/_create", _write("connectors")),
    ("PUT", f"{_ML}/connectors/{{id}}", _write("connectors")),
    ("DELETE", f"{_ML}/connectors/{{id}}", _write("connectors")),
    ("GET", f"{_ML}/memory", _memory),
    ("GET", f"{_ML}/memory/_search", _memory),
    ("POST", f"{_ML}/memory/_search", _memory),
    ("GET", f"{_ML}/memory/{{id}}", _session("memory", Intent.READ_MEMORY)),
    ("DELETE", f"{_ML}/memory/{{id}}", _session("memory", Intent.PASSTHROUGH)),
    ("GET", f"{_ML}/memory/{{id}}/messages", _session("messages", Intent.READ_MEMORY)),
    ("GET", f"{_ML}/memory/{{id}}/_search", _memory),
    ("POST", f"{_ML}/memory/{{id}}/_search", _memory),
    ("GET", f"{_ML}/memory/message/{{id}}", _session("message", Intent.READ_MEMORY)),
    ("GET", f"{_ML}/memory/message/{{id}}/traces", _session("traces", Intent.READ_MEMORY)),
    ("GET", f"{_CONTAINER}/working/_search", _search),
    ("POST", f"{_CONTAINER}/working/_search", _search),
    ("GET", f"{_MEMORIES}/_search", _memory),
    ("POST", f"{_MEMORIES}/_search", _memory),
    ("GET", f"{_CONTAINER}/sessions/{{id}}", _session("session", Intent.READ_MEMORY)),
    ("DELETE", f"{_CONTAINER}/sessions/{{id}}", _session("session", Intent.PASSTHROUGH)),
    ("GET", f"{_CONTAINER}/working/{{id}}", _session("working", Intent.READ_MEMORY)),
    ("GET", f"{_MEMORIES}/{{id}}", _memory),
    # A cluster setting decides whether agents take the unified input.
    ("PUT", "/_cluster/settings", _write("cluster")),
)
_PASSTHROUGH = Route(Intent.PASSTHROUGH)
_ROWS = tuple((method, tuple(pattern.split("/")), make) for method, pattern, make in _TABLE)


_ESCAPE = re.compile(rb"%(%|[0-9A-Fa-f]{2})")
_ESCAPED = re.compile(rb"(?:[^%]|%(?:%|[0-9A-Fa-f]{2}))*", re.DOTALL)
_MARKS = (_ML.encode(), b"/_cluster/settings")


def intent_of(method: bytes, target: bytes) -> Route:
    """Return the route of a request. target: as received, with the query."""
    if not target.startswith(_MARKS):
        return _PASSTHROUGH
    path = target.partition(b"?")[0]
    return (_route_cached if len(path) <= _LONGEST else _route)(method, path)


_LONGEST = 256
"""Longest path, in bytes, whose route is cached."""


def _route(method: bytes, path: bytes) -> Route:
    return route(method.decode("ascii"), path.decode("latin-1"))


_route_cached = lru_cache(1024)(_route)


def route(method: str, path: str) -> Route:
    """Return the route of a request. path: the raw target without its query, decoded as Latin-1."""
    if not path.startswith((_ML, "/_cluster/settings")):
        return _PASSTHROUGH
    segments = path.rstrip("/").split("/")
    for verb, pattern, make in _ROWS:
        if verb == method and len(pattern) == len(segments):
            id = _match(pattern, segments)
            if id is not None:
                return make(id)
    return _PASSTHROUGH


def _match(pattern: tuple[str, ...], segments: list[str]) -> str | None:
    """Return the id among the segments, "" if the pattern has none, None if the segments do not match."""
    id = ""
    for expected, segment in zip(pattern, segments, strict=True):
        if expected == "{id}":
            id = _decode_segment(segment)
            if not id:
                return None
        elif expected != segment:
            return None
    return id


def _decode_segment(segment: str) -> str:
    """Decode a segment as the cluster does; "" if the cluster refuses it or the result is not Unicode text.

    The cluster (`RestUtils.decodeComponent`) reads the target as Latin-1. A segment with a percent-encoding is read as
    UTF-8, including its raw bytes; any other segment is left unchanged. `%%` is an escaped percent sign.
    """
    if "%" not in segment:
        return segment if segment.isascii() or max(segment) <= "\xff" else ""
    try:
        raw = segment.encode("latin-1")
        if _ESCAPED.fullmatch(raw) is None:
            return ""
        return _ESCAPE.sub(_unescape, raw).decode("utf-8")
    except UnicodeError:
        return ""


def _unescape(match: re.Match[bytes]) -> bytes:
    digits = match[1]
    return b"%" if digits == b"%" else bytes.fromhex(digits.decode("ascii"))
