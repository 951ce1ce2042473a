"""What a run used: counted for the metrics, priced, and written for the header `X-MLC-Gateway-Usage`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from gateway.config.policy import Price
from gateway.observe.metrics import UsageMetrics
from gateway.observe.record import Usage

_MILLION = 1_000_000


class Cost(NamedTuple):
    """An amount of money. currency: such as USD."""

    amount: float
    currency: str


class Prices:
    """The prices in `policy.prices`. The first one that matches provider and model applies."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self._prices = tuple(prices)

    def cost(self, provider: str, model: str, input_tokens: int, output_tokens: int) -> Cost | None:
        """Return what the tokens cost; None if no price matches. provider, model: "" if they are not known."""
        for price in self._prices:
            if fnmatchcase(provider, price.provider) and fnmatchcase(model, price.model):
                amount = (input_tokens * price.input + output_tokens * price.output) / _MILLION
                return Cost(amount, price.currency)
        return None


HEADER = "X-MLC-Gateway-Usage"
UNKNOWN = "unknown"
_MODEL_CHARACTERS = "!#$&'()*+,/:<>?@[]^_`{|}~ "


class Llm(msgspec.Struct, frozen=True):
    """The LLM of an agent. provider, model: "" if it is not known."""

    provider: str = ""
    model: str = ""


class Meter:
    """Counts and prices what runs use."""

    def __init__(self, prices: Prices, metrics: UsageMetrics) -> None:
        self._prices = prices
        self._metrics = metrics

    def measure(self, llm: Llm, input_tokens: int | None, output_tokens: int | None) -> Usage | None:
        """Count a run and return its usage with its cost; None if a number of tokens is not known."""
        if input_tokens is None or output_tokens is None:
            self._metrics.unknown(llm.provider)
            return None
        cost = self._prices.cost(llm.provider, llm.model, input_tokens, output_tokens)
        self._metrics.tokens(llm.provider, llm.model, input_tokens, output_tokens)
        if cost is None:
            return Usage(input_tokens, output_tokens)
        self._metrics.cost(llm.provider, llm.model, cost.currency, cost.amount)
        return Usage(input_tokens, output_tokens, cost.amount, cost.currency)


def header_value(usage: Usage | None, llm: Llm) -> str:
    """Return the value of the header: ``input=11; output=42; cost=0.00021 USD; model=gpt-4o``, or ``unknown``.

    A member that is not known is left out. In the model's name, what a header or this form can't hold is
    percent-encoded.
    """
    if usage is None:
        return UNKNOWN
    members: dict[str, Any] = {"input": usage.input, "output": usage.output}
    if usage.cost is not None:
        members["cost"] = f"{format_amount(usage.cost)} {usage.currency}"
    if llm.model:
        members["model"] = quote(llm.model, safe=_MODEL_CHARACTERS)
    return "; ".join(f"{name}={value}" for name, value in members.items())


def format_amount(amount: float) -> str:
    """Return an amount of money with up to nine decimals, without zeros at the end."""
    return f"{amount:.9f}".rstrip("0").rstrip(".")
