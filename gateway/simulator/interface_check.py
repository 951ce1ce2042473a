"""A model's `interface`: JSON schemas for its parameters and its answer, set by the registration or by default.

Two old Bedrock models have a default one that requires a string `inputs` (docs/evidence/facts.md, "Lookups"). Of JSON
schema, only types, properties, required properties and items are checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.simulator.errors import ExecuteFailure, Json
from gateway.simulator.lenient import is_json
from gateway.simulator.values import hash_order, to_json

# The fields of the answer's data map, by model.
_ANSWERS = {
    "anthropic.claude-v2": ("type", "completion", "stop_reason", "stop"),
    "anthropic.claude-3-sonnet-20240229-v1:0": ("response",),
}
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def default_interface(connector: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the interface a model gets for its connector; `input` and `output` are schemas as JSON text."""
    parameters = connector.get("parameters") or {}
    answer = _ANSWERS.get(parameters.get("model", ""))
    if parameters.get("service_name") != "bedrock" or answer is None:
        return None
    tensor = _object(name=_STRING, dataAsMap=_object(**dict.fromkeys(answer, _STRING)))
    result = _object(output={"type": "array", "items": tensor}, status_code={"type": "integer"})
    output = _object(inference_results={"type": "array", "items": result})
    given = _object(parameters=_object(inputs=_STRING))
    return {"output": json.dumps(output, indent=4), "input": json.dumps(given, indent=4)}


_STRING = {"type": "string"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def check_input(model: Json, parameters: Mapping[str, str | None]) -> None:
    """Check `parameters` against the model's interface. A text that counts as JSON is an object or an array.

    Raises:
        ExecuteFailure: 400 "Error validating input schema: …".
    """
    if "input" in (model.get("interface") or {}):
        values = [("tenant_id", None), *((name, _value(text)) for name, text in parameters.items())]
        given = {"algorithm": "REMOTE", "parameters": hash_order(values, buckets=8), "action_type": None}
        _check(model, "input", given)


def _value(text: str | None) -> Any:
    if text is None or not is_json(text):
        return text
    try:
        return json.loads(text)
    except ValueError:  # only the lenient parser reads it
        return {} if text.lstrip().startswith("{") else []


def check_output(model: Json, answer: Mapping[str, Any]) -> None:
    """Check the data map of an answer against the model's interface.

    Raises:
        ExecuteFailure: 400 "Error validating output schema: …".
    """
    tensor = {"name": "response", "dataAsMap": answer}
    _check(model, "output", {"inference_results": [{"output": [tensor], "status_code": 200}]})


def _check(model: Json, side: str, instance: Json) -> None:
    schema = (model.get("interface") or {}).get(side)
    problems = list(_problems(json.loads(schema), instance, "$")) if schema else []
    if problems:
        fault = f"[{', '.join(problems)}] for instance: {to_json(instance, True)} with schema: {schema}"
        details = f"Error validating {side} schema: Validation failed: {fault}"
        raise ExecuteFailure(400, "OpenSearchStatusException", details)


def _problems(schema: Json, value: Any, path: str) -> Iterator[str]:
    found = _TYPES.get(type(value), "null")
    if schema.get("type") not in (None, found):
        yield f"{path}: {found} found, {schema['type']} expected"
    elif found == "object":
        for name in schema.get("required") or ():
            if name not in value:
                yield f"{path}: required property '{name}' not found"
        for name, inner in (schema.get("properties") or {}).items():
            if name in value:
                yield from _problems(inner, value[name], f"{path}.{name}")
    elif found == "array":
        for position, item in enumerate(value):
            yield from _problems(schema.get("items") or {}, item, f"{path}[{position}]")
