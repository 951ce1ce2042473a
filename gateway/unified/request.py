"""The body of an `_execute` request: legacy or unified, and what stands beside `input`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.unified.decode import read_input
from gateway.unified.jsontext import MAX_DEPTH, check, parse
from gateway.unified.lift import Lifted, lift
from gateway.unified.model import AgentInput
from gateway.unified.validate import Problems, Reading, child, json_type

_EXPECTED_PARAMETER = "string, number, boolean, object or array"


class RequestKind(Enum):
    """LEGACY: no `input`, to be forwarded byte for byte. UNIFIED: with `input`."""

    LEGACY = "legacy"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """An `_execute` body, read.

    input: None when legacy. parameters, other: the client's `parameters`, and its top-level members other than
    `input` and `parameters`, as the JSON values they were; both {} for a legacy body that breaks a rule of strict
    JSON. has_question: `parameters.question` is there. lifted: the body without its long strings.
    """

    kind: RequestKind
    input: AgentInput | None
    lifted: Lifted
    parameters: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def has_question(self) -> bool:
        """Whether the client sent `parameters.question`."""
        return "question" in self.parameters


def read_execute(body: bytes, max_depth: int = MAX_DEPTH) -> ExecuteRequest:
    """The request in `body`.

    A legacy body is only parsed, never judged: what it says is between client and cluster.

    Raises:
        InvalidInput: `body` is not a JSON object; or it has an `input`, and that, the `parameters` or the JSON
            breaks a rule. Every problem is listed.
    """
    lifted = lift(body)
    members = parse(lifted)
    problems = Problems()
    check(members, problems, max_depth)
    if "input" not in members:
        return _legacy(members, lifted, sound=not len(problems))
    problems.check()
    return _unified(members, lifted)


def _unified(members: dict[str, Any], lifted: Lifted) -> ExecuteRequest:
    reading = Reading(lifted)
    agent_input = read_input(reading, members["input"])
    parameters = _parameters(reading, members)
    other = _other(reading, members)
    reading.problems.check()
    return ExecuteRequest(RequestKind.UNIFIED, agent_input, lifted, parameters, other)


def _legacy(members: dict[str, Any], lifted: Lifted, sound: bool) -> ExecuteRequest:
    if sound:
        reading = Reading(lifted)
        parameters, other = _parameters(reading, members), _other(reading, members)
        if not len(reading.problems):
            return ExecuteRequest(RequestKind.LEGACY, None, lifted, parameters, other)
    return ExecuteRequest(RequestKind.LEGACY, None, lifted)


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
    return parameters


def _other(reading: Reading, members: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in members.items() if name not in ("input", "parameters")}
    return {name: reading.plain(value, child("", name)) for name, value in others.items()}


def parameters_as_strings(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Each parameter as the string the cluster makes of it (FACTS.md, rule 2): a string as it is, else its JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in parameters.items()
    }
