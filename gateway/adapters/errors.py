"""Errors of runs, as the adapters know them: read from the data port's answers, written in each protocol's own form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import GatewayError, InvalidInput

_UNSENT = frozenset(
    {
        "TooManyRequests", "Overloaded", "BudgetSpent", "BudgetUnavailable", "CredentialsUnavailable",
        "MemoryUnavailable", "SessionBusy",
    }
)  # fmt: skip
"""Errors of the gateway's own that say: not now. Nothing was sent to the cluster."""


INTERNAL = "An internal error of the gateway stopped this request. The gateway's log has the details."


class Fault(Struct, frozen=True):
    """Why a request has no answer.

    status: of HTTP. type: the gateway's or the cluster's name of the error. code: see `docs/reference/limitations.md`,
    "" for none. place: of the fault in the body, "" if it has none. message: with what to do about it.
    retry_after: seconds; 0 if that is not known. may_have_run: a tool of the agent may have acted.
    """

    status: int
    type: str
    message: str
    code: str = ""
    place: str = ""
    retry_after: int = 0
    may_have_run: bool = False


INTERNAL_ERROR = Fault(500, "InternalError", INTERNAL, may_have_run=True)


class AdapterError(Exception):
    """A request that is refused, or whose run has failed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def refuse(status: int, message: str, place: str = "") -> AdapterError:
    """Return the error for a request that an adapter refuses itself."""
    return AdapterError(Fault(status, "ValidationException", message, place=place))


def of_gateway(error: GatewayError) -> AdapterError:
    """Return the error for one of the gateway's own that was raised before a run."""
    first = error.problems[0] if error.problems else None
    code, place = (first.code, first.place) if first else ("", "")
    message = _with_help(error.reason, error.hint, first.expected if first and error.says_expected else "")
    return AdapterError(Fault(error.status, error.type, message, code, place, error.retry_after))


def of_answer(status: int, body: bytes, retry_after: str = "") -> AdapterError:
    """Return the error for an answer of the data port that is no success: the gateway's own, or the cluster's."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        message = error if isinstance(error, str) and error else f"The cluster answered with status {status}."
        return AdapterError(Fault(status if status >= 400 else 502, "ClusterError", message, may_have_run=True))
    problems = error.get("problems")
    first = problems[0] if isinstance(problems, list) and problems and isinstance(problems[0], dict) else {}
    type = _text(error.get("type")) or "ClusterError"
    reason = _text(error.get("reason")) or _text(error.get("details")) or f"The cluster answered with status {status}."
    is_own = "message" in error  # which only the gateway's have
    reason = _text(error.get("message")) or reason  # without the remedy, which `help` has
    expected = _text(first.get("expected")) if is_own and type == InvalidInput.type else ""
    return AdapterError(
        Fault(
            status if status >= 400 else 502,
            type,
            _with_help(reason, _text(error.get("help")), expected),
            _text(first.get("code")),
            _text(first.get("field")),
            int(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0,
            may_have_run=not (is_own and (status < 429 or type in _UNSENT)),
        )
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _with_help(reason: str, help: str, expected: str) -> str:
    """Return the reason and what to do. expected: is that, where there is no help; "" for nothing."""
    remedy = help or (f"expected {expected}." if expected else "")
    if not remedy:
        return reason
    return f"{reason}{'' if reason.endswith('.') else '.'} {remedy[0].upper()}{remedy[1:]}"


_INDEX = re.compile(r"\binput\[(\d+)\]")


def relocated(error: AdapterError, places: Sequence[str]) -> AdapterError:
    """Return an error of the data port with its place in the client's own body.

    places: that of each turn of the unified input; "" for one that the client did not send.
    """

    def own(match: re.Match[str]) -> str:
        index = int(match[1])
        return (places[index] if index < len(places) else "") or match[0]

    fault = error.fault
    place, message = _INDEX.sub(own, fault.place), _INDEX.sub(own, fault.message, count=1)
    return AdapterError(msgspec.structs.replace(fault, place=place, message=message))
