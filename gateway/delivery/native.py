"""Input for an agent that takes `input` itself. The cluster still expands ``${parameters.x}`` in its text.

Recorded on 3.6.0: a known name is replaced silently, an unknown one is a 400, and on a V1 agent a name that leads back
to itself makes the cluster hang.
"""

from __future__ import annotations

from typing import Any

from gateway.delivery.escaping import escape_placeholders
from gateway.delivery.question_placements import SKIP, Parameters, skip_if_needed
from gateway.delivery.trees import with_leaves
from gateway.mlcommons.template import PREFIX

GUARDS: Parameters = {"gw_d": "$", "gw_d2": "$$", "gw_d3": "$$$", SKIP: "true"}
"""Parameters that undo the escaping of texts that an agent's memory may replay."""


def guard(value: Any) -> tuple[Any, Parameters]:
    """Escape every placeholder in the texts of `value`; return it with the parameters that undo that, {} for none."""
    helpers: Parameters = {}

    def escape(leaf: Any) -> Any:
        if not isinstance(leaf, str) or PREFIX not in leaf:
            return leaf
        text, more = escape_placeholders(leaf, "gw_d", "")
        helpers.update({**more, **skip_if_needed(leaf)})
        return text

    return with_leaves(value, escape), helpers
