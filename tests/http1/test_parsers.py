"""What we accept, two independent parsers read the same way, or `DIFFERENCES` says how they differ, and why.

Otherwise the cluster, or a proxy before it, could read another request than the one that the gateway has checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gateway.http1.rules import Malformed
from tests.conftest import examples
from tests.http1.reading import Reading, Refused, read_h11, read_httptools, read_ours, read_response
from tests.smuggling.answers import READ_IN_MEMORY, Answer
from tests.smuggling.table import REFUSED, ROWS, SOUND, Row

FOLLOWER = b"GET /follower HTTP/1.1\r\nHost: x\r\n\r\n"
PARSERS: dict[str, Callable[[bytes], Reading]] = {"httptools": read_httptools, "h11": read_h11}
KNOWN_METHODS = b"DELETE GET HEAD POST PUT CONNECT OPTIONS TRACE PATCH".split()


@dataclass(frozen=True)
class Difference:
    """A request that we accept, and that another parser refuses or reads differently.

    applies: to the bytes of the request, and our reading of them. normalise: how to change both readings so that they
    are equal; None: the parser refuses the request.
    """

    parser: str
    reason: str
    example: bytes
    applies: Callable[[bytes, Reading], bool]
    normalise: Callable[[Reading], Reading] | None = None


def _lower_coding(reading: Reading) -> Reading:
    headers = tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in reading.headers)
    return Reading(reading.method, reading.target, headers, reading.body, reading.size)


def _origin_form(reading: Reading) -> Reading:
    absolute = re.match(rb"(?i)https?://([^/?]*)", reading.target)
    if absolute is None:
        return reading
    target = reading.target[absolute.end() :]
    if not target:
        target = b"*" if reading.method == b"OPTIONS" else b"/"
    target = b"/" + target if target.startswith(b"?") else target
    headers = tuple((name, absolute[1] if name == b"host" else value) for name, value in reading.headers)
    if b"host" not in dict(headers):
        headers = ((b"host", absolute[1]), *headers)
    return Reading(reading.method, target, headers, reading.body, reading.size)


def _target(raw: bytes) -> bytes:
    return raw.lstrip(b"\r\n").split(b" ")[1]


DIFFERENCES = [
    Difference(
        "h11", "reports the coding in lower case; codings are case-insensitive (RFC 9112, 7)",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
        lambda raw, ours: any(name == b"transfer-encoding" and value != b"chunked" for name, value in ours.headers),
        _lower_coding,
    ),
    *(
        Difference(
            parser, "reports an absolute target as it came; we send the origin form on, and its host (RFC 9112, 3.2)",
            b"GET http://x/a HTTP/1.1\r\nHost: y\r\n\r\n",
            lambda raw, ours: _target(raw) != ours.target,
            _origin_form,
        )
        for parser in PARSERS
    ),
    Difference(
        "h11", "takes no empty line before a request; RFC 9112, 2.2 says that a server should",
        b"\r\n" + FOLLOWER,
        lambda raw, ours: raw.startswith(b"\r\n"),
    ),
    *(
        Difference(
            parser, "refuses bytes beyond ASCII in a target; clients send raw UTF-8, and the cluster reads it",
            b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda raw, ours: not _target(raw).isascii(),
        )
        for parser in PARSERS
    ),
    Difference(
        "httptools", "refuses a tab after the coding; RFC 9110, 5.5 allows it as whitespace around a value",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
        lambda raw, ours: re.search(rb"(?i)\ntransfer-encoding:[ \t]*chunked[ \t]*\t", raw) is not None,
    ),
    Difference(
        "httptools", "ends a request for an upgrade after its head; we read the body, and remove the upgrade",
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na",
        lambda raw, ours: b"upgrade" in dict(ours.headers) and ours.size > raw.index(b"\r\n\r\n", 2) + 4,
    ),
    *(
        Difference(
            parser, "refuses whitespace in a chunk extension; RFC 9112, 7.1.1 allows it. No extension is sent on",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0 ;a\r\n\r\n",
            lambda raw, ours: re.search(rb"(?m)^[0-9A-Fa-f]+[^\r\n]*[ \t]", raw.partition(b"\r\n\r\n")[2]) is not None,
        )
        for parser in PARSERS
    ),
    Difference(
        "httptools", "knows a list of methods; RFC 9110, 9.1 allows any token",
        b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda raw, ours: ours.method not in KNOWN_METHODS,
    ),
]  # fmt: skip


def check(raw: bytes) -> str:
    """Compare our reading of the first request of `raw` with the others'. Return what became of it, for statistics."""
    try:
        ours = read_ours(raw, 0)
    except Malformed as exc:
        return exc.code
    if ours is None:
        return "incomplete"
    used = raw[: ours.size]
    assert read_ours(used, 1) == ours, "byte by byte it is read differently"
    for name, read in PARSERS.items():
        expected = ours
        differences = [known for known in DIFFERENCES if known.parser == name and known.applies(used, ours)]
        try:
            other = read(used)
        except Refused as exc:
            if any(known.normalise is None for known in differences):
                continue
            raise AssertionError(f"{name} refuses {used!r}: {exc}") from exc
        for known in differences:
            if known.normalise is not None:
                expected, other = known.normalise(expected), known.normalise(other)
        assert other == expected, f"{name} reads {used!r} differently"
    return "accepted"


@pytest.mark.parametrize("pieces", [0, 1], ids=["whole", "byte by byte"])
def test_every_row_of_the_smuggling_table_is_refused(pieces: int) -> None:
    """The same rows go over sockets, through the whole gateway, in `tests/smuggling`."""
    statuses = {(row.phase, row.id): _status(row, pieces) for row in ROWS}
    expected = {(row.phase, row.id): {row.status} if row.status else REFUSED for row in ROWS}
    assert {row: status for row, status in statuses.items() if status not in expected[row]} == {}


def _status(row: Row, pieces: int) -> int | None:
    """Return the status with which a request is refused; None if it is not."""
    try:
        read_ours(row.raw + FOLLOWER, pieces)
    except Malformed as malformed:
        return malformed.rule.status
    return None


@pytest.mark.parametrize("pieces", [0, 1], ids=["whole", "byte by byte"])
def test_every_malformed_response_is_refused(pieces: int) -> None:
    """Those that need a connection, such as bytes that follow a response, are tested in `tests/smuggling`."""
    assert [f"{answer.phase}: {answer.id}" for answer in READ_IN_MEMORY if not _is_malformed(answer, pieces)] == []


def _is_malformed(answer: Answer, pieces: int) -> bool:
    try:
        read_response(answer.raw, answer.method, pieces)
    except Malformed:
        return True
    return False


@pytest.mark.parametrize("raw", SOUND.values(), ids=SOUND)
def test_sound_requests_are_read_alike(raw: bytes) -> None:
    assert check(raw + FOLLOWER) == "accepted"


@pytest.mark.parametrize("known", DIFFERENCES, ids=lambda known: f"{known.parser} {known.reason}")
def test_every_difference_is_real(known: Difference) -> None:
    ours = read_ours(known.example)
    assert ours is not None
    assert known.applies(known.example, ours)
    if known.normalise is None:
        with pytest.raises(Refused):
            PARSERS[known.parser](known.example)
    else:
        other = PARSERS[known.parser](known.example)
        assert other != ours
        assert known.normalise(other) == known.normalise(ours)


PIECES = (
    b"\n", b"\r", b"\r\n", b" ", b"\t", b"\x0b", b"\x00", b"\x7f", b"\xa0", b",", b";", b":", b'"', b"\\", b"#", b"?",
    b"0", b"5", b"A", b"0x", b"+", b"-", b"_", b"%2F", b"/", b"//", b"*", b"http://x", b"http://x:9200/", b"HTTP/1.0",
    b"\r\n\r\n", b"0\r\n\r\n", b"5\r\nabcde\r\n", b"chunked", b"identity", b"gzip, ", b"close", b"GET", b"BREW",
    b"\r\nContent-Length: 5", b"\r\nContent-Length: 0", b"\r\nContent-Length:", b"\r\nTransfer-Encoding: chunked",
    b"\r\nTransfer-Encoding:", b"\r\nConnection: close", b"\r\nConnection: upgrade\r\nUpgrade: websocket",
    b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", b"\r\nExpect: 100-continue", b"\r\nHost: x",
    b"\r\nX-A: 1", b"\r\n folded", b"\r\nTrailer: X-T", b";a=b", b';a="b;c"', FOLLOWER,
)  # fmt: skip
EDITS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 400), st.floats(0, 1, exclude_max=True)),
        st.sampled_from((0, 0, 0, 1, 2, 8)),
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=2)),
    ),
    min_size=1,
    max_size=2,
)
"""Position, number of bytes to remove, bytes to insert. A position below 1 means the end of a line, by its share of all
lines: most edits there leave a request that can be accepted."""


def mutate(raw: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Replace some bytes of a request; see `EDITS`."""
    for at, length, piece in edits:
        ends = [found.start() for found in re.finditer(rb"\r\n|\Z", raw)]
        start = ends[int(at * len(ends))] if isinstance(at, float) else at % (len(raw) + 1)
        raw = raw[:start] + piece + raw[start + length :]
    return raw


MUTABLE = st.one_of(
    st.sampled_from(list(SOUND.values())), st.sampled_from([row.raw for row in ROWS if len(row.raw) < 1000])
)


@given(MUTABLE, EDITS)
@examples(6000)
def test_mutations_are_read_alike_or_refused(raw: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    event(check(mutate(raw, edits) + FOLLOWER))


def test_a_fair_part_of_the_mutations_is_accepted() -> None:
    """The comparison would also succeed if nothing were accepted."""
    random = Random(1)
    became = Counter(
        check(mutate(raw, [(random.random(), 0, random.choice(PIECES))]) + FOLLOWER)
        for raw in SOUND.values()
        for _ in range(40)
    )
    assert became["accepted"] > 100
    assert len(became) > 10
