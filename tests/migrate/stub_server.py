"""An HTTP server in a thread that sends the responses a test sets, with TLS if asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROOT = {"cluster_name": "books", "version": {"number": "2.19.0", "distribution": "opensearch"}}


class StubServer:
    """answer: status and body (JSON data, or bytes as they are); None: the connection is closed without an answer.

    requests: (method, path, headers in lower case, body) of each request.
    """

    def __init__(self, answer: tuple[int, Any] | None = (200, ROOT), tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the newest request."""
        return self.requests[-1][2]

    def _handler(stub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub.requests.append((self.command, self.path, headers, body))
                if stub.answer is None:
                    self.close_connection = True
                    return
                status, answer = stub.answer
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if isinstance(answer, bytes) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _serve

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on stderr."""

        return Handler
