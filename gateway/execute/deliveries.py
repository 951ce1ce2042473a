"""What logs, traces and the inspector are shown of a delivery: its facts, and its steps."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator

from msgspec import structs

from gateway.delivery.plan import Plan
from gateway.mlcommons.profile import AgentProfile
from gateway.notices import Notice
from gateway.observe.record import Delivery
from gateway.ports import ExecuteCall

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


@contextlib.contextmanager
def timed_step(call: ExecuteCall, name: str) -> Iterator[None]:
    """Note that a step of handling `call` ends with this block, with an error, too."""
    try:
        yield
    finally:
        end_step(call, name)


def note_delivery(call: ExecuteCall, known: Delivery) -> None:
    """Note what is known of the delivery before there is a plan."""
    if call.steps is not None:
        call.steps.delivery = known
