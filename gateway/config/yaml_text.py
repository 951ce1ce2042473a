"""Reads YAML whose mappings have no duplicate keys."""

from __future__ import annotations

from typing import Any

import yaml


class _UniqueKeys(yaml.SafeLoader):
    """Loads YAML; a duplicate key is an error, except one that a merge key (``<<``) brings in."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: list[tuple[str, Any]] = []
        for key, _ in node.value:
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} is a duplicate", key.start_mark)
            seen.append((key.tag, key.value))
        return node


def parse_yaml(text: str) -> Any:
    """Return the value in `text`.

    Raises:
        yaml.YAMLError: it is not YAML, or a mapping has a key twice.
    """
    return yaml.load(text, _UniqueKeys)
