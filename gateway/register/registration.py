"""Reads a registration: strict JSON first, then the rules of `validate`. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.errors import InvalidInput
from gateway.register.specs import McpServer, ModelSpec, Registration
from gateway.register.validate import read_document
from gateway.unified.jsontext import check, parse
from gateway.unified.lift import lift
from gateway.unified.validate import Problems, Reading

__all__ = ["McpServer", "ModelSpec", "Registration", "read_registration"]


def read_registration(body: bytes) -> Registration | None:
    """What the body of `POST /_plugins/_ml/agents/_register` asks for; None when it has neither `model` nor `mcp`.

    Raises:
        InvalidInput: the body is not strict JSON, or breaks rules; every problem has its place, and none shows a
            credential.
    """
    if not _may_concern(body):
        return None
    lifted = lift(body)
    problems = Problems()
    try:
        document = parse(lifted)
        if document.get("model") is None and document.get("mcp") is None:
            return None
        check(document, problems)
        problems.check()
    except InvalidInput as error:
        raise InvalidInput.of([replace(problem, received="") for problem in error.problems]) from None
    reading = Reading(lifted)
    plain: dict[str, Any] = reading.plain(document, "")
    registration = read_document(reading, plain)
    reading.problems.check()
    return registration


def _may_concern(body: bytes) -> bool:
    """False only where no key can be `model` or `mcp`, written plainly or with an escape: such a body is the cluster's.

    What is not JSON then gets the cluster's own answer.
    """
    return b'"model"' in body or b'"mcp"' in body or b"\\u" in body
