"""One client's odd request never harms another's, though both pass on the same connection to the cluster.

Facts about OpenSearch 3.6.0 (netty), measured: once it answers an expectation with 417, it reads the body that follows
as the next request; once it answers a head above its limits (8 KB of headers, 4 KB of request line) with 400, it hears
nothing more on that connection. Behind either the gateway may not use the connection again.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import StartGateway
from tests.exactness.conftest import Deployment
from tests.exactness.recorder import take
from tests.exactness.table import get, post
from tests.proxy.use_case import UseCase
from tests.smuggling.endpoints import answers_in, converse, whole
from tests.wire import OK, Parsed, RecordingUpstream, read_message

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
SOUND = get(b"/_cluster/health?filter_path=status", b"Connection: close")
LENGTH = b"Content-Length: %d" % len(SMUGGLED)

REQUESTS = {
    "an expectation, refused": post(b"Expect: the-unexpected", LENGTH, body=SMUGGLED),
    "an expectation in odd case": post(b"eXPECT: The-Unexpected", LENGTH, body=SMUGGLED),
    "two expectations": post(b"Expect: 100-continue", b"Expect: more", LENGTH, body=SMUGGLED),
    "100-continue and a body above the cluster's limit": post(
        b"Expect: 100-continue", b"Content-Type: application/json", b"Content-Length: 2147483648", body=SMUGGLED
    ),
    "headers above the cluster's limit": get(b"/", b"X-A: " + b"v" * 60_000),
    "many headers above the cluster's limit": get(b"/", *[b"X-A: " + b"v" * 900] * 20),
    "a target above the cluster's limit": get(b"/" + b"a" * 60_000),
}


@pytest.mark.real_cluster
@pytest.mark.parametrize("raw", REQUESTS.values(), ids=REQUESTS.keys())
async def test_the_next_request_gets_its_own_answer(raw: bytes, deployment: Deployment) -> None:
    expected, _ = await converse(deployment.cluster, SOUND, whole)
    closing = raw.replace(b"\r\nHost:", b"\r\nConnection: close\r\nHost:", 1)
    await converse(deployment.gateway.port, closing, whole)
    for _ in range(3):
        came, _ = await converse(deployment.gateway.port, SOUND, whole)
        assert came, "no answer"
        answer = take(came, 0)[0]
        assert (answer.line, answer.body) == (take(expected, 0)[0].line, take(expected, 0)[0].body)


async def netty(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Like OpenSearch: 417 to an expectation, whose body is then read as requests, which take their time."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0]
        upstream.requests.append(Parsed(line, (), b""))
        if b"\r\nexpect:" in head.lower():
            writer.write(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
            continue
        if b"/smuggled" in line:
            await asyncio.sleep(0.1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(line), line))


@pytest.mark.parametrize("name", ["an expectation, refused", "an expectation in odd case", "two expectations"])
async def test_a_body_that_the_cluster_takes_for_a_request(name: str, start_gateway: StartGateway) -> None:
    async with RecordingUpstream(script=netty) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = REQUESTS[name].replace(b"\r\nHost:", b"\r\nConnection: close\r\nHost:", 1)
        came, _ = await converse(gateway.data_port, raw, whole)
        assert came.startswith((b"HTTP/1.1 417 ", b"HTTP/1.1 400 "))
        for _ in range(3):
            came, _ = await converse(gateway.data_port, get(b"/sound", b"Connection: close"), whole)
            assert [answer.body for answer in await answers_in(came)] == [b"GET /sound HTTP/1.1"]


async def test_a_sound_expectation_keeps_the_connection(start_gateway: StartGateway) -> None:
    """The rule is not to throw every connection away."""

    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"Expect" in head:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await reader.readexactly(3)
            writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = post(b"Expect: 100-continue", b"Content-Length: 3", b"Connection: close", body=b"abc")
        for request in (raw, get(b"/", b"Connection: close"), raw):
            came, _ = await converse(gateway.data_port, request, whole)
            assert came.endswith(b"ok")
        assert upstream.connections == 1


async def test_a_head_that_the_cluster_refuses_ends_the_connection(start_gateway: StartGateway) -> None:
    async def deaf(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Like OpenSearch: hears nothing more behind a head that is too long."""
        while True:
            head = await read_message(reader)
            if sum(len(name) + len(value) for name, value in head.headers) > 8192:
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                await reader.read()
                return
            writer.write(OK)

    async with RecordingUpstream(script=deaf) as upstream:
        gateway = await start_gateway(upstream.url, UseCase())
        raw = get(b"/", b"Connection: close", b"X-A: " + b"v" * 60_000)
        came, _ = await converse(gateway.data_port, raw, whole)
        assert came.startswith(b"HTTP/1.1 400 ")
        came, _ = await converse(gateway.data_port, get(b"/", b"Connection: close"), whole)
        assert came.endswith(b"ok")
