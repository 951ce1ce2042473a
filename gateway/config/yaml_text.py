"""Reads YAML so that nothing has another value than it seems to have.

PyYAML implements YAML 1.1, which reads ``0123`` as 83, ``22:22`` as 1342, and a key ``no`` as false. Such a scalar
becomes `Misread`, which is an error wherever it stands (`gateway.config.load`).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_MERGE, _TEXT, _MISREAD = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str", "!misread"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_BOOLEAN = "tag:yaml.org,2002:bool"
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class Misread(str):
    """A scalar without quotes that YAML 1.1 reads as something else. The text is as it was written."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        """What is wrong with it."""
        if not self[-1:].isdigit():
            return "is a key that YAML reads as true or false"
        value = yaml.safe_load(self)
        return f"is read as {value:g} by YAML, in base {60 if ':' in self else 8}"

    @property
    def remedy(self) -> str:
        """How to write what is probably meant."""
        if _OCTAL.fullmatch(self) and (plain := self.lstrip("+0_")):
            return f"'{self}' in quotes for the text, {plain} for the number"
        return f"'{self}', in quotes"


class Loader(yaml.SafeLoader):
    """Loads YAML. A recursive alias is an error, and a duplicate key, except one that a merge key (``<<``) brings in.

    A key is the text that is written, as in JSON and TOML: `1` is a name that someone chose.

    unfinished: the anchors of the values that are being read.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.unfinished: list[str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose the next value; see the class."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and anchor in self.unfinished:
            reason = f"the alias *{anchor} stands for a value that it is part of"
            raise yaml.composer.ComposerError(None, None, reason, event.start_mark)
        if is_alias or anchor is None:
            return _mark_misread(super().compose_node(parent, index))
        self.unfinished.append(anchor)
        node = super().compose_node(parent, index)
        self.unfinished.pop()
        return _mark_misread(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping; see the class."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            is_truth = key.tag == _BOOLEAN and key.value.lower() not in ("true", "false")
            if key.tag != _MISREAD:
                key.tag = _MISREAD if is_truth else _TEXT
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} is a duplicate", key.start_mark)
            seen.add(key.value)
        return node


def _mark_misread(node: Any) -> Any:
    """Tag a number in base 8 or 60. One with an explicit tag (``!!int 0123``) is meant."""
    if isinstance(node, yaml.ScalarNode) and node.style is None and node.tag in _NUMBERS:
        plain = yaml.SafeLoader.yaml_implicit_resolvers.get(node.value[:1], ())
        is_implicit = any(tag == node.tag and pattern.match(node.value) for tag, pattern in plain)
        if is_implicit and (":" in node.value or _OCTAL.fullmatch(node.value)):
            node.tag = _MISREAD
    return node


def _misread(_: Loader, node: yaml.ScalarNode) -> Misread:
    return Misread(node.value)


Loader.add_constructor(_MISREAD, _misread)


def parse_yaml(text: str) -> Any:
    """Return the value in `text`, with `Misread` for what YAML 1.1 reads as something else.

    Raises:
        yaml.YAMLError: it is not YAML, a mapping has a key twice, or an alias is part of its own value.
    """
    return yaml.load(text, Loader)
