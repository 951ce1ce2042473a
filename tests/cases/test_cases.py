"""Bug reports as data: each folder of `fixtures` is an agent, its model, a request, and what has to become of it.

`outcome.json`: `version` of the cluster; either `received`, all bodies that the models have to receive, or `refused`,
the first problem of a 400, with `remedy`, the request as its help says, and what the models receive then.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import run
from gateway.simulator.server import Simulator
from tests.conftest import StartGateway

CASES = sorted(path for path in (Path(__file__).parent / "fixtures").iterdir() if path.is_dir())
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def read(case: Path, name: str) -> Any:
    return json.loads((case / f"{name}.json").read_text("utf-8"))


def problem(answer: Any) -> dict[str, Any]:
    """Return the first problem of a refusal; it must have a place, both values and a remedy."""
    first: dict[str, Any] = answer["error"]["problems"][0]
    assert answer["status"] == 400
    assert all(first.get(name) for name in ("field", "reason", "expected", "received", "help"))
    return first


@each_case
def test_the_command_decides_as_the_case_says(
    case: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = read(case, "outcome")

    def rewrite(body: Any) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(body).encode())))
        documents = ["--agent", str(case / "agent.json"), "--model", f"M={case / 'model-M.json'}"]
        status = run(["rewrite", *documents, "--cluster-version", outcome["version"]])
        return status, json.loads(capsys.readouterr().out)

    status, shown = rewrite(read(case, "request"))
    if "refused" in outcome:
        assert (status, problem(shown)) == (1, outcome["refused"])
        status, shown = rewrite(outcome["remedy"])
    assert status == 0, shown


@each_case
async def test_the_models_receive_what_the_case_says(case: Path, start_gateway: StartGateway) -> None:
    outcome = read(case, "outcome")
    async with Simulator(outcome["version"]) as simulator:
        agent_id = register(simulator, case)
        gateway = await start_gateway(simulator.url)
        url = f"http://127.0.0.1:{gateway.data_port}/_plugins/_ml/agents/{agent_id}/_execute"
        async with aiohttp.ClientSession() as client:
            if "refused" in outcome:
                async with client.post(url, json=read(case, "request")) as response:
                    assert problem(await response.json()) == outcome["refused"]
                assert simulator.received == []
            async with client.post(url, json=outcome.get("remedy", read(case, "request"))) as response:
                assert response.status == 200, await response.text()
        assert simulator.received == outcome["received"]


def register(simulator: Simulator, case: Path) -> str:
    """Register the case's model and agent; return the agent's id."""
    resources = simulator.core.resources
    model = read(case, "model-M")
    (action,) = model["connector"]["actions"]
    action["url"] = action["url"].replace("https://llm.example.org", simulator.llm_url)
    model_id = resources.register_model({**model, "function_name": "remote"}, deploy=True)["model_id"]
    agent = read(case, "agent")
    for tool in agent["tools"]:
        tool["parameters"]["model_id"] = model_id
    return str(resources.register_agent(agent)["agent_id"])
