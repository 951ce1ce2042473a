"""Escapes user text so that the cluster renders exactly that text.

There are two forms, for two places (docs/evidence/facts.md, "Text that must arrive exactly"):

- in JSON that is inserted raw: every ``$`` is written ``\\u0024``, so no placeholder can form;
- in a parameter that the cluster escapes: the text is split into helper parameters, none of which has a whole
  placeholder or looks like JSON.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gateway.delivery.trees import with_leaves
from gateway.mlcommons.memory_form import show_original
from gateway.mlcommons.rendering import is_strict_json
from gateway.mlcommons.template import PREFIX, SUFFIX, UNFILLED, may_be_json


class Template(str):
    """A template of the agent's own inside planned JSON. Its placeholders are not escaped."""

    __slots__ = ()


def as_templates(value: Any) -> Any:
    """Return JSON data with every string as a `Template`."""
    return with_leaves(value, lambda leaf: Template(leaf) if isinstance(leaf, str) else leaf)


class Concat(tuple[str, ...]):
    """A JSON string made of `Template`s and plain strings, in order."""

    __slots__ = ()


def dump(value: Any) -> str:
    """Write `value` as compact JSON, with ``$`` as ``\\u0024`` everywhere but in `Template`s."""
    return "".join(_dump(value))


def _dump(value: Any) -> Iterator[str]:
    match value:
        case Concat():
            yield '"'
            for part in value:
                yield _string(part)[1:-1]
            yield '"'
        case str():
            yield _string(value)
        case dict():
            yield "{"
            for index, (name, member) in enumerate(value.items()):
                yield f"{',' if index else ''}{_string(name)}:"
                yield from _dump(member)
            yield "}"
        case list() | tuple():
            yield "["
            for index, item in enumerate(value):
                if index:
                    yield ","
                yield from _dump(item)
            yield "]"
        case _:
            yield json.dumps(value, allow_nan=False)


def _string(text: str) -> str:
    if isinstance(text, Template):
        return json.dumps(text, ensure_ascii=False)
    return msgspec.json.encode(text).decode().replace("$", "\\u0024")


def raw_text(text: str) -> str:
    """Escape `text` for the inside of a JSON string that is inserted raw (`no_escape_params`)."""
    return _string(text)[1:-1]


def is_plain(text: str) -> bool:
    """Return True if `text` needs no escaping where the cluster escapes it: no placeholder, and not like JSON."""
    return UNFILLED not in text and not may_be_json(text)


def is_inert(text: str, templates: Iterable[str] = ()) -> bool:
    """Return True if no template that is not known can take `text` apart.

    It then has no placeholder of any kind, does not escape one that follows it, and is not like JSON.

    templates: those that are known to hold the text before it is sent. One that is like JSON gets it unescaped, so it
        must be JSON, and the text may need no escaping inside of a string, not even for the cluster's lenient parser.
    """
    if "${" in text or text.endswith("$") or may_be_json(text):
        return False
    holders = [template for template in templates if UNFILLED in template and may_be_json(template)]
    return not holders or (
        "'" not in text
        and json.dumps(text, ensure_ascii=False)[1:-1] == text
        and all(map(is_strict_json, map(_without_placeholders, holders)))
    )


def _without_placeholders(template: str) -> str:
    head, end, rest = template.rpartition(SUFFIX)  # each placeholder in the head has an end: no search is in vain
    return _PLACEHOLDER.sub("x", head + end) + rest


_PLACEHOLDER = re.compile(re.escape(PREFIX) + r"[^}]*\}")
_OPENING = re.compile(r"[\x00-\x20]*[\[{][\x00-\x20\[{]*")
_CUT = len("${par")


def split_placeholders(text: str) -> list[str]:
    """Split `text` into parts that are each `is_plain`, for the cluster to join again.

    The cut goes through the middle of each ``${parameters.``, so that no part ends in a ``$``, which would escape the
    next placeholder. Another cut is after a run of opening brackets, which alone can't be JSON.
    """
    cuts = [0]
    if opening := _OPENING.match(text):
        cuts.append(opening.end())
    start = text.find(PREFIX)
    while start >= 0:
        cuts.append(start + _CUT)
        start = text.find(PREFIX, start + _CUT)
    cuts.append(len(text))
    return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]


_EARLIER = re.compile(r"\$?\$\{parameters\.gw_([a-z]+)(\d*)\}")


def unescape(text: str) -> str:
    """Return a stored question as it was written, also where an earlier version of the gateway escaped it.

    That version wrote ``${parameters.gw_d<n>}`` for n dollar signs, and other names for media, which become
    ``[media]``.
    """

    def original(match: re.Match[str]) -> str:
        return "$" * int(match[2] or 1) if match[1] == "d" else "[media]"

    return _EARLIER.sub(original, show_original(text))
