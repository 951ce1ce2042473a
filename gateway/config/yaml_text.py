"""Reads YAML whose keys are texts and no duplicates, and whose values are not part of themselves."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


class _UniqueKeys(yaml.SafeLoader):
    """Loads YAML. A recursive alias is an error, and a duplicate key, except one that a merge key (``<<``) brings in.

    A key is the text that is written, as in JSON and TOML: `off` and `1` are names that someone chose.

    unfinished: the anchors of the values that are being read.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.unfinished: list[str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and anchor in self.unfinished:
            reason = f"the alias *{anchor} stands for a value that it is part of"
            raise yaml.composer.ComposerError(None, None, reason, event.start_mark)
        if is_alias or anchor is None:
            return super().compose_node(parent, index)
        self.unfinished.append(anchor)
        node = super().compose_node(parent, index)
        self.unfinished.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: list[tuple[str, Any]] = []
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = _TEXT
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} is a duplicate", key.start_mark)
            seen.append((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:
    """Return the value in `text`.

    Raises:
        yaml.YAMLError: it is not YAML, a mapping has a key twice, or an alias is part of its own value.
    """
    return yaml.load(text, _UniqueKeys)
