"""Who a request to the adapters' port is of: the headers that the data port gets of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from multidict import CIMultiDict

from gateway.config.adapters import AdapterKey

_LEFT_OUT = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "expect", "keep-alive", "origin", "proxy-connection", "referer", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers of the connection, of the body, and of the page that sends the request."""
_PREFIXES = ("mcp-", "sec-")
"""Of headers of MCP, and of pages."""
_BEARER = "bearer "


class Callers:
    """Replaces keys by the credentials that they stand for. Keys are compared in constant time, and never sent on."""

    def __init__(self, keys: Sequence[AdapterKey]) -> None:
        self._keys = [(_digest(entry.key.reveal()), entry.authorization.reveal()) for entry in keys]

    def headers(self, sent: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
        """Return the headers that say who the caller is, or of what trace the request is. sent: all headers."""
        headers: CIMultiDict[str] = CIMultiDict()
        for raw_name, raw_value in sent:
            name, value = raw_name.decode("ascii").lower(), raw_value.decode("utf-8", "surrogateescape").strip()
            if name in _LEFT_OUT or name.startswith(_PREFIXES):
                continue
            headers.add(name, self._credentials(value) if name == "authorization" else value)
        return headers

    def _credentials(self, value: str) -> str:
        if value[: len(_BEARER)].lower() != _BEARER:
            return value
        given, stands_for = _digest(value[len(_BEARER) :].strip()), value
        for key, authorization in self._keys:
            if hmac.compare_digest(given, key):
                stands_for = authorization
        return stands_for


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
