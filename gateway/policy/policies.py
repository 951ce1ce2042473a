"""The policies of one set of settings: what counts, limits and checks the runs of agents; and their opening."""

from __future__ import annotations

import msgspec

from gateway.config.memory import Memory
from gateway.config.policy import Policy
from gateway.config.problems import ConfigError, ConfigProblem
from gateway.config.schema import Settings
from gateway.memory.stores.registry import Shared, SharedResources, check_store, first_address
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.budget_stores import OpenSearchBudgetStore, SqliteBudgetStore, file_of
from gateway.policy.budgets import Budgets, BudgetStore, Ledger, MemoryBudgetStore
from gateway.policy.guardrails import Guardrails
from gateway.policy.hooks import load_function, make_hook
from gateway.policy.usage import Meter, Prices
from gateway.storage.files import find_file_fault


class Policies(msgspec.Struct, frozen=True):
    """budgets, guardrails: None if there are none. usage_header, notice_header: they are added to answers."""

    meter: Meter
    budgets: Budgets | None = None
    guardrails: Guardrails | None = None
    usage_header: bool = False
    notice_header: bool = True

    def matches(self, agent_id: str, name: str) -> bool:
        """Return True if a budget or a guardrail matches the agent. name: "" if it is not known."""
        if self.budgets is not None and self.budgets.matches(agent_id, name):
            return True
        return self.guardrails is not None and self.guardrails.for_agent(agent_id, name) is not None

    def needs_name(self, agent_id: str) -> bool:
        """Return True if only the agent's name tells whether a budget or a guardrail applies.

        Those that are set to allow runs when they fail don't count.
        """
        if self.budgets is not None and self.budgets.needs_name(agent_id):
            return True
        return self.guardrails is not None and self.guardrails.needs_name(agent_id)

    async def ended(self) -> None:
        """Wait until all amounts are stored, or could not be."""
        if self.budgets is not None:
            await self.budgets.ended()

    async def close(self) -> None:
        """Release what the guardrails hold."""
        if self.guardrails is not None:
            await self.guardrails.close()


def is_on(policy: Policy) -> bool:
    """Return True if the settings ask for anything."""
    return bool(policy.usage or policy.usage_header or policy.prices or policy.budgets or policy.guardrails)


def build_policies(settings: Settings, ledger: Ledger | None, log: Logger, metrics: Metrics) -> Policies | None:
    """Return the policies; None if the settings ask for none. They pass `check_policies`. ledger: needed with budgets.

    Raises:
        LookupError: as `gateway.policy.hooks.load_function`.
    """
    policy = settings.policy
    if not is_on(policy):
        return None
    budgets = guardrails = None
    if policy.budgets:
        assert ledger is not None
        budgets = Budgets(policy.budgets, ledger, policy.on_store_failure == "allow", log, metrics.usage)
    if policy.guardrails:
        guardrails = Guardrails([(one, make_hook(one)) for one in policy.guardrails], log, metrics)
    meter = Meter(Prices(policy.prices), metrics.usage)
    return Policies(meter, budgets, guardrails, policy.usage_header, settings.answers.notice_header)


def check_policies(settings: Settings) -> None:
    """Check that the entry points of guardrails are installed, and the settings of the budgets' store.

    Raises:
        ConfigError: one is not, or can't be used.
    """
    policy = settings.policy
    problems = []
    if policy.budgets and policy.budget_store != "memory":
        problems += check_store(settings.memory, policy.budget_store)  # it is beside that store
    if policy.budgets and policy.budget_store == "sqlite" and not problems:
        file = file_of(settings.memory)
        if reason := find_file_fault(file):
            problems.append(ConfigProblem("memory.sqlite.path", f"budgets can't be kept in {file}: {reason}"))
    for index, guardrail in enumerate(policy.guardrails):
        try:
            if guardrail.entry_point:
                load_function(guardrail.entry_point)
        except LookupError as error:
            path = f"policy.guardrails[{index}].entry_point"
            problems.append(ConfigProblem(path, str(error), repr(guardrail.entry_point)))
    if problems:
        raise ConfigError(problems)


def share_ledger(ledgers: SharedResources[Ledger], settings: Settings) -> Shared[Ledger] | None:
    """Return the ledger of the settings, shared with others that name its store; None without budgets."""
    policy, memory = settings.policy, settings.memory
    if not policy.budgets:
        return None
    address = first_address(settings)
    place = {"sqlite": (memory.sqlite,), "opensearch": (memory.opensearch, address)}.get(policy.budget_store, ())
    name = policy.budget_store, *place
    return ledgers.use(name, lambda: Ledger(build_store(policy.budget_store, memory, address)))


def build_store(name: str, settings: Memory, upstream_url: str) -> BudgetStore:
    """Return the store, which opens its place on first use. upstream_url: the cluster's first address."""
    match name:
        case "sqlite":
            return SqliteBudgetStore(file_of(settings))
        case "opensearch":
            return OpenSearchBudgetStore(settings.opensearch, upstream_url)
    return MemoryBudgetStore()


class OpenPolicies:
    """The policies of one set of settings, with their connections; see `gateway.ports.PolicyKeeper`.

    policies: None if the settings ask for none.

    Raises:
        ConfigError: as `check_policies`.
    """

    def __init__(self, settings: Settings, ledgers: SharedResources[Ledger], log: Logger, metrics: Metrics) -> None:
        check_policies(settings)
        self._shared = share_ledger(ledgers, settings)
        ledger = self._shared.resource if self._shared is not None else None
        self.policies = build_policies(settings, ledger, log, metrics)

    async def ended(self) -> None:
        """See `PolicyKeeper`."""
        if self.policies is not None:
            await self.policies.ended()

    async def close(self) -> None:
        """See `PolicyKeeper`."""
        try:
            if self.policies is not None:
                await self.policies.close()
        finally:
            if self._shared is not None:
                shared, self._shared = self._shared, None
                await shared.release()
