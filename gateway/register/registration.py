"""Reads a registration: strict JSON first, then the rules of `validate`. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.errors import InvalidInput
from gateway.providers.connector import ModelSpec
from gateway.register.specs import McpServer, Registration
from gateway.register.validate import read_document
from gateway.unified.budget import Budget
from gateway.unified.jsonstrings import find
from gateway.unified.jsontext import check, parse
from gateway.unified.payloads import extract
from gateway.unified.validate import Problems, Reading

__all__ = ["McpServer", "ModelSpec", "Registration", "concerns_gateway", "read_registration"]


def concerns_gateway(body: bytes, budget: Budget | None = None) -> bool:
    """Return True if a registration has a `model` or an `mcp` block. The cluster refuses a body that is not JSON.

    Raises:
        InvalidInput, BodyTooLarge: it may have one, but reading it costs more than the budget allows.
    """
    if not _may_concern(body):
        return False
    try:
        document = parse(extract(body, budget=budget))
    except InvalidInput as error:
        if any(problem.code for problem in error.problems):
            raise
        return False
    return not (document.get("model") is None and document.get("mcp") is None)


def read_registration(body: bytes, budget: Budget | None = None) -> Registration | None:
    """Read the body of `POST /_plugins/_ml/agents/_register`; None if it has neither `model` nor `mcp`.

    budget: the default one if it is None.

    Raises:
        BodyTooLarge: it has more text than the budget allows.
        InvalidInput: the body is not strict JSON, or invalid. Every problem has its place, and none shows a credential.
    """
    if not _may_concern(body):
        return None
    budget = budget or Budget()
    extracted = extract(body, budget=budget)
    problems = Problems(budget.problems)
    try:
        document = parse(extracted)
        if document.get("model") is None and document.get("mcp") is None:
            return None
        check(document, problems, budget.depth)
        problems.check()
    except InvalidInput as error:
        raise InvalidInput.of([replace(problem, received="") for problem in error.problems]) from None
    reading = Reading(extracted)
    plain: dict[str, Any] = reading.plain(document, "")
    registration = read_document(reading, plain)
    reading.problems.check()
    return registration


def _may_concern(body: bytes) -> bool:
    """Return False if no key can be `model` or `mcp`, written plainly or with an escape.

    Such a body is forwarded; if it is not JSON, the cluster refuses it.
    """
    return any(find(body, name) >= 0 for name in (b'"model"', b'"mcp"', b"\\u"))
