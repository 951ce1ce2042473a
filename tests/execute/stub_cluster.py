"""A small cluster on loopback with documents recorded on 3.6.0, and a client that uses it through a gateway."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.agents.recorded import agent_id, recorded

ML = "/_plugins/_ml/"
DOCUMENTS = recorded("3.6.0")
V1, V2 = agent_id(DOCUMENTS, "u_bedrock_conv"), agent_id(DOCUMENTS, "v2_bedrock")
FLOW = agent_id(DOCUMENTS, "leg_flow")
RAN = (200, {"inference_results": [{"output": [{"name": "response", "result": "ran"}]}]})


class Cluster:
    """Serves the recorded documents, and the next of `answers` for each execute, compressed on request.

    An answer whose body is bytes is a stream of events.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = [RAN]
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        """Of the requests with these bodies."""
        self.executed: list[Mapping[str, str]] = []
        """Their headers."""
        self.api_on: str | None = "true"
        self.lookups: list[dict[str, str]] = []
        self.lookup_status = 200
        self.lookup_reason = "no permissions"

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if request.method == "GET":
            self.lookups.append(dict(request.headers))
        if request.method == "POST":
            self.bodies.append(await request.read())
            self.executed.append(request.headers)
            self.paths.append(path)
            status, body = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        elif path == "/_cluster/settings":
            status, body = 200, {"defaults": {}}
            if self.api_on is not None:
                body["defaults"] = {"plugins": {"ml_commons": {"unified_agent_api_enabled": self.api_on}}}
        elif self.lookup_status != 200:
            status, body = self.lookup_status, {"status": self.lookup_status, "error": {"reason": self.lookup_reason}}
        else:
            document = DOCUMENTS["root"] if path == "/" else None
            for kind in ("agents", "models", "connectors"):
                document = document or DOCUMENTS[kind].get(path.removeprefix(f"{ML}{kind}/"))
            status, body = (200, document) if document else (404, {"status": 404, "error": {"reason": "none"}})
        is_stream = isinstance(body, bytes)
        raw = body if is_stream else json.dumps(body).encode()
        headers = {"Content-Type": "text/event-stream" if is_stream else "application/json"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            raw, headers["Content-Encoding"] = gzip.compress(raw), "gzip"
        return web.Response(status=status, body=raw, headers=headers)

    @property
    def sent(self) -> list[Any]:
        return [json.loads(body) for body in self.bodies]


class Client:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.cluster, self.session = cluster, session

    async def execute(self, agent: str, body: Any, stream: bool = False) -> aiohttp.ClientResponse:
        answer = await self.session.post(f"{ML}agents/{agent}/_execute{'/stream' if stream else ''}", json=body)
        await answer.read()
        return answer


def server_of(cluster: Cluster) -> TestServer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await cluster.answer(request)  # which a test may replace

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    return TestServer(app)
