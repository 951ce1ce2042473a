"""The source of the settings, so that they can be read again, and which of them can't change while the gateway runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.load import load, merge, read_content
from gateway.config.problems import ConfigError, ConfigProblem, depends_on
from gateway.config.schema import Settings


class Source(msgspec.Struct, frozen=True):
    """A settings file (None: no file), and options that override it and the environment, nested like the file."""

    path: Path | None = None
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def load(self, content: bytes | None = None) -> Settings:
        """Load the current settings. content: of the file, as `read_content` returned it.

        Raises:
            ConfigError: they are wrong.
        """
        return load(self.path, overrides=self.overrides, content=content)

    def read_content(self) -> bytes | None:
        """Return what the file holds; None if there is no file.

        Raises:
            ConfigError: it can't be read.
        """
        return read_content(self.path) if self.path is not None else None

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


def digest_of(content: bytes | None) -> str:
    """Return what tells two contents of a settings file apart: their SHA-256; "" without a file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


_FIXED = (
    "data_host", "data_port", "admin_host", "admin_port", "adapters_host", "adapters_port", "workers", "http",
)  # fmt: skip
"""Settings of `listen` that need a restart, as sockets and processes exist already."""


def check_reload(old: Settings, new: Settings, wrong: Collection[str] = ()) -> None:
    """Compare the settings that need a restart, except those that could not be read (`wrong`).

    Raises:
        ConfigError: some differ. Each is a problem.
    """
    problems = [ConfigProblem(path, "can't change without a restart") for path in _changed(old, new)]
    problems = [problem for problem in problems if not depends_on([problem.path], wrong)]
    if problems:
        raise ConfigError(problems)


def _changed(old: Settings, new: Settings) -> Iterator[str]:
    for name in _FIXED:
        if getattr(old.listen, name) != getattr(new.listen, name):
            yield f"listen.{name}"
    if old.listen.adapters_port is not None:
        for name in ("ag_ui", "openai"):
            if getattr(old.adapters, name) != getattr(new.adapters, name):
                yield f"adapters.{name}"
        if bool(old.adapters.mcp) != bool(new.adapters.mcp):
            yield "adapters.mcp"
    if bool(old.listen.tls.cert_file) != bool(new.listen.tls.cert_file):
        yield "listen.tls.cert_file"
