"""The part of an OpenSearch cluster that takes documents for a data stream, with faults, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Self

from aiohttp import web

Fault = Literal["refused", "lost", "throttled", "unavailable", "forbidden", "strange"]
"""refused: cut off, without effect; lost: done, cut off before the answer; the others: an answer, without effect."""
_ANSWERS = {
    "throttled": (429, {"error": {"type": "rejected_execution_exception", "reason": "busy"}}),
    "unavailable": (503, {"error": {"type": "cluster_block_exception", "reason": "no master"}}),
    "forbidden": (403, {"error": {"type": "security_exception", "reason": "no permissions"}}),
    "strange": (200, {"items": "none"}),
}


class StreamServer:
    """Serves inside its `async with` block.

    faults: what happens to the next requests, in their order; None: nothing. items: statuses of the next operations in
    place of what they would do. hold: requests wait for it. poison: a request with this text is refused as a whole.
    """

    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.templates: dict[str, Any] = {}
        self.documents: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.bulks: list[list[str]] = []
        self.sizes: list[int] = []
        self.authorizations: set[str] = set()
        self.faults: list[Fault | None] = []
        self.items: list[int | None] = []
        self.poison = ""
        self.hold = asyncio.Event()
        self.hold.set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._misbehave], client_max_size=100_000_000)
        application.add_routes(
            [
                web.get("/_data_stream/{name}", self._stream),
                web.put("/_data_stream/{name}", self._create_stream),
                web.get("/_index_template/{name}", self._template),
                web.put("/_index_template/{name}", self._put_template),
                web.post("/{name}/_bulk", self._bulk),
            ]
        )
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop to listen."""
        await self._runner.cleanup()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this server is true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    @web.middleware
    async def _misbehave(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.authorizations.add(request.headers.get("Authorization", ""))
        await request.read()
        async with self._changed:
            self._changed.notify_all()
        await self.hold.wait()
        fault = self.faults.pop(0) if self.faults else None
        try:
            if fault in _ANSWERS:
                status, body = _ANSWERS[fault]
                return web.json_response(body, status=status)
            response = await handler(request) if fault != "refused" else None
            if response is None or fault == "lost":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return response
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _stream(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.match_info["name"] in self.streams else 404)

    async def _create_stream(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name in self.streams:
            error = {"type": "resource_already_exists_exception", "reason": "exists"}
            return web.json_response({"error": error}, status=400)
        assert any(name in template["index_patterns"] for template in self.templates.values())
        self.streams.add(name)
        return web.json_response({"acknowledged": True})

    async def _template(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.match_info["name"] in self.templates else 404)

    async def _put_template(self, request: web.Request) -> web.Response:
        self.templates[request.match_info["name"]] = await request.json()
        return web.json_response({"acknowledged": True})

    async def _bulk(self, request: web.Request) -> web.Response:
        assert request.match_info["name"] in self.streams
        body = await request.text()
        assert body.endswith("\n")
        if self.poison and self.poison in body:
            return web.json_response({"error": {"type": "parse_exception", "reason": "malformed"}}, status=400)
        lines = [json.loads(line) for line in body.splitlines()]
        self.sizes.append(len(body))
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            id_ = action["create"]["_id"]
            status = (self.items.pop(0) if self.items else None) or (409 if id_ in self.documents else 201)
            if status == 201:
                self.documents[id_] = document
            item: dict[str, Any] = {"_id": id_, "status": status}
            if status >= 400:
                item["error"] = {"type": "some_exception", "reason": f"because {status}"}
            items.append({"create": item})
        self.bulks.append([action["create"]["_id"] for action in lines[::2]])
        return web.json_response({"errors": False, "items": items})
