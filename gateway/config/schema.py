"""Every setting, its default and its meaning; ``docs/configuration.md`` is generated from here.

Durations are seconds, sizes are bytes; 0 switches a timeout off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


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


class Listen(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the gateway listens: the cluster's API on one port, its own pages on the other."""

    data_host: Annotated[str, Meta(description="Address of the port that carries the cluster's API.")] = "127.0.0.1"
    data_port: Annotated[Port, Meta(description="Port of the cluster's API; 0 takes a free one.")] = 9209
    admin_host: Annotated[str, Meta(description="Address of health and metrics; keep it on loopback.")] = "127.0.0.1"
    admin_port: Annotated[Port, Meta(description="Port of health and metrics; 0 takes a free one.")] = 9601
    shutdown_seconds: Annotated[
        Seconds, Meta(description="How long requests in flight may take to finish once the gateway is told to stop.")
    ] = 30.0


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the cluster."""

    connect: Annotated[Seconds, Meta(description="To get a connection, the wait for a free one included.")] = 5.0
    header: Annotated[Seconds, Meta(description="From the end of the request to the answer's head.")] = 300.0
    idle: Annotated[Seconds, Meta(description="Between two pieces of an answer's body.")] = 300.0
    execute: Annotated[
        Seconds,
        Meta(description="In place of `header` and `idle` on `_execute`; 0, as an agent may think for minutes."),
    ] = 0.0
    lookup: Annotated[Seconds, Meta(description="For one read of an agent, a model or a connector, whole.")] = 10.0


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """How the cluster's certificate is checked."""

    verify: Annotated[bool, Meta(description="Check the cluster's certificate and host name.")] = True
    ca_file: Annotated[str, Meta(description="PEM file of authorities to trust in place of the system's.")] = ""


class Upstream(Struct, frozen=True, forbid_unknown_fields=True):
    """The OpenSearch cluster behind the gateway."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/?#@\s]+/?$",
            description="The cluster's address: `http(s)://host[:port]`, without a path or credentials.",
        ),
    ] = "http://127.0.0.1:9200"
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


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request may weigh. Bodies that only pass through are not limited here: the cluster does that."""

    body: Annotated[
        Positive, Meta(description="Largest body of an intercepted request; the cluster's own default.")
    ] = 104_857_600
    decompressed: Annotated[Positive, Meta(description="Largest such body once decompressed.")] = 104_857_600
    nesting: Annotated[Positive, Meta(description="Deepest nesting of its JSON.")] = 100
    header_line: Annotated[Positive, Meta(description="Longest request line and longest header, either way.")] = 65_536
    headers: Annotated[Positive, Meta(description="Most headers in a message, either way.")] = 1_000


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
    roles: Annotated[
        dict[str, Literal["system", "user", "assistant", "tool"]],
        Meta(description="Roles of your clients that mean a standard one: `reviewer: user`."),
    ] = {}


class Answers(Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway adds to the answer of a rewritten request."""

    delivery_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Delivery`.")] = True
    notice_header: Annotated[bool, Meta(description="Add `X-MLC-Gateway-Notice`.")] = True


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="`debug` logs every step of a rewrite; payloads and secrets never."),
    ] = "info"
    format: Annotated[Literal["json", "console"], Meta(description="One JSON object a line, or text to read.")] = "json"


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    listen: Listen = Listen()
    upstream: Upstream = Upstream()
    limits: Limits = Limits()
    agents: Agents = Agents()
    answers: Answers = Answers()
    logs: Logs = Logs()
