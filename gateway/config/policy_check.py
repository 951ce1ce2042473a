"""Finds contradictions in the settings of `policy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from gateway.config.policy import Guardrail, Policy, UsageBudget
from gateway.config.problems import ConfigProblem
from gateway.config.schema import Settings


def check_budgets(policy: Policy) -> Iterator[ConfigProblem]:
    """Yield the contradictions within budgets, and between budgets and prices."""
    currencies = {price.currency for price in policy.prices}
    seen: dict[object, str] = {}
    for index, budget in enumerate(policy.budgets):
        path = f"policy.budgets[{index}]"
        yield from _check_budget(path, budget, currencies)
        identity = (budget.agent, budget.per, "tokens" if budget.tokens else budget.currency, budget.seconds)
        other = seen.setdefault(identity, path)
        if other != path:
            yield ConfigProblem(path, f"has the same agent, per, unit and seconds as {other}; remove one of them")


def check_budget_store(settings: Settings) -> Iterator[ConfigProblem]:
    """Yield a problem if budgets are counted in the memory of each of several workers."""
    if settings.policy.budgets and settings.policy.budget_store == "memory" and settings.listen.workers > 1:
        reason = "is memory, in which each of several workers (listen.workers) counts for itself"
        yield ConfigProblem("policy.budget_store", reason, "'memory'", "sqlite or opensearch")


def _check_budget(path: str, budget: UsageBudget, currencies: set[str]) -> Iterator[ConfigProblem]:
    if bool(budget.tokens) == bool(budget.money):
        yield ConfigProblem(path, "needs either tokens or money", allowed="one of them above 0")
    if budget.money and budget.currency not in currencies:
        reason = "has no price in policy.prices, so no cost could be counted"
        known = ", ".join(sorted(currencies)) or "none yet"
        yield ConfigProblem(f"{path}.currency", reason, repr(budget.currency), known)
    if (budget.unknown == "count") != bool(budget.unknown_amount):
        yield ConfigProblem(f"{path}.unknown_amount", "is needed with unknown: count, and only there")


def check_guardrails(guardrails: Sequence[Guardrail]) -> Iterator[ConfigProblem]:
    """Yield the contradictions within guardrails, and between them."""
    names: set[str] = set()
    for index, guardrail in enumerate(guardrails):
        path = f"policy.guardrails[{index}]"
        if guardrail.name in names:
            yield ConfigProblem(f"{path}.name", "is the name of another guardrail", repr(guardrail.name))
        names.add(guardrail.name)
        if bool(guardrail.url) == bool(guardrail.entry_point):
            yield ConfigProblem(path, "needs either url or entry_point")
        if guardrail.secret and not guardrail.url:
            yield ConfigProblem(f"{path}.secret", "is only sent to a url")
        if guardrail.secret and not (guardrail.secret.reveal().isascii() and guardrail.secret.reveal().isprintable()):
            yield ConfigProblem(f"{path}.secret", "must be printable ASCII, as it is sent in a header")
        try:
            urlsplit(guardrail.url).port  # noqa: B018  # reading it checks it
        except ValueError:
            yield ConfigProblem(f"{path}.url", "has a bad host or port", allowed="a port from 0 to 65535")
