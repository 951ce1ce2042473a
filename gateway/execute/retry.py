"""Retries after a refusal that proves that the agent did not run; docs/internals/facts.md, 3.5 and later, has them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from gateway.config.schema import Answers
from gateway.execute import response_headers
from gateway.execute.rewrite import move_question_to_input
from gateway.observe.record import Delivery
from gateway.ports import Forward, Retry
from gateway.unified.request import ExecuteRequest

_API_OFF = b"unified agent API is not enabled"
_GUARD_MISSING = b"placeholder not filled in payload: gw_"
_V2_ONLY = b"V2 agents require executor-provided memory"


def retry_native(with_guards: Callable[[], Forward], as_question: Callable[[], Forward] | None) -> Retry:
    """Return the retry for an `input` that was sent as it came.

    with_guards: makes the request with the guard parameters, which the agent's memory turned out to need.
    as_question: rewrites the request for a cluster that turned out not to take `input`; None where that can't be.
    """

    def retry_with(status: int, answer: bytes) -> Forward | None:
        if status == 400 and _GUARD_MISSING in answer:
            return with_guards()
        if status == 400 and _API_OFF in answer and as_question is not None:
            return as_question()
        return None

    return retry_with


def retry_as_input(request: ExecuteRequest, answers: Answers, delivery: Delivery) -> Retry | None:
    """Return the retry for a legacy request: its question as `input`, for an agent that takes nothing else.

    delivery: what is known of the request.
    """
    if not request.has_question:
        return None

    def retry_with(status: int, answer: bytes) -> Forward | None:
        if status != 500 or _V2_ONLY not in answer:
            return None
        headers: dict[str, str] = {}
        if answers.delivery_header:
            headers[response_headers.DELIVERY] = response_headers.delivery_value("native", "", "question")
        native = structs.replace(delivery, strategy="native")
        return Forward(move_question_to_input(request), headers, delivery=native)

    return retry_with
