"""What is shown of a delivery: facts and steps to logs, traces, metrics and the inspector; headers to the client."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from msgspec import structs

from gateway import __version__
from gateway.codes import NOTICE_HEADER, Notice
from gateway.config.schema import Answers, Settings
from gateway.delivery.plan import Plan
from gateway.errors import GatewayError
from gateway.mlcommons.generations import version_notice
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.logs import Logger, describe_error, mask_place, step
from gateway.observe.metrics import Metrics
from gateway.observe.record import Delivery
from gateway.ports import ExecuteCall
from gateway.unified.model import AgentInput

QUESTION = "question"
"""The `input_type` of a legacy request."""
_MODEL_NAMES = ("model", "model_name", "modelId")
_IN_URL = re.compile(r"/models?/([^/:?]+)|/deployments/([^/?]+)")


def describe_delivery(profile: AgentProfile, input_type: str, plan: Plan | None = None) -> Delivery:
    """Return the facts of an agent and of the plan that delivers an input to it. plan: None if there is none (yet)."""
    known = Delivery(
        agent_name=profile.name,
        type=profile.type,
        generation=profile.generation.value,
        provider=profile.provider,
        model=model_name(profile),
        input_type=input_type,
        one_model=len(profile.models) == 1,
    )
    return known if plan is None else with_plan(known, plan)


def with_plan(known: Delivery, plan: Plan) -> Delivery:
    """Return what is known of an agent and its input, with the plan."""
    planned = structs.replace(known, provider=plan.provider, strategy=plan.strategy, proved=plan.proved)
    return with_notices(planned, plan.notices)


def with_notices(delivery: Delivery, notices: Iterable[Notice]) -> Delivery:
    """Return the delivery with more notices."""
    codes = dict.fromkeys((*delivery.notices, *(notice.code for notice in notices)))
    return structs.replace(delivery, notices=tuple(codes))


def model_name(profile: AgentProfile) -> str:
    """Return the LLM's name at its provider, from the connector's parameters or URL; "" if neither has it."""
    if not profile.models:
        return ""
    connector = profile.models[0].connector
    parameters = {**connector.parameters, **profile.llm_parameters}
    for name in _MODEL_NAMES:
        if found := parameters.get(name):
            return found
    match = _IN_URL.search(connector.url)
    found = (match[1] or match[2]) if match is not None else ""
    return "" if "${" in found else found


def end_step(call: ExecuteCall, name: str) -> None:
    """Note that a step of handling `call` ends now; see `gateway.ports.Steps`."""
    if call.steps is not None:
        call.steps.end(name, time.monotonic())


class TimedStep:
    """A step of handling `call` that ends with the block, with an error, too."""

    __slots__ = ("_call", "_name")

    def __init__(self, call: ExecuteCall, name: str) -> None:
        self._call, self._name = call, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        end_step(self._call, self._name)


def note_delivery(call: ExecuteCall, known: Delivery) -> None:
    """Note what is known of the delivery before there is a plan."""
    if call.steps is not None:
        call.steps.delivery = known


DELIVERY = "X-MLC-Gateway-Delivery"
NOTICE = NOTICE_HEADER

# OpenSearch's own form of a deprecation warning: code 299, an agent, a quoted text.
BOTH_SENT = (
    f'299 mlc-gateway-{__version__} "[parameters.question] is deprecated beside [input] and was ignored; send [input]"'
)


def delivery_headers(answers: Answers, plan: Plan, input_type: str, both_sent: bool) -> dict[str, str]:
    """Return the headers to add to the response of a request that was delivered by `plan`.

    both_sent: the client sent both `input` and `parameters.question`.
    """
    headers: dict[str, str] = {}
    if answers.delivery_header:
        headers[DELIVERY] = delivery_value(plan.strategy, plan.provider, input_type, plan.proved)
    if answers.notice_header and plan.notices:
        headers[NOTICE] = ", ".join(dict.fromkeys(notice.code for notice in plan.notices))
    if both_sent:
        headers["Warning"] = BOTH_SENT
    return headers


def notice_header(notices: Iterable[Notice], known: Mapping[str, str]) -> dict[str, str]:
    """Return the header that reports notices beside those in `known`, other headers; none if there are no notices."""
    codes = [notice.code for notice in notices]
    named = [known[NOTICE]] if NOTICE in known else []
    return {NOTICE: ", ".join(dict.fromkeys([*named, *codes]))} if codes else {}


def delivery_value(strategy: str, provider: str, input_type: str, proved: bool = True) -> str:
    """Return the value of the delivery header."""
    value = f"strategy={strategy}; provider={provider or 'unknown'}; input={input_type}"
    return value if proved else f"{value}; proved=no"


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
