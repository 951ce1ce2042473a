"""Two workers of the gateway against one: answers a second, CPU a request, and who gets the connections.

Each worker has a core. Where load and upstream can have others (four cores), GETs tell the whole story. On fewer they
share the workers' cores, and what two workers gain on GETs is lost to them again. So there the requests are rewrites
so heavy that load and upstream hardly count: a conversation of ten images. One worker is measured with load and
upstream on the other core, where they disturb it least, two with them on both: what comes out is no more than two
free cores would give.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import proxies
from bench.figures import FIGURES
from bench.load import Ask, Connection, many
from bench.process import Process
from bench.rewrite import conversation_body

CORES = next(figure.cores for figure in FIGURES if figure.key == "workers")
GET, REWRITE = "GET 1 KB", "heavy rewrite"
_CONNECTIONS = 64


@dataclass
class Scaling:
    """What two workers are to one. answers, cpu: by request, a ratio a round: of answers a second, of CPU a request.

    spread: how many of some connections each of two workers got.
    """

    spread: list[int]
    answers: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def of_answers(self, name: str) -> float:
        """The ratio of answers a second."""
        return statistics.median(self.answers[name])

    def __str__(self) -> str:
        costs = ", ".join(f"{name} {statistics.median(ratios):.2f}×" for name, ratios in self.cpu.items())
        shares = " and ".join(map(str, self.spread))
        return f"two workers vs one: CPU a request {costs}; of {sum(self.spread)} connections they got {shares}"


def scaling(
    upstream: Process, small: Ask, execute: str, folder: Path, cores: Sequence[int], rounds: int, seconds: float
) -> Scaling:
    """Measure one and two workers, interleaved; `upstream` may run anywhere afterwards.

    small: a GET. execute: the path that runs an agent. cores: two at least.
    """
    free = len(cores) >= CORES
    asks = {GET: small} if free else {REWRITE: Ask(execute, conversation_body(10)), GET: small}
    own = {workers: set(cores[-workers:]) for workers in (1, 2)}
    beside = {workers: {cores[1]} if free else set(cores) - taken or set(cores) for workers, taken in own.items()}
    load = {workers: {cores[0]} if free else beside[workers] for workers in own}
    running = {workers: proxies.started("gateway", upstream.port, folder, own[workers], workers) for workers in own}
    try:
        found = Scaling(_spread(running[2], small, 2))
        for name, ask in asks.items():
            for _ in range(rounds):
                answers, cpu = [], []
                for workers, process in running.items():
                    process.pin(own[workers])
                    upstream.pin(beside[workers])
                    before = process.cpu()
                    answers.append(many(process.port, ask, seconds, load[workers], folder, _CONNECTIONS))
                    cpu.append((process.cpu() - before) / max(answers[-1], 1))
                found.answers.setdefault(name, []).append(answers[1] / max(answers[0], 1))
                found.cpu.setdefault(name, []).append(cpu[1] / cpu[0])
    finally:
        upstream.pin(set(cores))
        for process in running.values():
            process.stop()
    return found


def _spread(process: Process, ask: Ask, workers: int, count: int = 200) -> list[int]:
    """How many of `count` connections each worker got, once all of them listen."""
    end = time.monotonic() + 60
    while len(_gained(process, ask, 20)) < workers:  # each worker that has answered has one to the upstream, too
        if time.monotonic() > end:
            raise RuntimeError("not all workers take connections")
    return _gained(process, ask, count)


def _gained(process: Process, ask: Ask, count: int) -> list[int]:
    """How many sockets more its processes have while `count` connections stand, of those that have any more."""
    before = process.sockets()
    connections = [Connection(process.port) for _ in range(count)]
    for connection in connections:
        connection.exchange(ask.raw())
    after = process.sockets()
    for connection in connections:
        connection.close()
    time.sleep(0.2)  # so that the process closes them, too
    return [gained for pid, now in after.items() if (gained := now - before.get(pid, 0)) > 0]
