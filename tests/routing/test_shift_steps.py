"""A route from the old agent to the new one and back by the command `shift`, with requests on both clusters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from tests.migrate.gateway_thread import GatewayThread
from tests.routing.conftest import Place

REQUESTS = 40


async def test_each_step_is_made_and_its_figures_are_those_of_the_requests(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A conversation that began on the old cluster goes on there when the new one has all new ones."""
    file = tmp_path / "gateway.yaml"
    route = place.route("conv-b", "fc-openai_upgraded", (100, 0))
    file.write_text(
        json.dumps({**place.settings, "upstream": {"url": place.old.front.url}, "agents": {"routes": [route]}})
    )
    old, new = (target["agent"] for target in route["targets"])

    async def shift(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        command = ("shift", "-c", str(file), "--gateway", thread.url, old, *arguments, "--json")
        assert await asyncio.to_thread(run, command) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    async def ask(number: int) -> str:
        answer = await place.ask("conv-b", f"Question {number}?")
        assert answer.status == 200
        return answer.ran

    thread = await asyncio.to_thread(GatewayThread, file)
    await asyncio.to_thread(thread.__enter__)
    try:
        place.gateways.append(thread.gateway)
        begun = await place.ask("conv-b", "My name is Ole.")
        for percent in (50, 100):
            await shift("--to", new, "--percent", str(percent))
            ran = [await ask(number) for number in range(REQUESTS)]
            report = await shift()
            by_agent = {target["agent"]: target for target in report["targets"]}
            assert [by_agent[agent]["runs"] for agent in (old, new)] == [ran.count(agent) for agent in (old, new)]
            assert [by_agent[agent]["errors"] for agent in (old, new)] == [0, 0]
            assert 0 < by_agent[new]["p50"] <= by_agent[new]["p95"]
            assert report["gateways"] == [{"gateway": thread.url, "in_effect": True}]
            if percent == 100:
                assert ran == [new] * REQUESTS
            else:
                assert REQUESTS / 10 < ran.count(new) < 9 * REQUESTS / 10
        again = await place.ask("conv-b", "What is my name?", begun.memory_id)
        assert (again.ran, "Ole" in json.dumps(place.old.simulator.received[-1])) == (old, True)
        for _ in range(2):
            await shift("--back")
        assert [await ask(number) for number in range(5)] == [old] * 5
    finally:
        await asyncio.to_thread(thread.__exit__)
