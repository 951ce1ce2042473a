"""The connection of the commands to a cluster: opensearch-py, with basic auth, SigV4 or no credentials.

The address and the account come from the gateway's settings (`--config`), or from options that override them. A
password is read from the settings' sources or from the environment variable ``MLC_PASSWORD``, or asked for on a
terminal. It is not an option, as other users of the machine can see the command line. Requests are not logged: their
bodies may hold credentials.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from opensearchpy import OpenSearch, RequestsHttpConnection
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import ConnectionTimeout, SerializationError, SSLError, TransportError
from requests import PreparedRequest, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectTimeout
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ProxyError

from gateway.agents.lookup import PERMISSIONS, read_version
from gateway.config.load import ConfigError, ConfigProblem, load
from gateway.config.schema import Settings, Tls, Upstream
from gateway.observe.connect_errors import describe_connect_error, name_wrong_scheme

PASSWORD = "MLC_PASSWORD"
PASSWORD_THERE = "MLC_TO_PASSWORD"
"""The password of `move --to-user`."""
TENANT = "x-tenant-id"
"""The header that names the tenant of a multi-tenant ML Commons (source, 2.19 and later)."""


class ClusterOptions(msgspec.Struct, frozen=True):
    """How to reach a cluster, as the command line says it. Each option overrides the settings in the file `config`."""

    config: Path | None = None
    url: str | None = None
    user: str | None = None
    aws_service: str | None = None
    aws_region: str | None = None
    aws_profile: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    tenant: str | None = None
    cluster_version: str | None = None


class ClusterError(Exception):
    """The cluster can't be used. The message says what to do."""


class ClusterUnreachable(ClusterError):
    """The cluster did not answer. maybe_sent: the request may have reached it and taken effect."""

    def __init__(self, message: str, maybe_sent: bool = False) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class ClusterRefused(ClusterError):
    """The cluster answered with an error: 401, 403, or it is not OpenSearch with ML Commons."""


class Cluster(Protocol):
    """The port to a cluster; safe to use from several threads."""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request; return the status (200 for every success) and the body (``{}`` if not a JSON object).

        path: raw path and query (`gateway.agents.lookup.document_path` quotes ids). A write is sent once. A read
        whose node does not answer is sent to the next node.

        Raises:
            ClusterUnreachable: the cluster did not answer.
        """


@dataclass(frozen=True)
class Connected:
    """A cluster that answered `GET /`. It is a `Cluster`.

    settings: those of the gateway. authorization: the `Authorization` header of the account of `--user`; "" without it.
    options: how the user reaches it. uuid: of the cluster, "" if it does not say.
    """

    version: tuple[int, ...]
    name: str
    url: str
    settings: Settings
    _sender: Sender = field(repr=False)
    authorization: str = field(default="", repr=False)
    options: ClusterOptions = field(default_factory=ClusterOptions)
    uuid: str = ""

    @property
    def identity(self) -> str:
        """What stands for the cluster in marks: its UUID, or else its address."""
        return self.uuid or without_credentials(self.url)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """See `Cluster`."""
        return self._sender.send(method, path, body)


def connect(options: ClusterOptions, ask: Callable[[str], str] | None = None) -> Connected:
    """Connect to a cluster: send it `GET /` and read its version.

    ask: asks for a password; by default on the terminal, without echo.

    Raises:
        ClusterError: it can't be reached, refuses access, or is not OpenSearch; the settings or options are wrong.
    """
    settings = _settings(options)
    auth = _auth(options, settings.upstream, ask)
    headers = {TENANT: options.tenant} if options.tenant else {}
    authorization = f"Basic {b64encode(b':'.join(auth)).decode()}" if options.user else ""
    return _connect(settings, Sender(settings.upstream, auth, headers), authorization, options)


def connect_named(settings: Settings, name: str, user: str | None = None) -> Connected:
    """Connect to one of the settings' `clusters`, with its own address, TLS and credentials.

    Its settings are `settings` with that cluster as `upstream`. user: an account in place of its `auth`.

    Raises:
        ClusterError: there is no such cluster, or as `connect`. The message names it.
    """
    upstream = settings.clusters.get(name)
    if upstream is None:
        known = ", ".join(settings.clusters) or "none"
        raise ClusterError(f"The settings have no cluster {name} in `clusters` (there: {known}).")
    own = msgspec.structs.replace(settings, upstream=upstream)
    try:
        _check_files(upstream.tls)
        auth = _auth(ClusterOptions(user=user), upstream, None, PASSWORD_THERE)
        return _connect(own, Sender(upstream, auth, {}), "", ClusterOptions(), f"clusters.{name}")
    except ConfigError as error:
        lines = [str(problem).replace("upstream", f"clusters.{name}") for problem in error.problems]
        raise ClusterError("\n".join(lines)) from None
    except ClusterError as error:
        error.args = (f"clusters.{name}: {error}".replace("--url or upstream.url", f"clusters.{name}.url"),)
        raise


def _connect(
    settings: Settings, sender: Sender, authorization: str, options: ClusterOptions, section: str = "upstream"
) -> Connected:
    """Read the version of the cluster that the settings' `upstream` names. section: of the file that it is from."""
    url = (settings.upstream.nodes or [settings.upstream.url])[0].rstrip("/")
    try:
        status, root = sender.send("GET", "/")
    except ClusterUnreachable as error:
        if wrong := name_wrong_scheme(url):
            raise ClusterUnreachable(f"{url} got no answer. {wrong}", error.maybe_sent) from None
        raise
    version = _version(options.cluster_version, url, status, root, section)
    uuid = str(root.get("cluster_uuid") or "").replace("_na_", "")  # so it says before it has formed
    return Connected(version, str(root.get("cluster_name", "")), url, settings, sender, authorization, options, uuid)


def without_credentials(url: str) -> str:
    """Return an address without a user name and password."""
    return re.sub(r"^(\w+://)?.*@", r"\1", url)


def answer_of(status: int, answer: Mapping[str, Any]) -> str:
    """Describe an answer in a line: the status and the shortened reason."""
    error = answer.get("error", answer)
    reason = (error.get("details") or error.get("reason") or "") if isinstance(error, Mapping) else error
    line = " ".join(str(reason).split())[:300]
    return f"{status}: {line}" if line else str(status)


def refusal(
    status: int, what: str, permission: str, answer: Mapping[str, Any], section: str = "upstream"
) -> ClusterRefused:
    """Return the error for a call that the cluster refused. permission: what the account needs.

    section: of the settings that names the cluster.
    """
    reason = answer_of(status, answer)
    next_401 = _NEXT_401 if section == "upstream" else f"check {section}.auth of the settings."
    match status:
        case 401:
            message = f"The cluster does not accept these credentials ({reason}): {next_401}"
        case 403:
            message = f"This account may not {what} ({reason}): grant it {permission}, or use another account."
        case _:
            message = f"The cluster could not {what}: {reason}"
    return ClusterRefused(message)


_NEXT_401 = f"check --user and the password ({PASSWORD}), the AWS credentials, or upstream.auth of the settings."


def _settings(options: ClusterOptions) -> Settings:
    """Load the gateway's settings, overridden by the options."""
    if options.user and (options.aws_service or options.aws_region or options.aws_profile):
        raise ClusterError("--user and the --aws options are two ways to sign in: give only one of them.")
    upstream: dict[str, Any] = {}
    if options.url:
        upstream |= {"url": options.url, "nodes": []}
    tls = {"ca_file": options.ca_file, "cert_file": options.cert_file, "key_file": options.key_file}
    upstream["tls"] = {name: value for name, value in tls.items() if value}
    if options.insecure:
        upstream["tls"]["verify"] = False
    sigv4 = {"service": options.aws_service, "region": options.aws_region, "profile": options.aws_profile}
    if any(sigv4.values()):
        upstream["auth"] = {"mode": "sigv4", "sigv4": {name: value for name, value in sigv4.items() if value}}
    try:
        settings = load(options.config, overrides={"upstream": upstream})
        _check_files(settings.upstream.tls)
        return settings
    except ConfigError as error:
        problems = [_by_option(problem, options) for problem in error.problems]
        raise ClusterError("\n".join(["The settings can't be used:", *map(str, problems)])) from None


def _check_files(tls: Tls) -> None:
    paths = {name: getattr(tls, name) for name in ("ca_file", "cert_file", "key_file")}
    missing = [(name, path) for name, path in paths.items() if path and not Path(path).exists()]
    if missing:
        raise ConfigError([ConfigProblem(f"upstream.tls.{name}", f"there is no file {path}") for name, path in missing])


_OPTIONS = {
    "upstream.url": "url",
    "upstream.tls.ca_file": "ca_file",
    "upstream.tls.cert_file": "cert_file",
    "upstream.tls.key_file": "key_file",
    "upstream.auth.sigv4.region": "aws_region",
    "upstream.auth.sigv4.profile": "aws_profile",
}
"""The settings of options, which may hold something wrong."""


def _by_option(problem: ConfigProblem, options: ClusterOptions) -> ConfigProblem:
    """Return the problem with the option that the value comes from, if one gives it."""
    name = _OPTIONS.get(problem.path, "")
    given = name and getattr(options, name)
    return replace(problem, source=f"--{name.replace('_', '-')}") if given else problem


def _auth(
    options: ClusterOptions, upstream: Upstream, ask: Callable[[str], str] | None, variable: str = PASSWORD
) -> Any:
    """Return requests' `auth`; None: no credentials. Names and passwords are UTF-8: requests would take Latin-1."""
    if options.user:
        return options.user.encode(), _password(options.user, ask, variable).encode()
    match upstream.auth.mode:
        case "basic":
            return upstream.auth.basic.username.encode(), upstream.auth.basic.password.reveal().encode()
        case "sigv4":
            return _signature(upstream)
    return None


def _password(user: str, ask: Callable[[str], str] | None, variable: str) -> str:
    given = os.environ.get(variable)
    if given is not None:
        return given
    if ask is None and not sys.stdin.isatty():
        raise ClusterError(f"There is no password for {user}: put it into the environment variable {variable}.")
    return (ask or getpass.getpass)(f"Password of {user}: ")


def _signature(upstream: Upstream) -> Any:
    """Return requests-aws4auth's signer with boto3's credentials, which it refreshes when they expire.

    Raises:
        ClusterError: there are no credentials, or they can't be loaded. The signer raises it if a refresh fails.
    """
    import boto3  # type: ignore[import-untyped]  # here, as it is slow to load
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    from requests_aws4auth import AWS4Auth  # type: ignore[import-untyped]

    wanted = upstream.auth.sigv4
    try:
        session = boto3.Session(profile_name=wanted.profile or None, region_name=wanted.region or None)
        credentials = session.get_credentials()
    except BotoCoreError as error:
        raise ClusterError(f"AWS credentials can't be loaded: {error}") from None
    if credentials is None:
        raise ClusterError(
            "boto3 finds no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile with "
            "--aws-profile, or run with an instance or task role."
        )
    if not session.region_name:
        raise ClusterError("There is no AWS region: name it with --aws-region or AWS_REGION.")

    def sign(request: PreparedRequest) -> PreparedRequest:
        try:
            signer = AWS4Auth(region=session.region_name, service=wanted.service, refreshable_credentials=credentials)
            signed: PreparedRequest = signer(request)
        except (BotoCoreError, ClientError) as error:  # such as a login by SSO that has expired
            raise ClusterError(f"AWS credentials can't be loaded: {error}") from None
        return signed

    return sign


def _version(
    given: str | None, url: str, status: int, root: Mapping[str, Any], section: str = "upstream"
) -> tuple[int, ...]:
    """Return the cluster's version, from the option or from `GET /`."""
    if given:
        version = read_version({"version": {"number": given, "distribution": "opensearch"}})
        if version is None:
            raise ClusterError(f"--cluster-version {given!r} is not a version such as 2.19.0.")
        if status in (200, 403):
            return version
    if status in (401, 403):
        raise refusal(
            status,
            "read GET /",
            f"{PERMISSIONS['cluster']} (or name its version with --cluster-version)",
            root,
            section,
        )
    found = read_version(root) if status == 200 else None
    if found is None:
        raise ClusterRefused(
            f"{url} answered GET / with {status}, but not as OpenSearch does: check the address; if the cluster hides "
            "its version (compatibility.override_main_response_version), name it with --cluster-version."
        )
    return found


_READS = ("GET", "HEAD")
_POOL = 16


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
    """Sends requests to a cluster's nodes, without retries and logs; safe to use from several threads."""

    def __init__(self, upstream: Upstream, auth: Any, headers: Mapping[str, str]) -> None:
        tls, waits = upstream.tls, upstream.timeouts
        self._nodes = [url.rstrip("/") for url in upstream.nodes or [upstream.url]]
        self._host = urlsplit(self._nodes[0]).netloc
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

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request as `Cluster.call`. A read whose node does not answer is sent to the next node.

        Raises:
            ClusterUnreachable: the cluster did not answer.
        """
        read = method in _READS or path.partition("?")[0].endswith("/_search")
        for left in reversed(range(len(self._nodes) if read else 1)):
            try:
                return self._send_once(method, path, body)
            except ClusterUnreachable:
                if not left:
                    raise
        raise AssertionError("there is always a node")

    def _send_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        try:
            answer = self._client.transport.perform_request(method, path, body=body)
            return 200, answer if isinstance(answer, dict) else {}
        except (ConnectionTimeout, SSLError, NoConnection) as error:
            message = f"{method} {path} at {self._host} got no answer: {_describe(error, error.info)}"
            raise ClusterUnreachable(message, not _before_sending(error, error.info)) from None
        except SerializationError:
            return 200, {}  # the answer is not JSON: a login page, another product
        except TransportError as error:
            info = error.info
            return int(error.status_code), info if isinstance(info, dict) else {"error": str(error.error)}


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
