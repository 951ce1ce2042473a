"""The agent's own messages, as its connector or its parameters hold them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gateway.delivery.target import text_of
from gateway.delivery.trees import locate, value_at
from gateway.mlcommons.template import PREFIX, placeholder_names
from gateway.providers.base import Provider


def fillable_parts(provider: Provider, value: Any, filled: Collection[str]) -> Any:
    """Return turns or parts without those parts that have an unfilled placeholder. Texts are never left out.

    filled: the names of the parameters that are set.
    """
    field = provider.content_field
    if isinstance(value, list):
        return [fillable_parts(provider, item, filled) for item in value if _is_fillable(provider, item, filled)]
    if isinstance(value, dict) and isinstance(value.get(field), list):
        return {**value, field: fillable_parts(provider, value[field], filled)}
    return value


def _is_fillable(provider: Provider, part: Any, filled: Collection[str]) -> bool:
    if not isinstance(part, dict) or provider.content_field in part or text_of(provider, part) is not None:
        return True
    needed = {name for path in locate(part, PREFIX) for name in required_names(value_at(part, path))}
    return needed <= {"question", *filled}


def required_names(template: str) -> list[str]:
    """Return the names of the placeholders without a default, in order, each once."""
    return list(dict.fromkeys(placeholder_names(template, with_default=False)))
