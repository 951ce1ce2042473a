"""A loopback front before a simulated cluster that does what networks and clusters do to a request.

    async with FaultyCluster(simulator.url) as front:
        front.faults.append(Fault("lost", "POST", r"/_plugins/_ml/agents/_register"))
        …                                    # send to front.url
        front.seen                           # every request, in order; `took_effect` says whether the cluster did it

`orphans(core)` says what a registration or migration has left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import aiohttp
from yarl import URL

from gateway.simulator.core import ClusterCore
from gateway.simulator.fields import Document
from tests.wire import read_message

Kind = Literal["error", "refused", "stall", "lost", "late", "truncated", "masked"]

_TAG = re.compile(r"mlc-gateway [0-9a-f]{32}")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
_ERROR = {"type": "injected_exception", "reason": "injected by the test"}
_ERROR_BODY = json.dumps({"error": {"root_cause": [_ERROR], **_ERROR}, "status": 500}).encode()


@dataclass
class Fault:
    """What happens to requests of a method ("" for any) whose path with query the pattern matches from its start.

    kind: "error": `status` with `body`, no effect; "refused": the connection is closed at once, no effect; "stall":
    never answered, no effect; "lost": done, but the connection is cut before the answer; "late": done, answered after
    `seconds`; "truncated": done, half the answer; "masked": done, answered with `status` and `body`, and with
    `headers` besides.

    until: an event that a "stall" or "late" request waits for first; "late" is then answered as soon as it is set.
    """

    kind: Kind
    method: str = ""
    path: str = ""
    nth: int = 1
    times: int = 1
    seconds: float = 1.0
    status: int = 500
    body: bytes = _ERROR_BODY
    until: asyncio.Event | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    matched: int = 0

    def strikes(self, method: str, target: str) -> bool:
        """Whether this request is one of them; counts it."""
        if self.method not in ("", method) or not re.match(self.path, target):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.times


@dataclass
class Seen:
    """A request as it came: `path` with its query; `status` is the cluster's own, 0 where it was never asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    fault: Kind | None = None
    status: int = 0

    @property
    def took_effect(self) -> bool:
        """Whether the cluster did what it was asked for."""
        return 200 <= self.status < 300


@dataclass
class FaultyCluster:
    """The front of the cluster at `upstream`; faults may be added while it runs, the first that strikes counts.

    expire: ends the client's wait for an answer; called when a "stall" or "late" request is left without one, and a
    "late" answer is then sent once the client has gone. None: the client's own time limit and `Fault.seconds` count.
    """

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    expire: Callable[[], None] | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the cluster has answered the front, whatever the client gets of it; clear it to wait again."""

    async def __aenter__(self) -> FaultyCluster:
        self._session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding"])
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self._open: set[asyncio.Task[None]] = set()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._session.close()

    def calls(self, method: str = "", path: str = "") -> list[Seen]:
        """The requests of a method whose path with query the pattern matches from its start."""
        return [seen for seen in self.seen if method in ("", seen.method) and re.match(path, seen.path)]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers the next request; whether the connection may go on."""
        message = await read_message(reader)
        method, target, _ = message.line.decode("latin-1").split(" ", 2)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message.headers}
        fault = next((fault for fault in self.faults if fault.strikes(method, target)), None)
        kind = fault.kind if fault else None
        seen = Seen(method, target, headers, message.body, kind)
        self.seen.append(seen)
        if fault and kind == "error":
            writer.write(_head(fault.status, {"content-type": "application/json"}, len(fault.body)) + fault.body)
            return True
        if fault and kind == "stall":
            if fault.until is not None:
                await fault.until.wait()
            if self.expire is not None:
                self.expire()
            await reader.read()  # till the client gives up
        if kind in ("refused", "stall"):
            return False
        answer = await self._forward(seen)
        if fault and kind == "late":
            await self._delay(fault, reader)
        if kind == "lost":
            return False
        if fault and kind == "masked":
            headers = {"content-type": "application/json", **fault.headers}
            answer = _head(fault.status, headers, len(fault.body)) + fault.body
        writer.write(answer if kind != "truncated" else answer[: len(answer) - max(1, len(answer) // 4)])
        await writer.drain()
        return kind != "truncated"

    async def _delay(self, fault: Fault, reader: asyncio.StreamReader) -> None:
        """Wait until the late answer is due."""
        if fault.until is not None:
            await fault.until.wait()
        elif self.expire is not None:
            self.expire()
            await reader.read()
        else:
            await asyncio.sleep(fault.seconds)

    async def _forward(self, seen: Seen) -> bytes:
        headers = {name: value for name, value in seen.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = URL(self.upstream + seen.path, encoded=True)
        async with self._session.request(seen.method, url, headers=headers, data=seen.body or None) as response:
            body = await response.read()
            seen.status = response.status
            self.answered.set()
            end_to_end = {name: value for name, value in response.headers.items() if name.lower() not in _HOP_BY_HOP}
            return _head(response.status, end_to_end, len(body)) + (b"" if seen.method == "HEAD" else body)


def _head(status: int, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode("latin-1")


def orphans(core: ClusterCore) -> list[str]:
    """What was left behind in a cluster, one line each.

    Models, model groups and connectors with the gateway's tag that nothing uses, agents whose model is gone, and
    tagged executors of planners that are gone.
    """
    found = {kind: core.resources.current(kind) for kind in ("agent", "model", "model_group", "connector")}
    agents = [Document("agent", name, source) for name, source in found["agent"].items()]
    used = {agent.id: _models_of(agent) for agent in agents}
    in_use = {model_id for models in used.values() for model_id in models}
    connected = {source.get("connector_id") for source in found["model"].values()}
    fields = ("parameters.mcp_connectors", "tools.parameters.connector_id")
    called = " ".join(str(value) for agent in agents for name in fields for value in agent.field(name).values)
    executors = {value for agent in agents for value in agent.field("parameters.executor_agent_id").values}
    return [
        *(
            f"model {name}: no agent uses it"
            for name, source in found["model"].items()
            if _is_tagged(source) and name not in in_use
        ),
        *(
            f"model_group {name}: no model is in it"
            for name, source in found["model_group"].items()
            if _is_tagged(source) and name not in {model["model_group_id"] for model in found["model"].values()}
        ),
        *(
            f"connector {name}: nothing uses it"
            for name, source in found["connector"].items()
            if _is_tagged(source) and name not in connected and name not in called
        ),
        *(
            f"agent {name}: its model {model_id} is gone"
            for name, models in used.items()
            for model_id in sorted(models - core.resources.models.keys())
        ),
        *(
            f"agent {agent.id}: its planner is gone"
            for agent in agents
            if agent.source["type"] == "CONVERSATIONAL"
            and agent.field("parameters.mlc_gateway_registration").values
            and agent.id not in executors
        ),
    ]


def _models_of(agent: Document) -> set[str]:
    return {*agent.field("llm.model_id").values, *agent.field("tools.parameters.model_id").values}


def _is_tagged(source: Mapping[str, Any]) -> bool:
    return bool(_TAG.search(source.get("description") or ""))
