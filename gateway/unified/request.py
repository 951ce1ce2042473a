"""The body of an `_execute` request: legacy or unified, and its members other than `input`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.errors import BodyTooLarge, InvalidInput
from gateway.unified.decode import read_input
from gateway.unified.formats import check_formats, is_text
from gateway.unified.jsonstrings import find
from gateway.unified.jsontext import check, parse
from gateway.unified.limits import ParseLimits
from gateway.unified.model import AgentInput
from gateway.unified.payloads import ExtractedBody, extract
from gateway.unified.roles import NO_ROLES
from gateway.unified.tools import MEMBERS, read_client_tools
from gateway.unified.validate import Problems, Reading, child, json_type

_FEW_PLACEHOLDERS = 20
_EXPECTED_PARAMETER = "string, number, boolean, object or array"


class RequestKind(Enum):
    """LEGACY: no `input`, to be forwarded byte for byte. UNIFIED: with `input`."""

    LEGACY = "legacy"
    UNIFIED = "unified"


class ExecuteRequest(msgspec.Struct, frozen=True):
    """An `_execute` body, read.

    input: None when legacy. parameters, other: the client's `parameters`, and its top-level members other than
    `input`, `parameters` and `offered`, as the JSON values they were; both {} for a legacy body that breaks a rule of
    strict JSON or the limits. extracted: the body without its long strings. offered: `tools` and `tool_choice` of a
    unified request, which are in `input`, as the JSON values they were.
    """

    kind: RequestKind
    input: AgentInput | None
    extracted: ExtractedBody
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    other: dict[str, Any] = msgspec.field(default_factory=dict)
    placeholders: int = 0
    offered: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """True if the request can be planned on the event loop without a noticeable delay for other clients.

        The length of a document's text is not known before it is planned.
        """
        media = self.input.media if self.input is not None else ()
        has_text = any(medium.kind == "document" and is_text(medium.format) for medium in media)
        return self.extracted.is_small and self.placeholders <= _FEW_PLACEHOLDERS and not has_text

    @property
    def has_question(self) -> bool:
        """True if the client sent `parameters.question`."""
        return "question" in self.parameters


def read_execute(
    body: bytes, limits: ParseLimits | None = None, roles: Mapping[str, str] = NO_ROLES, is_stored: bool = False
) -> ExecuteRequest:
    """Read the request in `body`. limits: the default ones if it is None. roles: the operator's table (`agents.roles`).

    is_stored: the body holds messages of a session, whose media are as they were accepted: bytes of another format than
    the one named are no problem then.

    A legacy body is parsed but not validated, as it is forwarded unchanged. That includes a body that is not strict
    JSON, unless the word `input` may be in it.

    Raises:
        InvalidInput: `body` is not a JSON object; or it has an `input`, and that, the `parameters` or the JSON
            breaks a rule. The problems are listed.
        BodyTooLarge: it has more text than the limits allow.
    """
    limits = limits or ParseLimits()
    try:
        extracted = extract(body, limits=limits)
        members = parse(extracted)
    except (InvalidInput, BodyTooLarge):
        if _may_name_input(body):
            raise
        return ExecuteRequest(RequestKind.LEGACY, None, ExtractedBody(b"", {}, limits=limits))
    if "input" not in members:
        return _legacy(members, extracted)
    problems = Problems(limits.problems)
    check(members, extracted.text, problems, limits.depth)
    problems.check()
    return _unified(members, extracted, roles, is_stored)


_SIGNS = (b"input", b"\\u", b"\0", b"\xc1", b"\xe0\x81", b"\xf0\x80\x81")
"""How the word may be written: plainly, with escapes, in UTF-16 or UTF-32, in overlong UTF-8, which Jackson takes."""


def _may_name_input(body: bytes) -> bool:
    """Return True if the cluster, which reads more than strict JSON, could find an `input` in `body`."""
    return any(find(body, sign) >= 0 for sign in _SIGNS)


def _unified(
    members: dict[str, Any], extracted: ExtractedBody, roles: Mapping[str, str], is_stored: bool
) -> ExecuteRequest:
    reading = Reading(extracted, roles)
    agent_input = read_input(reading, members["input"])
    agent_input = replace(agent_input, tools=read_client_tools(reading, members))
    parameters = _parameters(reading, members)
    other = _other(reading, members)
    offered = {name: other.pop(name) for name in MEMBERS if name in other}
    if not is_stored:
        check_formats(agent_input.media, reading.problems)
    reading.problems.check()
    return ExecuteRequest(RequestKind.UNIFIED, agent_input, extracted, parameters, other, reading.placeholders, offered)


def _legacy(members: dict[str, Any], extracted: ExtractedBody) -> ExecuteRequest:
    reading = Reading(extracted)
    try:
        check(members, extracted.text, reading.problems, extracted.limits.depth)
        reading.problems.check()
        parameters, other = _parameters(reading, members), _other(reading, members)
        reading.problems.check()
    except (InvalidInput, BodyTooLarge):
        return ExecuteRequest(RequestKind.LEGACY, None, extracted)
    return ExecuteRequest(RequestKind.LEGACY, None, extracted, parameters, other)


def _parameters(reading: Reading, members: dict[str, Any]) -> dict[str, Any]:
    written = members.get("parameters")
    if written is None:
        return {}
    if not isinstance(written, dict):
        reading.problems.add("parameters", '"parameters" has the wrong type', "object", json_type(written))
        return {}
    for name, value in written.items():
        if value is None:
            place = child("parameters", name)
            reading.problems.add(place, "A parameter can't be null", _EXPECTED_PARAMETER, "null", "Leave it out.")
    parameters: dict[str, Any] = reading.plain(written, "parameters")
    for name, text in parameters_as_strings(parameters).items():
        reading.add_placeholders(text, child("parameters", name))
    return parameters


def _other(reading: Reading, members: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in members.items() if name not in ("input", "parameters")}
    return {name: reading.plain(value, child("", name)) for name, value in others.items()}


def parameters_as_strings(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Convert each parameter to a string as the cluster does: a string as it is, any other value as JSON.

    The source is docs/evidence/facts.md, rule 2.
    """
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in parameters.items()
    }
