"""Checks values against botocore's model of AgentCore Memory: types, required members, lengths, patterns, enums.

botocore's own `ParamValidator` checks neither patterns nor the greatest lengths.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import botocore.session  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "timestamp": (int, float),
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
}


@cache
def service_model() -> Any:
    return botocore.session.get_session().get_service_model("bedrock-agentcore")


def input_problems(operation: str, parameters: dict[str, Any]) -> list[str]:
    """Return what botocore and the model object to in the parameters of an operation."""
    shape = service_model().operation_model(operation).input_shape
    report = ParamValidator().validate(parameters, shape)
    return [*([report.generate_report()] if report.has_errors() else []), *problems(shape, parameters)]


def problems(shape: Any, value: Any, place: str = "") -> list[str]:
    """Return what in `value` the model does not allow. Members that it does not know are not allowed."""
    if getattr(shape, "is_document_type", False):
        return []
    expected = _TYPES[shape.type_name]
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        return [f"{place}: {type(value).__name__}, not {shape.type_name}"]
    found = _limits(shape, value, place)
    match shape.type_name:
        case "structure":
            found += _structure(shape, value, place)
        case "list":
            found += [text for n, item in enumerate(value) for text in problems(shape.member, item, f"{place}[{n}]")]
        case "map":
            for key, item in value.items():
                found += problems(shape.key, key, f"{place} key") + problems(shape.value, item, f"{place}.{key}")
    return found


def _structure(shape: Any, value: dict[str, Any], place: str) -> list[str]:
    found = [f"{place}: {name} is missing" for name in shape.required_members if name not in value]
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        found.append(f"{place}: {len(value)} members of a union")
    for name, item in value.items():
        if name in shape.members:
            found += problems(shape.members[name], item, f"{place}.{name}")
        else:
            found.append(f"{place}: unknown member {name}")
    return found


def _limits(shape: Any, value: Any, place: str) -> list[str]:
    limits = shape.metadata
    size = _size(value)
    found = []
    if size is not None and not limits.get("min", 0) <= size <= limits.get("max", size):
        found.append(f"{place}: {size} is not between {limits.get('min')} and {limits.get('max')}")
    if "enum" in limits and value not in limits["enum"]:
        found.append(f"{place}: {value!r} is not in {limits['enum']}")
    if "pattern" in limits and not re.fullmatch(limits["pattern"].replace("9-_", "9\\-_"), value, re.ASCII):
        found.append(f"{place}: {value!r} does not match {limits['pattern']}")
    return found


def _size(value: Any) -> int | None:
    """Return what the model limits: UTF-16 code units of a text, items, or the number itself."""
    if isinstance(value, str):
        return len(value.encode("utf-16-le", "surrogatepass")) // 2
    if isinstance(value, (list, dict)):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
