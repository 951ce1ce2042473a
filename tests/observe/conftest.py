"""Fixtures of other folders."""

from __future__ import annotations

from tests.execute.conftest import start_deployment

__all__ = ["start_deployment"]
