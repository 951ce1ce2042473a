"""The demo's deployments: for each generation, a simulated cluster with models and agents, and a gateway."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway import app
from gateway.config.load import load
from gateway.observe.logs import configure
from gateway.simulator.fixtures import CONVERSATIONAL_FLOW_PROMPT, FLOW_PROMPT, seed
from gateway.simulator.server import Simulator

_BEDROCK, _OPENAI, _GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"

# The seeded connector that is shown for each provider (see `gateway.simulator.fixtures`).
CONNECTORS = {
    "2.19.0": {_BEDROCK: "a", _OPENAI: "b", _GEMINI: "e2"},
    "3.4.0": {_BEDROCK: "bedrock_tutorial", _OPENAI: "openai_tutorial", _GEMINI: "gemini_contents"},
}
TOKEN = secrets.token_urlsafe(12)
"""The token of the admin ports."""
_TOKEN = "MLC_GATEWAY_DEMO_TOKEN"
_FUNCTION_CALLING = {"bedrock_tutorial", "openai_tutorial"}


@dataclass(frozen=True)
class Agent:
    """An agent of the demo. prompt: its own prompt, None for the one built into the cluster."""

    id: str
    type: str
    provider: str
    prompt: str | None


@dataclass(frozen=True)
class Deployment:
    """A gateway and its cluster. inspector: the address of the page of exchanges, "" if they are not recorded."""

    version: str
    simulator: Simulator
    url: str
    agents: tuple[Agent, ...]
    inspector: str = ""


@asynccontextmanager
async def deploy(version: str, port: int, records: str = "") -> AsyncIterator[Deployment]:
    """Start a seeded cluster of `version` and a gateway on `port` (0: any free one).

    records: the directory in which exchanges and their media are recorded; "" for none.

    Raises:
        OSError: the port is taken.
    """
    async with AsyncExitStack() as stack:
        simulator = await stack.enter_async_context(Simulator(version))
        settings = load(None, {_TOKEN: TOKEN}, _settings(simulator.url, port, records))
        gateway = app.build(settings, log=configure("error", "console"))
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        agents = tuple(_agents(version, await seed(simulator.url, whole=True)))
        page = f"http://127.0.0.1:{gateway.admin_port}/inspector/login#{TOKEN}" if records else ""
        yield Deployment(version, simulator, f"http://127.0.0.1:{gateway.data_port}", agents, page)


def _settings(url: str, port: int, records: str) -> dict[str, Any]:
    return {
        "listen": {"data_port": port, "admin_port": 0, "admin_token": {"env": _TOKEN}},
        "upstream": {"url": url},
        "policy": {"usage_header": True, "prices": [{"input": 3.0, "output": 15.0}]},
        "inspector": {
            "enabled": bool(records),
            "passthrough": "bodies",
            "media": "keep",
            "sqlite": {"directory": records},
        },
    }


def _agents(version: str, ids: dict[str, str]) -> Iterator[Agent]:
    for provider, connector in CONNECTORS[version].items():
        yield Agent(ids[f"flow-{connector}"], "flow", provider, FLOW_PROMPT)
        prompt = CONVERSATIONAL_FLOW_PROMPT.replace("${parameters.chat_history:-}", "")
        yield Agent(ids[f"cflow-{connector}"], "conversational_flow", provider, prompt)
        if connector in _FUNCTION_CALLING:
            yield Agent(ids[f"fc-{connector}"], "conversational", provider, "${parameters.question}")
        else:
            yield Agent(ids[f"conv-{connector}"], "conversational", provider, None)
