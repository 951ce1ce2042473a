"""Builds the use case from the settings."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from gateway.agents.holds import Holds
from gateway.agents.memory import MemoryReader
from gateway.agents.resolver import Resolver
from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import Settings
from gateway.execute.deliveries import Reporter
from gateway.execute.handler import Handler
from gateway.execute.media import Inliner
from gateway.execute.policy_handler import PolicyHandler
from gateway.execute.rewriter import Rewriter, read_rules
from gateway.execute.session_run import SessionRuns
from gateway.memory.sessions import Sessions
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.policies import Policies
from gateway.ports import ClusterReader, MediaFetcher
from gateway.providers import registry


class ResolverCache:
    """The resolver's cache as `gateway.ports.ProfileCache`."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def __len__(self) -> int:
        return len(self._resolver)

    async def profile(self, agent_id: str, headers: Mapping[str, str]) -> AgentProfile:
        """Return an agent as the caller may see it; raises as `Resolver.agent`. headers: the caller's."""
        return await self._resolver.profile(agent_id, headers)

    def invalidate(self, kind: str, id: str | None) -> None:
        """Drop what a write that passed through may have changed."""
        match kind:
            case "agents" | "models" | "connectors":
                self._resolver.invalidate(kind, id)
            case _:
                self._resolver.invalidate("settings", None)


def build_handler(
    settings: Settings,
    cluster: ClusterReader,
    log: Logger,
    metrics: Metrics,
    fetch: MediaFetcher | None = None,
    sessions: Sessions | None = None,
    policies: Policies | None = None,
    holds: Holds | None = None,
) -> tuple[Handler | PolicyHandler, ResolverCache]:
    """Build the use case and the cache of what it reads.

    fetch: used where the settings allow media to be fetched. sessions: for agents whose memory is the gateway's.
    policies: None if the settings ask for none. holds: documents to use in place of the cluster's.

    Raises:
        ConfigError: as `check_rules`.
    """
    check_rules(settings)
    resolver = Resolver(
        cluster,
        settings.agents.cache_ttl,
        service_headers=service_headers(settings),
        max_entries=settings.agents.cache_size,
        rules=read_rules(settings),
        counts=metrics.lookups,
        holds=holds,
    )
    rewriter = Rewriter(settings)
    media = Inliner(rewriter.options, fetch if settings.media.fetch else None, log)
    reporter = Reporter(settings, log, metrics)
    runs = SessionRuns(sessions, settings, reporter) if sessions is not None else None
    handler = Handler(settings, resolver, MemoryReader(cluster), media, rewriter, reporter, runs)
    if policies is None:
        return handler, ResolverCache(resolver)
    return PolicyHandler(handler, policies, resolver, settings), ResolverCache(resolver)


def check_rules(settings: Settings) -> None:
    """Check the settings that depend on which providers are installed.

    Raises:
        ConfigError: a rule names an unknown provider.
    """
    problems = []
    for index, rule in enumerate(settings.agents.rules):
        try:
            if rule.provider:
                registry.provider(rule.provider)
        except (registry.UnknownProvider, registry.BrokenProvider) as error:
            path = f"agents.rules[{index}].provider"
            problems.append(ConfigProblem(path, str(error), repr(rule.provider), ", ".join(registry.names())))
    if problems:
        raise ConfigError(problems)


def service_headers(settings: Settings) -> dict[str, str] | None:
    """Return the headers of the service account; None where documents are read with each caller's credentials."""
    agents = settings.agents
    if agents.lookup != "service_account":
        return None
    pair = f"{agents.service_account.username}:{agents.service_account.password.reveal()}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
