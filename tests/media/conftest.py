"""The media server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trustme

from tests.media.server import MediaServer


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[MediaServer]:
    async with MediaServer(authority) as server:
        yield server
