"""The headers that report a delivery to the client, and the deprecation warning for a request that sent both inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway import __version__
from gateway.config.schema import Answers
from gateway.delivery.plan import Plan
from gateway.notices import HEADER, Notice

DELIVERY = "X-MLC-Gateway-Delivery"
NOTICE = HEADER

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
