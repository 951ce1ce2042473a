"""The cluster settings of ML Commons that the gateway and the tests use: stored by scope, shown nested or flat.

Defaults are from the sources of 2.19 and 3.4, the shapes from a real 3.6.0. Values are shown as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.simulator.errors import Json, RestFailure

PREFIX = "plugins.ml_commons."
SWITCH = PREFIX + "agent_framework_enabled"
MCP_SWITCH = PREFIX + "mcp_connector_enabled"
SAFE_DELETE = PREFIX + "safe_delete_model"
AUTO_DEPLOY = PREFIX + "model_auto_deploy.enable"
UNIFIED_API = PREFIX + "unified_agent_api_enabled"

_BOTH: Mapping[str, Any] = {
    SWITCH: "true",
    SAFE_DELETE: "false",
    AUTO_DEPLOY: "true",
    PREFIX + "remote_inference.enabled": "true",
    PREFIX + "memory_feature_enabled": "true",
    PREFIX + "only_run_on_ml_node": "false",
    PREFIX + "connector.private_ip_enabled": "true",
    PREFIX + "connector_access_control_enabled": "false",
    PREFIX + "trusted_connector_endpoints_regex": ["^https?://.*$"],
}
_MODERN: Mapping[str, Any] = {**_BOTH, MCP_SWITCH: "false"}
_UNIFIED: Mapping[str, Any] = {**_MODERN, UNIFIED_API: "false"}
_SCOPES = ("persistent", "transient")


class Settings:
    """The settings of a cluster. 3.x has one more, for MCP connectors; 3.5 and later one for `input`."""

    def __init__(self, modern: bool, unified: bool = False) -> None:
        self.defaults = _UNIFIED if unified else _MODERN if modern else _BOTH
        self._set: dict[str, dict[str, Any]] = {scope: {} for scope in _SCOPES}

    def is_on(self, name: str) -> bool:
        """Return True if a setting is on: transient before persistent before default."""
        value = self.defaults.get(name)
        for scope in _SCOPES:
            value = self._set[scope].get(name, value)
        return bool(value == "true")

    def change(self, body: Mapping[str, Any]) -> Json:
        """Apply PUT ``/_cluster/settings``, completely or not at all. null restores the default.

        Raises:
            RestFailure: 400 for no settings, an unknown one, or a boolean that is neither true nor false.
        """
        wanted = {scope: dict(_flat("", body.get(scope) or {})) for scope in _SCOPES}
        if not any(wanted.values()):
            reason = "Validation Failed: 1: no settings to update;"
            raise RestFailure(400, "action_request_validation_exception", reason)
        for scope, values in wanted.items():
            for name, value in values.items():
                self._check(scope, name, value)
        for scope, values in wanted.items():
            for name, value in values.items():
                self._set[scope].pop(name, None)
                if value is not None:
                    self._set[scope][name] = value
        new = {scope: {name: value for name, value in wanted[scope].items() if value is not None} for scope in _SCOPES}
        return {"acknowledged": True, **{scope: _nested(values) for scope, values in new.items()}}

    def _check(self, scope: str, name: str, value: Any) -> None:
        if name not in self.defaults:
            raise RestFailure(400, "settings_exception", f"{scope} setting [{name}], not recognized")
        if self.defaults[name] in ("true", "false") and value not in ("true", "false", None):
            reason = f"Failed to parse value [{value}] as only [true] or [false] are allowed."
            raise RestFailure(400, "illegal_argument_exception", reason)

    def shown(self, flat: bool, include_defaults: bool) -> Json:
        """Return the body of GET ``/_cluster/settings``. A setting with a value is not among the defaults."""
        shown: dict[str, dict[str, Any]] = {scope: self._set[scope] for scope in _SCOPES}
        if include_defaults:
            changed = {name for scope in _SCOPES for name in self._set[scope]}
            shown["defaults"] = {name: value for name, value in self.defaults.items() if name not in changed}
        return {scope: dict(values) if flat else _nested(values) for scope, values in shown.items()}


def _flat(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield dotted names, and values as text, at any depth."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _flat(f"{path}.{name}" if path else name, value)
    elif isinstance(node, list):
        yield path, [str(item) for item in node]
    else:
        yield path, None if node is None else str(node).lower() if isinstance(node, bool) else str(node)


def _nested(values: Mapping[str, Any]) -> Json:
    result: Json = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return result
