"""How documents are read from the cluster: the port, the credentials, and the meaning of a response."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from gateway.agents.errors import DocumentTooLarge, lookup_error
from gateway.errors import AnswerTooLarge, Problem, UpstreamTimeout, UpstreamUnavailable

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
"""Request headers that identify the caller: password or token, session, tenant, login by a proxy.

The credentials of a signed request (SigV4) can't be reused: its signature is valid for one request. Such callers need a
service account.
"""


class Lookup(Protocol):
    """The port to the cluster."""

    async def get_json(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        """`GET` a raw path and query; return the status and the parsed body, None if it is not JSON.

        Raises:
            gateway.errors.UpstreamUnavailable, gateway.errors.UpstreamTimeout: the cluster did not respond.
        """


class Credentials:
    """Picks the headers that a lookup in the caller's name needs, and distinguishes callers."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that identify the caller; a repeated one is joined (RFC 9110, 5.3; cookies by `; `)."""
        found: dict[str, str] = {}
        for name, value in headers.items():
            lower = name.lower()
            if lower in AUTH_HEADERS:
                separator = "; " if lower == "cookie" else ", "
                found[lower] = f"{found[lower]}{separator}{value}" if lower in found else value
        return found

    def fingerprint(self, credentials: Mapping[str, str]) -> bytes:
        """Return a keyed hash that is equal for equal credentials, in this process only. It does not reveal them."""
        text = "\n".join(
            f"{name}:{value}" for name, value in sorted(credentials.items())
        )  # unambiguous: a header has no newline
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()


def document_path(kind: str, id_: str, rest: str = "") -> str:
    """Return ``/_plugins/_ml/{kind}/{id}{rest}`` with the id quoted, so that it can't change the path."""
    quoted = quote(id_, safe="", errors="surrogatepass")
    # Quoting leaves a dot segment, which proxies would resolve, so its dots are escaped.
    return f"/_plugins/_ml/{kind}/{quoted.replace('.', '%2E') if quoted in ('.', '..') else quoted}{rest}"


async def get_json(lookup: Lookup, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    """Read `path` as `lookup` does. If that fails, the error says that nothing was sent to the agent.

    Raises:
        gateway.errors.UpstreamUnavailable, gateway.errors.UpstreamTimeout: the cluster did not respond.
    """
    try:
        return await lookup.get_json(path, headers)
    except (UpstreamUnavailable, UpstreamTimeout) as exc:
        what = f"Nothing was sent to the agent: the gateway was reading {path.partition('?')[0]}."
        raise type(exc)(exc.reason, exc.problems, f"{what} {exc.hint}".rstrip(), exc.repeats) from exc


async def get_document(
    lookup: Lookup, kind: str, id_: str, headers: Mapping[str, str], rest: str = ""
) -> dict[str, Any]:
    """Read the document of `kind` ("agents", "models", "connectors", "memory") and `id_`.

    Raises:
        FailedLookup: the subclass in `gateway.agents.errors` for the cluster's response.
        DocumentTooLarge: see there.
        gateway.errors.UpstreamUnavailable, gateway.errors.UpstreamTimeout: see `get_json`.
    """
    try:
        status, body = await get_json(lookup, document_path(kind, id_, rest), headers)
    except AnswerTooLarge as error:
        problem = Problem(f"{kind}/{id_}", error.reason, code="DOCUMENT_TOO_LARGE", help=error.help)
        raise DocumentTooLarge(error.reason, [problem]) from None
    if status == 200 and isinstance(body, dict):
        return body
    raise lookup_error(kind, id_, status, body)
