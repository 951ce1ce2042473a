"""Where the stores in files are: the place in the settings, or the default one."""

from __future__ import annotations

from pathlib import Path

from gateway.config.inspector import AuditFile, SqliteExchanges
from gateway.storage.paths import expand, state_directory


def sqlite_directory(settings: SqliteExchanges) -> Path:
    """Return the directory of the store `sqlite`."""
    return expand(Path(settings.directory)) if settings.directory else state_directory() / "inspector"


def audit_path(settings: AuditFile) -> Path:
    """Return the file of the store `audit_file`."""
    return expand(Path(settings.path)) if settings.path else state_directory() / "audit.jsonl"
