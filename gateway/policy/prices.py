"""What tokens cost, by the operator's table of prices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from gateway.config.policy import Price

_MILLION = 1_000_000


class Cost(NamedTuple):
    """An amount of money. currency: such as USD."""

    amount: float
    currency: str


class Prices:
    """The prices in `policy.prices`. The first one that matches provider and model applies."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self._prices = tuple(prices)

    def __bool__(self) -> bool:
        return bool(self._prices)

    def cost(self, provider: str, model: str, input_tokens: int, output_tokens: int) -> Cost | None:
        """Return what the tokens cost; None if no price matches. provider, model: "" if they are not known."""
        for price in self._prices:
            if fnmatchcase(provider, price.provider) and fnmatchcase(model, price.model):
                amount = (input_tokens * price.input + output_tokens * price.output) / _MILLION
                return Cost(amount, price.currency)
        return None
