"""Heads of messages as they are recorded: redacted once, because clients and clusters repeat them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.http1.request_heads import Fields
from gateway.http1.response_heads import ResponseHead
from gateway.observe.redaction import Redactor
from gateway.observe.secrets import Secrets
from gateway.observe.trace_context import read_trace_id
from gateway.recent import Recent

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
        head = self._heads.get(fields, lambda: self._read(fields.lines))
        found.update(head.secrets)
        return head

    def response(self, response: ResponseHead, found: Secrets) -> Head:
        """Return the head of a response."""
        head = self._heads.get(response, lambda: self._read(response.lines))
        found.update(head.secrets)
        return head

    def headers(self, lines: Iterable[bytes], found: Secrets) -> tuple[tuple[str, str], ...]:
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
        headers = self.headers(lines, found)
        agent = next((value for name, value in headers if name.lower() == "user-agent"), "")
        codings = tuple(value for name, value in headers if name.lower() == "content-encoding")
        return Head(headers, tuple(found), agent, read_trace_id(lines), codings)
