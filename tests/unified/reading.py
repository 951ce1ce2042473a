"""Reads one JSON object strictly."""

from __future__ import annotations

from typing import Any

from gateway.unified.jsontext import check, parse
from gateway.unified.limits import ParseLimits
from gateway.unified.payloads import ExtractedBody, extract
from gateway.unified.validate import Problems


def decode_object(body: bytes | ExtractedBody, limits: ParseLimits | None = None) -> dict[str, Any]:
    """The object in `body`; strings that were extracted are still tokens. Raises as `parse` and `check`."""
    limits = limits or ParseLimits()
    extracted = body if isinstance(body, ExtractedBody) else extract(body, limits=limits)
    value = parse(extracted)
    problems = Problems(limits.problems)
    check(value, extracted.text, problems, limits.depth)
    problems.check()
    return value
