"""``make soak``: a mix of requests at a bounded rate for minutes; does the gateway answer rightly, and stay level?

``python -m bench.soak --minutes 10``. The gateway is a process of its own; the cluster before which it stands is the
simulator for what concerns agents, and the faulty cluster of ``tests/faults`` for all else. Memory and descriptors are
sampled every few seconds. A table on a terminal, JSON where the output goes elsewhere; exit status 1 when an answer was
wrong or something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trustme
import uvloop

from bench.process import PROC, Process, free_port
from gateway.simulator.core import ClusterCore
from gateway.simulator.fixtures import seed_core
from gateway.simulator.handlers import Request as SimulatorRequest
from gateway.simulator.llm import LlmEndpoints
from gateway.simulator.rest import respond
from tests.faults import upstream as faulty
from tests.faults.client import Ask, Client
from tests.faults.mix import LASTING, QUICK, Mix

RATE = 400.0
"""Requests a second: on a common machine, less than 30 % of a core for the gateway."""
CLIENTS = 24
SHARE = 0.02
"""Of requests that the cluster fails in some way."""
GONE = 0.02
"""Of clients that go away in the middle."""
MEMORY, DESCRIPTORS = 2e6, 10.0
"""The most that a line through the samples of the last half may rise: bytes, and number of open descriptors."""
_SECONDS = {"header": 2, "idle": 2, "execute": 2, "connect": 2}
_AGENTS = b"/_plugins/_ml/agents/"
_BULK = b'{"index":{"_index":"i"}}\n{"title":"a","text":"The quick brown fox."}\n' * 3_000
_IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + random.Random(3).randbytes(60_000)).decode()
_BROKEN = [name for name in QUICK if faulty.WHOLE not in faulty.FAULTS[name].seen]
"""Faults that a whole answer can't come with."""


class Connection(faulty.Connection):
    """The faulty cluster's, but for agents: those are the simulator's."""

    upstream: Cluster

    def whole(self, request: faulty.Request, *more: bytes) -> None:
        if request.target == b"/" or request.target.startswith(b"/_plugins/"):
            self.send(self.upstream.simulated(request))
        else:
            super().whole(request, *more)


class Cluster(faulty.FaultyUpstream):
    """agent: an agent's id. answers: by `X-Id`, what runs of it answered. lost: those whose LLM got something else."""

    protocol = Connection

    def __init__(self) -> None:
        super().__init__()
        self._core = ClusterCore("2.19.0")
        self._llm = LlmEndpoints(strict=True)
        self.agent = seed_core(self._core)["flow-a"].encode()
        self.answers: dict[bytes, bytes] = {}
        self.lost: list[bytes] = []

    def simulated(self, request: faulty.Request) -> bytes:
        """The simulator's whole answer, head and body."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        serve = respond(
            self._core, SimulatorRequest(request.method.decode(), request.target.decode(), headers, request.body)
        )
        try:
            call = next(serve)
            while True:
                call = serve.send(self._llm(call))
        except StopIteration as end:
            status, body = end.value.status, json.dumps(end.value.body).encode()
        if request.target.endswith(b"/_execute"):
            self._judge(request.headers.get(b"x-id", b""), status, body)
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % (status, len(body)) + body

    def _judge(self, id: bytes, status: int, body: bytes) -> None:
        arrived = json.dumps(self._llm.received)
        self._llm.received.clear()
        wanted = [f"[{id.decode()}]", *([_IMAGE] if id.endswith(b"image") else [])]
        if status != 200 or not all(part in arrived for part in wanted):
            self.lost.append(id)
        self.answers[id] = body


class Run(Ask):
    """An `_execute`: right is what the cluster answered to it, which is checked there."""

    answers: dict[bytes, bytes]

    def head(self) -> bytes:
        return super().head()[:-2] + b"Content-Type: application/json\r\n\r\n"

    def right(self) -> bytes:
        return self.answers.pop(self.id, b"")


class TlsClient(Client):
    """A client over TLS. context: None for none."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__(port)
        self._context = context

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._pair is None and self._context is not None:
            host = "127.0.0.1"
            self._pair = await asyncio.open_connection(host, self._port, ssl=self._context, server_hostname=host)
        return await super().connected()


@dataclass
class Soak(Mix):
    """The mix. asked: how many of each kind; rate: requests a second; context: of clients that use TLS."""

    rate: float = RATE
    context: ssl.SSLContext | None = None
    asked: Counter[str] = field(default_factory=Counter)

    def draw(self) -> Ask:
        """The next request."""
        self._number += 1
        draw = self._random
        kind = draw.choices(
            ("GET 1 KB", "GET 100 KB", "bulk", "execute text", "execute image", "streamed", "HTTP/1.0"),
            (40, 12, 12, 15, 5, 12, 4),
        )[0]
        fault = ""
        if draw.random() < self.share:
            fault = draw.choice(LASTING if draw.random() < 0.05 else _BROKEN if kind.startswith("execute") else QUICK)
        self.asked[f"{kind}, failing" if fault else kind] += 1
        id = b"%d-%d" % (self.seed, self._number)
        match kind:
            case "GET 1 KB":
                return Ask(id, fault=fault, size=1_000)
            case "GET 100 KB":
                return Ask(id, fault=fault, size=100_000)
            case "bulk":
                self._once.add(id)
                return Ask(id, b"POST", b"/_bulk", _BULK, fault, 1_000, chunked=draw.random() < 0.5)
            case "streamed":
                return Ask(id, fault=fault or "slow bytes", size=4_000)
            case "HTTP/1.0":
                return Ask(id, fault=fault, size=1_000, version=b"1.0")
        id += kind.removeprefix("execute ").encode()
        self._once.add(id)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": f"What is it? [{id.decode()}]"}]
        if kind.endswith("image"):
            source = {"type": "base64", "format": "png", "data": _IMAGE}
            blocks.insert(0, {"type": "image", "source": source})
        assert isinstance(self.upstream, Cluster)
        target = _AGENTS + self.upstream.agent + b"/_execute"
        run = Run(id, b"POST", target, json.dumps({"input": blocks}).encode(), fault)
        object.__setattr__(run, "answers", self.upstream.answers)
        return run

    async def drive(self, until: float, least: int) -> None:
        """Ask until then, and at least so many times."""
        self._next = time.monotonic()
        await asyncio.gather(*(self._paced(until, least) for _ in range(CLIENTS)))

    async def _paced(self, until: float, least: int) -> None:
        client = TlsClient(self.port, self.context)
        while (at := max(self._next, time.monotonic() - 1)) < until or self.asked.total() < least:
            self._next = at + 1 / self.rate
            await asyncio.sleep(at - time.monotonic())
            ask = self.draw()
            if self._random.random() < GONE:
                await self._leave(client, ask)
            else:
                self._judge(ask, (await client.ask(ask)).verdict(ask))
        client.close()


@dataclass(frozen=True)
class Sample:
    """second: since the start. memory: resident bytes; descriptors: open; requests: asked so far; cpu: of a core."""

    second: float
    memory: int
    descriptors: int
    requests: int
    cpu: float


def rise(points: Sequence[tuple[float, float]]) -> float:
    """How much the least-squares line through the points rises from the first to the last."""
    if len(points) < 2:
        return 0.0
    middle = sum(x for x, _ in points) / len(points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = sum((x - middle) * y for x, y in points) / spread
    return slope * (points[-1][0] - points[0][0])


def verdict(samples: Sequence[Sample], wrong: int) -> tuple[dict[str, float], list[str]]:
    """What the last half of the samples rose by, and what is not as it must be."""
    half = samples[len(samples) // 2 :]
    rises = {
        "memory": rise([(one.second, one.memory) for one in half]),
        "descriptors": rise([(one.second, one.descriptors) for one in half]),
    }
    faults = [f"{wrong} wrong answers"] if wrong else []
    faults += [
        f"{name} rose" for name, most in (("memory", MEMORY), ("descriptors", DESCRIPTORS)) if rises[name] > most
    ]
    return rises, faults


def _started(cluster: Cluster, folder: Path, authority: trustme.CA | None) -> Process:
    port = free_port()
    listen: dict[str, Any] = {"data_port": port, "admin_port": 0}
    if authority is not None:
        leaf = authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "gateway.pem"))
        listen["tls"] = {"cert_file": str(folder / "gateway.pem")}
    upstream = {"url": cluster.url, "timeouts": _SECONDS}
    settings = folder / "gateway.yaml"
    settings.write_text(json.dumps({"listen": listen, "upstream": upstream, "logs": {"level": "error"}}))
    return Process("gateway", [sys.executable, "-m", "gateway", "serve", "-c", str(settings)], port)


async def soak(
    seconds: float, least: int, every: float, rate: float, tls: bool, folder: Path
) -> tuple[Soak, list[Sample]]:
    """Run the mix for so long, and for at least so many requests; it, and the samples."""
    authority = trustme.CA() if tls else None
    context = ssl.create_default_context() if tls else None
    if authority is not None and context is not None:
        authority.configure_trust(context)
    async with Cluster() as cluster:
        process = _started(cluster, folder, authority)
        try:
            await asyncio.to_thread(process.wait_until_up)
            mix = Soak(process.port, cluster, SHARE, rate=rate, context=context)
            start = time.monotonic()
            driving = asyncio.create_task(mix.drive(start + seconds, least))
            samples: list[Sample] = []
            cpu, at = process.cpu(), start
            while not driving.done():
                await asyncio.wait((driving,), timeout=every)
                now, used = time.monotonic(), process.cpu()
                files = sum(len(list((PROC / f"{pid}/fd").iterdir())) for pid in process.pids())
                share = (used - cpu) / (now - at)
                samples.append(Sample(now - start, process.memory(), files, mix.asked.total(), share))
                cpu, at = used, now
                progress(min(1.0, (now - start) / seconds), len(mix.wrong))
            await driving
            del cluster.seen[b""]  # the gateway's own requests
            mix.wrong += [f"{id!r} arrived more often than it may" for id in mix.repeated()]
            mix.wrong += [f"{id!r} did not reach the LLM unchanged" for id in cluster.lost]
        finally:
            await asyncio.to_thread(process.stop)
    return mix, [one for one in samples if one.second < seconds]  # then the clients leave


def progress(done: float, wrong: int) -> None:
    """A bar, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done >= 1 else ""
        sys.stderr.write(f"\r[{'#' * int(40 * done):<40}] {done:4.0%}  wrong answers: {wrong}{end}")
        sys.stderr.flush()


def report(mix: Soak, samples: Sequence[Sample]) -> tuple[str, bool]:
    """What to print, and whether all is well."""
    rises, faults = verdict(samples, len(mix.wrong))
    if not sys.stdout.isatty():
        document = {
            "asked": mix.asked, "seen": mix.verdicts, "clients gone": mix.gone, "wrong": mix.wrong,
            "samples": [asdict(one) for one in samples], "rises": rises, "faults": faults,
        }  # fmt: skip
        return json.dumps(document, indent=1), not faults
    lines = [f"{'second':>8} {'memory, MB':>12} {'descriptors':>12} {'requests':>10} {'CPU':>6}"]
    lines += [
        f"{one.second:8.0f} {one.memory / 1e6:12.1f} {one.descriptors:12} {one.requests:10} {one.cpu:6.0%}"
        for one in samples[:: max(1, len(samples) // 30)]
    ]
    lines += [f"{count:>8}  {kind}" for kind, count in sorted(mix.asked.items())]
    lines += [f"{count:>8}  seen: {kind}" for kind, count in mix.verdicts.items()]
    lines += [f"{mix.gone:>8}  clients gone", *mix.wrong[:20]]
    grew = f"memory {rises['memory'] / 1e6:+.2f} MB, descriptors {rises['descriptors']:+.1f}"
    lines.append(f"over the last half: {grew}; allowed: {MEMORY / 1e6:+.1f} MB, {DESCRIPTORS:+.1f}")
    lines.append("; ".join(faults) or "level, and every answer right")
    return "\n".join(lines), not faults


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--least", type=int, default=0, metavar="N", help="go on until N requests were sent")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples (%(default)s)")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="clients use TLS")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        run = soak(given.minutes * 60, given.least, given.every, given.rate, given.tls, Path(folder))
        mix, samples = uvloop.run(run)
    text, well = report(mix, samples)
    print(text)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
