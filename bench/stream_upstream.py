"""The cluster of the benchmark of streams, and an LLM with OpenAI's API: ``python -m bench.stream_upstream <port>``.

A request says how its answer comes: the words ``frames=50 pause=0.05`` in its body give the number of frames, and the
seconds between two. The text of each frame is the time at which it was written, as `STAMP` finds it, so that the
reader knows how long it took.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

import uvloop

from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core

AGENT = "benchbenchbenchbench"
"""As long as an id that a cluster makes."""
STAMP = re.compile(rb"<(\d+)>")
_ASKED = re.compile(rb"frames=(\d+) pause=([\d.]+)")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
_EVENTS = _HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked")


def question(frames: int, pause: float) -> str:
    """Return what to ask for so many frames, and so many seconds between two."""
    return f"frames={frames} pause={pause}"


def stamp() -> str:
    """Return the time as the text of a frame. The clock is the same in all processes of the machine."""
    return f"<{time.monotonic_ns()}>"


def documents() -> dict[bytes, bytes]:
    """Path → JSON of what the gateway reads of the agent `AGENT`: one of 3.6 that streams, and calls functions."""
    core = ClusterCore("3.6.0")
    agent = core.resources.agent(seed_core(core)["fc-openai_tutorial"])
    model = core.resources.model(agent["llm"]["model_id"])
    connector_id = model["connector_id"]
    found = {
        "/": {"version": {"distribution": "opensearch", "number": "3.6.0"}},
        f"/_plugins/_ml/agents/{AGENT}": agent,
        f"/_plugins/_ml/models/{agent['llm']['model_id']}": model,
        f"/_plugins/_ml/connectors/{connector_id}": core.resources.connector(connector_id),
    }
    return {path.encode(): json.dumps(document).encode() for path, document in found.items()}


def _cluster_event(text: str, is_last: bool) -> Any:
    response = {"name": "response", "dataAsMap": {"content": text, "is_last": is_last}}
    return {"inference_results": [{"output": [{"name": "memory_id", "result": "m"}, response]}]}


def _chunk(text: str, is_last: bool) -> Any:
    delta = {} if is_last else {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if is_last else None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}


class Connection(asyncio.Protocol):
    """One connection; pipelining is not expected."""

    answers: dict[bytes, bytes]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.received = b""
        self.stream: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not end or len(body) < int(length[1] if length else 0):
            return
        self.received = b""
        method, target, _ = head.split(b" ", 2)
        if method == b"POST":
            asked = _ASKED.search(body)
            assert asked is not None, body
            is_openai = target.endswith(b"/completions")
            self.stream = asyncio.get_running_loop().create_task(self._send(is_openai, int(asked[1]), float(asked[2])))
            return
        answer = self.answers.get(target.partition(b"?")[0], b"{}")
        self.transport.write(_HEAD % (b"application/json", b"Content-Length: %d" % len(answer)) + answer)

    async def _send(self, is_openai: bool, frames: int, pause: float) -> None:
        """Send a stream: its head, and each frame after a pause."""
        write = _chunk if is_openai else _cluster_event
        self.transport.write(_EVENTS)
        for _ in range(frames):
            await asyncio.sleep(pause)
            self._event(json.dumps(write(stamp(), False)))
        self._event(json.dumps(write("", True)))
        if is_openai:
            self._event("[DONE]")
        self.transport.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        event = b"data: %b\n\n" % data.encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))


async def main(port: int) -> None:
    Connection.answers = documents()
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
