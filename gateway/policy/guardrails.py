"""Guardrails: hooks of the operator that see what agents are sent, and may allow, change or refuse it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.config.policy import Guardrail
from gateway.errors import GatewayError, GuardrailRefused, GuardrailUnavailable, Problem
from gateway.notices import Notice
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.policy.content import Content
from gateway.policy.hooks import Hook, HookFailed, Verdict

CHANGED = "GUARDRAIL_CHANGED"
_LONGEST_REASON = 500
Checks = list[dict[str, Any]]
"""What hooks did, for the record of an exchange: name, stage, verdict, seconds and code of each."""


class Guardrails:
    """The guardrails of the settings, each with its hook, in their order."""

    def __init__(self, hooks: Sequence[tuple[Guardrail, Hook]], log: Logger, metrics: Metrics) -> None:
        self._hooks = tuple(hooks)
        self._log = log
        self._metrics = metrics

    def for_agent(self, agent_id: str, name: str, route: str = "") -> AgentGuardrails | None:
        """Return the guardrails of an agent; None if there are none. name: "" if it is not known.

        route: the id that the client named, if that has one: its guardrails hold for every target.
        """
        hooks = [one for one in self._hooks if _matches(one[0], agent_id, name) or _matches(one[0], route, "")]
        return AgentGuardrails(hooks, self._log, self._metrics) if hooks else None

    def needs_name(self, agent_id: str) -> bool:
        """Return True if the agent's name may match a guardrail that its id does not; see `Policies.needs_name`."""
        strict = [settings for settings, _ in self._hooks if settings.on_failure == "refuse"]
        return not all(_matches(settings, agent_id, "") for settings in strict)

    async def close(self) -> None:
        """Release what the hooks hold."""
        async with contextlib.AsyncExitStack() as close:
            for _, hook in self._hooks:
                close.push_async_callback(hook.close)


class AgentGuardrails:
    """The guardrails of one request. checks: what they did."""

    def __init__(self, hooks: Sequence[tuple[Guardrail, Hook]], log: Logger, metrics: Metrics) -> None:
        self._hooks = hooks
        self._log = log
        self._metrics = metrics
        self.checks: Checks = []
        self.checks_answers = any(settings.answers for settings, _ in hooks)

    async def check(self, stage: str, about: dict[str, Any], content: Content) -> tuple[Notice, ...]:
        """Show the content to each hook in turn, with what those before it changed. Return a notice for each change.

        stage: input or answer. about: members of the document beside the content.

        Raises:
            GuardrailRefused: a hook refused it. GuardrailUnavailable: a hook failed.
        """
        for settings, hook in self._hooks:
            if stage == "input" or settings.answers:
                await self._check_by(settings, hook, stage, about, content)
        for _ in content.changes:
            self._metrics.notice(CHANGED)
        return tuple(Notice(CHANGED, f"A guardrail changed this text of the {stage}", at) for at in content.changes)

    async def _check_by(
        self, settings: Guardrail, hook: Hook, stage: str, about: dict[str, Any], content: Content
    ) -> None:
        began = time.monotonic()
        document = {"version": 1, "stage": stage, **about, stage: content.document}
        try:
            async with asyncio.timeout(settings.seconds):
                verdict = await hook.judge(document)
            _apply(verdict, content)
        except TimeoutError:
            failure = HookFailed("timeout", f"it gave no verdict within {settings.seconds:g} seconds")
            self._note(settings, stage, "failed", began, failure.code)
            self._fail(settings, stage, failure)
        except HookFailed as failure:
            self._note(settings, stage, "failed", began, failure.code)
            self._fail(settings, stage, failure)
        else:
            self._note(settings, stage, verdict.verdict, began, verdict.code)
            if verdict.verdict == "refuse":
                raise _refusal(settings, stage, verdict)

    def report_unchecked(self, stage: str, reason: str) -> None:
        """Report content that can't be shown to the hooks, as a failure of each. reason: why.

        Raises:
            GuardrailUnavailable: failures of a hook refuse the request.
        """
        for settings, _ in self._hooks:
            if stage == "input" or settings.answers:
                self._note(settings, stage, "failed", time.monotonic(), "invalid")
                self._fail(settings, stage, HookFailed("invalid", reason))

    def require_answer(self) -> None:
        """Refuse a run in the background, whose answer the gateway does not see, if a guardrail checks answers.

        Raises:
            GuardrailRefused: a guardrail checks answers.
        """
        name = next((settings.name for settings, _ in self._hooks if settings.answers), "")
        if name:
            problem = Problem(
                "",
                f"The guardrail {name} checks answers, so this agent can't be run in the background",
                "_execute without async",
                help="Use POST /_plugins/_ml/agents/{id}/_execute.",
            )
            raise GuardrailRefused.of([problem])

    def _note(self, settings: Guardrail, stage: str, verdict: str, began: float, code: str) -> None:
        seconds = time.monotonic() - began
        self._metrics.usage.guardrail(settings.name, stage, verdict)
        self.checks.append(
            {"name": settings.name, "stage": stage, "verdict": verdict, "seconds": round(seconds, 6), "code": code[:64]}
        )

    def _fail(self, settings: Guardrail, stage: str, failure: HookFailed) -> None:
        self._log.error("guardrail failed", tag=settings.name, step=stage, type=failure.code, reason=str(failure))
        if settings.on_failure == "refuse":
            raise unavailable(settings.name, stage)


def unavailable(name: str, stage: str) -> GatewayError:
    """Return the error for content that a guardrail could not check."""
    return GuardrailUnavailable(
        f"The guardrail {name} could not check the {stage}",
        help="Try again later. The operator finds the reason in the log; see policy.guardrails[].on_failure.",
    )


def _apply(verdict: Verdict, content: Content) -> None:
    """Make the changes of a verdict, all or none."""
    if verdict.verdict != "change":
        return
    for new in verdict.texts:
        if not new.text.strip():
            raise HookFailed("invalid", "a new text is blank")
        if not content.has_text(new.place):
            raise HookFailed("invalid", "it changed a place that has no text")
    for new in verdict.texts:
        content.change(new.place, new.text)


def _refusal(settings: Guardrail, stage: str, verdict: Verdict) -> GatewayError:
    reason = verdict.reason[:_LONGEST_REASON] or "no reason given"
    what = f"The guardrail {settings.name} refused the {stage}: {reason}"
    rule = f"{settings.name}/{verdict.code}" if verdict.code else settings.name
    help = "Change what is named and send the request again, or ask the operator of the gateway."
    return GuardrailRefused.of([Problem(verdict.place, what, received=rule, help=help, repeats=reason)])


def _matches(settings: Guardrail, agent_id: str, name: str) -> bool:
    return fnmatchcase(agent_id, settings.agent) or bool(name and fnmatchcase(name, settings.agent))
