"""What a cluster shows of itself: its version and its settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

_UNIFIED_API = "plugins.ml_commons.unified_agent_api_enabled"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def read_version(root_doc: Any) -> tuple[int, ...] | None:
    """Return the version in the response of `GET /`, (2, 19, 0); None if it is not OpenSearch's own.

    With `compatibility.override_main_response_version` a cluster reports 7.10.2 without the distribution, so a number
    without `distribution: opensearch` is ignored.
    """
    number = _member(root_doc, ("version", "number"))
    found = _VERSION.match(number) if isinstance(number, str) else None
    if found is None or _member(root_doc, ("version", "distribution")) != "opensearch":
        return None
    return tuple(int(number or 0) for number in found.groups())


def read_switch(settings_doc: Any, name: str) -> bool | None:
    """Read a setting that is on or off from `GET /_cluster/settings?include_defaults=true`; None if it is not there.

    Reads nested and flat settings; transient ones override persistent ones, and those override the defaults.
    """
    return {"true": True, "false": False}.get(str(read_setting(settings_doc, name)).lower())


def read_setting(settings_doc: Any, name: str) -> Any:
    """Return a setting's value as `read_switch` finds it; None if it is not there."""
    for level in ("transient", "persistent", "defaults"):
        for path in ((level, name), (level, *name.split("."))):
            value = _member(settings_doc, path)
            if value is not None:
                return value
    return None


def read_unified_api(settings_doc: Any) -> bool | None:
    """Read whether the unified agent API is on, as `read_switch`."""
    return read_switch(settings_doc, _UNIFIED_API)


def _member(document: Any, path: Iterable[str]) -> Any:
    return reduce(lambda value, name: value.get(name) if isinstance(value, Mapping) else None, path, document)
