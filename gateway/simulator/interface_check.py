"""A model's `interface`: a JSON schema for its parameters, set by the registration or by default.

Two old Bedrock models have a default one that requires a string `inputs` (docs/internals/facts.md, "Lookups"). Of JSON
schema, only required parameters and the type string are checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.simulator.errors import ExecuteFailure, Json
from gateway.simulator.values import to_json

_WITH_DEFAULT = frozenset({"anthropic.claude-v2", "anthropic.claude-3-sonnet-20240229-v1:0"})


def default_interface(connector: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the interface a model gets for its connector; `input` is the schema as JSON text."""
    parameters = connector.get("parameters") or {}
    if parameters.get("service_name") != "bedrock" or parameters.get("model") not in _WITH_DEFAULT:
        return None
    given = {"type": "object", "properties": {"inputs": {"type": "string"}}, "required": ["inputs"]}
    return {"input": json.dumps({"type": "object", "properties": {"parameters": given}, "required": ["parameters"]})}


def check_interface(model: Json, parameters: Mapping[str, str | None], modern: bool) -> None:
    """Check `parameters` against the model's interface.

    Raises:
        ExecuteFailure: 400 "Error validating input schema: …".
    """
    interface = model.get("interface") or {}
    if "input" not in interface:
        return
    schema = json.loads(interface["input"])
    asked = (schema.get("properties") or {}).get("parameters") or {}
    problems = [
        f"$.parameters: required property '{name}' not found"
        for name in asked.get("required") or ()
        if parameters.get(name) is None
    ]
    if problems:
        instance = to_json({"algorithm": "REMOTE", "parameters": dict(parameters), "action_type": None}, modern)
        fault = f"Validation failed: [{', '.join(problems)}] for instance: {instance} with schema: {interface['input']}"
        raise ExecuteFailure(400, "OpenSearchStatusException", f"Error validating input schema: {fault}")
