"""The fields of a document as `_search` sees them: how each is mapped, and the terms of its values.

The mappings are those of `index-mappings/` of 2.19 and 3.4, reduced to what the gateway searches. A `flat_object` holds
every leaf as one keyword. A field without a mapping is dynamic: text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TEXT, KEYWORD, FLAT = "text", "keyword", "flat_object"

MAPPINGS: Mapping[str, Mapping[str, str]] = {
    "agent": {"type": KEYWORD, **dict.fromkeys(("llm", "tools", "parameters", "memory"), FLAT)},
    "connector": {"protocol": KEYWORD, **dict.fromkeys(("parameters", "client_config", "actions"), FLAT)},
    "model": {
        **dict.fromkeys(("algorithm", "model_id", "model_group_id", "model_state"), KEYWORD),
        "interface": FLAT,
    },
    "model_group": {},
}

# Words as the standard analyzer cuts them: letters, digits and `_`; `.`, `'` and `:` hold letters together, `.` and
# `,` digits.
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])[.'’:](?=[^\W\d_])|(?<=\d)[.,](?=\d))\w+)*")


class Field(NamedTuple):
    """A field of one document: how it is mapped, and its values (strings, numbers, booleans)."""

    kind: str
    values: list[Any]

    @property
    def terms(self) -> set[str]:
        """The terms that the index holds of the field."""
        if self.kind == TEXT:
            return {word for value in self.values for word in words(as_term(value))}
        return set(map(as_term, self.values))


class Document(NamedTuple):
    """A document as `_search` sees it. kind: agent, model, model_group or connector. source: without credentials.

    number: the sequence number of its last write; 0 where it does not matter.
    """

    kind: str
    id: str
    source: Mapping[str, Any]
    number: int = 0

    def field(self, path: str) -> Field:
        """Return the field at a dotted path; one without values if the document has none."""
        mapping = MAPPINGS[self.kind]
        root = next((name for name, kind in mapping.items() if kind == FLAT and f"{path}.".startswith(f"{name}.")), "")
        if root:
            leaves = (leaf for value in _values_at(self.source, root) for leaf in _leaves(root, value))
            return Field(FLAT, [value for found, value in leaves if path in (root, found)])
        values = [value for value in _values_at(self.source, path) if not isinstance(value, Mapping)]
        return Field(mapping.get(path, TEXT), values)


def words(text: str) -> list[str]:
    """Split a text into terms, as the standard analyzer does."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def as_term(value: Any) -> str:
    """Return a scalar as the index holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values_at(node: Any, path: str) -> list[Any]:
    """Return the values at a path, through lists."""
    found = [node]
    for name in path.split("."):
        found = [item[name] for item in found if isinstance(item, Mapping) and item.get(name) is not None]
        found = [inner for item in found for inner in (item if isinstance(item, list) else [item])]
    return found


def _leaves(path: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _leaves(f"{path}.{name}", value)
    elif isinstance(node, list):
        for item in node:
            yield from _leaves(path, item)
    elif node is not None:
        yield path, as_term(node)
