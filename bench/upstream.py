"""The cluster of the benchmark: as little work as possible, so that it never is what is measured.

``GET /bytes/<n>`` answers n bytes; a POST of any body (``/slow``: read at leisure, to see who buffers) a short
answer; an agent, its model and its connector are the simulator's documents. ``python -m bench.upstream <port>``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

import uvloop

from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ANSWER = b'{"inference_results":[{"output":[{"name":"response","result":"' + b"x" * 900 + b'"}]}]}'
AGENT = "bench"
EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
_SLICE = 1 << 18
_AGENTS = re.compile(rb"bench-[0-9]+$")
"""Further ids of the one agent."""


def documents() -> dict[bytes, bytes]:
    """Path → JSON of what the gateway reads of the agent `AGENT`: a 2.19 flow agent whose template takes messages."""
    core = ClusterCore("2.19.0")
    agent = core.resources.agent(seed_core(core)["flow-a"])
    model_id = agent["tools"][0]["parameters"]["model_id"]
    model = core.resources.model(model_id)
    connector_id = model["connector_id"]
    found = {
        "/": {"version": {"distribution": "opensearch", "number": "2.19.0"}},
        f"/_plugins/_ml/agents/{AGENT}": agent,
        f"/_plugins/_ml/models/{model_id}": model,
        f"/_plugins/_ml/connectors/{connector_id}": core.resources.connector(connector_id),
    }
    return {path.encode(): json.dumps(document).encode() for path, document in found.items()}


class Connection(asyncio.Protocol):
    """One connection: a request is answered once its body has come; pipelining is not expected."""

    answers: dict[bytes, bytes]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.waiting = b""
        self.left = 0
        self.chunked = self.slow = False
        transport.set_write_buffer_limits(high=_SLICE)
        self.may_write = asyncio.Event()
        self.may_write.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        if self.left or self.chunked:
            self._body(data)
            return
        data = self.waiting + data
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            self.waiting = data
            return
        self.waiting = b""
        line, *lines = head.split(b"\r\n")
        method, self.target, _ = line.split(b" ", 2)
        if method == b"GET":
            self._answer()
            return
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        self.slow = self.target == b"/slow"
        self.left = int(headers.get(b"content-length", b"0"))
        self.chunked = headers.get(b"transfer-encoding") == b"chunked"
        if rest or not (self.left or self.chunked):
            self._body(rest)

    def _body(self, data: bytes) -> None:
        self.left = max(0, self.left - len(data))
        if self.chunked and data.endswith(b"0\r\n\r\n"):
            self.chunked = False
        if not self.left and not self.chunked:
            self.transport.write(HEAD.encode() % len(ANSWER) + ANSWER)
        elif self.slow:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(len(data) / 200e6, self.transport.resume_reading)

    def _answer(self) -> None:
        known = self.answers.get(self.target) or self.answers.get(_AGENTS.sub(AGENT.encode(), self.target))
        if known is None and self.target.startswith(b"/bytes/"):
            size = int(self.target.removeprefix(b"/bytes/"))
            if size > _SLICE:
                self.stream = asyncio.get_running_loop().create_task(self._long(size))
                return
            known = self.answers[self.target] = HEAD.encode() % size + b"x" * size
        self.transport.write(known or b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async def _long(self, size: int) -> None:
        self.transport.write(HEAD.encode() % size)
        block = b"x" * _SLICE
        for start in range(0, size, _SLICE):
            await self.may_write.wait()
            self.transport.write(block[: size - start])


async def main(port: int) -> None:
    Connection.answers = {path: HEAD.encode() % len(body) + body for path, body in documents().items()}
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
