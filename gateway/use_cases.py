"""Makes the use cases of the gateway from its settings."""

from __future__ import annotations

from gateway.agents.holds import Holds
from gateway.agents.lookup import Credentials
from gateway.config.schema import Settings
from gateway.execute.build import build_handler, check_rules
from gateway.media.fetch import Fetcher
from gateway.memory.opening import SharedStores
from gateway.memory.rest_handler import SessionResources
from gateway.memory.sessions import Sessions
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.opening import OpenPolicies, SharedLedgers
from gateway.register.handler import Manager
from gateway.runtime import UseCase, UseCases
from gateway.upstream.client import Upstream


def build_use_case() -> UseCase:
    """Return what makes the use cases. Those of one process share the stores of sessions and budgets, and the holds."""
    stores, ledgers, holds = SharedStores(), SharedLedgers(), Holds()

    def use_case(settings: Settings, cluster: Upstream, log: Logger, metrics: Metrics) -> UseCases:
        check_rules(settings)  # before the stores are used, as nothing releases them if this fails
        policy = OpenPolicies(settings, ledgers, log, metrics)
        shared = stores.use(settings)
        memory = Sessions(shared.store, settings.memory, log, stores.busy, close=shared.release, count=metrics.turn)
        fetch = Fetcher(settings.media)
        execute, profiles = build_handler(settings, cluster, log, metrics, fetch, memory, policy.policies, holds)
        wanted = settings.registration.enabled
        manage = Manager(settings, cluster, execute, profiles, log, metrics) if wanted else None
        resources = SessionResources(settings.memory, shared.store, cluster, Credentials().of)
        return UseCases(execute, profiles, manage, resources, memory, shared.store, policy, holds)

    return use_case
