"""Budgets: how much each agent or caller may spend in a window of time, and what was spent.

Other stores of what was spent are in `budget_stores.py`; the one in the memory of a process is here.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Protocol

import msgspec
from msgspec import Struct
from typing_extensions import override

from gateway.config.memory import Memory
from gateway.config.policy import UsageBudget
from gateway.errors import BudgetSpent, BudgetUnavailable, Problem
from gateway.memory.owner import owner_of
from gateway.observe.logs import Logger
from gateway.observe.metrics import UsageMetrics
from gateway.observe.record import Usage
from gateway.offload import Background
from gateway.policy.usage import format_amount


class Account(Struct, frozen=True):
    """The account of one agent or caller for one window of a budget.

    key: 32 hexadecimal digits, the same in all gateways with the same budget. start, end: of the window, seconds since
    the epoch.
    """

    key: str
    start: int
    end: int


class BudgetStoreError(Exception):
    """The store can't be read or written. The message says why and what to do."""


class BudgetStore(Protocol):
    """Adds up amounts by account. `read` and `add` raise `BudgetStoreError`."""

    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        """Return what was added to each account; an account that nothing was added to may be missing."""

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts, each atomically, however many processes do so."""

    async def close(self) -> None:
        """Release all resources."""
        return


_CLEAN_AT = 1_000
"""Number of accounts at which those of past windows are dropped; afterwards, at least twice the number that is left."""


class MemoryBudgetStore(BudgetStore):
    """See `BudgetStore`. clock: the seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spent: dict[Account, float] = {}
        self._clean_at = _CLEAN_AT

    @override
    async def read(self, accounts: Sequence[Account]) -> Mapping[Account, float]:
        return {account: self._spent[account] for account in accounts if account in self._spent}

    @override
    async def add(self, amounts: Mapping[Account, float]) -> None:
        self.add_now(amounts)

    def add_now(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts without waiting."""
        for account, amount in amounts.items():
            self._spent[account] = self._spent.get(account, 0.0) + amount
        if len(self._spent) >= self._clean_at:
            now = self._clock()
            self._spent = {account: spent for account, spent in self._spent.items() if account.end > now}
            self._clean_at = max(_CLEAN_AT, 2 * len(self._spent))


class _Reads:
    """Accounts that are read together. task: reads them."""

    def __init__(self) -> None:
        self.accounts: set[Account] = set()
        self.task: asyncio.Task[Mapping[Account, float]]


class Ledger:
    """Reads and writes the store in groups. What could not be written is kept, and written with the next amounts."""

    def __init__(self, store: BudgetStore) -> None:
        self.store = store
        self._reads: _Reads | None = None
        self._reading = asyncio.Lock()
        self._waiting: dict[Account, float] = {}
        self._failed: dict[Account, float] = {}
        self._write: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def read(self, accounts: Iterable[Account]) -> list[float]:
        """Return what was spent of each account, as of now or later, with what is not stored yet.

        Raises:
            BudgetStoreError: the store can't be read.
        """
        wanted = list(accounts)
        reads = self._reads
        if reads is None:
            reads = self._reads = _Reads()
            reads.task = asyncio.create_task(self._read(reads))
            reads.task.add_done_callback(_retrieve)
        reads.accounts.update(wanted)
        found = await asyncio.shield(reads.task)
        late = self._failed if self._writing.locked() else {}  # else they are among those that wait
        return [sum(amounts.get(account, 0.0) for amounts in (found, self._waiting, late)) for account in wanted]

    async def _read(self, reads: _Reads) -> Mapping[Account, float]:
        async with self._reading:
            self._reads = None  # later requests form another group
            return await self.store.read(list(reads.accounts))

    async def add(self, amounts: Mapping[Account, float]) -> None:
        """Add the amounts, and return once they are stored. It continues if the caller is cancelled.

        Raises:
            BudgetStoreError: they can't be stored now.
        """
        for account, amount in amounts.items():
            self._put(account, amount)
        if self._write is None:
            self._write = asyncio.create_task(self._write_waiting())
            self._write.add_done_callback(_retrieve)
        await asyncio.shield(self._write)

    async def _write_waiting(self) -> None:
        async with self._writing:
            self._write = None  # later amounts form another group
            waiting, self._waiting = self._waiting, {}
            try:
                if waiting:
                    await self.store.add(waiting)
                self._failed = {}
            except BaseException:
                self._failed = waiting
                for account, amount in waiting.items():
                    self._put(account, amount)
                raise

    def _put(self, account: Account, amount: float) -> None:
        self._waiting[account] = self._waiting.get(account, 0.0) + amount

    async def close(self) -> None:
        """Write what is left, if that is possible, and close the store."""
        try:
            await self.add({})
        except BudgetStoreError:
            pass
        finally:
            await self.store.close()


def _retrieve(task: asyncio.Task[object]) -> None:
    """Take note of a task's error, so that asyncio does not warn if all callers were cancelled."""
    if not task.cancelled():
        task.exception()


_BY_CALLER = Memory(by_caller=True)
_TEMPORARY = "(quick execution)"
"""Stands for the ids of agents that are made for one run. No id of the cluster has such characters."""
_WHOSE = {
    "agent": "of this agent",
    "caller": "of this caller",
    "both": "of this caller for this agent",
    "all": "of all callers",
}


class Charge(msgspec.Struct, frozen=True):
    """A run's share of one budget. place: of the budget in the settings."""

    budget: UsageBudget
    place: str
    account: Account


class Budgets:
    """The budgets in `policy.budgets`. clock: the seconds since the epoch.

    A run is charged to the window in which it began.
    """

    def __init__(
        self,
        budgets: Sequence[UsageBudget],
        ledger: Ledger,
        allow_on_failure: bool,
        log: Logger,
        metrics: UsageMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._budgets = [(f"policy.budgets[{index}]", budget) for index, budget in enumerate(budgets)]
        self._ledger = ledger
        self._allow_on_failure = allow_on_failure
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._charging = Background()

    def matches(self, agent_id: str, name: str) -> bool:
        """Return True if a budget matches the agent. name: "" if it is not known."""
        return any(_matches(budget, agent_id, name) for _, budget in self._budgets)

    def needs_name(self, agent_id: str) -> bool:
        """Return True if the agent's name may match a budget that its id does not match; see `Policies.needs_name`."""
        return not self._allow_on_failure and not all(_matches(budget, agent_id, "") for _, budget in self._budgets)

    async def admit(
        self, agent_id: str, name: str, headers: Mapping[str, str], temporary: bool = False, route: str = ""
    ) -> list[Charge]:
        """Return what the run of an agent will be charged to. temporary: the agent was made for this run.

        All temporary agents count as one, as each has a new id. route: the id that the client named, if that has one:
        budgets of that agent count the runs of all targets, as its own.

        Raises:
            BudgetSpent: nothing is left of a budget.
            BudgetUnavailable: what was spent can't be read.
        """
        account = _TEMPORARY if temporary else agent_id
        matching = [(place, budget, account) for place, budget in self._budgets if _matches(budget, agent_id, name)]
        if route:
            others = (one for one in self._budgets if not _matches(one[1], agent_id, name))
            matching += [(place, budget, route) for place, budget in others if _matches(budget, route, "")]
        if not matching:
            return []
        caller = (await owner_of(headers, "", _BY_CALLER)).caller
        now = self._clock()
        charges = [Charge(one, place, account_of(one, agent, caller, now)) for place, one, agent in matching]
        try:
            spent = await self._ledger.read(charge.account for charge in charges)
        except BudgetStoreError as error:
            self._failed("read_failed", error)
            if self._allow_on_failure:
                return charges
            raise BudgetUnavailable(
                "What was spent of the agent's budget can't be read, so the agent was not run",
                help="Try again later. The operator finds the reason in the log; see policy.on_store_failure.",
            ) from None
        for charge, amount in zip(charges, spent, strict=True):
            if amount >= _limit(charge.budget):
                self._metrics.budget("refused")
                raise _spent(charge, amount, now)
        return charges

    async def charge(self, charges: Sequence[Charge], usage: Usage | None) -> None:
        """Add what a run used. A store that can't be written gets it later; that is logged. usage: None if unknown."""
        amounts = _amounts(charges, usage)
        if not amounts:
            return
        try:
            await self._ledger.add(amounts)
        except BudgetStoreError as error:
            self._failed("write_failed", error)

    def charge_later(self, charges: Sequence[Charge], usage: Usage | None) -> None:
        """Add what a run used without waiting; see `charge`. A store in this process has it at once."""
        store = self._ledger.store
        if isinstance(store, MemoryBudgetStore):
            store.add_now(_amounts(charges, usage))
            return
        self._charging.run(self.charge(charges, usage))

    async def ended(self) -> None:
        """Wait until all amounts are stored, or could not be."""
        await self._charging.ended()

    def _failed(self, outcome: str, error: BudgetStoreError) -> None:
        self._metrics.budget(outcome)
        self._log.error("budget store failed", outcome=outcome, reason=str(error))


def _matches(budget: UsageBudget, agent_id: str, name: str) -> bool:
    return fnmatchcase(agent_id, budget.agent) or bool(name and fnmatchcase(name, budget.agent))


def account_of(budget: UsageBudget, agent_id: str, caller: str, now: float) -> Account:
    """Return the account of a run that begins now.

    Its key does not depend on the limit, so what was spent still counts after a budget is raised.
    """
    start = math.floor(now / budget.seconds) * budget.seconds
    unit = "tokens" if budget.tokens else budget.currency
    agent = agent_id if budget.per in ("agent", "both") else ""
    who = caller if budget.per in ("caller", "both") else ""
    parts = (budget.agent, budget.per, unit, f"{budget.seconds:g}", agent, who)
    key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Account(key, math.floor(start), math.ceil(start + budget.seconds))


def amount_of(budget: UsageBudget, usage: Usage | None) -> float:
    """Return what a run costs, in the unit of the budget. usage: None if unknown."""
    if usage is not None and usage.input is not None and usage.output is not None:
        if budget.tokens:
            return float(usage.input + usage.output)
        if usage.cost is not None and usage.currency == budget.currency:
            return usage.cost
    return {"allow": 0.0, "count": budget.unknown_amount, "refuse": _limit(budget)}[budget.unknown]


def _amounts(charges: Sequence[Charge], usage: Usage | None) -> dict[Account, float]:
    amounts: dict[Account, float] = {}
    for charge in charges:
        if amount := amount_of(charge.budget, usage):
            amounts[charge.account] = amounts.get(charge.account, 0.0) + amount
    return amounts


def _limit(budget: UsageBudget) -> float:
    return float(budget.tokens) or budget.money


def _spent(charge: Charge, amount: float, now: float) -> BudgetSpent:
    budget, account = charge.budget, charge.account
    unit = "tokens" if budget.tokens else budget.currency
    reset = datetime.fromtimestamp(account.end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    wait = max(1, math.ceil(account.end - now))
    problem = Problem(
        "agent_id" if budget.per in ("agent", "both") else "",
        f"The budget {_WHOSE[budget.per]} is spent until {reset}",
        f"less than {format_amount(_limit(budget))} {unit} in {format_amount(budget.seconds)} seconds",
        f"{format_amount(amount)} {unit}",
    )
    help = f"Send the request again in {wait} seconds, or ask the operator of the gateway to raise {charge.place}."
    return BudgetSpent(f"{problem.reason}, so the agent was not run", [problem], help, wait)
