"""The settings of `memory`: how the cluster's memories are shown, and where the gateway keeps its own sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import Bytes, Count, OpenSearchAccount, Positive, PositiveSeconds, Seconds


class Window(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a session is sent with a request: the newest turns that fit all limits. 0: no limit."""

    turns: Annotated[Count, Meta(description="Most turns; a turn is what one request and its answer added.")] = 50
    tokens: Annotated[
        Count, Meta(description="Most tokens, estimated: a token for each 4 bytes of text, 1,500 for each medium.")
    ] = 100_000
    bytes: Annotated[Bytes, Meta(description="Most bytes of JSON, media included.")] = 20_971_520


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions are deleted. Pinned ones are kept."""

    seconds: Annotated[Seconds, Meta(description="Sessions that nobody has used for so long; 0: they are kept.")] = 0.0
    sessions: Annotated[
        Count, Meta(description="The oldest beyond so many sessions of an owner; 0: they are kept.")
    ] = 0
    check_seconds: Annotated[PositiveSeconds, Meta(description="How often this is checked.")] = 3600.0


class SqliteStore(Struct, frozen=True, forbid_unknown_fields=True):
    """A SQLite file, for the workers of one host."""

    path: Annotated[
        str, Meta(description="Its path; empty: `mlc-gateway/memory.sqlite3` in `$XDG_STATE_HOME` or `~/.local/state`.")
    ] = ""


class OpenSearchStore(OpenSearchAccount, frozen=True, forbid_unknown_fields=True):
    """An OpenSearch cluster: its memory containers (3.3 and later), or an index of the gateway's own."""

    url: Annotated[
        str,
        Meta(
            description="Its URL; empty: the first address of `upstream`.",
            pattern=r"^(https?://[^/?#@\s]+/?)?$",
            examples=["http://127.0.0.1:9200"],
        ),
    ] = ""
    kind: Annotated[
        Literal["auto", "container", "index"],
        Meta(description="Where sessions are kept; `auto` asks the cluster for its version and its settings."),
    ] = "auto"
    prefix: Annotated[str, Meta(description="Prefix of the indexes' names.", pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")] = (
        "mlc-gateway"
    )


class AgentCoreStore(Struct, frozen=True, forbid_unknown_fields=True):
    """A memory of Amazon Bedrock AgentCore. Credentials come from boto3's chain."""

    memory_id: Annotated[str, Meta(description="Id of the memory.")] = ""
    region: Annotated[str, Meta(description="Its region; empty: boto3's default.")] = ""
    endpoint: Annotated[str, Meta(description="URL of another endpoint, such as an interface VPC endpoint.")] = ""
    threads: Annotated[Positive, Meta(description="Most calls at a time.")] = 8
    seconds: Annotated[PositiveSeconds, Meta(description="For one operation, including waits when AWS throttles.")] = (
        20.0
    )


class StrandsFilesStore(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory in the layout of Strands' `FileSessionManager`, for one host."""

    directory: Annotated[
        str, Meta(description="Its path; empty: `mlc-gateway/sessions` in `$XDG_STATE_HOME` or `~/.local/state`.")
    ] = ""


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """What agents remember."""

    readable: Annotated[
        bool,
        Meta(
            description="Show TEXT, with its own braces, where a memory's answer of up to 1 MiB holds "
            "`${parameters.gw_…:-TEXT}`; the notice is `MEMORY_SHOWN_READABLE`. Any other answer passes byte for byte."
        ),
    ] = True
    store: Annotated[
        Literal["sqlite", "opensearch", "agentcore", "strands_files"],
        Meta(description="Where the gateway keeps the sessions of agents with gateway memory."),
    ] = "sqlite"
    window: Window = Window()
    concurrent: Annotated[
        Literal["wait", "refuse"],
        Meta(description="A request while its session's last one still runs: let it wait, or refuse it with 409."),
    ] = "wait"
    wait_seconds: Annotated[PositiveSeconds, Meta(description="Longest wait, then 409.")] = 60.0
    on_failure: Annotated[
        Literal["refuse", "answer"],
        Meta(
            description="When the store can't be read or takes no writes: `refuse` the request with 503 before the "
            "agent runs, or `answer` without memory, with the notice `MEMORY_UNAVAILABLE`."
        ),
    ] = "refuse"
    tenant_header: Annotated[
        str,
        Meta(
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]*$",
            description="Header that names the tenant, set by a proxy of yours; empty: one tenant.",
        ),
    ] = ""
    by_caller: Annotated[
        bool, Meta(description="Keep the sessions of each caller (by its credentials) apart from those of others.")
    ] = True
    by_user: Annotated[
        bool,
        Meta(
            description="Know a caller by the user of its Basic credentials, or the subject and issuer of its JWT, so "
            "that sessions go on with a new password or token. Only where the cluster checks the client's own "
            "credentials (`upstream.auth.mode: pass` and `agents.lookup: caller`)."
        ),
    ] = True
    cluster_copies: Annotated[
        Literal["after_turn", "with_session", "keep"],
        Meta(
            description="What becomes of the conversation that each run of an agent with gateway memory leaves in the "
            "cluster's own memory: delete it after the turn, or with the session, or keep it."
        ),
    ] = "after_turn"
    retention: Retention = Retention()
    sqlite: SqliteStore = SqliteStore()
    opensearch: OpenSearchStore = OpenSearchStore()
    agentcore: AgentCoreStore = AgentCoreStore()
    strands_files: StrandsFilesStore = StrandsFilesStore()
