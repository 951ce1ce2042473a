"""Opens the policies of a set of settings. What was spent is kept on a reload, if the settings name the same store."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.schema import Settings
from gateway.memory.opening import first_address
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.budget_stores.store import build_store
from gateway.policy.ledger import Ledger
from gateway.policy.policies import build_policies, check_policies


class SharedLedger:
    """A ledger of all sets of settings that name its store. users: how many there are."""

    def __init__(self, ledger: Ledger, forget: Callable[[], object]) -> None:
        self.ledger = ledger
        self.users = 0
        self._forget = forget

    async def release(self) -> None:
        """End one use; the last one closes the store."""
        self.users -= 1
        if not self.users:
            self._forget()
            await self.ledger.close()


class SharedLedgers:
    """Keeps ledgers from one set of settings to the next, if they name the same store."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], SharedLedger] = {}

    def use(self, settings: Settings) -> SharedLedger | None:
        """Return the ledger of the settings; None without budgets. Release it in the end."""
        if not settings.policy.budgets:
            return None
        place = _place(settings)
        if place not in self._open:
            store = build_store(settings.policy.budget_store, settings.memory, first_address(settings))
            self._open[place] = SharedLedger(Ledger(store), lambda: self._open.pop(place))
        shared = self._open[place]
        shared.users += 1
        return shared


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

    def __init__(self, settings: Settings, ledgers: SharedLedgers, log: Logger, metrics: Metrics) -> None:
        check_policies(settings)
        self._shared = ledgers.use(settings)
        ledger = self._shared.ledger if self._shared is not None else None
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
