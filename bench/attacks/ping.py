"""Another client: a GET at every tick over a kept connection, through the gateway and past it.

``python -m bench.attacks.ping`` reads its settings as JSON from its first argument and prints `READY`, then its figures
as JSON. A ping's time counts from its tick, even if the one before was late: a stall of a second is ten late pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import ssl
import sys
from dataclasses import asdict, dataclass, field

import uvloop

from bench.attacks.client import Peer, get

READY = "ready"
"""The line that is printed when the first ping is about to be sent."""
_REQUEST = get("/bytes/100")


@dataclass
class Pings:
    """Seconds of each ping. unanswered: what went wrong with the others."""

    seconds: list[float] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """The time that `share` of the pings did not exceed."""
        ordered = sorted(self.seconds) or [0.0]
        return ordered[math.ceil(share * len(ordered)) - 1]


async def ping(port: int, tls: ssl.SSLContext | None, count: int, interval: float, patience: float) -> Pings:
    """Send the pings of one client."""
    loop = asyncio.get_running_loop()
    pings = Pings()
    peer: Peer | None = None
    start = loop.time() + interval
    for number in range(count):
        due = start + number * interval
        await asyncio.sleep(max(0.0, due - loop.time()))
        try:
            async with asyncio.timeout(patience):
                if peer is None:
                    name = "127.0.0.1" if tls else None
                    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))
                peer.writer.write(_REQUEST)
                status, _ = await peer.answer()
            if status != 200:
                pings.unanswered.append(f"ping {number}: status {status}")
        except (OSError, EOFError, TimeoutError) as exc:
            pings.unanswered.append(f"ping {number}: {type(exc).__name__}")
            if peer is not None:
                peer.leave()
            peer = None
        pings.seconds.append(loop.time() - due)
    if peer is not None:
        peer.leave()
    return pings


@dataclass
class Plan:
    """What to ping: the gateway at `port`, and the cluster itself at `direct`, to know what the machine does to it."""

    port: int
    direct: int
    authority: str = ""
    clients_tls: bool = False
    upstream_tls: bool = False
    count: int = 200
    interval: float = 0.1
    patience: float = 30.0


async def both(plan: Plan) -> tuple[Pings, Pings]:
    """The pings through the gateway, and past it."""
    context = ssl.create_default_context(cafile=plan.authority) if plan.authority else None
    pairs = ((plan.port, plan.clients_tls), (plan.direct, plan.upstream_tls))
    print(READY, flush=True)
    through, past = await asyncio.gather(
        *(ping(port, context if tls else None, plan.count, plan.interval, plan.patience) for port, tls in pairs)
    )
    return through, past


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(-15)  # the attacker runs on the same core: its own use of CPU must not look like a stall
    print(json.dumps([asdict(pings) for pings in uvloop.run(both(Plan(**json.loads(sys.argv[1]))))]))
