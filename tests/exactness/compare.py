"""When are two exchanges the same.

Before and behind the gateway (two recorders, one run): exactly, less what ends at each hop and Host.
Direct and through it (two runs): the same, with what differs from run to run masked (`VOLATILE`).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable

from tests.exactness.recorder import Exchange
from tests.wire import HOP_BY_HOP, Parsed

Headers = tuple[tuple[bytes, bytes], ...]

APART = HOP_BY_HOP | {b"date"}

VOLATILE: list[tuple[re.Pattern[bytes], bytes]] = [
    (re.compile(rb'"(took\w*|\w*time_in_millis|creation_\w+|\w*_timestamp|age_in_millis)":"?[\d.]+"?'), rb'"\1":0'),
    (re.compile(rb'"(uuid|index_uuid|node|ephemeral_id|_node|task)":"[^"]+"'), rb'"\1":""'),
    (re.compile(rb'"(_?scroll_id|pit_id)":(\[?)"[^"]+"'), rb'"\1":\2""'),
    (re.compile(rb'"id":"[\w=+/-]{60,}"'), rb'"id":""'),  # of a point in time
    (re.compile(rb'\["[\w=+/-]{60,}"\]'), rb'[""]'),  # scrolls and points in time to be closed
    (re.compile(rb'"_id":"[\w-]{20}"'), rb'"_id":""'),  # made by the cluster
    (re.compile(rb'"\d{4}-\d\d-\d\dT[\d:.]+Z"'), rb'""'),
    (re.compile(rb"(\[|/|=)[\w-]{22}\]"), rb"\1]"),  # an index's uuid in an error's words
]
"""Patterns in JSON bodies of values that the cluster generates for each response: durations, moments, identifiers."""

VOLATILE_HEADERS: list[tuple[re.Pattern[bytes], bytes]] = [
    (re.compile(rb"(/_doc/)[\w-]{20}$"), rb"\1"),  # Location of a document whose id the cluster made
    (re.compile(rb'\{"action":.*"taskResourceUsage":.*\}'), rb""),  # TASK_RESOURCE_USAGE of a scroll: task ids, times
]
"""The same in the values of headers."""

STATISTICS = re.compile(rb"/_stats|/_nodes|/_tasks|/_cluster/(state|stats|pending)|/_segments|/_cat/")
"""Targets whose answers are nothing but such values; of two runs, only status and names of headers are compared."""


def visible(message: Parsed) -> Parsed:
    """Return the part of a message that must be the same on both sides of the gateway."""
    gone = APART | {b"host"}
    return Parsed(message.line, tuple(p for p in message.headers if p[0].lower() not in gone), message.body)


def exact(exchange: Exchange) -> tuple[Parsed, tuple[Parsed, ...], Parsed]:
    """An exchange for the comparison of the two taps; framing (chunks) is of the hop, the body is not."""
    return visible(exchange.request), tuple(map(visible, exchange.interim)), visible(exchange.answer)


def steady(exchange: Exchange) -> tuple[Parsed, Parsed]:
    """An exchange for the comparison of two runs."""
    request, answer = visible(exchange.request), visible(exchange.answer)
    line = re.sub(rb"[\w=+/%-]{60,}", b"", request.line)  # a scroll id in a path
    if STATISTICS.search(request.line):
        bare = Parsed(answer.line, tuple((name, b"") for name, _ in answer.headers), b"")
        return Parsed(line, request.headers, request.body), bare
    return masked(Parsed(line, request.headers, request.body)), masked(answer)


def masked(message: Parsed) -> Parsed:
    """Content-encoding undone, values masked; a length then says only that it was right."""
    body = unpacked(message)
    for pattern, put in VOLATILE:
        body = pattern.sub(put, body)
    length = str(len(message.body)).encode()
    headers = []
    for name, value in message.headers:
        for pattern, put in VOLATILE_HEADERS:
            value = pattern.sub(put, value)
        headers.append((name, b"right" if name.lower() == b"content-length" and value == length else value))
    return Parsed(message.line, tuple(sorted(headers)), body)


def unpacked(message: Parsed) -> bytes:
    """The body, its content-encoding undone."""
    match message.values("content-encoding"):
        case [b"gzip"] if message.body:
            return gzip.decompress(message.body)
        case [b"deflate"] if message.body:
            return zlib.decompress(message.body)
    return message.body


def differences(ours: Iterable[object], theirs: Iterable[object]) -> list[str]:
    """Where two lists of exchanges differ, each place with what stands there, from where on it differs."""
    pairs = zip(map(repr, ours), map(repr, theirs), strict=True)
    return [f"{index}: {_apart(one, other)}" for index, (one, other) in enumerate(pairs) if one != other]


def _apart(one: str, other: str) -> str:
    alike = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(alike - 80, 0)
    return f"{one[:80]} … {one[start : alike + 80]!r} ≠ {other[start : alike + 80]!r}"
