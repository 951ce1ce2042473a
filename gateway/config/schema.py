"""Every setting, its default and its meaning. ``docs/reference/settings.md`` is generated from these classes.

Large sections are in modules of their own; other folders import all of them from here. Durations are
seconds, sizes are bytes; 0 switches a timeout off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.inspector import Inspector, Telemetry
from gateway.config.memory import Memory
from gateway.config.policy import Policy
from gateway.config.types import (
    AgentId,
    Bytes,
    Count,
    HostGlob,
    Port,
    Positive,
    PositiveBytes,
    PositiveSeconds,
    Seconds,
    Secret,
    TlsVersion,
)
from gateway.config.upstream import Account, Auth, Ejection, Health, SigV4, Timeouts, Tls, Upstream

# Those of other modules.
__all__ = ["Account", "Auth", "Ejection", "Health", "Memory", "Secret", "SigV4", "Timeouts", "Tls", "Upstream"]


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
        Bytes,
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
    adapters_host: Annotated[str, Meta(description="Address of the adapters' port.")] = "127.0.0.1"
    adapters_port: Annotated[
        Port | None,
        Meta(
            description="Port of other protocols: AG-UI, OpenAI's API and MCP (section `adapters`); 0: any free port; "
            "null: none. It has the TLS of the data port."
        ),
    ] = None
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


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a request. Bodies that only pass through are limited by the cluster, not here."""

    body: Annotated[
        PositiveBytes, Meta(description="Largest body of an intercepted request; the default is the cluster's.")
    ] = 104_857_600
    decompressed: Annotated[PositiveBytes, Meta(description="Largest such body once decompressed.")] = 104_857_600
    nesting: Annotated[Positive, Meta(description="Deepest nesting of its JSON.")] = 100
    values: Annotated[
        Positive,
        Meta(
            description="Most values in its JSON (commas and opening brackets outside of strings), and most "
            "placeholders in its texts."
        ),
    ] = 100_000
    text: Annotated[
        PositiveBytes, Meta(description="Most bytes of its JSON without inline media: all its text and structure.")
    ] = 8_388_608
    input_items: Annotated[
        Positive, Meta(description="Most messages, content blocks and tool calls in an `input`, counted together.")
    ] = 10_000
    header_line: Annotated[
        PositiveBytes, Meta(description="Longest request line and longest header, in requests and answers.")
    ] = 65_536
    headers: Annotated[Positive, Meta(description="Most headers in a message, in requests and answers.")] = 1_000
    head: Annotated[
        PositiveBytes, Meta(description="Longest head of a message, all lines together, in requests and answers.")
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


ClusterName = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$")]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]


class RouteTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent that answers for the route's id."""

    agent: Annotated[AgentId, Meta(description="Its id on its cluster. No other target of the route has the same.")]
    cluster: Annotated[
        ClusterName, Meta(description="Its cluster, a name in `clusters`; empty: the one of `upstream`.")
    ] = ""
    weight: Annotated[
        Weight,
        Meta(
            description="Share of the new conversations that it gets, in proportion to the other weights. 0: none; it "
            "goes on with those that it began."
        ),
    ] = 0.0
    callers: Annotated[
        Literal["checked", "passed", "trusted"],
        Meta(
            description="Whose credentials a run on another cluster has. `checked`: those of its `auth`, if `upstream` "
            "lets the caller run agents. `passed`: the caller's. `trusted`: those of its `auth`, for "
            "everyone who reaches the gateway."
        ),
    ] = "checked"


class Mirror(Struct, frozen=True, forbid_unknown_fields=True):
    """Copies of requests that run on another target after the answer was sent. Nobody gets their answers."""

    agent: Annotated[
        str, Meta(description="The target that runs the copies: its `agent` in `targets`. Empty: no copies.")
    ] = ""
    ratio: Annotated[float, Meta(ge=0, le=1, description="Share of the runs that are copied.")] = 1.0
    tools: Annotated[
        Literal["none"] | list[str] | None,
        Meta(
            description="Tools of that agent that do no harm if they run twice, by name or type, and `mcp_connectors` "
            "or `executor_agent_id` for those that it has through that parameter; `none`: it has no tools. An agent "
            "with any other tool runs no copies. It has to be given."
        ),
    ] = None
    most_at_a_time: Annotated[
        Positive, Meta(description="Most copies that run at a time in each worker process. Those beyond are dropped.")
    ] = 4


class AgentRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """Agents that share the requests to one agent's id. A conversation stays with the agent that began it."""

    agent: Annotated[AgentId, Meta(description="The id that clients send.")]
    targets: Annotated[
        list[RouteTarget],
        Meta(
            min_length=1,
            description="The agents that answer. The route's own agent is one of them, or gets no requests any more.",
        ),
    ]
    stick_by: Annotated[
        Literal["caller", "first_message"],
        Meta(
            description="What keeps requests that name no conversation with one target, for agents without memory: the "
            "caller (credentials, tenant and `admission.client_header`; without any of these, the first message), or "
            "the caller together with the first message of the conversation."
        ),
    ] = "caller"
    on_failure: Annotated[
        Literal["error", "next"],
        Meta(
            description="If a target can't be reached, has no such agent or begins no answer: the `error`, or a run on "
            "the `next` target, where that one knows the conversation. The tools of the first one may have run."
        ),
    ] = "error"
    mirror: Mirror = Mirror()


class ServiceAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """The account that reads agents, models and connectors when `agents.lookup` is `service_account`."""

    username: Annotated[str, Meta(description="Its name.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()


class AgentRule(Struct, frozen=True, forbid_unknown_fields=True):
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
    memory: Annotated[
        Literal["auto", "gateway", "cluster"],
        Meta(
            description="Whose memory the agent has: the gateway's sessions or the cluster's own. `auto`: as it was "
            "registered (with `agentic_memory`, on a cluster that has none: the gateway's)."
        ),
    ] = "auto"
    output: Annotated[
        Literal["auto", "unified", "legacy"],
        Meta(
            description='Form of the answer: `unified` is `{"stop_reason", "message", "memory_id", "metrics"}`, '
            "`legacy` is the cluster's. `auto`: unified for agents that were registered as `conversational_v2`."
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
    cache_size: Annotated[
        Positive,
        Meta(description="Most profiles in the cache: one for each agent and caller. The least used go first."),
    ] = 5_000
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
        bool,
        Meta(
            description="Allow a conversation to end with an assistant turn, if the provider allows it. Models that "
            "are known to continue such a turn (Claude 3, 3.5 and 3.7, Amazon Nova) get it without this setting."
        ),
    ] = False
    rules: Annotated[list[AgentRule], Meta(description="Rules per agent, first match first.")] = []
    aliases: Annotated[
        dict[str, AgentId],
        Meta(
            description="Agents that replace others: `_execute` of the old id runs the new agent (`old-id: new-id`). "
            "`agents.routes` can do this, and more."
        ),
    ] = {}
    routes: Annotated[
        list[AgentRoute],
        Meta(description="Agents that share the requests to one id, by weight, also on other clusters."),
    ] = []
    roles: Annotated[
        dict[str, Literal["system", "user", "assistant", "tool"]],
        Meta(description="Your clients' names of standard roles: `reviewer: user`; case is ignored."),
    ] = {}


class AdapterKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key for clients that can send nothing but a bearer key, and the credentials that the cluster gets for it."""

    key: Annotated[
        Secret, Meta(description="The key, at least 16 characters, which the client sends as a bearer token.")
    ]
    authorization: Annotated[
        Secret, Meta(description="Value of the `Authorization` that the cluster gets, such as `Basic …`.")
    ]


class McpTool(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent that is served as a tool of MCP."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.-]{1,128}$",
            examples=["ask_docs"],
            description="Name of the tool: 1 to 128 letters, digits, `_`, `.` and `-`.",
        ),
    ]
    agent: Annotated[
        str,
        Meta(
            min_length=1,
            description="Id or exact name of the agent; with `adapters.agents`, one of the names or ids there.",
        ),
    ]
    description: Annotated[
        str, Meta(min_length=1, description="What the tool does, from which the client's LLM decides when to call it.")
    ]
    text: Annotated[
        str, Meta(description="What the agent is asked by a call without `text`. Empty: a call has to have one.")
    ] = ""


class Adapters(Struct, frozen=True, forbid_unknown_fields=True):
    """Other protocols over the same agents, on `listen.adapters_port`."""

    ag_ui: Annotated[bool, Meta(description="Serve AG-UI at `/ag-ui/{agent}`.")] = True
    openai: Annotated[bool, Meta(description="Serve OpenAI's API below `/v1/`; the model is the agent.")] = True
    mcp: Annotated[
        list[McpTool],
        Meta(description="Agents to serve as tools of MCP, at `/mcp` and by `mlc-gateway mcp`. Empty: none."),
    ] = []
    agents: Annotated[
        dict[str, AgentId],
        Meta(
            description="Names of the agents to serve (`helper: agent-id`). Empty: every agent that the caller may "
            "read, by its id or its name."
        ),
    ] = {}
    keys: Annotated[
        list[AdapterKey],
        Meta(description="Keys that stand for credentials of the cluster. Other `Authorization` passes as it came."),
    ] = []
    hosts: Annotated[
        list[HostGlob],
        Meta(
            description="Names in `Host` that requests may be for, as globs, without a port. Empty: addresses and "
            "`localhost` if the port is on a loopback address; any name otherwise."
        ),
    ] = []
    origins: Annotated[
        list[str],
        Meta(
            description="Origins (`https://app.example.com`) whose pages may use the port; `*`: all. Requests of other "
            "pages are refused."
        ),
    ] = []
    comment_seconds: Annotated[
        PositiveSeconds, Meta(description="Between two comments in an event stream that has nothing else to send.")
    ] = 15.0


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
    max_bytes: Annotated[PositiveBytes, Meta(description="Largest file.")] = 20_971_520
    max_total_bytes: Annotated[PositiveBytes, Meta(description="Largest sum of a request's fetched media.")] = (
        52_428_800
    )
    seconds: Annotated[PositiveSeconds, Meta(description="For one whole fetch, including redirects.")] = 15.0
    total_seconds: Annotated[
        PositiveSeconds, Meta(description="For all media of a request, including the wait for a free slot.")
    ] = 30.0
    concurrency: Annotated[
        Positive, Meta(description="Most fetches at a time, over all requests, in each worker process.")
    ] = 8


class Answers(Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway adds to answers: headers to those of rewritten requests, links to its errors."""

    delivery_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Delivery`.")] = True
    notice_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Notice`.")] = True
    docs_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#@\s]+\S*)?$",
            examples=["https://git.example.org/mlc-gateway/blob/main/docs"],
            description="Where your users find this documentation, for the links in errors. `{page}` stands for the "
            "page (`reference/limitations`); without it, that page's `.md` file is appended. Empty: no links.",
        ),
    ] = ""


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, to standard error, and the access log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="`debug` logs every step of a rewrite."),
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "console"],
        Meta(
            description="`json`: one JSON object per line; `console`: readable text; `auto`: text on a terminal, else "
            "JSON."
        ),
    ] = "auto"
    payloads: Annotated[
        bool,
        Meta(
            description="Log what clients send, up to 512 characters of each text, instead of its length and hash. "
            "Use it only for debugging: the log then holds users' texts. Secrets stay hidden."
        ),
    ] = False
    access: Annotated[
        Literal["off", "json", "apache"],
        Meta(
            description="An access log of all requests, a line each: `json`, or `apache` (combined, then the ids of "
            "request and trace)."
        ),
    ] = "off"
    access_file: Annotated[
        str, Meta(description="Its file, which may be renamed or removed at any time; empty: standard output.")
    ] = ""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    listen: Listen = Listen()
    upstream: Upstream = Upstream()
    clusters: Annotated[
        dict[ClusterName, Upstream],
        Meta(description="Other clusters by name (not `upstream`), each with the keys of `upstream`, for routes."),
    ] = {}
    limits: Limits = Limits()
    admission: Admission = Admission()
    agents: Agents = Agents()
    registration: Registrations = Registrations()
    adapters: Adapters = Adapters()
    media: MediaByUrl = MediaByUrl()
    answers: Answers = Answers()
    memory: Memory = Memory()
    policy: Policy = Policy()
    inspector: Inspector = Inspector()
    telemetry: Telemetry = Telemetry()
    logs: Logs = Logs()
