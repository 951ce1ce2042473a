"""The source of the settings, so that they can be read again: on reload, and by worker processes."""

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
    """A settings file (None: no file), and options that override it and the environment, nested like the file."""

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Settings:
        """Load the current settings. Raises ConfigError: they are wrong."""
        return load(self.path, overrides=self.overrides)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Source:
        """Return a copy with more options, which override the present ones."""
        return Source(self.path, merge(dict(self.overrides), overrides))

    def dump(self) -> str:
        """Return text from which another process can `read` the source."""
        return msgspec.json.encode({"path": self.path and str(self.path), "overrides": self.overrides}).decode()

    @classmethod
    def read(cls, text: str) -> Source:
        """Read what `dump` wrote."""
        data = msgspec.json.decode(text)
        return cls(data["path"] and Path(data["path"]), data["overrides"])
