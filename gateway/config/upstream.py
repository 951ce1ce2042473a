"""The settings of the cluster, `upstream`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import Count, NodeUrl, Positive, PositiveSeconds, Seconds, Secret, TlsVersion


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the cluster."""

    connect: Annotated[Seconds, Meta(description="To get a connection, including the wait for a free one.")] = 5.0
    header: Annotated[Seconds, Meta(description="From the end of the request to the answer's head.")] = 300.0
    idle: Annotated[
        Seconds,
        Meta(description="Between two pieces of an answer's body, or of a request's body as the cluster reads it."),
    ] = 300.0
    execute: Annotated[
        Seconds,
        Meta(description="Replaces `header` and `idle` for `_execute`. 0 by default, as an agent may run for minutes."),
    ] = 0.0
    lookup: Annotated[Seconds, Meta(description="For one whole read of an agent, a model or a connector.")] = 10.0


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """TLS to the cluster, if its address is https. The files are read again when they change."""

    verify: Annotated[bool, Meta(description="Check the cluster's certificate and host name.")] = True
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust instead of the system's.")] = ""
    cert_file: Annotated[
        str, Meta(description="PEM file of the gateway's client certificate and its chain; empty: none.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key; empty: it is in `cert_file`.")] = ""
    server_name: Annotated[
        str, Meta(description="Name for SNI and for the check of the certificate; empty: the host in the address.")
    ] = ""
    min_version: Annotated[TlsVersion, Meta(description="Oldest accepted version of TLS.")] = "1.2"


class Account(Struct, frozen=True, forbid_unknown_fields=True):
    """An account on the cluster."""

    username: Annotated[str, Meta(description="Its name.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()


class SigV4(Struct, frozen=True, forbid_unknown_fields=True):
    """Amazon's signature, Version 4, with credentials from boto3's chain."""

    service: Annotated[
        Literal["es", "aoss"],
        Meta(description="The service: OpenSearch Service (`es`) or OpenSearch Serverless (`aoss`)."),
    ] = "es"
    region: Annotated[str, Meta(description="Its region; empty: as boto3 finds it.")] = ""
    profile: Annotated[str, Meta(description="Profile of the AWS configuration files; empty: as boto3 finds it.")] = ""


class Auth(Struct, frozen=True, forbid_unknown_fields=True):
    """The credentials that the cluster gets: the client's, or the gateway's instead. Never both."""

    mode: Annotated[
        Literal["pass", "basic", "sigv4"],
        Meta(
            description="`pass`: the client's `Authorization`, unchanged. `basic`, `sigv4`: the gateway's credentials "
            "instead; the cluster then can't tell clients apart."
        ),
    ] = "pass"
    basic: Account = Account()
    sigv4: SigV4 = SigV4()


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """Probes of the nodes, if there are several. A single node is probed only by the readiness page."""

    path: Annotated[
        str, Meta(pattern=r"^/[!-~]*$", description="Path of a probe. Any status below 500 is a success.")
    ] = "/"
    interval: Annotated[Seconds, Meta(description="Between two rounds of probes; 0: no probes.")] = 5.0
    timeout: Annotated[PositiveSeconds, Meta(description="For one whole probe.")] = 2.0
    failures: Annotated[Positive, Meta(description="Consecutive failures after which a node gets no requests.")] = 3
    successes: Annotated[Positive, Meta(description="Consecutive successes after which it gets requests again.")] = 2


class Ejection(Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that fail requests get none for a while. The last node is never ejected."""

    failures: Annotated[
        Count, Meta(description="Consecutive requests without a valid answer that eject a node; 0: no ejection.")
    ] = 3
    seconds: Annotated[
        Seconds, Meta(description="How long the first time; doubled each time the node fails again.")
    ] = 5.0
    max_seconds: Annotated[Seconds, Meta(description="Longest ejection.")] = 300.0
    max_share: Annotated[
        float, Meta(ge=0, le=1, description="Largest share of ejected nodes at a time; one may always be ejected.")
    ] = 0.5


class Upstream(Struct, frozen=True, forbid_unknown_fields=True):
    """The OpenSearch cluster."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/?#@\s]+/?$",
            examples=["http://127.0.0.1:9200"],
            description="The cluster's address: `http(s)://host[:port]`, without a path or credentials.",
        ),
    ] = "http://127.0.0.1:9200"
    nodes: Annotated[
        list[NodeUrl],
        Meta(
            description="Addresses of several nodes of the cluster, instead of `url`; all different, all of one "
            "scheme. Each request goes to the least busy node."
        ),
    ] = []
    host_header: Annotated[
        Literal["upstream", "client"],
        Meta(
            description="`Host` sent to the cluster: the cluster's (`upstream`; required by Amazon's service) or the "
            "client's."
        ),
    ] = "upstream"
    connections: Annotated[Positive, Meta(description="Largest number of connections to the cluster.")] = 1000
    keepalive: Annotated[Seconds, Meta(description="How long an idle connection stays open.")] = 15.0
    timeouts: Timeouts = Timeouts()
    tls: Tls = Tls()
    auth: Auth = Auth()
    health: Health = Health()
    ejection: Ejection = Ejection()
