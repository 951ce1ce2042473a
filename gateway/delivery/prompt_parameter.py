"""The parameter that holds an agent's own prompt around the question."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway.mlcommons.template import SUFFIX

_QUESTION_PLACE = re.compile(r"\$\{parameters\.question(?:\.toString\(\))?(?=\}|:-)")


@dataclass(frozen=True, slots=True)
class PromptParameter:
    """The parameter that holds the agent's own prompt: `before` + the question + `after`, as templates."""

    name: str
    before: str
    after: str


def find_prompt(parameters: Mapping[str, str], names: Collection[str]) -> PromptParameter | None:
    """Return the only one of `names` whose value contains the question, once; None if there is none, or several."""
    found = []
    for name in names:
        parts = _split_at_question(parameters.get(name, ""))
        if len(parts) > 2:
            return None
        if len(parts) == 2:
            found.append(PromptParameter(name, *parts))
    return found[0] if len(found) == 1 else None


def _split_at_question(text: str) -> list[str]:
    """Split a template at the placeholders of the question, in time proportional to its length."""
    parts, rest = [], 0
    while place := _QUESTION_PLACE.search(text, rest):
        end = text.find(SUFFIX, place.end())
        if end < 0:
            break
        parts.append(text[rest : place.start()])
        rest = end + len(SUFFIX)
    return [*parts, text[rest:]]
