"""What `_search` finds in a field: the mappings of the ML Commons indices, and how values are cut into terms.

The mappings are those of `index-mappings/` of 2.19 and 3.4 (alike in what stands here); how they answer was probed on
a real 3.6.0. A `flat_object` holds every leaf as one keyword; what no mapping names is mapped by its first value, a
string as text with a `keyword` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TEXT, KEYWORD, FLAT, DATE, NUMBER, BOOLEAN = "text", "keyword", "flat_object", "date", "number", "boolean"
_WITH_KEYWORD = "text with keyword"
_IGNORE_ABOVE = 256

_TIMES = {"created_time": DATE, "last_updated_time": DATE}
_CONNECTOR = {
    "name": _WITH_KEYWORD,
    "version": KEYWORD,
    "description": TEXT,
    "protocol": KEYWORD,
    "parameters": FLAT,
    "client_config": FLAT,
    "actions": FLAT,
}
MAPPINGS: Mapping[str, Mapping[str, str]] = {
    "agent": {
        "name": _WITH_KEYWORD,
        "type": KEYWORD,
        "description": TEXT,
        **dict.fromkeys(("llm", "tools", "parameters", "memory"), FLAT),
        "is_hidden": BOOLEAN,
        **_TIMES,
    },
    "connector": {**_CONNECTOR, **_TIMES},
    "model": {
        "name": _WITH_KEYWORD,
        "description": TEXT,
        **dict.fromkeys(("algorithm", "model_version", "model_group_id", "model_id", "model_state"), KEYWORD),
        "planning_worker_nodes": KEYWORD,
        **dict.fromkeys(("planning_worker_node_count", "current_worker_node_count"), NUMBER),
        "auto_redeploy_retry_times": NUMBER,
        **dict.fromkeys(("is_hidden", "deploy_to_all_nodes"), BOOLEAN),
        "interface": FLAT,
        "last_deployed_time": DATE,
        **_TIMES,
        **{f"connector.{name}": kind for name, kind in _CONNECTOR.items()},
    },
}

# Words as the standard analyzer cuts them: letters, digits and `_`; `.`, `'` and `:` hold letters together, `.` and
# `,` digits.
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])[.'’:](?=[^\W\d_])|(?<=\d)[.,](?=\d))\w+)*")


class Field(NamedTuple):
    """A field of one document: how it is mapped, and its values (strings, numbers, booleans)."""

    kind: str
    values: list[Any]


class Document(NamedTuple):
    """A document as `_search` sees it: the sort of thing it is, its id, and its source without credentials.

    number: the sequence number of its last write, 0 where nobody asks.
    """

    kind: str
    id: str
    source: Mapping[str, Any]
    number: int = 0

    def field(self, path: str) -> Field:
        """The field at a dotted path; one without values where the document has none."""
        if path == "_id":
            return Field(KEYWORD, [self.id])
        if path == "_seq_no":
            return Field(NUMBER, [self.number])
        mapping = MAPPINGS[self.kind]
        base = path.removesuffix(".keyword")
        if base != path and self.field(base).kind == TEXT:
            values = _at(self.source, base) if mapping.get(base, _WITH_KEYWORD) == _WITH_KEYWORD else []
            return Field(KEYWORD, [value for value in values if len(value) <= _IGNORE_ABOVE])
        root = next((name for name, kind in mapping.items() if kind == FLAT and f"{path}.".startswith(f"{name}.")), "")
        if root:
            whole = path == root
            return Field(FLAT, [value for found, value in self._leaves(root) if whole or found == path])
        values = _at(self.source, path)
        kind = mapping.get(path) or _dynamic(values)
        return Field(TEXT if kind == _WITH_KEYWORD else kind, values)

    def _leaves(self, root: str) -> Iterator[tuple[str, str]]:
        for value in _at(self.source, root, leaves=False):
            yield from _leaves(root, value)


def words(text: str) -> list[str]:
    """The terms of a text."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def as_term(value: Any) -> str:
    """A scalar as the index holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_mapped(kind: str, path: str) -> bool:
    """Whether the index knows the field before any document has it."""
    mapping = MAPPINGS[kind]
    known = path in mapping or mapping.get(path.removesuffix(".keyword")) == _WITH_KEYWORD
    return (
        known
        or path in ("_id", "_seq_no")
        or any(mapping.get(path[: dot.start()]) == FLAT for dot in re.finditer(r"\.", path))
    )


def _dynamic(values: list[Any]) -> str:
    first = values[0] if values else ""
    return BOOLEAN if isinstance(first, bool) else TEXT if isinstance(first, str) else NUMBER


def _at(node: Any, path: str, leaves: bool = True) -> list[Any]:
    """The values at a path, through lists; only scalars, or whatever stands there."""
    found = [node]
    for name in path.split("."):
        found = [item[name] for item in found if isinstance(item, Mapping) and item.get(name) is not None]
        found = [inner for item in found for inner in (item if isinstance(item, list) else [item])]
    return [item for item in found if not isinstance(item, Mapping)] if leaves else found


def _leaves(path: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _leaves(f"{path}.{name}", value)
    elif isinstance(node, list):
        for item in node:
            yield from _leaves(path, item)
    elif node is not None:
        yield path, as_term(node)
