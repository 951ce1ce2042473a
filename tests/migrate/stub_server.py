"""An HTTP server in a thread that sends the responses a test sets, with TLS if asked."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from tests.http_thread import Handler, HttpThread

ROOT = {"cluster_name": "books", "version": {"number": "2.19.0", "distribution": "opensearch"}}


class StubServer(HttpThread):
    """answer: status and body (JSON data, or bytes as they are); None: the connection is closed without an answer.

    answers: others, by path without the query. on_request: called after each request is recorded.
    requests: (method, path, headers in lower case, body) of each request.
    """

    def __init__(self, answer: tuple[int, Any] | None = (200, ROOT), tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.answers: dict[str, tuple[int, Any] | None] = {}
        self.on_request: Callable[[], object] = lambda: None
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        super().__init__(self._handler(), tls)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the newest request."""
        return self.requests[-1][2]

    def _handler(stub) -> type[Handler]:
        class StubHandler(Handler):
            def _serve(self) -> None:
                body = self.read_body()
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub.requests.append((self.command, self.path, headers, body))
                stub.on_request()
                found = stub.answers.get(self.path.partition("?")[0], stub.answer)
                if found is None:
                    self.close_connection = True
                    return
                status, answer = found
                if isinstance(answer, bytes):
                    self.send(status, answer, "text/html")
                else:
                    self.send(status, json.dumps(answer).encode())

            do_GET = do_POST = do_PUT = do_DELETE = _serve

        return StubHandler
