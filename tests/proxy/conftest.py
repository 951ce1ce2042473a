from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """A blocking call of the gateway's own on the event loop fails the test."""
    with blockbuster_ctx("gateway"):
        yield
