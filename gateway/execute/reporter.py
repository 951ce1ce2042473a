"""Logs and counts what becomes of each unified input."""

from __future__ import annotations

import re

from gateway.config.schema import Settings
from gateway.delivery.plan import Plan
from gateway.errors import GatewayError
from gateway.mlcommons.generations import version_notice
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.observe.logs import Logger, step
from gateway.observe.metrics import Metrics
from gateway.observe.redact import describe_error, mask_place
from gateway.ports import ExecuteCall
from gateway.unified.model import AgentInput

_BEGINNING = re.compile(r"""[^:"'`{\[(]{0,120}""")


class Reporter:
    """The log lines and metrics of the use case."""

    def __init__(self, settings: Settings, log: Logger, metrics: Metrics) -> None:
        self._payloads = settings.logs.payloads
        self._logs_steps = settings.logs.level == "debug"
        self._log = log
        self._metrics = metrics
        self._unknown_version: tuple[int, ...] = ()

    def both_sent(self, agent_id: str) -> None:
        """Log that the client sent both forms of the question."""
        self._log.warning("deprecated", agent=agent_id, reason="both input and parameters.question were sent")

    def decoded(self, agent_input: AgentInput) -> None:
        """Log at debug level what the input is."""
        step(self._log, "decoded", input=agent_input.type.value, messages=len(agent_input.messages))

    def resolved(self, profile: AgentProfile) -> None:
        """Log at debug level what was read of the agent. A cluster's version that is not known is reported once."""
        unknown = version_notice(profile.version)
        if unknown and profile.version != self._unknown_version:
            self._unknown_version = profile.version
            self.noticed(unknown)
            self._log.warning("cluster's version not known", codes=[unknown.code], reason=unknown.reason)
        step(
            self._log,
            "profile",
            type=profile.type,
            generation=profile.generation.value,
            provider=profile.provider,
            source=profile.provider_source,
        )

    def planned(self, plan: Plan) -> None:
        """Count a delivery, and log it at debug level."""
        self.count(plan)
        if not self._logs_steps:
            return  # a text may be in very many parameters, whose copy would delay other clients
        step(
            self._log,
            "planned",
            strategy=plan.strategy,
            provider=plan.provider,
            parameters=dict(plan.parameters),
            notices=[f"{notice.code} {mask_place(notice.place)}".strip() for notice in plan.notices],
        )

    def count(self, plan: Plan) -> None:
        """Count a delivery and its notices."""
        self._metrics.traffic.rewrites[plan.provider, plan.strategy, "sent"] += 1
        for notice in plan.notices:
            self.noticed(notice)

    def noticed(self, notice: Notice) -> None:
        """Count a notice."""
        self._metrics.notice(notice.code)

    def stream_failed(self, agent_id: str, kind: str, reason: str) -> None:
        """Count and log an error in an event stream. kind: reported (by the cluster), broken (an event) or cut.

        Without `logs.payloads`, only the beginning of the reason is logged: the rest may repeat parts of the request.
        """
        self._metrics.stream_error(kind)
        shown = reason if self._payloads else _BEGINNING.match(reason)[0]  # type: ignore[index]
        self._log.warning("stream failed", agent=agent_id, kind=kind, reason=shown)

    def refused(self, call: ExecuteCall, agent_input: AgentInput, provider: str, error: GatewayError) -> None:
        """Count and log a refusal. provider: "" where it was not known yet."""
        codes = sorted({problem.code for problem in error.problems if problem.code})
        self._metrics.traffic.rewrites[provider, "", error.type] += 1
        self._log.warning(
            "input refused",
            agent=call.agent_id,
            input=agent_input.type.value,
            provider=provider or "unknown",
            strategy="none",
            type=error.type,
            codes=codes,
            reason=describe_error(error, self._payloads)["reason"],
        )
