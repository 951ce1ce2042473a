"""How documents and settings are read from the cluster: the port, the credentials, and the meaning of a response."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import reduce
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


_UNIFIED_API = "plugins.ml_commons.unified_agent_api_enabled"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def read_version(root_doc: Any) -> tuple[int, ...] | None:
    """Return the version in the response of `GET /`, (2, 19, 0); None if it is not OpenSearch's own.

    With `compatibility.override_main_response_version` a cluster reports 7.10.2 without the distribution, so a number
    without `distribution: opensearch` is ignored.
    """
    number = _member(root_doc, ("version", "number"))
    found = _VERSION.match(number) if isinstance(number, str) else None
    if found is None or _member(root_doc, ("version", "distribution")) != "opensearch":
        return None
    return tuple(int(number or 0) for number in found.groups())


def read_switch(settings_doc: Any, name: str) -> bool | None:
    """Read a setting that is on or off from `GET /_cluster/settings?include_defaults=true`; None if it is not there.

    Reads nested and flat settings; transient ones override persistent ones, and those override the defaults.
    """
    return {"true": True, "false": False}.get(str(read_setting(settings_doc, name)).lower())


def read_setting(settings_doc: Any, name: str) -> Any:
    """Return a setting's value as `read_switch` finds it; None if it is not there."""
    for level in ("transient", "persistent", "defaults"):
        for path in ((level, name), (level, *name.split("."))):
            value = _member(settings_doc, path)
            if value is not None:
                return value
    return None


def read_unified_api(settings_doc: Any) -> bool | None:
    """Read whether the unified agent API is on, as `read_switch`."""
    return read_switch(settings_doc, _UNIFIED_API)


def _member(document: Any, path: Iterable[str]) -> Any:
    return reduce(lambda value, name: value.get(name) if isinstance(value, Mapping) else None, path, document)
