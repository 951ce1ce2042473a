"""Input for an agent that takes it itself: the cluster still expands ``${parameters.x}`` in its text.

Seen on 3.6.0: a known name is replaced in silence, an unknown one is a 400, and on a V1 agent a name that leads
back to itself makes the cluster never answer.
"""

from __future__ import annotations

from typing import Any

from gateway.delivery.escaping import escape_placeholders
from gateway.delivery.question_placements import SKIP, Parameters, skip_if_needed
from gateway.mlcommons.template import PREFIX

GUARDS: Parameters = {"gw_d": "$", "gw_d2": "$$", "gw_d3": "$$$", SKIP: "true"}
"""What undoes the code of texts that an agent's memory may bring back."""


def guarded(value: Any) -> tuple[Any, Parameters]:
    """`value` with every placeholder in its texts coded, and the parameters that undo the code; {} if there is none."""
    helpers: Parameters = {}
    return _guarded(value, helpers), helpers


def _guarded(item: Any, helpers: Parameters) -> Any:
    match item:
        case str() if PREFIX in item:
            text, more = escape_placeholders(item, "gw_d", "")
            helpers.update({**more, **skip_if_needed(item)})
            return text
        case dict():
            return {name: _guarded(member, helpers) for name, member in item.items()}
        case list():
            return [_guarded(element, helpers) for element in item]
    return item
