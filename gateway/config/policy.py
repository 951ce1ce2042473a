"""The settings of `policy`: prices, budgets and guardrails."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """What may refuse or change a request, and what tokens cost."""

    usage_header: Annotated[
        bool,
        Meta(description="Add `X-MLC-Gateway-Usage` to answers of agents; such an answer is held until it is whole."),
    ] = False
