"""What the client is told of a delivery: two headers and, where it sent both, a deprecation warning."""

from __future__ import annotations

from collections.abc import Mapping

from gateway import __version__
from gateway.config.schema import Answers
from gateway.delivery.plan import Plan

DELIVERY = "X-MLC-Gateway-Delivery"
NOTICE = "X-MLC-Gateway-Notice"

# OpenSearch's own form of a deprecation warning: code 299, an agent, a quoted text.
BOTH_SENT = (
    f'299 mlc-gateway-{__version__} "[parameters.question] is deprecated beside [input] and was ignored; send [input]"'
)


def headers(answers: Answers, plan: Plan, input_type: str, warned: bool) -> dict[str, str]:
    """The headers to add to the answer of a request that was delivered by `plan`."""
    added: dict[str, str] = {}
    if answers.delivery_header:
        added[DELIVERY] = delivery(plan.strategy, plan.provider, input_type, plan.proved)
    if answers.notice_header and plan.notices:
        added[NOTICE] = ", ".join(dict.fromkeys(notice.code for notice in plan.notices))
    return {**added, **warning(warned)}


def delivery(strategy: str, provider: str, input_type: str, proved: bool = True) -> str:
    """The value of the delivery header."""
    said = f"strategy={strategy}; provider={provider or 'unknown'}; input={input_type}"
    return said if proved else f"{said}; proved=no"


def warning(warned: bool) -> Mapping[str, str]:
    """The deprecation warning, if the client sent both `input` and `parameters.question`."""
    return {"Warning": BOTH_SENT} if warned else {}
