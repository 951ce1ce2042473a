"""An OTLP/HTTP collector on loopback, which keeps the spans that it gets, and may refuse them or not answer."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.wire import PATIENCE


class Collector:
    """Spans in the order in which they came, and the whole bodies. status: of the answers. blocked: until it is set,
    nothing is answered.
    """

    def __init__(self, status: int = 200, tls: ssl.SSLContext | None = None) -> None:
        self.status = status
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._receive(self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "0.01")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def _receive(self, body: bytes, headers: Mapping[str, str]) -> None:
        with self._changed:
            self.bodies.append(body)
            self.headers.append(headers)
            self._changed.notify_all()
        self.released.wait(PATIENCE)
        if self.status != 200:
            return
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for resource in request.resource_spans:
                self.resources.append(attributes(resource.resource.attributes))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Span]:
        """Return the spans once there are `count`. Blocks."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans) >= count, PATIENCE), self.spans
            return self.spans

    def wait_for_requests(self, count: int = 1) -> None:
        """Return once `count` requests have come. Blocks."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, PATIENCE)


@contextmanager
def running_collector(status: int = 200, tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """Run a collector."""
    collector = Collector(status, tls)
    server = collector._server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(pairs: Any) -> dict[str, Any]:
    """Return OTLP attributes as Python values."""
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind or "string_value")
