"""Many requests of all kinds, a share of them failing in every way, from clients that check each answer.

The mix is drawn from a seed, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.client import Ask, Client
from tests.faults.upstream import BAD, CUT, FAULTS, WHOLE, FaultyUpstream, reset

# A second answer that comes a little later is the next request's answer: no client of HTTP/1.1 can tell. The end of a
# reused connection may hit the next request too, but must be reported as such, so it is in the mix.
QUICK = [name for name, fault in FAULTS.items() if not fault.lasting and name != "a second answer a little later"]
LASTING = [name for name, fault in FAULTS.items() if fault.lasting]
_BULK = b'{"index":{}}\n{"a":1}\n' * 200
_SIZES = (0, 100, 1000, 1000, 1000, 10_000, 100_000)


@dataclass
class Mix:
    """What to ask and what came of it. share: of requests that fail. lasting: of those, the ones that take time."""

    port: int
    upstream: FaultyUpstream
    share: float = 0.05
    lasting: float = 0.1
    seed: int = 1
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    gone: int = 0
    spared: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number = 0
        self._once: set[bytes] = set()

    def draw(self) -> Ask:
        """The next request."""
        self._number += 1
        draw = self._random
        fault = ""
        if draw.random() < self.share:
            fault = draw.choice(LASTING if draw.random() < self.lasting else QUICK)
        id, size = b"%d-%d" % (self.seed, self._number), draw.choice(_SIZES)
        match draw.randrange(10):
            case 0:
                self._once.add(id)
                return Ask(id, b"POST", b"/_plugins/_ml/agents/a/_execute", b'{"parameters":{}}', fault, size)
            case 1 | 2:
                self._once.add(id)
                return Ask(id, b"POST", b"/_bulk", _BULK, fault, size, chunked=draw.random() < 0.5)
            case 3:
                return Ask(id, b"HEAD", b"/i", fault=fault, size=size)
            case 4:
                return Ask(id, b"GET", b"/old", fault=fault, size=size, version=b"1.0")
            case _:
                return Ask(id, fault=fault, size=size)

    async def run(self, requests: int, clients: int = 32) -> None:
        """So many requests from so many clients at a time."""
        left = iter(range(requests))
        await asyncio.gather(*(self._client(left) for _ in range(clients)))

    async def _client(self, left: object) -> None:
        client = Client(self.port)
        for _ in left:  # type: ignore[attr-defined]
            ask = self.draw()
            if self._random.random() < self.share / 10:
                await self._leave(client, ask)
            else:
                self._judge(ask, (await client.ask(ask)).verdict(ask))
        client.close()

    async def _leave(self, client: Client, ask: Ask) -> None:
        """A client that goes away somewhere within its request or before its answer."""
        self.gone += 1
        _, writer = await client.connected()
        raw = ask.raw()
        writer.write(raw[: self._random.randrange(1, len(raw) + 1)])
        await asyncio.sleep(self._random.choice((0, 0.001)))
        reset(writer.transport)
        client.close()

    def _judge(self, ask: Ask, verdict: str) -> None:
        self.verdicts[verdict] += 1
        seen = FAULTS[ask.fault].seen if ask.fault else {WHOLE}
        if verdict in seen:
            return
        # Only GET and HEAD are sent again when the connection they were sent on turns out to be closed.
        if verdict == BAD and ask.method == b"POST":
            self.spared += 1
        elif ask.method == b"HEAD" and CUT in seen and verdict == WHOLE:
            pass  # its answer has no body that could break off
        else:
            self.wrong.append(f"{ask.id!r} {ask.method!r} {ask.fault!r} -> {verdict}")

    def repeated(self) -> list[bytes]:
        """Requests that arrived more often than they may, since it was last asked: POSTs once, others once again."""
        found = [id for id, times in self.upstream.seen.items() if times > (1 if id in self._once else 2)]
        self.upstream.seen.clear()
        self._once.clear()
        return found
