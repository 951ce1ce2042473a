"""``make bench-rehearse``: how long a rehearsal of recorded requests takes, and how much memory.

The agents are a flow of the simulated cluster, and the same flow after `mlc-gateway upgrade`. A fifth each of the
requests are legacy questions, texts, texts with an image, conversations of 1 to 13 turns, and texts with signs of
templates, each of which is planned by itself. The command runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway.config.inspector import SqliteExchanges
from gateway.observe.record import Body, ExchangeRecord, HttpMessage
from gateway.recording.sinks.sqlite import SqliteStore
from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator

_AGENT = "flow-d"
_BATCH = 1000
_HEADERS = (("Content-Type", "application/json"),)
_LIMIT_SECONDS, _LIMIT_MIB = 900.0, 64


def _body(number: int) -> dict[str, Any]:
    text = f"Where is the parcel {number} of last week, and who has signed for it?"
    match number % 5:
        case 0:
            return {"parameters": {"question": text}}
        case 1:
            return {"input": text}
        case 2:
            mark = f"[MEDIA type=image/png length=48213 sha256={number:064x}]"
            image = {"type": "image", "source": {"type": "base64", "format": "png", "data": mark}}
            return {"input": [{"type": "text", "text": text}, image]}
        case 3:
            turns = 2 * (number // 5 % 7) + 1
            roles = ["user" if turn % 2 == 0 else "assistant" for turn in range(turns)]
            return {"input": [{"role": role, "content": [{"type": "text", "text": text}]} for role in roles]}
    return {"input": f"{text} ${{x}} {{'parcel': {number}}}"}


def _record(number: int, agent_id: str) -> ExchangeRecord:
    text = json.dumps(_body(number))
    return ExchangeRecord(
        id=f"exchange-{number}",
        started=1_760_000_000.0 + number,
        seconds=1.2,
        method="POST",
        target=f"/_plugins/_ml/agents/{agent_id}/_execute",
        intent="execute",
        status=200,
        agent_id=agent_id,
        request=HttpMessage(_HEADERS, Body(len(text), text)),
    )


async def measure(exchanges: int, directory: Path) -> dict[str, Any]:
    """Record exchanges, rehearse them, and return what that took."""
    async with Simulator("2.19.0") as cluster:
        agent_id = seed_core(cluster.core, cluster.llm_url)[_AGENT]
        store = SqliteStore(SqliteExchanges(str(directory / "exchanges")))
        for start in range(0, exchanges, _BATCH):
            store.add([_record(number, agent_id) for number in range(start, min(start + _BATCH, exchanges))])
        store.close()
        settings = directory / "gateway.yaml"
        inspector = {"enabled": True, "sqlite": {"directory": str(directory / "exchanges"), "seconds": 0}}
        settings.write_text(json.dumps({"upstream": {"url": cluster.url}, "inspector": inspector}))
        command = [sys.executable, "-m", "gateway", "rehearse", "-c", str(settings), agent_id, "--upgrade", "--json"]
        begun = time.monotonic()
        done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "exchanges": report["requests"],
        "counts": report["counts"],
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": used.ru_maxrss // 1024,
    }


def main() -> int:
    """Measure a tenth and all of the exchanges. Return 1 if it took too long, or the memory grows with their number."""
    parser = argparse.ArgumentParser(prog="make bench-rehearse", description=__doc__)
    parser.add_argument("--exchanges", type=int, default=100_000)
    options = parser.parse_args()
    found = []
    for exchanges in (max(options.exchanges // 10, 1), options.exchanges):
        with tempfile.TemporaryDirectory() as directory:
            found.append(asyncio.run(measure(exchanges, Path(directory))))
        print(json.dumps(found[-1]), flush=True)
    few, many = found
    return int(many["seconds"] > _LIMIT_SECONDS or many["peak_mib"] - few["peak_mib"] > _LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main())
