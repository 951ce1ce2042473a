"""The settings of `policy`: prices, budgets and guardrails."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import YEAR, Count, PositiveBytes, PositiveSeconds, Secret

Amount = Annotated[float, Meta(ge=0, le=1e15)]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$", description="Its currency: three capital letters (ISO 4217).")]
_PER = Literal["agent", "caller", "both", "all"]


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What tokens of some models cost. The first matching price applies."""

    input: Annotated[Amount, Meta(description="Price of a million input tokens.")]
    output: Annotated[Amount, Meta(description="Price of a million output tokens.")]
    provider: Annotated[str, Meta(min_length=1, description="Glob on the provider, such as `bedrock/converse`.")] = "*"
    model: Annotated[
        str, Meta(min_length=1, description="Glob on the model: the parameter `model` of the connector.")
    ] = "*"
    currency: Currency = "USD"


class UsageBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on what the runs of some agents use in a window of time. Every matching budget applies."""

    agent: Annotated[str, Meta(min_length=1, description="Glob on the agent's id or name.")] = "*"
    per: Annotated[
        _PER,
        Meta(
            description="Who shares it: all callers of one `agent`; each `caller` over all these agents; each caller "
            "of each agent (`both`); or `all` together. Callers are distinguished by their credentials."
        ),
    ] = "agent"
    tokens: Annotated[Count, Meta(description="Most tokens, input and output together; 0: see `money`.")] = 0
    money: Annotated[Amount, Meta(description="Most money, by `policy.prices`; 0: see `tokens`.")] = 0.0
    currency: Currency = "USD"
    seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=YEAR,
            description="Length of a window. Windows are fixed: each begins at a multiple of it since 1970 (UTC).",
        ),
    ] = 86_400.0
    unknown: Annotated[
        Literal["allow", "refuse", "count"],
        Meta(
            description="What a run costs whose usage or price is unknown: nothing (`allow`); `unknown_amount` "
            "(`count`); or all that is left (`refuse`), so that no more runs follow in the window."
        ),
    ] = "allow"
    unknown_amount: Annotated[Amount, Meta(description="Tokens or money for `unknown: count`.")] = 0.0


class Guardrail(Struct, frozen=True, forbid_unknown_fields=True):
    """A hook that sees what agents are sent, and may allow, change or refuse it."""

    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Its name, in errors, metrics and the inspector.")
    ]
    url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#@\s]+(/\S*)?)?$",
            examples=["http://127.0.0.1:8900/check"],
            description="URL of a webhook; empty: see `entry_point`.",
        ),
    ] = ""
    entry_point: Annotated[
        str, Meta(description="Name of a Python entry point of the group `mlc_gateway.guardrails`; empty: see `url`.")
    ] = ""
    agent: Annotated[str, Meta(min_length=1, description="Glob on the agent's id or name.")] = "*"
    answers: Annotated[
        bool, Meta(description="Check answers, too. They are held until they are whole; a stream comes in one piece.")
    ] = False
    seconds: Annotated[PositiveSeconds, Meta(description="For one check.")] = 5.0
    max_bytes: Annotated[
        PositiveBytes,
        Meta(description="Largest JSON that is sent to a webhook, and largest answer that is read of it."),
    ] = 8_388_608
    on_failure: Annotated[
        Literal["refuse", "allow"],
        Meta(
            description="When the hook fails, takes too long, or can't be shown the content: `refuse` the request with "
            "503, or `allow` it unchecked."
        ),
    ] = "refuse"
    header: Annotated[
        str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", description="Request header of the webhook for `secret`.")
    ] = "Authorization"
    secret: Annotated[Secret, Meta(description="Value of that header, such as `Bearer …`; it is never logged.")] = (
        Secret()
    )


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """What may refuse or change a request, and what tokens cost."""

    usage: Annotated[
        bool,
        Meta(
            description="Count the tokens that answers report, for the metrics and the inspector. Also done with "
            "`usage_header`, prices or budgets."
        ),
    ] = False
    usage_header: Annotated[
        bool,
        Meta(description="Add `X-MLC-Gateway-Usage` to answers of agents; such an answer is held until it is whole."),
    ] = False
    prices: Annotated[list[Price], Meta(description="Prices, first match first.")] = []
    budgets: Annotated[list[UsageBudget], Meta(description="Budgets per agent and caller.")] = []
    budget_store: Annotated[
        Literal["memory", "sqlite", "opensearch"],
        Meta(
            description="Where the amounts spent are kept: in the `memory` of one process; in a `sqlite` file beside "
            "that of `memory.sqlite`, for the workers of one host; or in the cluster of `memory.opensearch`, for any "
            "number of gateways."
        ),
    ] = "memory"
    on_store_failure: Annotated[
        Literal["refuse", "allow"],
        Meta(description="When that store can't be read: `refuse` the request with 503, or `allow` it."),
    ] = "refuse"
    guardrails: Annotated[list[Guardrail], Meta(description="Guardrails, in their order.")] = []
