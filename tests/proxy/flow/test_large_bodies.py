"""Large rewritten bodies are sent a part at a time, whole and in order, however fast the cluster reads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ports import Forward
from gateway.upstream import connection
from gateway.upstream.connection import LargeBody
from tests.conftest import StartGateway
from tests.faults.upstream import settled
from tests.proxy.use_case import UseCase
from tests.wire import OK, RecordingUpstream, read_message, send_request

EXECUTE = b"POST /_plugins/_ml/agents/a/_execute HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{}"
BODY = random.Random(1).randbytes(12_000_000)
PIECES = (BODY[:10], memoryview(BODY)[10:-3], BODY[-3:])
REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"


class Transport(asyncio.WriteTransport):
    """What was written to it, by turns of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[bytes] = [b""]

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.turns[-1] += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return False


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20), st.lists(st.sampled_from(["pause", "resume"])))
def test_a_turn_of_the_loop_writes_one_part(pieces: list[bytes], part: int, calls: list[str]) -> None:
    async def run() -> list[bytes]:
        transport = Transport()
        body = LargeBody(transport, pieces)
        body.write()
        for call in [*calls, "resume"]:
            getattr(body, call)()
            transport.turns.append(b"")
            await asyncio.sleep(0)
        while not body.is_written:
            transport.turns.append(b"")
            await asyncio.sleep(0)
        return transport.turns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_PART", part)
        turns = asyncio.run(run())
    assert b"".join(turns) == b"".join(pieces)
    assert max(map(len, turns)) <= 2 * part  # one when it was resumed, and the next one of the same turn


async def test_a_cluster_that_reads_slowly_gets_all(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()
    got: list[bytes] = []

    async def script(_: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await go_on.wait()
            got.append(await reader.readexactly(len(BODY)))
            writer.write(OK)

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(PIECES)))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.data_port)
        writer.write(EXECUTE)
        assert await settled(lambda: any(connection.stalled for connection in gateway.upstream._connections))
        go_on.set()
        assert (await read_message(reader)).body == b"ok"
        writer.write(EXECUTE)
        assert (await read_message(reader)).body == b"ok"
        writer.close()
    assert got == [BODY, BODY]
    assert upstream.connections == 1


async def test_after_an_early_answer_the_connection_takes_no_other_request(start_gateway: StartGateway) -> None:
    async def script(upstream: RecordingUpstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if upstream.connections > 1:
            await read_message(reader)
            writer.write(OK)
            return
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REFUSED)
        await upstream.gone.wait()

    async with RecordingUpstream(script=script) as upstream:
        gateway = await start_gateway(upstream.url, UseCase(Forward(PIECES)))
        assert (await send_request(gateway.data_port, EXECUTE)).body == b"no"
        assert (await send_request(gateway.data_port, EXECUTE)).body == b"ok"
        assert upstream.connections == 2
        upstream.gone.set()
