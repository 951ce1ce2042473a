"""``make bench-streams``: streams through the adapters' port, beside LiteLLM's proxy before an LLM of the same speed.

Each frame has the time at which the upstream wrote it, so what is measured is the way from there to the client. Proxies
run on one core, one at a time; load and upstream on another. Exits with 1 if a bound of the gateway's is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.open_loop import percentile
from bench.process import Process, allow_many_files, free_port
from bench.stream_upstream import AGENT, STAMP, question

ROOT = Path(__file__).parent.parent
LITELLM = ROOT / ".venv-litellm/bin/litellm"
_PATIENCE = 120.0
"""Seconds that all streams of a load may take besides their pauses."""


def chat(text: str) -> tuple[str, Any]:
    """Return path and body of a question in chat completions."""
    return "/v1/chat/completions", {"model": AGENT, "stream": True, "messages": [{"role": "user", "content": text}]}


def ag_ui(text: str) -> tuple[str, Any]:
    """Return path and body of a question in AG-UI."""
    message = {"id": "m", "role": "user", "content": text}
    return f"/ag-ui/{AGENT}", {"threadId": "t", "runId": "r", "messages": [message]}


Ask = Callable[[str], tuple[str, Any]]
"""Returns path and body of a question."""
ASKS: Mapping[str, tuple[str, Ask]] = {
    "OpenAI": ("gateway", chat),
    "AG-UI": ("gateway", ag_ui),
    "LiteLLM": ("litellm", chat),
    "direct": ("upstream", chat),
}
"""What is measured: the process, and the protocol. direct: what load and upstream take without a proxy."""


class _Stream(asyncio.Protocol):
    """One request, and when each frame of its answer came."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._tail = b""
        self.delays: list[float] = []
        """Seconds from the upstream's frame until it was here."""
        self.received = b""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(self._raw)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if not self.received:
            self.received = data[:200]
        data = self._tail + data
        end = 0
        for stamp in STAMP.finditer(data):
            self.delays.append((now - int(stamp[1])) / 1e9)
            end = stamp.end()
        self._tail = data[max(end, len(data) - 40) :]
        if self.delays and not self.begun.done():
            self.begun.set_result(None)
        if data.endswith(b"0\r\n\r\n"):
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        for one in (self.begun, self.ended):
            if not one.done():
                one.set_result(None)


class Load:
    """Streams through one port."""

    def __init__(self, port: int, ask: Ask) -> None:
        self._port, self._ask = port, ask
        self.streams: list[_Stream] = []

    async def open(self, count: int, frames: int, pause: float, spread: float = 0.0) -> None:
        """Open so many streams within `spread` seconds, and wait for the first frame of each."""
        path, document = self._ask(question(frames, pause))
        body = json.dumps(document).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer none\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        fresh = []
        for _ in range(count):
            raw = head.encode() + body
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda raw=raw: _Stream(raw),
                "127.0.0.1",
                self._port,  # type: ignore[misc]
            )
            fresh.append(stream)
            await asyncio.sleep(spread / count)
        self.streams += fresh
        async with asyncio.timeout(_PATIENCE + pause):
            await asyncio.gather(*(stream.begun for stream in fresh))

    async def end(self, frames: int, pause: float) -> int:
        """Wait until all streams have ended; return how many frames are missing."""
        async with asyncio.timeout(_PATIENCE + frames * pause):
            await asyncio.gather(*(stream.ended for stream in self.streams))
        for stream in self.streams:
            if not stream.received.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"not a 200: {stream.received!r}")
        return sum(frames - len(stream.delays) for stream in self.streams)


@dataclass
class Measured:
    """Of one column. delays: of first frames, of all frames. cpu: seconds a frame, one value a round."""

    first: list[float] = field(default_factory=list)
    every: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: float = 0.0
    """Bytes of a stream that is open."""
    lost: int = 0
    """Frames that did not come."""


class Bench:
    """One run. names: of the columns. many: streams at a time, for the memory. options: of the command line."""

    def __init__(self, folder: Path, names: Sequence[str], many: int, options: argparse.Namespace) -> None:
        self.folder, self.many = folder, many
        self.rounds, self.streams = options.rounds, options.streams
        self.frames, self.pause, self.hold = options.frames, options.pause, options.hold
        cores = sorted(os.sched_getaffinity(0))
        self.load_core, self.proxy_core = {cores[0]}, {cores[-1]}
        self.columns = {name: Measured() for name in names}
        self.upstream = free_port()

    def run(self) -> None:
        """Measure all columns."""
        os.sched_setaffinity(0, self.load_core)
        upstream = Process(
            "upstream", [sys.executable, "-m", "bench.stream_upstream", str(self.upstream)], self.upstream
        )
        running = {"upstream": upstream}
        try:
            upstream.wait_until_up()
            upstream.pin(self.load_core)
            for name in {ASKS[column][0] for column in self.columns} - {"upstream"}:
                running[name] = self._start(name)
            for number in range(-1, self.rounds):  # the first round warms up
                names = list(self.columns)
                for column in names if number % 2 else reversed(names):
                    process, ask = running[ASKS[column][0]], ASKS[column][1]
                    uvloop.run(self._times(process, ask, self.columns[column] if number >= 0 else Measured()))
                print(f"round {number + 1} of {self.rounds} done", file=sys.stderr, flush=True)
            for name in [name for name in running if name != "upstream"]:
                running.pop(name).stop()
            for column, measured in self.columns.items():
                name, ask = ASKS[column]
                if name != "upstream":
                    process = self._start(name)
                    try:
                        uvloop.run(self._memory(process, ask, measured))
                    finally:
                        process.stop()
        finally:
            for process in running.values():
                process.stop()

    def _start(self, name: str) -> Process:
        port = free_port()
        own = Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
        command, env = (self._litellm if name == "litellm" else self._gateway)(own, port)
        process = Process(name, command, port, {**env, "XDG_STATE_HOME": str(own)})
        process.wait_until_up(180)
        process.pin(self.proxy_core)
        return process

    def _gateway(self, own: Path, port: int) -> tuple[list[str], dict[str, str]]:
        command = gateway_command(self.upstream, free_port())
        connections = str(2 * self.many)  # a stream holds one as long as it is open
        return command, {"GATEWAY__LISTEN__ADAPTERS_PORT": str(port), "GATEWAY__UPSTREAM__CONNECTIONS": connections}

    def _litellm(self, own: Path, port: int) -> tuple[list[str], dict[str, str]]:
        url = f"http://127.0.0.1:{self.upstream}/v1"
        model = {"model_name": AGENT, "litellm_params": {"model": "openai/bench", "api_base": url, "api_key": "none"}}
        open_to_all = {"dangerously_permit_weak_or_unset_master_key": True}
        (own / "config.yaml").write_text(json.dumps({"model_list": [model], "general_settings": open_to_all}))
        command = [str(LITELLM), "--config", str(own / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        return command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}

    async def _times(self, process: Process, ask: Ask, measured: Measured) -> None:
        load = Load(process.port, ask)
        before = process.cpu()
        await load.open(self.streams, self.frames, self.pause, spread=self.pause * 4)
        measured.lost += await load.end(self.frames, self.pause)
        measured.cpu.append((process.cpu() - before) / (self.streams * self.frames))
        measured.first += [stream.delays[0] for stream in load.streams]
        measured.every += [delay for stream in load.streams for delay in stream.delays]

    async def _memory(self, process: Process, ask: Ask, measured: Measured) -> None:
        """How much each of many open streams takes. The first fifth uses up what is free already."""
        load, frames, pause = Load(process.port, ask), 12, self.hold
        await load.open(self.many // 5, frames, pause, spread=self.hold)
        before = process.memory()
        await load.open(self.many, frames, pause, spread=3 * self.hold)
        measured.memory = (process.memory() - before) / self.many
        measured.lost += await load.end(frames, pause)


def gateway_command(upstream: int, port: int) -> list[str]:
    """Return the command of a gateway with default settings."""
    command = [sys.executable, "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{upstream}"]
    return [*command, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{free_port()}", "--log-level", "warning"]


@dataclass
class Start:
    """A gateway that has started. seconds: until the port takes connections. modules: that are imported."""

    seconds: float
    memory: float
    modules: int


_MODULES = """
import sys
from gateway.app import build
from gateway.config.load import load
build(load(None, {"GATEWAY__LISTEN__ADAPTERS_PORT": "0"} if sys.argv[1:] else {}, {}))
print(len(sys.modules))
"""


def start(with_port: bool) -> Start:
    """Start a gateway a few times."""
    seconds, memory = [], []
    for _ in range(5):
        port, adapters = free_port(), free_port()
        env = {"GATEWAY__LISTEN__ADAPTERS_PORT": str(adapters)} if with_port else {}
        begun = time.perf_counter()
        process = Process("gateway", gateway_command(free_port(), port), adapters if with_port else port, env)
        try:
            process.wait_until_up()
            seconds.append(time.perf_counter() - begun)
            memory.append(process.memory())
        finally:
            process.stop()
    command = [sys.executable, "-c", _MODULES, *(["on"] if with_port else [])]
    modules = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return Start(statistics.median(seconds), statistics.median(memory), modules)


def report(bench: Bench, starts: Sequence[Start]) -> list[str]:
    """Return the figures as Markdown."""
    names = list(bench.columns)
    rows: dict[str, Callable[[Measured], str]] = {
        "first token, p50": lambda one: f"{percentile(one.first, 0.5) * 1e3:.2f} ms",
        "first token, p99": lambda one: f"{percentile(one.first, 0.99) * 1e3:.2f} ms",
        "any token, p99": lambda one: f"{percentile(one.every, 0.99) * 1e3:.2f} ms",
        "CPU a token": lambda one: f"{statistics.median(one.cpu) * 1e6:.0f} µs",
        f"memory a stream, {bench.many:,} open": lambda one: f"{one.memory / 1e3:.1f} KB" if one.memory else "",
        "tokens lost": lambda one: str(one.lost),
    }
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(show(bench.columns[name]) for name in names)} |" for row, show in rows.items()]
    if {"LiteLLM", "OpenAI"} <= set(names):
        lines += ["", f"LiteLLM to the gateway: {_ratios(bench.columns['LiteLLM'], bench.columns['OpenAI'])}."]
    off, on = starts
    lines += [
        "",
        "| | without the adapters' port | with it |",
        "|---|---|---|",
        f"| start | {off.seconds:.2f} s | {on.seconds:.2f} s |",
        f"| memory after it | {off.memory / 1e6:.1f} MB | {on.memory / 1e6:.1f} MB |",
        f"| imported modules | {off.modules} | {on.modules} |",
    ]
    return lines


def _ratios(theirs: Measured, ours: Measured) -> str:
    values = {
        "CPU a token": (statistics.median(one.cpu) for one in (theirs, ours)),
        "first token (p50)": (percentile(one.first, 0.5) for one in (theirs, ours)),
        "memory a stream": (one.memory for one in (theirs, ours)),
    }
    return ", ".join(f"{what} {their / our:.1f}×" for what, (their, our) in values.items())


def misses(columns: Mapping[str, Measured]) -> list[str]:
    """Return the bounds that the gateway misses."""
    found = []
    for name in [name for name in columns if ASKS[name][0] == "gateway"]:
        one = columns[name]
        values = {
            "first token, p50: 5 ms": (percentile(one.first, 0.5), 5e-3),
            "first token, p99: 20 ms": (percentile(one.first, 0.99), 20e-3),
            "memory a stream: 50 KB": (one.memory, 50e3),
            "tokens lost: 0": (one.lost, 0),
        }
        found += [f"{name}: {what}" for what, (value, most) in values.items() if value > most]
    return found


def main() -> int:
    """Measure, and print the tables; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=20, help="at a time, for the times")
    parser.add_argument("--frames", type=int, default=40, help="of a stream")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two frames of a stream")
    parser.add_argument("--many", type=int, default=1000, help="streams at a time, for the memory")
    parser.add_argument("--hold", type=float, default=3.0, help="seconds between two of the 12 frames of these")
    parser.add_argument("--only", metavar="NAMES", help=f"comma list of {', '.join(ASKS)}")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else [name for name in ASKS if name != "LiteLLM" or LITELLM.exists()]
    if unknown := set(names) - set(ASKS):
        parser.error(f"nothing is called {', '.join(sorted(unknown))}")
    many = min(args.many, allow_many_files() // 4)
    starts = [start(with_port) for with_port in (False, True)]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), names, many, args)
        bench.run()
    print("\n".join(report(bench, starts)))
    missed = misses(bench.columns)
    print("\n" + ("missed: " + "; ".join(missed) if missed else "all bounds are kept"))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
