"""Opens the policies of a set of settings. What was spent is kept on a reload, if the settings name the same store."""

from __future__ import annotations

from gateway.config.schema import Settings
from gateway.memory.opening import first_address
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.budget_stores.store import build_store
from gateway.policy.ledger import Ledger
from gateway.policy.policies import build_policies, check_policies
from gateway.shared import Shared, SharedResources


def share_ledger(ledgers: SharedResources[Ledger], settings: Settings) -> Shared[Ledger] | None:
    """Return the ledger of the settings, shared with others that name its store; None without budgets."""
    policy, memory = settings.policy, settings.memory
    if not policy.budgets:
        return None
    return ledgers.use(
        _place(settings), lambda: Ledger(build_store(policy.budget_store, memory, first_address(settings)))
    )


def _place(settings: Settings) -> tuple[object, ...]:
    match settings.policy.budget_store:
        case "sqlite":
            return "sqlite", settings.memory.sqlite
        case "opensearch":
            return "opensearch", settings.memory.opensearch, first_address(settings)
    return ("memory",)


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
