"""Standard streams that the parent process has closed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.lifecycle.process import until
from tests.wire import PATIENCE

CLOSED = 'exec "$@" <&- >&- 2>&-'


@pytest.mark.slow
async def test_a_gateway_serves_and_stops_without_standard_streams(tmp_path: Path) -> None:
    admin = tmp_path / "admin.sock"
    settings = tmp_path / "gateway.yaml"
    settings.write_text(f"listen: {{data_port: 0, admin_host: 'unix:{admin}'}}")
    gateway = (sys.executable, "-m", "gateway", "serve", "-c", str(settings))
    process = await asyncio.create_subprocess_exec("sh", "-c", CLOSED, "sh", *gateway)
    try:
        await until(lambda: admin.exists() or process.returncode is not None)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
