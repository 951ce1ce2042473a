"""How documents are read from the cluster: the port, whose credentials, and what an answer means."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from gateway.agents.errors import lookup_error

AUTH_HEADERS = frozenset(
    {
        "authorization",
        "cookie",
        "securitytenant",
        "x-forwarded-for",
        "x-proxy-roles",
        "x-proxy-user",
    }
)
"""Request headers that say who the caller is: password or token, session, tenant, login by a proxy.

A signed request (SigV4) can't be passed on: its signature is good for one request. It needs a service account.
"""


class Lookup(Protocol):
    """The port to the cluster."""

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        """`GET path` (raw path and query) with `headers`: the status and the parsed body, None if it is not JSON.

        Raises:
            gateway.errors.UpstreamUnavailable, gateway.errors.UpstreamTimeout: no answer came.
        """


class Credentials:
    """Picks from a request what a lookup needs to be made in the caller's name, and tells callers apart."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that say who the caller is; a repeated one is joined (RFC 9110, 5.3; cookies by `; `)."""
        found: dict[str, str] = {}
        for name, value in headers.items():
            lower = name.lower()
            if lower in AUTH_HEADERS:
                separator = "; " if lower == "cookie" else ", "
                found[lower] = f"{found[lower]}{separator}{value}" if lower in found else value
        return found

    def fingerprint(self, credentials: Mapping[str, str]) -> bytes:
        """A keyed hash that is equal for equal credentials, in this process only; the secret can't be read from it."""
        text = "\n".join(f"{name}:{value}" for name, value in sorted(credentials.items()))  # as in a head: no other way
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()


def document_path(kind: str, id_: str, rest: str = "") -> str:
    """``/_plugins/_ml/{kind}/{id}{rest}`` with the id quoted, so that it can't lead anywhere else."""
    quoted = quote(id_, safe="", errors="surrogatepass")
    # A dot segment survives quoting and is resolved on the way, so its dots are written out.
    return f"/_plugins/_ml/{kind}/{quoted.replace('.', '%2E') if quoted in ('.', '..') else quoted}{rest}"


async def get_document(
    lookup: Lookup, kind: str, id_: str, headers: Mapping[str, str], rest: str = ""
) -> dict[str, Any]:
    """The document of `kind` ("agents", "models", "connectors", "memory") and `id_`.

    Raises:
        FailedLookup: the branch of `gateway.agents.errors` that fits the cluster's answer.
    """
    status, body = await lookup.get_json(document_path(kind, id_, rest), headers)
    if status == 200 and isinstance(body, dict):
        return body
    raise lookup_error(kind, id_, status, body)
