"""Who sends a request to a route: what another cluster gets of it, and what keeps it with a target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_plus

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.schema import Settings
from gateway.memory.owner import identity_of, knows_users
from gateway.unified.model import Text
from gateway.unified.request import ExecuteRequest

OPEN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "user-agent",
        "x-opaque-id",
        "x-request-id",
    }
)
"""The headers of a client that another cluster gets without `callers: passed`: none of these holds a secret."""


OPEN_PARAMETERS = frozenset(
    {
        "async",
        "error_trace",
        "filter_path",
        "human",
        "max_results",
        "next_token",
        "pretty",
        "source",
        "source_content_type",
    }
)
"""The parameters of a query that another cluster gets without `callers: passed`. A token or a signature may be another:
OpenSearch's `jwt_url_parameter` can have any name."""
_SEPARATORS = re.compile(rb"[&;#]")


def open_target(target: bytes) -> bytes:
    """Return a raw path and query as any cluster may get them. `;` and `#` separate, too: see `read_async`."""
    path, _, query = target.partition(b"?")
    parts = [part for part in _SEPARATORS.split(query) if unquote_plus(_name(part)) in OPEN_PARAMETERS]
    return path + b"?" + b"&".join(parts) if parts else path


def _name(part: bytes) -> str:
    return part.partition(b"=")[0].decode("latin-1")


def without_credentials(headers: Mapping[str, str]) -> CIMultiDictProxy[str]:
    """Return the headers that any cluster may get."""
    pairs = ((name, value) for name, value in headers.items() if name.lower() in OPEN_HEADERS)
    return CIMultiDictProxy(CIMultiDict(pairs))


class Callers:
    """Tells callers apart for routes."""

    def __init__(self, settings: Settings) -> None:
        self.by_user = knows_users(settings)
        self._names = [name for name in (settings.memory.tenant_header, settings.admission.client_header) if name]

    def key(self, headers: Mapping[str, str]) -> str:
        """Return what stands for the caller, the same from request to request; "" for one that nothing tells apart."""
        own = [f"{name.lower()}:{headers[name]}" for name in self._names if headers.get(name)]
        return "\n".join((identity_of(headers, self.by_user).hex(), *own)).strip("\n")


def first_message(request: ExecuteRequest | None) -> str:
    """Return the text of the first message of a request's conversation; "" if it can't be read, or has none."""
    if request is None:
        return ""
    if request.input is None:
        question = request.parameters.get("question")
        return question if isinstance(question, str) else ""
    first = next((message for message in request.input.messages if message.role == "user"), None)
    return "\n".join(block.text for block in first.content if isinstance(block, Text)) if first is not None else ""
