"""The data port: every request of the cluster's API, passed through or, where the table says so, rewritten."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import structlog
from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11

from gateway.config.schema import Settings
from gateway.edge import body as bodies
from gateway.edge import errors, headers
from gateway.edge.routes import Intent, Route, route
from gateway.errors import GatewayError
from gateway.execute.ports import ExecuteCall, ExecuteHandler, Forward, ProfileCache, Retry
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.upstream.client import Answer, Body, Patience, RawHeader, Upstream
from gateway.upstream.relay import RelayResponse, relay

RETRY_BODY = 64 * 1024
"""Most bytes of an error answer that the execute use case is shown."""


class DataPort:
    """Answers the requests of the data port; an aiohttp handler."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        execute: ExecuteHandler,
        profiles: ProfileCache,
        log: Logger,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._execute = execute
        self._profiles = profiles
        self._log = log
        self._metrics = metrics
        patience = settings.upstream.timeouts.execute
        self._run_patience = Patience(patience, patience)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to `request`; never raises but for a connection that is gone."""
        request_id = uuid.uuid4().hex[:16]
        structlog.contextvars.bind_contextvars(request_id=request_id, **_known_as(request.headers))
        path = request.raw_path.partition("?")[0].encode("utf-8", "replace").decode()
        where = route(request.method, request.raw_path.partition("?")[0])
        started = time.monotonic()
        status = 0
        with self._metrics.in_flight.track_inprogress():
            try:
                response = await self._answer(request, where, request_id)
                status = 0 if isinstance(response, RelayResponse) and response.cut else response.status
                return response
            finally:
                self._metrics.request(where.intent.value, status)
                level = self._log.debug if where.intent is Intent.PASSTHROUGH else self._log.info
                seconds = round(time.monotonic() - started, 6)
                level("request", intent=where.intent.value, method=request.method, path=path, status=status, s=seconds)

    async def _answer(self, request: web.BaseRequest, where: Route, request_id: str) -> web.StreamResponse:
        if fault := _unrelayable(request):
            return errors.respond(errors.malformed(fault), request_id, close=True)
        try:
            match where.intent:
                case Intent.EXECUTE | Intent.EXECUTE_STREAM:
                    return await self._run(request, where, request_id)
                case Intent.WRITE:
                    return await self._write(request, where)
                case Intent.PASSTHROUGH:
                    return await self._pass(request, where)
        except GatewayError as exc:
            log = self._log.warning if exc.status >= 500 else self._log.info
            log("refused", type=exc.type, reason=exc.reason, problems=[problem.as_dict() for problem in exc.problems])
            return self._failed(request, exc, request_id)
        except ConnectionError:
            raise  # the client is gone
        except Exception:
            self._log.exception("internal error", method=request.method)
            return self._failed(request, errors.internal(request_id), request_id)

    def _failed(self, request: web.BaseRequest, error: GatewayError, request_id: str) -> web.StreamResponse:
        if request.writer.output_size > 0:  # an answer has begun: only cutting it is honest
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer had begun") from error
        return errors.respond(error, request_id, close=request.body_exists and not request.content.is_eof())

    async def _pass(self, request: web.BaseRequest, where: Route) -> RelayResponse:
        answer = await self._send(request, where)
        return await relay(request, answer, headers.end_to_end(answer.headers))

    async def _write(self, request: web.BaseRequest, where: Route) -> RelayResponse:
        # Forgotten before the client knows that its write is done, and also when it did not wait for that.
        try:
            answer = await self._send(request, where)
        finally:
            self._profiles.invalidate(where.kind, where.id or None)
        return await relay(request, answer, headers.end_to_end(answer.headers))

    async def _send(self, request: web.BaseRequest, where: Route) -> Answer:
        chunked = "Transfer-Encoding" in request.headers
        onward = self._onward(request)
        if chunked:
            onward.append((b"Transfer-Encoding", b"chunked"))
        body: Body = bodies.stream(request) if request.body_exists else ()
        with self._metrics.upstream(where.intent.value):
            return await self._upstream.send(
                request.method, _target(request), onward, body, chunked=chunked, interim=_interim(request)
            )

    async def _run(self, request: web.BaseRequest, where: Route, request_id: str) -> RelayResponse:
        limits = self._settings.limits
        raw = await bodies.read(request, limits.body)
        body = await bodies.decode(raw, request.headers.getall("Content-Encoding", []), limits.decompressed)
        call = ExecuteCall(
            agent_id=where.id,
            method=request.method,
            raw_target=request.raw_path,
            headers=request.headers,
            body=body,
            request_id=request_id,
            streaming=where.intent is Intent.EXECUTE_STREAM,
        )
        forward = await self._execute(call)
        answer = await self._forward(request, where, forward, raw)
        before: list[bytes] = []
        if answer.status >= 400 and forward.retry is not None:
            before, again = await _asked(answer, forward.retry)
            if again is not None:
                before, forward = [], again
                answer = await self._forward(request, where, forward, raw)
        onward = headers.with_added(headers.end_to_end(answer.headers), forward.response_headers)
        return await relay(request, answer, onward, before)

    async def _forward(self, request: web.BaseRequest, where: Route, forward: Forward, raw: bytes) -> Answer:
        body = [raw] if forward.body is None else forward.body
        onward = headers.with_body(self._onward(request), sum(map(len, body)), replaced=forward.body is not None)
        with self._metrics.upstream(where.intent.value):
            return await self._upstream.send(
                request.method, _target(request), onward, body, patience=self._run_patience
            )

    def _onward(self, request: web.BaseRequest) -> list[RawHeader]:
        onward = headers.end_to_end(request.raw_headers)
        if self._settings.upstream.host_header == "client" and "Host" in request.headers:
            return onward
        return headers.with_host(onward, self._upstream.authority)


def _unrelayable(request: web.BaseRequest) -> str:
    """Why the request can't be relayed as it is, "" when it can."""
    if request.method == "CONNECT":
        return "the gateway opens no tunnels, so CONNECT is not relayed."
    if request.version < HttpVersion10:
        return "its version is below HTTP/1.0."
    codings = [coding.strip().lower() for coding in request.headers.getall("Transfer-Encoding", [])]
    if codings and codings != ["chunked"]:
        return f"the transfer-coding {', '.join(codings)} is not relayed; only chunked is."
    return ""


def _target(request: web.BaseRequest) -> bytes:
    return request.raw_path.encode("utf-8", "surrogateescape")


def _known_as(names: Mapping[str, str]) -> dict[str, str]:
    """The client's own names for its request, for the log."""
    own = {"opaque_id": names.get("X-Opaque-Id"), "client_request_id": names.get(errors.REQUEST_ID)}
    return {key: value.encode("utf-8", "replace").decode() for key, value in own.items() if value}


def _interim(request: web.BaseRequest) -> _Interim | None:
    """What passes 1xx answers on: they exist from HTTP/1.1 on (RFC 9110, 15.2)."""
    return _Interim(request) if request.version >= HttpVersion11 else None


class _Interim:
    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def __call__(self, head: bytes) -> None:
        if self._request.transport is not None:
            self._request.transport.write(head + b"\r\n")


async def _asked(answer: Answer, retry: Retry) -> tuple[list[bytes], Forward | None]:
    """What `retry` says to an error answer, and the beginning of its body; the answer is closed if it is given up."""
    pieces: list[bytes] = []
    try:
        size = 0
        async for chunk in answer.chunks():
            pieces.append(chunk)
            size += len(chunk)
            if size > RETRY_BODY:
                return pieces, None
        again = retry(answer.status, await _readable(answer, b"".join(pieces)))
    except BaseException:
        answer.close()
        raise
    if again is not None:
        answer.close()
    return pieces, again


async def _readable(answer: Answer, body: bytes) -> bytes:
    """A body of the cluster's with its content-encoding undone; as it came where that can't be."""
    codings = [value.decode("latin-1") for name, value in answer.headers if name.lower() == b"content-encoding"]
    try:
        return await bodies.decode(body, codings, RETRY_BODY)
    except GatewayError:
        return body
