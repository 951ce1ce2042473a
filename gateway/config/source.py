"""Where settings come from, kept so that they can be read again: on reload, and by worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.load import load, merge
from gateway.config.schema import Settings


@dataclass(frozen=True, slots=True)
class Source:
    """A settings file (None: none), and options that stand over it and the environment, nested like the file."""

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Settings:
        """The settings as they are now. Raises ConfigError: they are wrong."""
        return load(self.path, overrides=self.overrides)

    def beneath(self, overrides: Mapping[str, Any]) -> Source:
        """The same, with more options over these."""
        return Source(self.path, merge(dict(self.overrides), overrides))

    def dumped(self) -> str:
        """As text for another process; `read` undoes it."""
        return msgspec.json.encode({"path": self.path and str(self.path), "overrides": self.overrides}).decode()

    @classmethod
    def read(cls, text: str) -> Source:
        """What `dumped` wrote."""
        data = msgspec.json.decode(text)
        return cls(data["path"] and Path(data["path"]), data["overrides"])
