"""The simulator as HTTP servers: one for the cluster, one for its models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from gateway.simulator.core import ClusterCore
from gateway.simulator.errors import NoAnswer
from gateway.simulator.handlers import Request
from gateway.simulator.llm import LlmEndpoints
from gateway.simulator.llm.endpoints import Script, slowness
from gateway.simulator.predict import LlmReply, LlmRequest
from gateway.simulator.rest import Response, respond
from gateway.simulator.streams import Piece

MAX_BODY = 100 * 1024 * 1024
_LLM_MAX_BODY = 2 * MAX_BODY


class Simulator:
    """A cluster of one version and its models, each on a loopback port.

    ``async with Simulator("2.19.0") as simulator:`` has `url` (the cluster) and `llm_url` (the models). `strict`
    models refuse what their provider would refuse; others accept any body. `refresh_seconds`: see `ClusterCore`.
    `streams`: the plugins for ``_execute/stream`` are installed.
    """

    def __init__(
        self,
        version: str = "2.19.0",
        strict: bool = True,
        port: int = 0,
        llm_port: int = 0,
        refresh_seconds: float = 0.0,
        streams: bool = False,
    ) -> None:
        self.core = ClusterCore(version, refresh_seconds=refresh_seconds)
        self.core.streams = streams
        self.llm = LlmEndpoints(strict)
        self.url = self.llm_url = ""
        self.pause: Callable[[], Awaitable[Any]] = partial(asyncio.sleep, 0.01)
        """Awaited where other requests may run before one goes on (`gateway.simulator.handlers.Pause`)."""
        self.before_errors_are_stored: Callable[[], Awaitable[Any]] = partial(asyncio.sleep, 0)
        """Awaited after a run was answered, before its error is stored in the memory (`ClusterCore.store_errors`)."""
        self._storing: set[asyncio.Task[None]] = set()
        self._ports = (port, llm_port)
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None
        self._stopping = asyncio.Event()

    @property
    def received(self) -> list[Any]:
        """The bodies that the models received, in order."""
        return self.llm.received

    def script(self, answers: Iterable[Script]) -> None:
        """Queue the models' next answers."""
        self.llm.script(answers)

    async def start(self) -> str:
        """Start both servers and return the cluster's URL."""
        self._stopping.clear()
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self.url = await self._serve(self._cluster, self._ports[0], MAX_BODY)
        self.llm_url = await self._serve(self._model, self._ports[1], _LLM_MAX_BODY)
        return self.url

    async def stop(self) -> None:
        """Stop both servers. Requests that are never answered end."""
        self._stopping.set()
        for task in self._storing:
            task.cancel()
        if self._session is not None:
            await self._session.close()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def __aenter__(self) -> Simulator:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, handler: Any, port: int, max_body: int) -> str:
        app = web.Application(client_max_size=max_body)
        app.router.add_route("*", "/{tail:.*}", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _cluster(self, incoming: web.Request) -> web.StreamResponse:
        if incoming.path == "/_simulator":
            return web.json_response({"version": self.core.version, "llm_url": self.llm_url})
        if incoming.path == "/received":
            return web.json_response(self.received)
        try:
            body = await incoming.read()
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413)
        headers = {name.lower(): value for name, value in incoming.headers.items()}
        request = Request(incoming.method, incoming.raw_path, headers, body)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(event: str) -> None:
            if not stream.prepared:
                await stream.prepare(incoming)
            if event:
                await stream.write(event.encode("utf-8", "replace"))

        try:
            is_stream = request.path.endswith("/_execute/stream")
            response = await (self._serve_request(request, send) if is_stream else self._respond(request))
        except NoAnswer:
            await self._stopping.wait()  # the client gives up, or the server stops
            raise
        finally:
            self._store_errors_later()
        if stream.prepared:
            await stream.write_eof()
            return stream
        return _web_response(response, pretty="pretty" in request.query)

    def _store_errors_later(self) -> None:
        async def store() -> None:
            await self.before_errors_are_stored()
            self.core.store_errors()

        if self.core.unstored_errors:
            task = asyncio.ensure_future(store())
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _respond(self, request: Request) -> Response:
        """Answer a request that is no stream."""
        return await self._serve_request(request)

    async def _serve_request(self, request: Request, send: Callable[[str], Awaitable[None]] | None = None) -> Response:
        """Answer a request. send: sends an event of a stream."""
        serve = respond(self.core, request)
        try:
            step = next(serve)
            while True:
                match step:
                    case LlmRequest():
                        step = serve.send(await self._post(step))
                        continue
                    case str() if send is not None:
                        await send(step)
                    case Piece():
                        raise NoAnswer  # nobody reads the stream
                    case _:
                        await self.pause()
                step = next(serve)
        except StopIteration as end:
            response: Response = end.value
            return response

    async def _post(self, call: LlmRequest) -> LlmReply:
        """Send a connector's request to the simulated models or to any other server."""
        assert self._session is not None, "the simulator is not started"
        timeout = aiohttp.ClientTimeout(total=min(call.timeout, 3600))
        headers = {"Content-Type": "application/json", **call.headers}
        data = call.body.encode("utf-8", "replace")
        try:
            async with self._session.post(call.url, data=data, headers=headers, timeout=timeout) as answer:
                return LlmReply(answer.status, await answer.text())
        except TimeoutError:
            return LlmReply(0, "", failure="Read timed out")
        except aiohttp.ClientConnectorDNSError as error:
            return LlmReply(0, "", failure=f"{error.host}: Name or service not known")
        except aiohttp.ClientConnectorError as error:
            return LlmReply(0, "", failure=f"Connection refused: /{error.host}:{error.port}")
        except (aiohttp.ClientError, ValueError) as error:
            return LlmReply(0, "", failure=str(error))

    async def _model(self, incoming: web.Request) -> web.Response:
        if incoming.path == "/received":
            return web.json_response(self.received)
        text = (await incoming.read()).decode("utf-8", "replace")
        await asyncio.sleep(slowness(incoming.path))
        reply = self.llm(LlmRequest(str(incoming.url), dict(incoming.headers), text))
        content_type = "text/event-stream" if reply.body.startswith("data:") else "application/json"
        return web.Response(status=reply.status, text=reply.body, content_type=content_type)


def _web_response(response: Response, pretty: bool) -> web.Response:
    if response.body is None:
        return web.Response(status=response.status)
    text = json.dumps(response.body, ensure_ascii=False, indent=2 if pretty else None)
    body = text.encode("utf-8", "replace")
    return web.Response(status=response.status, body=body, content_type="application/json", charset="UTF-8")
