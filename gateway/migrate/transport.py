"""Requests through opensearch-py: the same answer for every status, no retries, no logging."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec
from opensearchpy import OpenSearch, RequestsHttpConnection
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import ConnectionTimeout, SerializationError, SSLError, TransportError
from requests import Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectTimeout
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ProxyError

from gateway.config.schema import Tls, Upstream
from gateway.observe.connect_errors import describe_connect_error

_READS = ("GET", "HEAD")
_POOL = 16


class Answer(msgspec.Struct, frozen=True):
    """A cluster's answer. body: {} if it is not a JSON object."""

    status: int
    body: dict[str, Any]


class NoAnswer(Exception):
    """The cluster did not answer. maybe_sent: the request may have taken effect all the same."""

    def __init__(self, message: str, maybe_sent: bool) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class _Named(HTTPAdapter):
    """Uses `upstream.tls.server_name` for SNI and the certificate check in place of the address's host."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__(pool_maxsize=_POOL)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Create the pool manager with that name."""
        super().init_poolmanager(*args, **options, server_hostname=self._name, assert_hostname=self._name)


class _Connection(RequestsHttpConnection):
    """Never logs a request, as bodies may hold credentials, and reads only proxies from the environment.

    Otherwise REQUESTS_CA_BUNDLE would override the settings, and requests would use credentials from ~/.netrc.
    """

    def __init__(self, *args: Any, server_name: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        session: Session = self.session
        session.trust_env = False
        session.proxies.update(get_environ_proxies(self.host))
        if server_name:
            session.mount("https://", _Named(server_name))

    def log_request_success(self, *args: Any, **options: Any) -> None:
        """Log nothing."""

    def log_request_fail(self, *args: Any, **options: Any) -> None:
        """Log nothing. The caller reports the failure."""


class Sender:
    """Sends requests to a cluster's nodes; safe to use from several threads."""

    def __init__(self, upstream: Upstream, auth: Any, headers: Mapping[str, str]) -> None:
        tls, waits = upstream.tls, upstream.timeouts
        self._nodes = [url.rstrip("/") for url in upstream.nodes or [upstream.url]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user chose `verify: false`
            self._client = OpenSearch(
                hosts=self._nodes,
                connection_class=_Connection,
                http_auth=auth,
                headers=dict(headers),
                timeout=(waits.connect or None, waits.header or None),
                max_retries=0,
                retry_on_timeout=False,
                pool_maxsize=_POOL,
                **(_tls(tls) if self._nodes[0].startswith("https:") else {}),
            )

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send a request. A read whose node does not answer is sent to the next node.

        Raises:
            NoAnswer: the cluster did not answer.
        """
        read = method in _READS or path.partition("?")[0].endswith("/_search")
        for left in reversed(range(len(self._nodes) if read else 1)):
            try:
                return self._send_once(method, path, body)
            except NoAnswer:
                if not left:
                    raise
        raise AssertionError("there is always a node")

    def _send_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        try:
            answer = self._client.transport.perform_request(method, path, body=body)
            return Answer(200, answer if isinstance(answer, dict) else {})
        except (ConnectionTimeout, SSLError, NoConnection) as error:
            cause = error.info
            raise NoAnswer(_describe(error, cause), not _before_sending(error, cause)) from None
        except SerializationError:
            return Answer(200, {})  # the answer is not JSON: a login page, another product
        except TransportError as error:
            info = error.info
            return Answer(int(error.status_code), info if isinstance(info, dict) else {"error": str(error.error)})


def _tls(tls: Tls) -> dict[str, Any]:
    options = {
        "ca_certs": tls.ca_file if tls.verify else "",
        "client_cert": tls.cert_file,
        "client_key": tls.key_file,
        "server_name": tls.server_name,
    }
    return {"verify_certs": tls.verify, "ssl_show_warn": False, **{k: v for k, v in options.items() if v}}


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and its causes, the outermost first."""
    found: list[BaseException] = []
    while isinstance(error, BaseException) and error not in found:
        found.append(error)
        inner = error.reason if isinstance(error, MaxRetryError) else next(iter(error.args), None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return found


def _before_sending(error: Exception, cause: Any) -> bool:
    """Return True if the connection failed, so that nothing was sent."""
    return isinstance(error, SSLError) or any(
        isinstance(one, ConnectTimeout | NewConnectionError | ProxyError) for one in _causes(cause)
    )


def _describe(error: Exception, cause: Any) -> str:
    """Describe in a line what went wrong and what to do."""
    causes = _causes(cause)
    innermost = next((str(one) for one in reversed(causes) if str(one)), type(error).__name__)
    reason = " ".join(innermost.split())[:300]
    if isinstance(error, SSLError):
        return f"TLS failed ({reason}): check the address, --ca-file (upstream.tls.ca_file) and the client certificate."
    if isinstance(error, ConnectionTimeout):
        return f"it took too long ({reason}): check the address and the cluster's health."
    if any(isinstance(one, NewConnectionError) for one in causes):
        cause = next((one for one in reversed(causes) if isinstance(one, OSError) and one.errno), causes[-1])
        return f"{describe_connect_error(cause)}: check --url or upstream.url, and that the cluster runs."
    if any(isinstance(one, HTTPError) for one in causes):
        return f"the connection broke ({reason}): check whether the address needs https or http."
    return reason
