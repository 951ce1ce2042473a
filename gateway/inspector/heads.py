"""Heads of messages as they are recorded: redacted once, because clients and clusters repeat them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets
from gateway.observe.trace_context import read_trace_id
from gateway.recent import Recent

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
