"""The settings of `inspector` and `telemetry`: what is recorded of the traffic, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gateway.config.types import OpenSearchAccount, Positive, PositiveBytes, PositiveSeconds, Seconds, Secret

Sink = Literal["sqlite", "audit_file", "opensearch"]


class SqliteExchanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Exchanges for the page `/inspector/`, shared by the workers of a host. The oldest go first."""

    directory: Annotated[
        str,
        Meta(description="Their place; empty: `mlc-gateway/inspector` in `$XDG_STATE_HOME` or `~/.local/state`."),
    ] = ""
    seconds: Annotated[Seconds, Meta(description="How long exchanges and media are kept; 0: as long as they fit.")] = (
        604_800.0
    )
    bytes: Annotated[
        int,
        Meta(
            ge=1_000_000, extra={"unit": "bytes"}, description="Most bytes of exchanges and of the index of their text."
        ),
    ] = 1_073_741_824
    media_bytes: Annotated[PositiveBytes, Meta(description="Most bytes of media (`inspector.media: keep`).")] = (
        1_073_741_824
    )


class AuditFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file to which each exchange is appended as a line of JSON. When it is full, or old, another one is begun."""

    path: Annotated[
        str, Meta(description="Its path; empty: `mlc-gateway/audit.jsonl` in `$XDG_STATE_HOME` or `~/.local/state`.")
    ] = ""
    bytes: Annotated[PositiveBytes, Meta(description="Another file is begun at this size.")] = 104_857_600
    seconds: Annotated[Seconds, Meta(description="Another file is begun after this time; 0: only by size.")] = 86_400.0
    files: Annotated[Positive, Meta(description="How many full files are kept; the oldest are deleted.")] = 100
    sync: Annotated[
        Literal["batch", "system"],
        Meta(
            description="When exchanges are on the disk: `batch`, before the next ones are written; `system`, when the "
            "operating system writes them, so that a loss of power may lose some."
        ),
    ] = "batch"


class OpenSearchExchanges(OpenSearchAccount, frozen=True, forbid_unknown_fields=True):
    """A data stream of an OpenSearch cluster, with an account of its own."""

    url: Annotated[
        str,
        Meta(
            description="The cluster's URL; needed.",
            pattern=r"^(https?://[^/?#@\s]+/?)?$",
            examples=["http://127.0.0.1:9200"],
        ),
    ] = ""
    stream: Annotated[str, Meta(description="Name of the data stream.", pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")] = (
        "mlc-gateway-exchanges"
    )


class Inspector(Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of exchanges, for the page `/inspector/` of the admin port and for files."""

    enabled: Annotated[bool, Meta(description="Record exchanges.")] = False
    passthrough: Annotated[
        Literal["none", "line", "bodies"],
        Meta(description="What is recorded of requests that pass unchanged: nothing, all but bodies, or all."),
    ] = "line"
    media: Annotated[
        Literal["hash", "keep"],
        Meta(description="What is recorded of a medium: its type, size and hash, or also its bytes, in a file."),
    ] = "hash"
    queue: Annotated[Positive, Meta(description="Most exchanges that wait to be recorded; more are dropped.")] = 10_000
    stores: Annotated[
        list[Sink],
        Meta(description="Where they are recorded: `sqlite`, which the page shows, `audit_file`, `opensearch`."),
    ] = field(default_factory=lambda: ["sqlite"])
    sqlite: SqliteExchanges = SqliteExchanges()
    audit_file: AuditFile = AuditFile()
    opensearch: OpenSearchExchanges = OpenSearchExchanges()
    queue_bytes: Annotated[
        PositiveBytes, Meta(description="Most bytes of bodies that wait to be recorded; exchanges beyond are dropped.")
    ] = 268_435_456
    body_bytes: Annotated[
        PositiveBytes,
        Meta(
            description="Most bytes that are recorded of a body that passes unchanged (`passthrough: bodies`). Bodies "
            "of agent runs are recorded whole."
        ),
    ] = 1_048_576
    redact_paths: Annotated[
        list[str],
        Meta(
            description="Members of JSON bodies to hide besides secrets: `parameters.ssn`, `input[*].content[*].text`, "
            "`**.email`. `*` is any one member or item, `**` any number of them."
        ),
    ] = []
    redact_patterns: Annotated[
        list[str],
        Meta(
            description="Regular expressions in RE2's syntax, without lookbehind and backreferences; what they match "
            "is hidden."
        ),
    ] = []


class Traces(Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry traces of agent runs."""

    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#@\s]+/\S+)?$",
            examples=["http://localhost:4318/v1/traces"],
            description="URL of an OTLP/HTTP collector; empty: no traces.",
        ),
    ] = ""
    header: Annotated[
        str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", description="Request header of the collector for `secret`.")
    ] = "Authorization"
    secret: Annotated[Secret, Meta(description="Value of that header, such as `Bearer …`; it is never logged.")] = (
        Secret()
    )
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust; empty: requests' own list.")] = ""
    ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the traces to record, of those that begin at the gateway. Of a trace that a client "
            "began, its `traceparent` decides.",
        ),
    ] = 1.0
    messages: Annotated[
        bool, Meta(description="Add what users and agents wrote, redacted as for the inspector, media by their hash.")
    ] = False
    service_name: Annotated[str, Meta(min_length=1, description="The resource attribute `service.name`.")] = (
        "mlc-gateway"
    )
    seconds: Annotated[PositiveSeconds, Meta(description="For sending a batch of spans, with all retries.")] = 10.0
    queue: Annotated[Positive, Meta(description="Most spans that wait to be sent; traces beyond are dropped.")] = 8_192


class Telemetry(Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry for other tools."""

    traces: Traces = Traces()
