from __future__ import annotations

import errno
import io
import json
import os
import socket
import ssl

import pytest

from gateway.app import build
from gateway.observe.connect_errors import describe_connect_error
from gateway.observe.logs import configure
from tests.conftest import settings_for
from tests.proxy.use_case import UseCase
from tests.wire import reserved, send_request


def _untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 9200)"), "connection refused"),
        (OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)), "no route to host"),
        (OSError(errno.ENETUNREACH, "x"), "network is unreachable"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out"),
        (TimeoutError(), "connection timed out"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "connection reset by peer"),
        (ConnectionResetError("the connection was closed at once"), "the connection was closed at once"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
         "name resolution failed: name or service not known"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed"),
         "connection refused"),
        (_untrusted(), "TLS failed: self-signed certificate"),
        (OSError(), "OSError"),
    ],
)  # fmt: skip
def test_reasons(error: OSError, reason: str) -> None:
    assert describe_connect_error(error) == reason


async def test_an_unreachable_node_is_logged_with_address_and_reason() -> None:
    log = io.StringIO()
    with reserved() as port:
        over = {"logs": {"level": "info"}}
        gateway = build(settings_for(f"http://127.0.0.1:{port}", over), UseCase(), configure("info", "json", log))
        await gateway.start()
        answer = await send_request(gateway.data_port, b"GET /_cat HTTP/1.1\r\nHost: a\r\n\r\n")
        await gateway.stop()
    assert answer.line.split()[1] == b"502"
    assert b"127.0.0.1" not in answer.body
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (unreachable,) = (line for line in lines if line["event"] == "node unreachable")
    assert (unreachable["node"], unreachable["reason"]) == (f"127.0.0.1:{port}", "connection refused")
    assert "refused" not in [line["event"] for line in lines]
    assert [line["type"] for line in lines if line["event"] == "no answer"] == ["UpstreamUnavailable"]
