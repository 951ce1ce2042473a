"""Converse requests against botocore's service model.

botocore's own ParamValidator ignores enum, pattern and max, so the shapes are walked here: types, enum, pattern,
min and max, required and unknown members, unions, blobs decoded. A body that passes is then written by botocore's
serializer, and must come out the same.
"""

import base64
import binascii
import json
import re
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, Shape
from botocore.serialize import create_serializer

from . import Rejected


@cache
def operation() -> OperationModel:
    return botocore.session.Session().get_service_model("bedrock-runtime").operation_model("Converse")


def check(fields: dict[str, Any]) -> None:
    faults: list[str] = []
    params = _walk(operation().input_shape, {"modelId": "model", **fields}, "body", faults)
    if faults:
        raise Rejected("; ".join(faults))
    written = json.loads(create_serializer("rest-json").serialize_to_request(params, operation())["body"])
    if written != fields:
        raise Rejected(f"botocore writes something else: {written}")


def check_nova(fields: dict[str, Any]) -> None:
    """Check a body of Nova's for InvokeModel, which has no model of its own: as Converse, without documents."""
    check(fields)
    for message in fields["messages"]:
        for block in message["content"]:
            inner = block.get("toolResult", {}).get("content", [])
            if any("document" in each for each in (block, *inner)):
                raise Rejected("InvokeModel takes no documents")


def _walk(shape: Shape, value: Any, place: str, faults: list[str]) -> Any:
    """The value as botocore's parameters (blobs as bytes), faults noted on the way."""
    if getattr(shape, "is_document_type", False):
        return value
    kind = {"structure": dict, "map": dict, "list": list, "blob": str, "string": str, "boolean": bool}
    wanted = kind.get(shape.type_name, (int, float))
    if not isinstance(value, wanted) or (wanted == (int, float) and isinstance(value, bool)):
        faults.append(f"{place}: {type(value).__name__} instead of {shape.type_name}")
        return value
    match shape.type_name:
        case "structure":
            return _structure(shape, value, place, faults)
        case "map":
            return {name: _walk(shape.value, item, f"{place}.{name}", faults) for name, item in value.items()}
        case "list":
            _bounds(shape, len(value), place, faults)
            return [_walk(shape.member, item, f"{place}[{i}]", faults) for i, item in enumerate(value)]
        case "blob":
            return _blob(shape, value, place, faults)
        case "string":
            _string(shape, value, place, faults)
    return value


def _structure(shape: Any, value: dict[str, Any], place: str, faults: list[str]) -> dict[str, Any]:
    faults += [f"{place}.{name}: required" for name in shape.required_members if name not in value]
    faults += [f"{place}.{name}: unknown" for name in value if name not in shape.members]
    if shape.is_tagged_union and len(value) != 1:
        faults.append(f"{place}: {len(value)} members in a union")
    known = {name: item for name, item in value.items() if name in shape.members}
    return {name: _walk(shape.members[name], item, f"{place}.{name}", faults) for name, item in known.items()}


def _blob(shape: Shape, value: str, place: str, faults: list[str]) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        faults.append(f"{place}: {error}")
        return b""
    _bounds(shape, len(data), place, faults)
    return data


def _string(shape: Any, value: str, place: str, faults: list[str]) -> None:
    _bounds(shape, len(value), place, faults)
    if shape.enum and value not in shape.enum:
        faults.append(f"{place}: {value!r} is not in the enum")
    pattern = shape.metadata.get("pattern")
    if pattern and not re.fullmatch(pattern, value):
        faults.append(f"{place}: {value!r} does not match {pattern}")


def _bounds(shape: Shape, size: int, place: str, faults: list[str]) -> None:
    if not shape.metadata.get("min", 0) <= size <= shape.metadata.get("max", size):
        faults.append(f"{place}: size {size} out of bounds")
