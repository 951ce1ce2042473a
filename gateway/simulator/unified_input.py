"""The `input` of an execute, from 3.5 on: what every agent's is checked for before the agent is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.simulator.bodies import no_input
from gateway.simulator.documents import refused
from gateway.simulator.settings import UNIFIED_API


def read_input(document: Mapping[str, Any], api_on: bool) -> str | list[Any] | None:
    """Return the `input` of an execute; None if there is none.

    Raises:
        RestFailure: 400 for an `input` of the wrong form, or while the unified API is off.
    """
    if "input" not in document:
        return None
    given = document["input"]
    if not isinstance(given, str | list):
        raise refused("Invalid input format. Expected string or array.")
    if not api_on:
        raise refused(
            "Standardized input cannot be used if unified agent API is not enabled. The agent must be created using "
            f"unified agent API. To enable, please update the setting {UNIFIED_API}"
        )
    if isinstance(given, list):
        _check_items(given)
    return given


def _check_items(items: list[Any]) -> None:
    if not all(isinstance(item, Mapping) for item in items):
        raise no_input(modern=True)
    kinds = ["Message" if "role" in item else "ContentBlock" if "type" in item else "" for item in items]
    if "" in kinds:
        raise refused("Invalid item format. Must have 'role' (for messages) or 'type' (for content blocks).")
    for position, kind in enumerate(kinds):
        if kind != kinds[0]:
            expected = f"Expected all items to be {kinds[0]}s, but item at index {position} is of type {kind}"
            raise refused(f"Mixed array types detected. {expected}")
