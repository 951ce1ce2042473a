"""Every setting, its default and its meaning. ``docs/reference/settings.md`` is generated from this module.

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
    """A secret, read from an environment variable or a file. Only `reveal` shows it."""

    __slots__ = ("_value", "source")

    def __init__(self, value: str = "", source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """Return the secret, or "" if none is configured."""
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
        Meta(description="Address of health and metrics. Unless it is a loopback address, `admin_token` is required."),
    ] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of health and metrics; 0: any free port.")] = 9601
    admin_token: Annotated[
        Secret,
        Meta(description="Bearer token for `/metrics` and `/profiles/drop`. The health pages need none, for probes."),
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


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a request. Bodies that only pass through are limited by the cluster, not here."""

    body: Annotated[
        Positive, Meta(description="Largest body of an intercepted request; the default is the cluster's.")
    ] = 104_857_600
    decompressed: Annotated[Positive, Meta(description="Largest such body once decompressed.")] = 104_857_600
    nesting: Annotated[Positive, Meta(description="Deepest nesting of its JSON.")] = 100
    values: Annotated[
        Positive,
        Meta(
            description="Most values in its JSON (commas and opening brackets outside of strings), and most "
            "placeholders in its texts."
        ),
    ] = 100_000
    text: Annotated[
        Positive, Meta(description="Most bytes of its JSON without inline media: all its text and structure.")
    ] = 8_388_608
    input_items: Annotated[
        Positive, Meta(description="Most messages, content blocks and tool calls in an `input`, counted together.")
    ] = 10_000
    header_line: Annotated[
        Positive, Meta(description="Longest request line and longest header, in requests and answers.")
    ] = 65_536
    headers: Annotated[Positive, Meta(description="Most headers in a message, in requests and answers.")] = 1_000
    head: Annotated[
        Positive, Meta(description="Longest head of a message, all lines together, in requests and answers.")
    ] = 262_144


class Admission(Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests may run and wait, in each worker process."""

    total: Annotated[Count, Meta(description="Most requests that run at a time; 0: no limit.")] = 0
    per_client: Annotated[
        Count | Literal["auto"],
        Meta(
            description="Most requests of one client that run at a time, and as many that wait; 0: no limit. `auto`: "
            "half of `upstream.connections` if `client_header` or `listen.trusted_proxies` identify clients; else "
            "no limit, as all users of a load balancer would count as one client."
        ),
    ] = "auto"
    queue: Annotated[Count, Meta(description="Most requests that wait.")] = 1_000
    queue_seconds: Annotated[
        Seconds, Meta(description="How long a request waits before it is refused; 0: no limit.")
    ] = 5.0
    client_header: Annotated[
        str,
        Meta(
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]*$",
            description="Header that identifies clients; empty: their addresses, as reported by "
            "`listen.trusted_proxies`. Set it only if a proxy of yours sets the header.",
        ),
    ] = ""
    retry_after: Annotated[Positive, Meta(description="Seconds in the `Retry-After` of a refused request.")] = 1


class ServiceAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """The account that reads agents, models and connectors when `agents.lookup` is `service_account`."""

    username: Annotated[str, Meta(description="Its name.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator knows about some agents. The first matching rule applies."""

    agent: Annotated[str, Meta(min_length=1, description="Glob on the agent's id or name.")]
    provider: Annotated[
        str,
        Meta(description="Its provider, such as `bedrock/converse`, if the gateway can't recognise it; empty: none."),
    ] = ""
    delivery: Annotated[
        Literal["auto", "describe"],
        Meta(
            description="What to do with content that can't reach the agent: `auto` refuses the request, `describe` "
            "replaces it by a short text note."
        ),
    ] = "auto"


class Agents(Struct, frozen=True, forbid_unknown_fields=True):
    """How the gateway reads agents with their models and connectors, and what it may assume."""

    cache_ttl: Annotated[
        Seconds,
        Meta(
            description="How long a profile is used before it is read again: for so long, a change that did not go "
            "through this gateway may go unnoticed. A profile in use is read in the background."
        ),
    ] = 3.0
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
        bool, Meta(description="Allow a conversation to end with an assistant turn, if the provider allows it.")
    ] = False
    rules: Annotated[list[Rule], Meta(description="Rules per agent, first match first.")] = []
    aliases: Annotated[
        dict[str, AgentId],
        Meta(description="Agents that replace others: `_execute` of the old id runs the new agent (`old-id: new-id`)."),
    ] = {}
    roles: Annotated[
        dict[str, Literal["system", "user", "assistant", "tool"]],
        Meta(description="Your clients' names of standard roles: `reviewer: user`; case is ignored."),
    ] = {}


class Registrations(Struct, frozen=True, forbid_unknown_fields=True):
    """Registration of agents with a `model` or an `mcp` block, quick execution, and deletion."""

    enabled: Annotated[
        bool, Meta(description="Do what the cluster can't; false: such requests pass through like any other.")
    ] = True
    timeout: Annotated[PositiveSeconds, Meta(description="For one whole call of a registration to the cluster.")] = 60.0
    visible_within: Annotated[
        PositiveSeconds,
        Meta(
            description="How long a search is repeated until it finds what was created; longer than the cluster's "
            "refresh interval.",
        ),
    ] = 5.0
    retry_window: Annotated[
        Seconds,
        Meta(
            description="How long an equal registration of the same caller, without an `Idempotency-Key`, counts as a "
            "retry and gets the existing agent; 0: never."
        ),
    ] = 300.0


class MediaByUrl(Struct, frozen=True, forbid_unknown_fields=True):
    """Media by URL, for LLM APIs that accept none: the gateway fetches and sends them inline."""

    fetch: Annotated[bool, Meta(description="Fetch them; false: refuse such requests.")] = False
    hosts: Annotated[
        list[HostGlob],
        Meta(
            description="Hosts to fetch from: globs on the name in lower case (`*.example.com`; `xn--` form where it "
            "is not ASCII), with `:port` if it is not the scheme's default. Required for `fetch`."
        ),
    ] = []
    http: Annotated[
        bool, Meta(description="Also fetch http URLs, although their content may be altered in transit.")
    ] = False
    redirects: Annotated[Count, Meta(description="Most redirects of a fetch; each is checked like the first URL.")] = 3
    max_count: Annotated[Positive, Meta(description="Most media fetched for a request.")] = 20
    max_bytes: Annotated[Positive, Meta(description="Largest file.")] = 20_971_520
    max_total_bytes: Annotated[Positive, Meta(description="Largest sum of a request's fetched media.")] = 52_428_800
    seconds: Annotated[PositiveSeconds, Meta(description="For one whole fetch, including redirects.")] = 15.0
    total_seconds: Annotated[
        PositiveSeconds, Meta(description="For all media of a request, including the wait for a free slot.")
    ] = 30.0
    concurrency: Annotated[
        Positive, Meta(description="Most fetches at a time, over all requests, in each worker process.")
    ] = 8


class Answers(Struct, frozen=True, forbid_unknown_fields=True):
    """Headers that the gateway adds to the answer of a rewritten request."""

    delivery_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Delivery`.")] = True
    notice_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Notice`.")] = True


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """What agents remember, as clients read it through the gateway."""

    readable: Annotated[
        bool,
        Meta(
            description="Show TEXT where a memory's answer of up to 1 MiB holds `${parameters.gw_…:-TEXT}`, with the "
            "notice `MEMORY_SHOWN_READABLE`. Any other answer passes byte for byte."
        ),
    ] = True


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="`debug` logs every step of a rewrite."),
    ] = "info"
    format: Annotated[Literal["json", "console"], Meta(description="One JSON object per line, or readable text.")] = (
        "json"
    )
    payloads: Annotated[
        bool,
        Meta(
            description="Log what clients send, up to 512 characters of each text, instead of its length and hash. "
            "Use it only for debugging: the log then holds users' texts. Secrets stay hidden."
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
    memory: Memory = Memory()
    logs: Logs = Logs()
