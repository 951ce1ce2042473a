"""Clients that send what is hard to record, beside clients whose exchanges must be recorded."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.attacks.attack import Table
from bench.attacks.client import Target, get, post
from bench.upstream import AGENT
from gateway.config.inspector import Inspector, SqliteExchanges
from gateway.recording.sinks.registry import open_store
from gateway.recording.store import Filter

TABLE = Table("records")
_FOLDER = Path(tempfile.mkdtemp(prefix="attacks-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_STORE = Inspector(enabled=True, sqlite=SqliteExchanges(directory=str(_FOLDER / "sqlite")))
_SETTINGS = {
    "policy": {"usage_header": True},
    "agents": {"rules": [{"agent": "*", "output": "unified"}]},
    "logs": {"access": "json", "access_file": str(_FOLDER / "access.log")},
    "inspector": {
        "enabled": True,
        "passthrough": "bodies",
        "stores": ["sqlite", "audit_file"],
        "sqlite": {"directory": str(_FOLDER / "sqlite")},
        "audit_file": {"path": str(_FOLDER / "audit.jsonl")},
    },
}
_SECONDS = 20.0
_ROUNDS = itertools.count()
_EXECUTE = f"/_plugins/_ml/agents/{AGENT}/_execute"
_BODIES = (
    b'{"input":"hi"}',
    b'{"parameters":{"question":"\\ud800 \\u0000"}}',
    b'{"input":"\xff\xfe"}',
    b'{"input":[{"type":"text","text":"\xed\xa0\x80"}]}',
    b'{"input":"hi","parameters":{"memory_id":18446744073709551616}}',
    b'{"input":"hi","input":"twice","a":1e999}',
    b"[" * 5000,
    b'{"password":' * 200,
    b"\x00" * 100,
    b'"\\ud83d"',
)
_LINES = (
    "User-Agent: \xff\xfe",
    "traceparent: 00-" + "f" * 32 + "-" + "g" * 16 + "-01",
    "tracestate: " + "a=" * 50,
    "Content-Encoding: gzip",
    "X-Opaque-Id: \xed\xa0\x80",
    "X-A: 1\r\nX-A: 2\r\nx-a: 3",
    "Cookie: =;;=\x80;a",
    "Authorization: Basic \xff",
    "Referer: http://[x/?password=%ED%A0%80",
)


def _bad_requests() -> Iterator[bytes]:
    for body, line in itertools.product(_BODIES, _LINES):
        for path in (_EXECUTE, "/a/_doc/%ED%A0%80?q=%00%FF&sig=%ED%A0%80", "/_plugins/_ml/agents/%FF/_execute"):
            head, _, _ = post(path, length=len(body)).partition(b"\r\n\r\n")
            yield b"%b\r\n%b\r\n\r\n%b" % (head, line.encode("latin-1"), body)


_BAD = tuple(_bad_requests())


@TABLE.row(
    "what is hard to record",
    "20 clients send texts, heads and bodies that are hard to store; all requests of 10 others are recorded",
    settings=_SETTINGS,
    answers=frozenset({0, 200, 400, 404, 413, 415, 500, 502}),
    timed=False,
    every=3.0,
    memory=128 << 20,
)
async def bad_records(target: Target) -> None:
    number = next(_ROUNDS)
    bad = _BAD[:: max(1, round(1 / target.scale))]

    async def hostile(one: int) -> None:
        for request in bad[one::20]:
            await target.ask(request)

    async def other(one: int) -> None:
        for turn in range(target.some(20)):
            body = b'{"input":"%d"}' % turn
            path = f"/bytes/10?other={number}-{one}-{turn}" if one % 2 else f"{_EXECUTE}?other={number}-{one}-{turn}"
            await target.ask(get(path) if one % 2 else post(path, body))

    await asyncio.gather(target.burst(hostile, 20), target.burst(other, 10))
    sent = 10 * target.some(20)
    found = await asyncio.to_thread(_count, f"other={number}-", sent)
    if found != sent:
        target.faults[f"of {sent} requests of others, {sent - found} are not recorded"] += 1


def _count(path: str, enough: int) -> int:
    """Return how many exchanges with a part of their target are recorded, once there are enough or after a while."""
    store = open_store(_STORE)
    assert store is not None
    with closing(store):
        position, rows = 0, 0
        for _ in range(round(_SECONDS / 0.1)):
            new = store.newer(Filter(path=path), position, enough)
            rows += len(new)
            position = new[-1].position if new else position
            if rows >= enough:
                break
            time.sleep(0.1)
    return rows
