"""The forms of JSONPath that connectors use: ``$.a.b[0].c``, ``$['a']`` and ``[*]``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from gateway.simulator.errors import ExecuteFailure

_STEP = re.compile(r"\.?([\w-]+)|\['([^']*)'\]|\[(\d+)\]|(\[\*\])")


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[str | int | None, ...]:
    """Yield names, positions, and None for ``[*]``."""
    steps: list[str | int | None] = []
    pos = 1 if path.startswith("$") else 0
    while pos < len(path):
        match = _STEP.match(path, pos)
        if match is None:
            raise ExecuteFailure(500, "InvalidPathException", f"Could not parse token starting at position {pos}")
        name, quoted, position, every = match.groups()
        steps.append(None if every else int(position) if position is not None else name if name is not None else quoted)
        pos = match.end()
    return tuple(steps)


def read(document: Any, path: str) -> Any:
    """Return the value at `path` in `document`; with ``[*]``, the list of all values.

    Raises:
        ExecuteFailure: 500 PathNotFoundException.
    """
    return _read(document, _steps(path), "$")


def _read(node: Any, steps: tuple[str | int | None, ...], walked: str) -> Any:
    for position, step in enumerate(steps):
        if step is None:
            found = (_try(item, steps[position + 1 :]) for item in node) if isinstance(node, list) else ()
            return [item for item in found if item is not None]
        if isinstance(step, str):
            walked += f"['{step}']"
            if not isinstance(node, dict) or step not in node:
                raise ExecuteFailure(500, "PathNotFoundException", f"Missing property in path {walked}")
        else:
            walked += f"[{step}]"
            if not isinstance(node, list) or step >= len(node):
                raise ExecuteFailure(500, "PathNotFoundException", f"No results for path: {walked}")
        node = node[step]
    return node


def _try(node: Any, steps: tuple[str | int | None, ...]) -> Any:
    try:
        return _read(node, steps, "$")
    except ExecuteFailure:
        return None
