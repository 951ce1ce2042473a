"""Reads a registration: strict JSON first, then the rules of `validate`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.errors import InvalidInput
from gateway.mlcommons.generations import AgentType
from gateway.providers.connector import ModelSpec
from gateway.register.target import CONVERSATION_INDEX, MEMORIES, V2, McpServer, Registration
from gateway.register.validate import read_document
from gateway.unified.jsonstrings import WINDOW, find
from gateway.unified.jsontext import check, parse
from gateway.unified.limits import ParseLimits
from gateway.unified.payloads import extract
from gateway.unified.validate import Problems, Reading

__all__ = [
    "McpServer",
    "ModelSpec",
    "Registration",
    "concerns_gateway",
    "read_newer",
    "read_registration",
    "read_without_parts",
]

_NEWER = re.compile(rb"agentic_memory|conversational(_|\\?/)v2|\\u", re.IGNORECASE)
"""What the body of every registration has that `read_newer` finds."""
_LONGEST = len(rb"conversational\/v2")


def concerns_gateway(body: bytes, limits: ParseLimits | None = None) -> bool:
    """Return True if a registration has a `model` or an `mcp` block. The cluster refuses a body that is not JSON.

    Raises:
        InvalidInput, BodyTooLarge: it may have one, but reading it costs more than the limits allow.
    """
    document = _parse(body, limits) if _may_concern(body) else None
    return document is not None and _has_parts(document)


def read_newer(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read type and memory of a registration without `model` and `mcp` that asks for what older clusters lack.

    That is the type `conversational_v2`, or another memory than a `conversation_index`. None for any other body.

    Raises:
        InvalidInput, BodyTooLarge: it may be one, but reading it costs more than the limits allow.
    """
    document = _parse(body, limits) if _may_be_newer(body) else None
    if document is None or _has_parts(document):
        return None
    given, memory = document.get("type"), document.get("memory")
    type_ = AgentType.of(given) if isinstance(given, str) else None
    asked = memory.get("type") if isinstance(memory, dict) else None
    asked = asked.lower() if isinstance(asked, str) else ""
    if type_ is None or not (type_ == V2 or (asked in MEMORIES and asked != CONVERSATION_INDEX)):
        return None
    container = memory.get("memory_container_id") if isinstance(memory, dict) else None
    return Registration({"memory": {"type": asked, "memory_container_id": container}}, type=type_.value)


def read_registration(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read the body of `POST /_plugins/_ml/agents/_register`; None if it has neither `model` nor `mcp`.

    limits: the default ones if it is None.

    Raises:
        BodyTooLarge: it has more text than the limits allow.
        InvalidInput: the body is not strict JSON, or invalid. Every problem has its place, and none shows a credential.
    """
    return _read(body, limits, _has_parts) if _may_concern(body) else None


def read_without_parts(body: bytes, limits: ParseLimits | None = None) -> Registration | None:
    """Read a registration without `model` and `mcp`; None if it has one of them.

    Raises:
        BodyTooLarge, InvalidInput: as `read_registration`.
    """
    return _read(body, limits, lambda document: not _has_parts(document))


def _read(
    body: bytes, limits: ParseLimits | None, concerns: Callable[[Mapping[str, Any]], bool]
) -> Registration | None:
    """Read a registration strictly; None if its document, as it was parsed, does not concern the caller."""
    limits = limits or ParseLimits()
    extracted = extract(body, limits=limits)
    problems = Problems(limits.problems)
    try:
        document = parse(extracted)
        if not concerns(document):
            return None
        check(document, extracted.text, problems, limits.depth)
        problems.check()
    except InvalidInput as error:
        raise InvalidInput.of([replace(problem, received="") for problem in error.problems]) from None
    reading = Reading(extracted)
    plain: dict[str, Any] = reading.plain(document, "")
    registration = read_document(reading, plain)
    reading.problems.check()
    return registration


def _parse(body: bytes, limits: ParseLimits | None) -> dict[str, Any] | None:
    """Return the document; None if it is not JSON.

    Raises:
        InvalidInput, BodyTooLarge: reading it costs more than the limits allow.
    """
    try:
        return parse(extract(body, limits=limits))
    except InvalidInput as error:
        if any(problem.code for problem in error.problems):
            raise
        return None


def _has_parts(document: Mapping[str, Any]) -> bool:
    return not (document.get("model") is None and document.get("mcp") is None)


def _may_be_newer(body: bytes) -> bool:
    """Search for `_NEWER` in windows, between which other threads can run."""
    return any(_NEWER.search(body, start, start + WINDOW + _LONGEST) for start in range(0, len(body), WINDOW))


def _may_concern(body: bytes) -> bool:
    """Return False if no key can be `model` or `mcp`, written plainly or with an escape.

    Such a body is forwarded; if it is not JSON, the cluster refuses it.
    """
    return any(find(body, name) >= 0 for name in (b'"model"', b'"mcp"', b"\\u"))
