"""A small MCP server for tests: JSON-RPC over streamable HTTP (``/mcp``) and over SSE (``/sse``), with two tools.

It speaks what ML Commons' client needs: `initialize`, `tools/list`, `tools/call`; anything else is "method not found".
"""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_thread import Handler, HttpThread

_SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOLS = [
    {"name": "lookup_word", "description": "Looks up a word.", "inputSchema": _SCHEMA},
    {"name": "forget_word", "description": "Forgets a word.", "inputSchema": _SCHEMA},
]
FOUND = "what the MCP server knows of "
"""A tool's answer begins so, the word it was called with stands behind."""


@dataclass(frozen=True)
class Called:
    """A `tools/call`. authorization: the header of that name."""

    tool: str
    arguments: dict[str, Any]
    authorization: str


class McpServer(HttpThread):
    """The server."""

    def __init__(self) -> None:
        self.called: list[Called] = []
        self._streams: dict[str, queue.SimpleQueue[bytes]] = {}
        self._numbers = count(1)
        super().__init__(self._handler())

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            stream.put(b"")
        super().__exit__()

    def _answer(self, message: Mapping[str, Any], authorization: str) -> dict[str, Any] | None:
        """The answer to a request; None for a notification."""
        if "id" not in message:
            return None
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        asked = message.get("params") or {}
        match message["method"]:
            case "initialize":
                info = {"name": "test", "version": "1"}
                version = asked["protocolVersion"]
                return {
                    **response,
                    "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
                }
            case "tools/list":
                return {**response, "result": {"tools": TOOLS}}
            case "tools/call":
                arguments = asked.get("arguments") or {}
                self.called.append(Called(asked["name"], arguments, authorization))
                text = FOUND + str(arguments.get("word"))
                return {**response, "result": {"content": [{"type": "text", "text": text}], "isError": False}}
        return {**response, "error": {"code": -32601, "message": "method not found"}}

    def _handler(self) -> type[Handler]:
        server = self

        class McpHandler(Handler):
            def do_POST(self) -> None:
                message = json.loads(self.read_body())
                answer = server._answer(message, self.headers.get("Authorization", ""))
                written = json.dumps(answer).encode() if answer else b""
                session = parse_qs(urlsplit(self.path).query).get("session")
                if session:
                    if written:
                        server._streams[session[0]].put(b"event: message\ndata: " + written + b"\n\n")
                    written = b""
                self.send(200 if written else 202, written)

            def do_GET(self) -> None:
                if urlsplit(self.path).path != "/sse":  # no stream of the server's own
                    self.send(405, b"")
                    return
                name = str(next(server._numbers))
                stream = server._streams[name] = queue.SimpleQueue()
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                event = f"event: endpoint\ndata: /message?session={name}\n\n".encode()
                while event:
                    self.wfile.write(event)
                    self.wfile.flush()
                    event = stream.get()

        return McpHandler
