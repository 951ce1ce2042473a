"""Small checks that all endpoints share."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Any


class Refused(Exception):
    """The body breaks a rule of the provider; the message names the place and the rule."""


def need(condition: Any, problem: str) -> None:
    """Raise `Refused` unless `condition` is true."""
    if not condition:
        raise Refused(problem)


def an_object(value: Any, place: str, allowed: Collection[str], required: Collection[str] = ()) -> dict[str, Any]:
    """Return `value`, an object with allowed fields only and with all required ones."""
    need(isinstance(value, dict), f"{place}: must be an object")
    for name in value:
        need(name in allowed, f"{place}.{name}: unknown field")
    for name in required:
        need(name in value, f"{place}.{name}: required")
    return dict(value)


def a_list(value: Any, place: str) -> list[Any]:
    """Return `value`, a list that isn't empty."""
    need(isinstance(value, list), f"{place}: must be an array")
    need(value, f"{place}: must not be empty")
    return list(value)


def a_text(value: Any, place: str) -> str:
    """Return `value`, a text that isn't blank."""
    need(isinstance(value, str), f"{place}: must be a string")
    need(value.strip(), f"{place}: must not be blank")
    return str(value)


def one_of(value: Any, place: str, kinds: Collection[str]) -> tuple[str, Any]:
    """Return the only field of an object that must hold exactly one of `kinds`."""
    need(isinstance(value, dict) and len(value) == 1, f"{place}: must hold exactly one of {', '.join(sorted(kinds))}")
    name, inner = next(iter(value.items()))
    need(name in kinds, f"{place}.{name}: unknown field")
    return name, inner


def base64_bytes(value: Any, place: str) -> int:
    """Return how many bytes the base64 text `value` holds."""
    need(isinstance(value, str) and value, f"{place}: must be a base64 string")
    try:
        return len(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        raise Refused(f"{place}: is not valid base64") from None
