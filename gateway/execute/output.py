"""The form of answers: which agents' answers are converted to the unified form, and the conversion."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from gateway.agents.rules import rule_for
from gateway.config.schema import Rule, Settings
from gateway.execute.answer_output import unified_answer, with_memory_id
from gateway.execute.answers import read_answer
from gateway.execute.run_answer import RunAnswer
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.offload import run_here_if
from gateway.ports import Answer, Forward, Retry

_SMALL = 64 * 1024


class Outputs:
    """Converts answers by the rules of the operator and the marks of registrations."""

    def __init__(self, settings: Settings) -> None:
        self._rules = settings.agents.rules

    def rule(self, agent_id: str, name: str = "") -> Rule | None:
        """Return the operator's rule for an agent."""
        return rule_for(agent_id, name, self._rules)

    def converts(self, profile: AgentProfile) -> bool:
        """Return True if the agent's answers are converted. A V2 agent of the cluster answers in that form itself."""
        if profile.generation is Generation.UNIFIED_V2:
            return False
        rule = self.rule(profile.id, profile.name)
        if rule is None or rule.output == "auto":
            return profile.unified_output
        return rule.output == "unified"

    def write(self, profile: AgentProfile, run: RunAnswer, body: bytes, memory_id: str) -> bytes:
        """Return an answer with the id of its session. body: as the cluster sent it. run: what was read of it."""
        if run.text is None or not self.converts(profile):
            return with_memory_id(body, memory_id)
        return unified_answer(run, memory_id)

    def attach(self, profile: AgentProfile, forward: Forward) -> Forward:
        """Return `forward` with the conversion of its answer, if the agent's answers are converted."""
        if not self.converts(profile):
            return forward

        async def finish(status: int, body: bytes) -> Answer | None:
            if status >= 300:
                return None
            run = await run_here_if(len(body) <= _SMALL, read_answer, profile, body)
            return None if run.text is None else Answer(status, {}, unified_answer(run, run.memory_id))

        retry = self._retry(profile, forward.retry) if forward.retry is not None else None
        return msgspec.structs.replace(forward, retry=retry, finish=finish)

    def _retry(self, profile: AgentProfile, retry: Retry) -> Retry:
        def retry_with(status: int, answer: bytes) -> Forward | Answer | Awaitable[Answer] | None:
            again = retry(status, answer)
            return self.attach(profile, again) if isinstance(again, Forward) else again

        return retry_with
