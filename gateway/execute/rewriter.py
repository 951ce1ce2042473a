"""The rewrite under the operator's settings: mapping options, and the rule of each agent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from gateway.agents.documents import Rule, rule_for
from gateway.agents.resolver import ResolvedAgent
from gateway.codes import Notice
from gateway.config.schema import Settings
from gateway.delivery.call_model import CallModelCache
from gateway.delivery.plan import Plan, Remembered
from gateway.execute.rewrite import Rewrite, RewriteOptions, rewrite_input, rewrite_native, rewrite_unproved
from gateway.execute.template_cache import TemplateCache
from gateway.mlcommons.profile import AgentProfile
from gateway.providers import registry
from gateway.providers.base import MappingOptions
from gateway.unified.model import AgentInput
from gateway.unified.request import ExecuteRequest


class Rewriter:
    """Rewrites requests as the settings ask."""

    def __init__(self, settings: Settings) -> None:
        self._rules = read_rules(settings)
        self._assumes = settings.agents.on_unproved == "assume"
        self._uses_templates = settings.logs.level != "debug"  # which logs the parameters of each plan
        self.options = MappingOptions(settings.agents.roles, settings.agents.allow_prefill)

    def rewrite(
        self,
        agent: ResolvedAgent,
        request: ExecuteRequest,
        agent_input: AgentInput,
        remembered: Remembered = (),
        notices: tuple[Notice, ...] = (),
        streaming: bool = False,
    ) -> Rewrite:
        """Rewrite the request by the agent's rule. notices: what was found before, reported with the plan's own.

        streaming: the request goes to the stream endpoint.

        Raises:
            UndeliverableContent: as `rewrite_input`.
        """
        policy, calls = RewriteOptions(self.options, self.describes(agent.profile)), agent.derive(CallModelCache)

        def plan(given: AgentInput, turn_id: str) -> Rewrite:
            return rewrite_input(agent.profile, request, given, policy, turn_id, remembered, calls, streaming)

        with _noted(agent):
            if remembered or not self._uses_templates:
                rewrite = plan(agent_input, new_turn_id())
            else:
                templates = agent.derive(TemplateCache)
                rewrite = templates.rewrite(request, agent_input, streaming, new_turn_id, plan)
        return Rewrite(_add_notices(rewrite.plan, notices), rewrite.body)

    def rewrite_native(
        self,
        profile: AgentProfile,
        request: ExecuteRequest,
        agent_input: AgentInput,
        notices: tuple[Notice, ...] = (),
        guards: Mapping[str, str] | None = None,
        *,
        streaming: bool,
    ) -> Rewrite:
        """Rewrite the request for an agent that takes `input` itself. guards: see `rewrite_native`.

        Raises:
            UndeliverableContent: as `rewrite_native`.
        """
        policy = RewriteOptions(self.options, self.describes(profile))
        rewrite = rewrite_native(profile, request, agent_input, streaming, new_turn_id(), policy, guards)
        return Rewrite(_add_notices(rewrite.plan, notices), rewrite.body)

    def check(
        self,
        agent: ResolvedAgent,
        request: ExecuteRequest,
        agent_input: AgentInput,
        remembered: Remembered,
        streaming: bool = False,
    ) -> None:
        """Raise UndeliverableContent if the input can't be delivered whole, even where its media may be described."""
        policy, calls = RewriteOptions(self.options), agent.derive(CallModelCache)
        with _noted(agent):
            rewrite_input(agent.profile, request, agent_input, policy, new_turn_id(), remembered, calls, streaming)

    def rewrite_unproved(
        self,
        provider: str,
        request: ExecuteRequest,
        agent_input: AgentInput,
        notices: tuple[Notice, ...] = (),
        *,
        streaming: bool = False,
    ) -> Rewrite:
        """Rewrite the request for an agent that can't be read. provider: see `assumed_provider`.

        Raises:
            UndeliverableContent: the provider can't express the input.
        """
        policy = RewriteOptions(self.options)
        rewrite = rewrite_unproved(registry.provider(provider), request, agent_input, policy, new_turn_id(), streaming)
        return Rewrite(_add_notices(rewrite.plan, notices), rewrite.body)

    def assumed_provider(self, agent_id: str) -> str:
        """Return the provider that the operator configured for an agent that can't be read; "" for none."""
        rule = rule_for(agent_id, "", self._rules)
        return (rule.provider or "") if self._assumes and rule is not None else ""

    def describes(self, profile: AgentProfile) -> bool:
        """Return True if media that can't be delivered to this agent are replaced by a description."""
        rule = rule_for(profile.id, profile.name, self._rules)
        return rule is not None and rule.delivery == "describe"


def new_turn_id() -> str:
    """Return an id that no other turn has."""
    return uuid.uuid4().hex


def read_rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the operator's rules."""
    return tuple(Rule(rule.agent, rule.provider or None, rule.delivery) for rule in settings.agents.rules)


@contextmanager
def _noted(agent: ResolvedAgent) -> Iterator[None]:
    found = False
    try:
        yield
        found = True
    finally:
        agent.note_plan(found=found)


def _add_notices(plan: Plan, notices: tuple[Notice, ...]) -> Plan:
    return replace(plan, notices=(*plan.notices, *notices)) if notices else plan
