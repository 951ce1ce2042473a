"""Runs of agents under the operator's policies: usage, budgets and guardrails around the use case itself."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.config.schema import Settings
from gateway.errors import GatewayError
from gateway.execute.guarded import GuardedCall
from gateway.execute.handler import Handler
from gateway.execute.policy_run import PolicyRun
from gateway.policy.budgets import Charge
from gateway.policy.policies import Policies
from gateway.ports import ExecuteCall, Forward
from gateway.unified.budget import Budget


class PolicyHandler:
    """An `ExecuteHandler` around another."""

    def __init__(self, handler: Handler, policies: Policies, resolver: Resolver, settings: Settings) -> None:
        self._handler = handler
        self._policies = policies
        self._resolver = resolver
        self._budget = Budget.from_limits(settings.limits)
        self._roles = settings.agents.roles

    async def __call__(self, call: ExecuteCall) -> Forward:
        """Return what to send for `call`.

        Raises:
            BudgetSpent, BudgetUnavailable, GuardrailRefused, GuardrailUnavailable: a policy refuses the run.
            GatewayError: as the other handler, and as `_find`.
        """
        policies = self._policies
        agent = await self._find(call)
        name = agent.profile.name if agent is not None else ""
        charges: Sequence[Charge] = ()
        if policies.budgets is not None:
            charges = await policies.budgets.admit(call.agent_id, name, call.headers, call.temporary)
        guardrails = policies.guardrails.for_agent(call.agent_id, name) if policies.guardrails else None
        if guardrails is None:
            forward = await self._handler(call)
            return _attach(forward, PolicyRun(policies, agent, charges, call.streaming))
        guarded = GuardedCall(guardrails, call, agent, self._budget, self._roles)
        try:
            checked, notices = await guarded.check_input()
            forward = await self._handler(checked)
        except GatewayError as error:
            error.guardrails = tuple(guardrails.checks)
            raise
        body = checked.body if checked is not call else None
        return _attach(forward, PolicyRun(policies, agent, charges, call.streaming, guarded, body, notices))

    async def _find(self, call: ExecuteCall) -> ResolvedAgent | None:
        """Return the agent; None if the caller may not read it, or there is none.

        Raises:
            GatewayError: the cluster fails. Then the name is unknown, for which there may be a budget or a guardrail.
        """
        try:
            return await self._resolver.agent(call.agent_id, call.headers)
        except GatewayError as error:
            if error.status >= 500 and self._policies.needs_name(call.agent_id):
                raise
            return None


def _attach(forward: Forward, run: PolicyRun) -> Forward:
    try:
        return run.attach(forward)
    except BaseException:
        if forward.abandoned is not None:
            forward.abandoned()  # it may hold a session
        raise
