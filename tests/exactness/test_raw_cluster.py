"""What clients never send, on raw sockets to a real OpenSearch 3.6.0: the answers direct and through the gateway.

Compared: status and reason, header multiset less what ends at each hop and Date, body (`compare.masked`). The version
in the status line is the hop's own (RFC 9110, 2.5).
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.exactness.compare import masked, visible
from tests.exactness.conftest import Deployment, Ledger
from tests.exactness.recorder import take
from tests.exactness.table import PACKED, REQUESTS, get, post, request
from tests.smuggling.endpoints import converse, whole
from tests.wire import Parsed

pytestmark = [pytest.mark.real_cluster, pytest.mark.asyncio(loop_factories=["asyncio"])]

JSON = b"Content-Type: application/json"
MATCH_ALL = b'{"query":{"match_all":{}}}'
LENGTH = b"Content-Length: %d" % len(MATCH_ALL)
SEARCH = b"/i/_search?filter_path=hits.hits._source"

OWN = {
    "a document": get(b"/i/_doc/1"),
    "a document, pretty": get(b"/i/_doc/1?pretty"),
    "a document in YAML": get(b"/i/_doc/1?format=yaml"),
    "a document, packed": get(b"/i/_doc/long", b"Accept-Encoding: gzip"),
    "a document, deflated": get(b"/i/_doc/long", b"Accept-Encoding: deflate"),
    "a document in CBOR": get(b"/i/_doc/1", b"Accept: application/cbor"),
    "head of a document": request(b"HEAD /i/_doc/1 HTTP/1.1"),
    "head of a missing document": request(b"HEAD /i/_doc/none HTTP/1.1"),
    "head of the root": request(b"HEAD / HTTP/1.1"),
    "opaque id": get(b"/", b"X-Opaque-Id: caf\xe9 7"),
    "search in a GET's body": get(SEARCH, JSON, LENGTH, body=MATCH_ALL),
    "search in a GET's chunks": get(
        SEARCH, JSON, b"Transfer-Encoding: chunked", body=b"1A\r\n%b\r\n0\r\n\r\n" % MATCH_ALL
    ),
    "search in chunks with extensions and trailers": post(
        JSON,
        b"Transfer-Encoding: chunked",
        body=b'6;a;b="c d"\r\n%b\r\n14;c\r\n%b\r\n0\r\nX-T: 1\r\n\r\n' % (MATCH_ALL[:6], MATCH_ALL[6:]),
        target=SEARCH,
    ),
    "search, packed": post(
        JSON, b"Content-Encoding: gzip", b"Content-Length: %d" % len(PACKED), body=PACKED, target=SEARCH
    ),
    "search without a type": post(LENGTH, body=MATCH_ALL, target=SEARCH),
    "search of another type": post(b"Content-Type: text/plain", LENGTH, body=MATCH_ALL, target=SEARCH),
    "search with two types": post(JSON, b"Content-Type: application/yaml", LENGTH, body=MATCH_ALL, target=SEARCH),
    "search in the query": get(
        b"/i/_search?source=%7B%22size%22:1%7D&source_content_type=application/json&filter_path=_x"
    ),
    "a wrong method": request(b"DELETE /_search HTTP/1.1"),
    "a wrong parameter": get(b"/i/_search?nonsense=1"),
    "an expectation it can't meet": post(b"Expect: the-unexpected", LENGTH, body=MATCH_ALL, target=SEARCH),
    "options of another origin": request(
        b"OPTIONS /i/_search HTTP/1.1", b"Origin: http://x", b"Access-Control-Request-Method: GET"
    ),
    "a percent-encoded index": get(b"/%69/_doc/%31"),
    "a document with a slash": get(b"/i/_doc/a%2Fb"),
    "a document with a raw UTF-8 id": get("/i/_doc/größe".encode()),
    "a document with an encoded id": get(b"/i/_doc/gr%C3%B6%c3%9fe"),
    "a document with a plus": get(b"/i/_doc/a+b"),
    "a document behind dot segments": get(b"/x/../i/_doc/1"),
    "a document behind slashes": get(b"//i///_doc//1"),
    "a document, semicolon": get(b"/i/_doc/1;x=y"),
    "cat": get(b"/_cat/count/i?h=count"),
}
UNANSWERED = {
    "a method of our own": REQUESTS["a method of our own"],
    "a method in lower case": REQUESTS["a method in lower case"],
    "labelled packed": post(JSON, b"Content-Encoding: gzip", LENGTH, body=MATCH_ALL, target=SEARCH),
}
"""To these OpenSearch closes the connection without an answer."""

ELSEWHERE = UNANSWERED.keys() | {
    "http/1.0 that keeps alive",  # the connection stays open, direct and through: `test_loopback` has it
    "chunks with extensions",  # netty refuses `a=b`, which RFC 9112, 7.1.1 allows; extensions end at the gateway
    "delete",  # of the index itself
    "labelled gzip",  # as in `UNANSWERED`
}
RAW = {name: raw for name, raw in (REQUESTS | OWN).items() if name not in ELSEWHERE}


@pytest.fixture(scope="module")
def index(deployment: Deployment) -> Iterator[None]:
    """An index `i` with a few documents; the same before each run, gone behind it."""

    def call(method: str, path: str, body: object = None) -> None:
        raw = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{deployment.cluster}{path}"
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, raw, headers, method=method), timeout=30) as answer:
            assert answer.status < 300

    call("DELETE", "/i?ignore_unavailable=true")
    call("PUT", "/i", {"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": "false"}})
    for id in ("1", "a%2Fb", "gr%C3%B6%C3%9Fe", "a%2Bb", "a%20b"):
        call("PUT", f"/i/_doc/{id}?refresh=true", {"id": id})
    call("PUT", "/i/_doc/long?refresh=true", {"words": "many words " * 500})
    yield
    call("DELETE", "/i")


async def ask(port: int, raw: bytes) -> Parsed:
    """The answer to one request, the connection closed behind it where the request allows to say so."""
    head, end, body = raw.partition(b"\r\n\r\n")
    closing = head if b"HTTP/1.0" in head or b"\r\nConnection:" in head else head + b"\r\nConnection: close"
    bodyless = raw.startswith(b"HEAD")

    def is_whole(came: bytes) -> bool:
        with contextlib.suppress(ValueError):  # a part is missing
            answer, at = take(came, 0, bodyless=bodyless)
            expected_body = answer.values("content-length") or answer.values("transfer-encoding")
            return len(came) >= at and (bodyless or bool(expected_body))
        return False

    # Not to its end: the cluster keeps some connections whose head it refused.
    came, _ = await converse(port, closing + end + body, whole, is_whole)
    answer, rest = take(came, 0, bodyless=bodyless, to_end=True)
    assert came[rest:] == b""
    return answer


def comparable(answer: Parsed) -> Parsed:
    """A version of the status line is the hop's; ids and counts of what a row itself wrote are the cluster's."""
    bare = masked(visible(answer))
    return Parsed(bare.line.partition(b" ")[2], bare.headers, bare.body)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("name", RAW)
async def test_the_same_answer_direct_and_through(name: str, deployment: Deployment, ledger: Ledger) -> None:
    direct = comparable(await ask(deployment.cluster, RAW[name]))
    assert comparable(await ask(deployment.gateway.port, RAW[name])) == direct
    ledger.add("raw sockets", 1)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("raw", UNANSWERED.values(), ids=UNANSWERED.keys())
async def test_no_answer_direct_is_502_through(raw: bytes, deployment: Deployment, ledger: Ledger) -> None:
    assert await converse(deployment.cluster, raw, whole) == (b"", True)
    came, _ = await converse(deployment.gateway.port, raw, whole, lambda came: came.endswith(b"}"))
    assert take(came, 0)[0].line == b"HTTP/1.1 502 Bad Gateway"
    ledger.add("raw sockets, no answer", 1)


@pytest.mark.usefixtures("index")
async def test_pipelined_answers_are_the_same(deployment: Deployment, ledger: Ledger) -> None:
    names = ["a document", "head of a document", "search in a GET's body", "a wrong method", "cat"]
    last = get(b"/i/_doc/none", b"Connection: close")
    raw = b"".join(OWN[name] for name in names) + last
    runs = []
    for port in (deployment.cluster, deployment.gateway.port):
        came, closed = await converse(port, raw, whole)
        assert closed
        at, answers = 0, []
        for name in [*names, "last"]:
            answer, at = take(came, at, bodyless=name.startswith("head"))
            answers.append(comparable(answer))
        assert at == len(came)
        runs.append(answers)
    assert runs[0] == runs[1]
    ledger.add("raw sockets, pipelined", len(runs[0]))


@pytest.mark.usefixtures("index")
async def test_expect_100_continue_is_the_same(deployment: Deployment, ledger: Ledger) -> None:
    raw = post(JSON, b"Expect: 100-continue", LENGTH, b"Connection: close", body=MATCH_ALL, target=SEARCH)
    runs = []
    for port in (deployment.cluster, deployment.gateway.port):
        came, _ = await converse(port, raw, whole)
        interim, at = take(came, 0, bodyless=True)
        answer, _ = take(came, at)
        runs.append((interim.line, comparable(answer)))
    assert runs[0] == runs[1]
    assert runs[0][0] == b"HTTP/1.1 100 Continue"
    ledger.add("raw sockets, 100-continue", 1)
