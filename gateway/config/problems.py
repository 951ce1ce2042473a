"""What is wrong with the settings: each problem with its key's path, and the error that carries them all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from gateway.config.schema import Settings

_CREDENTIALS = re.compile(r"//[^/@\s]*@")


class ConfigProblem(msgspec.Struct, frozen=True):
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
    """The settings can't be used.

    problems: everything that is wrong with them. readable: the settings with defaults in place of `wrong`, the paths of
    those that could not be read; None if there are none.
    """

    def __init__(
        self, problems: list[ConfigProblem], readable: Settings | None = None, wrong: Collection[str] = ()
    ) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.readable = readable
        self.wrong = wrong


def depends_on(paths: Iterable[str], wrong: Collection[str]) -> bool:
    """Return True if one of the settings `paths` is in `wrong`, or is a part of one there, or has a part there."""
    return any(_overlap(path, other) for path in paths for other in wrong)


def _overlap(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return longer.startswith(shorter) and longer[len(shorter) : len(shorter) + 1] in ("", ".", "[")


def shown(value: Any) -> str:
    """Return a value as problems show it: shortened, without credentials in URLs."""
    text = _CREDENTIALS.sub("//***@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
