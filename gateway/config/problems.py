"""What is wrong with the settings: each problem with its key's path, and the error that carries them all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_CREDENTIALS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One wrong setting. path: the key's path (``upstream.timeouts.connect``), "" for the file as a whole.

    received: the value, "" if it should not be shown. allowed: the allowed values. source: where the value comes
    from, if not from the file.
    """

    path: str
    reason: str
    received: str = ""
    allowed: str = ""
    source: str = ""

    def __str__(self) -> str:
        parts = [f"{self.path or 'settings'}: {self.reason}"]
        if self.received:
            parts.append(f"got {self.received}")
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.source:
            parts.append(f"from {self.source}")
        return "; ".join(parts)


class ConfigError(Exception):
    """The settings can't be used. problems: everything that is wrong with them."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def shown(value: Any) -> str:
    """Return a value as problems show it: shortened, without credentials in URLs."""
    text = _CREDENTIALS.sub("//***@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
