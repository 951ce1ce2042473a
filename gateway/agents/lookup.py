"""How documents and settings are read from the cluster: the port, the credentials, and the meaning of a response."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Protocol
from urllib.parse import quote

from gateway.errors import AnswerTooLarge, Problem, UnresolvedAgent, UpstreamTimeout, UpstreamUnavailable

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
        FailedLookup: the subclass in `gateway.agents.lookup` for the cluster's response.
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


PERMISSIONS = {
    "agents": "cluster:admin/opensearch/ml/agents/get",
    "models": "cluster:admin/opensearch/ml/models/get",
    "connectors": "cluster:admin/opensearch/ml/connectors/get",
    "memory": "cluster:admin/opensearch/ml/memory/interaction/list",
    "cluster": "cluster:monitor/main",
}
"""The cluster permission each kind of lookup needs."""

_ANSWER_LENGTH = 200


class FailedLookup(UnresolvedAgent):
    """A lookup that returned no document. cluster_status: the status the cluster sent."""

    def __init__(self, reason: str, cluster_status: int, problem: Problem, help: str = "") -> None:
        super().__init__(reason, [problem], help, problem.repeats)
        self.cluster_status = cluster_status


class DocumentTooLarge(UnresolvedAgent):
    """The document of an agent, model, connector or memory is longer, or has more values, than the gateway reads."""


class AgentNotFound(FailedLookup):
    """There is no such agent."""

    status = 404


class LookupDenied(FailedLookup):
    """401 or 403: the credentials of the lookup may not read the document."""


class LookupFailed(FailedLookup):
    """The cluster returned an error, or something that is not a document."""


class LookupUnavailable(LookupFailed):
    """The cluster failed for now (429, 5xx). The same request may work later."""

    status = 502


def lookup_error(kind: str, id_: str, status: int, answer: Any) -> FailedLookup:
    """Return the error for a lookup of `kind` ("agents", "models", …) and `id_` that got `status` and `answer`."""
    what = f"{kind}/{id_}" if id_ else kind
    cause = _cause(answer)
    expected = "200 with a JSON object" if status == 200 else "200"
    problem = Problem(what, f"the cluster answered {status}: {cause}", expected, str(status), repeats=cause)
    if status in (401, 403):
        permission = PERMISSIONS[kind]
        return LookupDenied(
            f"the gateway may not read {what} with the credentials it was given",
            status,
            problem,
            f"grant {permission} to the caller; or set `agents.lookup` to service_account, with an account that has "
            "it; or give the agent a rule (`agents.rules[].provider`) and set `agents.on_unproved` to assume",
        )
    if status == 404 and kind == "agents":
        return AgentNotFound(f"there is no agent {id_}", status, problem)
    error = LookupUnavailable if status == 429 or status >= 500 else LookupFailed
    return error(f"the cluster could not show {what}: {cause}", status, problem)


def _cause(answer: Any) -> str:
    """Return the cluster's own reason, shortened."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    reason = error.get("reason", "") if isinstance(error, dict) else error
    return (reason if isinstance(reason, str) and reason else "a response that is not a JSON document")[:_ANSWER_LENGTH]
