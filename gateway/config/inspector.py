"""The settings of `inspector`: what is recorded of the traffic, and where."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gateway.config.types import Positive, PositiveSeconds, Seconds, Secret

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
    bytes: Annotated[int, Meta(ge=1_000_000, description="Most bytes of exchanges and of the index of their text.")] = (
        1_073_741_824
    )
    media_bytes: Annotated[Positive, Meta(description="Most bytes of media (`inspector.media: keep`).")] = 1_073_741_824


class AuditFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file to which each exchange is appended as a line of JSON. When it is full, or old, another one is begun."""

    path: Annotated[
        str, Meta(description="Its path; empty: `mlc-gateway/audit.jsonl` in `$XDG_STATE_HOME` or `~/.local/state`.")
    ] = ""
    bytes: Annotated[Positive, Meta(description="Another file is begun at this size.")] = 104_857_600
    seconds: Annotated[Seconds, Meta(description="Another file is begun after this time; 0: only by size.")] = 86_400.0
    files: Annotated[Positive, Meta(description="How many full files are kept; the oldest are deleted.")] = 100
    sync: Annotated[
        Literal["batch", "system"],
        Meta(
            description="When exchanges are on the disk: `batch`, before the next ones are written; `system`, when the "
            "operating system writes them, so that a loss of power may lose some."
        ),
    ] = "batch"


class OpenSearchExchanges(Struct, frozen=True, forbid_unknown_fields=True):
    """A data stream of an OpenSearch cluster, with an account of its own."""

    url: Annotated[str, Meta(description="The cluster's URL; needed.", pattern=r"^(https?://[^/?#@\s]+/?)?$")] = ""
    stream: Annotated[str, Meta(description="Name of the data stream.", pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")] = (
        "mlc-gateway-exchanges"
    )
    username: Annotated[str, Meta(description="Name of the account, for basic authentication.")] = ""
    password: Annotated[Secret, Meta(description="Its password.")] = Secret()
    sigv4_region: Annotated[
        str, Meta(description="Region of an Amazon OpenSearch Service domain; requests are signed with SigV4.")
    ] = ""
    ca_file: Annotated[str, Meta(description="PEM file of the authorities to trust; empty: the system's.")] = ""
    seconds: Annotated[
        PositiveSeconds, Meta(description="For one request, and for all waits when the cluster throttles.")
    ] = 10.0


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
