"""The settings of the gateway's own ports, `listen`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import Count, Port, Seconds, Secret, TlsVersion


class ListenTls(Struct, frozen=True, forbid_unknown_fields=True):
    """TLS on the data port. The files are read again when they change; new connections then use them."""

    cert_file: Annotated[
        str, Meta(description="PEM file of the gateway's certificate and its chain; empty: no TLS.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key; empty: it is in `cert_file`.")] = ""
    client_ca_file: Annotated[
        str,
        Meta(description="PEM file of the authorities for client certificates; empty: clients need no certificate."),
    ] = ""
    client_auth: Annotated[
        Literal["required", "optional"],
        Meta(description="Whether clients must present a certificate. A presented one is always checked."),
    ] = "required"
    min_version: Annotated[TlsVersion, Meta(description="Oldest accepted version of TLS.")] = "1.2"


class ClientTimeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for a client of the data port. After that the connection is closed."""

    head: Annotated[Seconds, Meta(description="For the head of a request, from its first byte to its last.")] = 30.0
    body: Annotated[Seconds, Meta(description="Between two pieces of a request's body.")] = 60.0
    body_rate: Annotated[
        Count,
        Meta(
            description="Lowest average rate of a request's body, in bytes per second, while the gateway reads it; "
            "0: no limit. Clients that stream small pieces for a long time (`_bulk/stream`) need 0."
        ),
    ] = 1024
    body_rate_after: Annotated[Seconds, Meta(description="How long a body may be slower than that.")] = 10.0
    send: Annotated[Seconds, Meta(description="For the client to continue reading an answer.")] = 300.0
    keepalive: Annotated[Seconds, Meta(description="Between two requests on a connection.")] = 75.0


class Listen(Struct, frozen=True, forbid_unknown_fields=True):
    """The ports of the gateway: one for the cluster's API, one for its own pages."""

    data_host: Annotated[str, Meta(description="Address of the cluster's API.")] = "127.0.0.1"
    data_port: Annotated[Port, Meta(description="Port of the cluster's API; 0: any free port.")] = 9209
    admin_host: Annotated[
        str,
        Meta(
            description="Address of health and metrics. Unless it is a loopback address, `admin_token` is required. "
            "`unix:PATH`: a Unix socket at that path, without a port, for those who may write to it."
        ),
    ] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of health and metrics; 0: any free port.")] = 9601
    admin_token: Annotated[
        Secret,
        Meta(
            description="Token of the admin port, at least 16 characters, as a bearer token or for the login of "
            "`/inspector/`. The health pages need none, for probes."
        ),
    ] = Secret()
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(
            description="Processes that share the data port. If there are several, a supervisor starts and watches "
            "them."
        ),
    ] = 1
    http: Annotated[
        Literal["builtin", "aiohttp"],
        Meta(description="HTTP server of the data port: the gateway's own; or aiohttp's, slower and less exact."),
    ] = "builtin"
    drain_seconds: Annotated[
        Seconds,
        Meta(
            description="How long the gateway accepts connections after a signal to stop, while it is no longer ready."
        ),
    ] = 0.0
    shutdown_seconds: Annotated[
        Seconds, Meta(description="How long running requests may take to finish after that.")
    ] = 30.0
    forwarded: Annotated[
        Literal["pass", "drop", "append"],
        Meta(
            description="What to do with `X-Forwarded-*`, `X-Real-IP` and `Forwarded`: `pass` them; `drop` those of "
            "untrusted peers; `append`: drop those, then add the peer's address."
        ),
    ] = "pass"
    trusted_proxies: Annotated[
        list[str],
        Meta(description="Networks (`10.0.0.0/8`) of proxies that the gateway trusts to name the client."),
    ] = []
    tls: ListenTls = ListenTls()
    timeouts: ClientTimeouts = ClientTimeouts()
