"""The table "Memory by default" of the docs, against agents that are registered through a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.simulator.server import Simulator
from gateway.simulator.settings import UNIFIED_API
from tests.conftest import StartGateway
from tests.docs.pages import DOCS
from tests.register.simulated_cluster import OPENAI, block

AGENTS = "/_plugins/_ml/agents"
VERSIONS = {"by the gateway": "3.4.0", "by the cluster": "3.6.0"}


def rows() -> dict[str, list[str]]:
    """Return the cells of each row by its type."""
    text = (DOCS / "operate" / "registration.md").read_text().partition("**Memory by default.**")[2]
    lines = text.partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.fixture(params=VERSIONS)
async def made(request: pytest.FixtureRequest, start_gateway: StartGateway) -> AsyncIterator[tuple[int, ClientSession]]:
    """The column of the table, and a client of a gateway before such a cluster."""
    async with Simulator(VERSIONS[request.param]) as simulator:
        column = list(VERSIONS).index(request.param)
        if column:
            simulator.core.settings.change({"persistent": {UNIFIED_API: "true"}})
        gateway = await start_gateway(simulator.url)
        async with ClientSession(f"http://127.0.0.1:{gateway.data_port}") as client:
            yield column, client


async def shown(client: ClientSession, agent_type: str) -> str:
    """Register an agent of this type without memory; return what the table says of it."""
    body: dict[str, Any] = {"name": "n", "type": agent_type, "model": block(OPENAI)}
    async with client.post(f"{AGENTS}/_register", json=body) as response:
        made = await response.json()
    if response.status != 200:
        assert "require memory configuration" in made["error"]["reason"]
        return "refused by the cluster: `memory` is required"
    async with client.get(f"{AGENTS}/{made['agent_id']}") as response:
        agent = await response.json()
    if agent.get("parameters", {}).get("gw_memory") == "sessions":
        return "sessions of the gateway"
    return f"`{agent['memory']['type']}`" if agent.get("memory") else "no memory"


async def test_the_default_memory_of_each_type_is_as_documented(made: tuple[int, ClientSession]) -> None:
    column, client = made
    cells = {agent_type: row[column] for agent_type, row in rows().items() if row[column]}
    assert len(cells) == (3 if column else 5)
    assert {agent_type: await shown(client, agent_type) for agent_type in cells} == cells
