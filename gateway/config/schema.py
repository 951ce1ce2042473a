"""Every setting, its default and its meaning; ``docs/configuration.md`` is generated from here.

Durations are seconds, sizes are bytes; 0 switches a timeout off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=0, le=65535)]
YEAR = 31_536_000
"""Longest duration of a setting, in seconds. Switch a time limit off with 0."""
Seconds = Annotated[float, Meta(ge=0, le=YEAR)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=YEAR)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
AgentId = Annotated[str, Meta(pattern=r"^[!-~]+$")]
HostGlob = Annotated[str, Meta(pattern=r"^[a-z0-9*?_.-]+(:[0-9]{1,5})?$")]
NodeUrl = Annotated[str, Meta(pattern=r"^https?://[^/?#@\s]+/?$")]


class Secret:
    """A secret read from an environment variable or a file; only `reveal` shows it."""

    __slots__ = ("_value", "source")

    def __init__(self, value: str = "", source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """The secret itself, "" when none was configured."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({self.source})"


TlsVersion = Literal["1.2", "1.3"]


class ListenTls(Struct, frozen=True, forbid_unknown_fields=True):
    """TLS on the data port. The files are read again when they change; new connections then use them."""

    cert_file: Annotated[
        str, Meta(description="PEM file of the gateway's certificate and its chain; empty: no TLS.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key; empty: it is in `cert_file`.")] = ""
    client_ca_file: Annotated[
        str, Meta(description="PEM file of authorities that sign clients' certificates; empty: clients show none.")
    ] = ""
    client_auth: Annotated[
        Literal["required", "optional"],
        Meta(description="Whether a client must show a certificate; one that is shown is checked either way."),
    ] = "required"
    min_version: Annotated[TlsVersion, Meta(description="Oldest version of TLS that is spoken.")] = "1.2"


class ClientTimeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for a client of the data port; the connection is closed then."""

    head: Annotated[Seconds, Meta(description="For the head of a request, from its first byte to its last.")] = 30.0
    body: Annotated[Seconds, Meta(description="Between two pieces of a request's body.")] = 60.0
    body_rate: Annotated[
        Count,
        Meta(
            description="Least bytes a second of a request's body, on average, while the gateway reads it; 0: no "
            "limit. A client that streams small pieces for long (`_bulk/stream`) needs 0."
        ),
    ] = 1024
    body_rate_after: Annotated[Seconds, Meta(description="How long a body may come slower than that.")] = 10.0
    send: Annotated[Seconds, Meta(description="For the client to take more of an answer that it stopped reading.")] = (
        300.0
    )
    keepalive: Annotated[Seconds, Meta(description="Between two requests on a connection.")] = 75.0


class Listen(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens: the cluster's API on one port, its own pages on the other."""

    data_host: Annotated[str, Meta(description="Address of the port that carries the cluster's API.")] = "127.0.0.1"
    data_port: Annotated[Port, Meta(description="Port of the cluster's API; 0 takes a free one.")] = 9209
    admin_host: Annotated[
        str, Meta(description="Address of health and metrics; one that is not loopback needs `admin_token`.")
    ] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of health and metrics; 0 takes a free one.")] = 9601
    admin_token: Annotated[
        Secret, Meta(description="Bearer token that `/metrics` asks for; health stays open, for probes.")
    ] = Secret()
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Processes that share the data port; more than one are started and watched by one."),
    ] = 1
    http: Annotated[
        Literal["builtin", "aiohttp"],
        Meta(description="HTTP server of the data port: the gateway's own; or aiohttp's, slower and less exact."),
    ] = "builtin"
    drain_seconds: Annotated[
        Seconds,
        Meta(description="How long a gateway told to stop, and no longer ready, still takes new connections."),
    ] = 0.0
    shutdown_seconds: Annotated[
        Seconds, Meta(description="How long requests in flight may take to finish after that.")
    ] = 30.0
    forwarded: Annotated[
        Literal["pass", "drop", "append"],
        Meta(
            description="`X-Forwarded-*`, `X-Real-IP` and `Forwarded`: `pass` as they came; `drop` those of untrusted "
            "peers; `append` the peer's address, after dropping those."
        ),
    ] = "pass"
    trusted_proxies: Annotated[
        list[str],
        Meta(description="Networks (`10.0.0.0/8`) of proxies before the gateway whose word on the client counts."),
    ] = []
    tls: ListenTls = ListenTls()
    timeouts: ClientTimeouts = ClientTimeouts()


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the cluster."""

    connect: Annotated[Seconds, Meta(description="To get a connection, the wait for a free one included.")] = 5.0
    header: Annotated[Seconds, Meta(description="From the end of the request to the answer's head.")] = 300.0
    idle: Annotated[
        Seconds, Meta(description="Between two pieces of an answer's body, or of a request's that the cluster takes.")
    ] = 300.0
    execute: Annotated[
        Seconds,
        Meta(description="In place of `header` and `idle` on `_execute`; 0, as an agent may think for minutes."),
    ] = 0.0
    lookup: Annotated[Seconds, Meta(description="For one read of an agent, a model or a connector, whole.")] = 10.0


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """TLS to the cluster, where its address is https. The files are read again when they change."""

    verify: Annotated[bool, Meta(description="Check the cluster's certificate and host name.")] = True
    ca_file: Annotated[str, Meta(description="PEM file of authorities to trust in place of the system's.")] = ""
    cert_file: Annotated[
        str, Meta(description="PEM file of the certificate, and its chain, that the gateway shows; empty: none.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file of its key; empty: it is in `cert_file`.")] = ""
    server_name: Annotated[
        str, Meta(description="Name asked for (SNI) and checked in the certificate; empty: the address's host.")
    ] = ""
    min_version: Annotated[TlsVersion, Meta(description="Oldest version of TLS that is spoken.")] = "1.2"


class Account(Struct, frozen=True, forbid_unknown_fields=True):
    """An account of the cluster's."""

    username: Annotated[str, Meta(description="Its name.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()


class SigV4(Struct, frozen=True, forbid_unknown_fields=True):
    """Amazon's signature, Version 4, with credentials from boto3's chain."""

    service: Annotated[
        Literal["es", "aoss"],
        Meta(description="What is called: OpenSearch Service (`es`) or OpenSearch Serverless (`aoss`)."),
    ] = "es"
    region: Annotated[str, Meta(description="Its region; empty: as boto3 finds it.")] = ""
    profile: Annotated[str, Meta(description="Profile of the AWS configuration files; empty: as boto3 finds it.")] = ""


class Auth(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose credentials reach the cluster: the client's own, or the gateway's in their place. Never both."""

    mode: Annotated[
        Literal["pass", "basic", "sigv4"],
        Meta(
            description="`pass`: the client's `Authorization` as it came. `basic`, `sigv4`: the gateway's in its "
            "place; to the cluster, all clients are then the same."
        ),
    ] = "pass"
    basic: Account = Account()
    sigv4: SigV4 = SigV4()


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """Probes of the nodes. They run where there are several; one node is asked when the readiness page is."""

    path: Annotated[
        str, Meta(pattern=r"^/[!-~]*$", description="What is asked for; any answer below 500 is a good one.")
    ] = "/"
    interval: Annotated[Seconds, Meta(description="Between two rounds; 0 switches probes off.")] = 5.0
    timeout: Annotated[PositiveSeconds, Meta(description="For one probe, whole.")] = 2.0
    failures: Annotated[Positive, Meta(description="Failed probes in a row that take a node out.")] = 3
    successes: Annotated[Positive, Meta(description="Good probes in a row that bring it back.")] = 2


class Ejection(Struct, frozen=True, forbid_unknown_fields=True):
    """When a node that fails real requests is left out for a while. It never leaves the cluster without a node."""

    failures: Annotated[
        Count, Meta(description="Requests in a row that got no valid answer; 0 switches ejection off.")
    ] = 3
    seconds: Annotated[Seconds, Meta(description="How long the first time; doubled each time it comes back bad.")] = 5.0
    max_seconds: Annotated[Seconds, Meta(description="The longest it grows to.")] = 300.0
    max_share: Annotated[
        float, Meta(ge=0, le=1, description="Most nodes left out at a time, as a share; one may always be.")
    ] = 0.5


class Upstream(Struct, frozen=True, forbid_unknown_fields=True):
    """The OpenSearch cluster behind the gateway."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/?#@\s]+/?$",
            description="The cluster's address: `http(s)://host[:port]`, without a path or credentials.",
        ),
    ] = "http://127.0.0.1:9200"
    nodes: Annotated[
        list[NodeUrl],
        Meta(
            description="Addresses of several nodes of the cluster, in place of `url`, each once and all of one "
            "scheme; the least busy one is taken."
        ),
    ] = []
    host_header: Annotated[
        Literal["upstream", "client"],
        Meta(
            description="`Host` sent to the cluster: its own (`upstream`; Amazon's service needs it) or the client's."
        ),
    ] = "upstream"
    connections: Annotated[Positive, Meta(description="Most connections to the cluster at a time.")] = 1000
    keepalive: Annotated[Seconds, Meta(description="How long an idle connection is kept.")] = 15.0
    timeouts: Timeouts = Timeouts()
    tls: Tls = Tls()
    auth: Auth = Auth()
    health: Health = Health()
    ejection: Ejection = Ejection()


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request may weigh. Bodies that only pass through are not limited here: the cluster does that."""

    body: Annotated[
        Positive, Meta(description="Largest body of an intercepted request; the cluster's own default.")
    ] = 104_857_600
    decompressed: Annotated[Positive, Meta(description="Largest such body once decompressed.")] = 104_857_600
    nesting: Annotated[Positive, Meta(description="Deepest nesting of its JSON.")] = 100
    values: Annotated[
        Positive,
        Meta(
            description="Most values in its JSON, counted by commas and opening brackets outside of strings, and most "
            "placeholders in its texts."
        ),
    ] = 100_000
    text: Annotated[
        Positive, Meta(description="Most bytes of its JSON without inline media: all its text and structure.")
    ] = 8_388_608
    input_items: Annotated[
        Positive, Meta(description="Most messages, content blocks and tool calls in an `input`, counted together.")
    ] = 10_000
    header_line: Annotated[Positive, Meta(description="Longest request line and longest header, either way.")] = 65_536
    headers: Annotated[Positive, Meta(description="Most headers in a message, either way.")] = 1_000
    head: Annotated[Positive, Meta(description="Longest head of a message, all of its lines, either way.")] = 262_144


class Admission(Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests may run at a time, in each worker process, and how many may wait."""

    total: Annotated[Count, Meta(description="Most requests running at a time; 0: no limit.")] = 0
    per_client: Annotated[
        Count | Literal["auto"],
        Meta(
            description="Most of one client's requests running at a time, and waiting for that; 0: no limit. `auto`: "
            "half of `upstream.connections` where `client_header` or `listen.trusted_proxies` tell clients apart; else "
            "no limit, as all users of a load balancer would be one client."
        ),
    ] = "auto"
    queue: Annotated[Count, Meta(description="Most requests that wait for their turn.")] = 1_000
    queue_seconds: Annotated[Seconds, Meta(description="How long one waits before it is refused; 0 for ever.")] = 5.0
    client_header: Annotated[
        str,
        Meta(
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]*$",
            description="Header that tells clients apart; empty: their addresses, as `listen.trusted_proxies` tell. "
            "Name one only where a proxy of yours sets it.",
        ),
    ] = ""
    retry_after: Annotated[Positive, Meta(description="Seconds told to a refused client in `Retry-After`.")] = 1


class ServiceAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """The account that reads agents, models and connectors when `agents.lookup` is `service_account`."""

    username: Annotated[str, Meta(description="Its name.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator knows better about some agents; the first rule that matches counts."""

    agent: Annotated[str, Meta(min_length=1, description="Glob on the agent's id or name.")]
    provider: Annotated[
        str, Meta(description="Its provider, such as `bedrock/converse`, where nothing else tells; empty: not said.")
    ] = ""
    delivery: Annotated[
        Literal["auto", "describe"],
        Meta(
            description="What becomes of content that can't reach the agent: `auto` refuses the request, "
            "`describe` puts a short text note in its place."
        ),
    ] = "auto"


class Agents(Struct, frozen=True, forbid_unknown_fields=True):
    """How the gateway learns what stands behind an agent, and what it may assume."""

    cache_ttl: Annotated[Seconds, Meta(description="How long a profile is used before it is read again.")] = 60.0
    lookup: Annotated[
        Literal["caller", "service_account"],
        Meta(description="Whose credentials read agents, models and connectors."),
    ] = "caller"
    service_account: ServiceAccount = ServiceAccount()
    on_unproved: Annotated[
        Literal["refuse", "assume"],
        Meta(
            description="When an agent can't be read: `refuse` the request, or `assume` the matching rule's provider."
        ),
    ] = "refuse"
    allow_prefill: Annotated[
        bool, Meta(description="Let a conversation end with an assistant turn where the provider allows it.")
    ] = False
    rules: Annotated[list[Rule], Meta(description="Rules per agent, first match first.")] = []
    aliases: Annotated[
        dict[str, AgentId],
        Meta(description="Agents that stand in for others: `_execute` of an old id runs the new (`old-id: new-id`)."),
    ] = {}
    roles: Annotated[
        dict[str, Literal["system", "user", "assistant", "tool"]],
        Meta(description="Roles of your clients that mean a standard one: `reviewer: user`; case is ignored."),
    ] = {}


class Registrations(Struct, frozen=True, forbid_unknown_fields=True):
    """Registering agents with a `model` or an `mcp` block, running one without registering it, and deleting them."""

    enabled: Annotated[
        bool, Meta(description="Do what the cluster can't; off: such requests pass through like any other.")
    ] = True
    timeout: Annotated[PositiveSeconds, Meta(description="For one call of a registration to the cluster, whole.")] = (
        60.0
    )
    visible_within: Annotated[
        PositiveSeconds,
        Meta(
            description="How long a search is repeated until it shows what was made; longer than the cluster's "
            "refresh interval.",
        ),
    ] = 5.0
    retry_window: Annotated[
        Seconds,
        Meta(
            description="How long an equal registration of the same caller, without an `Idempotency-Key`, counts as a "
            "retry and gets the agent that is there; 0: never."
        ),
    ] = 300.0


class MediaByUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """Media that a client names by URL where the LLM's API takes none: fetched by the gateway and sent inline."""

    fetch: Annotated[bool, Meta(description="Fetch them; otherwise such a request is refused.")] = False
    hosts: Annotated[
        list[HostGlob],
        Meta(
            description="Hosts to fetch from: globs on the name in lower case (`*.example.com`; `xn--` form where it "
            "is not ASCII), with `:port` where that is not the scheme's own. Needed to fetch anything."
        ),
    ] = []
    http: Annotated[bool, Meta(description="Fetch http URLs too: what comes may have been changed on the way.")] = False
    redirects: Annotated[Count, Meta(description="Most redirects of a fetch; each is checked like the first URL.")] = 3
    max_count: Annotated[Positive, Meta(description="Most media fetched for a request.")] = 20
    max_bytes: Annotated[Positive, Meta(description="Largest medium.")] = 20_971_520
    max_total_bytes: Annotated[Positive, Meta(description="Largest sum of a request's fetched media.")] = 52_428_800
    seconds: Annotated[PositiveSeconds, Meta(description="For one medium, whole, redirects included.")] = 15.0
    total_seconds: Annotated[
        PositiveSeconds, Meta(description="For all of a request's media, the wait for their turn included.")
    ] = 30.0
    concurrency: Annotated[
        Positive, Meta(description="Most fetches at a time, over all requests, in each worker process.")
    ] = 8


class Answers(Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway adds to the answer of a rewritten request."""

    delivery_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Delivery`.")] = True
    notice_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Notice`.")] = True


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="`debug` logs every step of a rewrite."),
    ] = "info"
    format: Annotated[Literal["json", "console"], Meta(description="One JSON object a line, or text to read.")] = "json"
    payloads: Annotated[
        bool,
        Meta(
            description="Log what clients send, up to 512 characters a text, where otherwise its length and hash are "
            "logged. For a search for faults only: the log then holds users' words. Secrets stay hidden."
        ),
    ] = False


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    listen: Listen = Listen()
    upstream: Upstream = Upstream()
    limits: Limits = Limits()
    admission: Admission = Admission()
    agents: Agents = Agents()
    registration: Registrations = Registrations()
    media: MediaByUrl = MediaByUrl()
    answers: Answers = Answers()
    logs: Logs = Logs()
