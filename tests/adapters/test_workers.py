"""Several processes share the adapters' port, and end with the data port."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.simulator.fixtures import seed_core
from gateway.simulator.server import Simulator
from tests.lifecycle.process import Process, port
from tests.lifecycle.test_reload import upstream

BODY: dict[str, Any] = {"model": "conv-d", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_each_worker_answers(tmp_path: Path, workers: int) -> None:
    async with Simulator("2.19.0") as simulator:
        seed_core(simulator.core, simulator.llm_url)
        settings = {**upstream(simulator.url), "listen": {"workers": workers, "adapters_port": 0}}
        async with Process(tmp_path, settings) as gateway:
            await gateway.ports(workers)
            listening = await gateway.event("adapters listening", workers)
            assert len({port(event) for event in listening}) == 1
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port(listening[0])}") as client:
                for _ in range(4 * workers):
                    headers = {"Connection": "close"}
                    async with client.post("/v1/chat/completions", json=BODY, headers=headers) as response:
                        assert response.status == 200
            gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0
