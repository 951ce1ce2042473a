"""Load: requests over kept connections, counted. ``wrk`` where it is installed, else a small generator of our own."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

CONNECTIONS = 16
# What opensearch-py sends with each request.
HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "opensearch-py/3.0.0 (Python 3.11.7)",
    "Connection": "keep-alive",
}
TURN = 0.05
"""Seconds. A machine's speed hardly changes from one turn to the next, as it does from one second to the next."""
_DONE = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)\b")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_FAULT = re.compile(r"(Non-2xx.*|Socket errors:.*)")


@dataclass(frozen=True)
class Ask:
    """A request: GET of `path`, or with a body its POST. headers: besides `HEADERS`."""

    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self) -> bytes:
        """The bytes on the wire."""
        method = "POST" if self.body else "GET"
        head = f"{method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, **self.headers}.items())
        if self.body:
            head += f"Content-Length: {len(self.body)}\r\n"
        return f"{head}\r\n".encode() + self.body


Load = Ask | Sequence[Ask]
"""One request, or several in rotation."""


def many(port: int, ask: Load, seconds: float, core: set[int], folder: Path, connections: int = CONNECTIONS) -> int:
    """Send `ask` over `connections` for some seconds; the number of answers. Raises RuntimeError on any fault."""
    return counted(port, ask, seconds, core, folder, connections)[0]


def counted(
    port: int,
    ask: Load,
    seconds: float,
    core: set[int],
    folder: Path,
    connections: int = CONNECTIONS,
    rate: float = 0.0,
) -> tuple[int, float]:
    """As `many`; the number of answers, and the seconds in which they came.

    rate: requests a second, at most; 0: as many as are answered.
    """
    wrk = shutil.which("wrk")
    if wrk is None or rate or not isinstance(ask, Ask):
        return in_turns([port], ask, seconds, connections, rate)[0], seconds
    script = folder / "ask.lua"
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in {**HEADERS, **ask.headers}.items()]
    if ask.body:
        lines += ['wrk.method = "POST"', f"wrk.body = [==[{ask.body.decode()}]==]"]
    script.write_text("\n".join(lines))
    pinned = ["taskset", "-c", ",".join(map(str, core))] if shutil.which("taskset") else []
    options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "20s", "-s", str(script)]
    url = f"http://127.0.0.1:{port}{ask.path}"
    output = subprocess.run([*pinned, wrk, *options, url], capture_output=True, text=True, check=True).stdout
    if fault := _FAULT.search(output):
        raise RuntimeError(f"{ask.path}: {fault[1]}")
    done = _DONE.search(output)
    assert done is not None
    return int(done[1]), float(done[2]) * _UNITS[done[3]]


def in_turns(ports: Sequence[int], ask: Load, seconds: float, connections: int, rate: float) -> list[int]:
    """As `counted`, at several ports in short turns; the number of answers of each. seconds: for each."""
    places = ",".join(map(str, ports))
    command = [sys.executable, "-m", "bench.load", places, str(seconds), str(connections), str(rate)]
    asks = [ask] if isinstance(ask, Ask) else ask
    raws = json.dumps([one.raw().decode("latin-1") for one in asks]).encode()
    completed = subprocess.run(command, input=raws, capture_output=True, check=True)
    return [*map(int, completed.stdout.split())]


class Clock(Protocol):
    """The part of an event loop that is used."""

    def time(self) -> float:
        """Seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        """Call at a time."""


class Turns:
    """The turns of one of several ports, each of which gets requests for `TURN` seconds at a time.

    Its time counts these turns only. start: of the first port's. number: of the port, from 0 on. ports: how many.
    """

    def __init__(self, loop: Clock, start: float, number: int, ports: int) -> None:
        self._loop = loop
        self._start = start + number * TURN
        self._cycle = ports * TURN

    def now(self) -> float:
        """Its time."""
        cycles, rest = divmod(self._loop.time() - self._start, self._cycle)
        return cycles * TURN + min(rest, TURN)

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call at a point of its time."""
        turns, rest = divmod(when, TURN)
        self._loop.call_at(self._start + turns * self._cycle + rest, callback)


class _Client(asyncio.Protocol):
    """One connection that asks again as soon as the answer is whole (it must give its length)."""

    def __init__(
        self, raws: Iterator[bytes], tally: list[int], first: asyncio.Event, turns: Turns, pause: float = 0.0
    ) -> None:
        self.raws = raws
        self.tally = tally
        self.first = first
        """Set with the first answer, or the end of the connection."""
        self.turns = turns
        self.pause = pause
        """Seconds from one request to the next; 0: the next one follows its answer, whosever turn it is."""
        self.due = 0.0
        self.head = b""
        self.left = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.due = max(self.turns.now(), 0.0) + self.pause * random.random()
        self.ask()

    def ask(self) -> None:
        """Send the next request when it is due."""
        if not self.pause:
            self._send()
            return
        self.turns.call_at(self.due, self._send)
        self.due = max(self.due + self.pause, self.turns.now())

    def _send(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(next(self.raws))

    def data_received(self, data: bytes) -> None:
        if not self.left:
            self.head += data
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            self.head = b""
            self.left, data = length(head), body
        self.left -= len(data)
        if self.left == 0:
            self.tally[0] += 1
            self.first.set()
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.tally[1] += 1
        self.first.set()


_FIRST_ANSWER = 60.0
"""Seconds that a load lasts at most until each port has answered once, which on a busy machine takes longer than some
loads."""


async def _own(ports: Sequence[int], raws: Sequence[bytes], seconds: float, connections: int, rate: float) -> list[int]:
    loop = asyncio.get_running_loop()
    tallies, first = [[0, 0] for _ in ports], [asyncio.Event() for _ in ports]
    pause = connections / rate if rate else 0.0
    made = []
    start = loop.time()
    for number, port in enumerate(ports):
        turns = Turns(loop, start, number, len(ports))
        client = partial(_Client, itertools.cycle(raws), tallies[number], first[number], turns, pause)
        made += [await loop.create_connection(client, "127.0.0.1", port) for _ in range(connections)]
    await asyncio.sleep(seconds * len(ports))
    async with asyncio.timeout(_FIRST_ANSWER):
        for one in first:
            await one.wait()
    if cut := sum(tally[1] for tally in tallies):
        raise RuntimeError(f"{cut} connections were cut")
    for transport, _ in made:
        transport.abort()
    return [tally[0] for tally in tallies]


def length(head: bytes) -> int:
    """The length of a body as the head of a 200 says it; raises RuntimeError for any other answer."""
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not a 200: {head[:200]!r}")
    found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if found is None:
        raise RuntimeError("an answer without its length")
    return int(found[1])


class Connection:
    """One kept connection, blocking, for latencies and big bodies."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.socket.close()

    def exchange(self, raw: bytes, pause: float = 0.0) -> int:
        """Send a request, read the whole answer; its length. pause: seconds to wait after each 256 KiB of it."""
        self.socket.sendall(raw)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._some()
        head, _, body = data.partition(b"\r\n\r\n")
        size = length(head)
        left = size - len(body)
        while left:
            left -= len(self._some())
            if pause:
                time.sleep(pause)
        return size

    def _some(self) -> bytes:
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the connection was cut")
        return data

    def median(self, raw: bytes, times: int) -> float:
        """Seconds from request to whole answer, the median of `times` after some that don't count."""
        for _ in range(times // 5 + 1):
            self.exchange(raw)
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            self.exchange(raw)
            taken.append(time.perf_counter() - start)
        return sorted(taken)[times // 2]


if __name__ == "__main__":
    import uvloop

    places, duration, number, rate = sys.argv[1:]
    each = [*map(int, places.split(","))]
    asked = [text.encode("latin-1") for text in json.load(sys.stdin)]
    print(*uvloop.run(_own(each, asked, float(duration), int(number), float(rate))))
