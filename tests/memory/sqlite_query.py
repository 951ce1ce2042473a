"""Looks into a SQLite file of sessions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    """Run a statement, and return its rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()
