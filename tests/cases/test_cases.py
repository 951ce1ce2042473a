"""Bug reports as data: each folder of `fixtures` is an agent, its model, a request, and what has to become of it.

`outcome.json`: `version` of the cluster; either `received`, all bodies that the models have to receive, or `refused`,
the first problem of a 400, with `remedy`, the request as its help says, and what the models receive then. Where the
help is to use another agent, `agent-of-the-remedy.json` has it. Where it is to upgrade the agent, `remedy` is
`"upgrade"` in place of a request. `served_help` is the help of a gateway, where it says more than the command's.

A case with `turns.json` in place of `request.json` is a conversation. Each turn has `from`, "gateway" or "cluster" for
a caller who goes around the gateway, a `request`, and the `status` of its answer; `received` is what the models receive
of the last turn. No turn waits for what the cluster does after it has answered the one before.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import run
from gateway.simulator.handlers import Request
from gateway.simulator.rest import Response
from gateway.simulator.server import Simulator
from gateway.simulator.settings import UNIFIED_API
from tests.conftest import StartGateway

ALL = sorted(path for path in (Path(__file__).parent / "fixtures").iterdir() if path.is_dir())
CONVERSATIONS = [path for path in ALL if (path / "turns.json").exists()]
CASES = [path for path in ALL if path not in CONVERSATIONS]
UPGRADE = "upgrade"
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

    def rewrite(body: Any, agent: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(body).encode())))
        documents = ["--agent", str(case / f"{agent}.json"), "--model", f"M={case / 'model-M.json'}"]
        status = run(["rewrite", *documents, "--cluster-version", outcome["version"]])
        return status, json.loads(capsys.readouterr().out)

    status, shown = rewrite(read(case, "request"), "agent")
    if "refused" in outcome:
        assert (status, problem(shown)) == (1, outcome["refused"])
        if outcome["remedy"] == UPGRADE:
            return  # of a cluster: below
        status, shown = rewrite(outcome["remedy"], agent_of_the_remedy(case))
    assert status == 0, shown


@each_case
async def test_the_models_receive_what_the_case_says(case: Path, start_gateway: StartGateway, tmp_path: Path) -> None:
    outcome = read(case, "outcome")
    async with Simulator(outcome["version"]) as simulator:
        agents = {name: register(simulator, case, name) for name in {"agent", agent_of_the_remedy(case)}}
        gateway = await start_gateway(simulator.url)
        urls = f"http://127.0.0.1:{gateway.data_port}/_plugins/_ml/agents"
        async with aiohttp.ClientSession() as client:
            if "refused" in outcome:
                async with client.post(f"{urls}/{agents['agent']}/_execute", json=read(case, "request")) as response:
                    help = outcome.get("served_help", outcome["refused"]["help"])
                    ids = {agents["agent"]: "agent", **dict.fromkeys(simulator.core.resources.models, "M")}
                    text = await response.text()
                    for id, name in ids.items():
                        text = text.replace(id, name)
                    assert problem(json.loads(text)) == {**outcome["refused"], "help": help}
                assert simulator.received == []
            remedy = outcome.get("remedy", UPGRADE)
            if remedy == UPGRADE and "refused" in outcome:
                options = ["--apply", "--url", simulator.url, "--backup-dir", str(tmp_path)]
                told = ["--gateway", f"http://127.0.0.1:{gateway.admin_port}"]
                command = ["-m", "gateway", "upgrade", agents["agent"], *options, *told]
                assert await (await asyncio.create_subprocess_exec(sys.executable, *command)).wait() == 0
            url = f"{urls}/{agents[agent_of_the_remedy(case)]}/_execute"
            body = read(case, "request") if remedy == UPGRADE else remedy
            async with client.post(url, json=body) as response:
                assert response.status == 200, await response.text()
        assert simulator.received == outcome["received"]


class LateErrors(Simulator):
    """Stores the error of a failed turn once the memory was read, at the worst time for whoever has read it."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self._was_read = asyncio.Event()
        self.before_errors_are_stored = self._was_read.wait

    async def _respond(self, request: Request) -> Response:
        response = await super()._respond(request)
        if request.path.endswith("/messages"):
            self._was_read.set()
        return response


@pytest.mark.parametrize("case", CONVERSATIONS, ids=lambda case: case.name)
async def test_the_models_receive_what_the_case_says_of_a_conversation(case: Path, start_gateway: StartGateway) -> None:
    outcome = read(case, "outcome")
    async with LateErrors(outcome["version"]) as simulator, aiohttp.ClientSession() as client:
        agent_id = register(simulator, case)
        gateway = await start_gateway(simulator.url)
        addresses = {"gateway": f"http://127.0.0.1:{gateway.data_port}", "cluster": simulator.url}
        memory = {}
        for turn in read(case, "turns"):
            simulator.received.clear()
            body = {**turn["request"], "parameters": {**turn["request"].get("parameters", {}), **memory}}
            path = f"{addresses[turn['from']]}/_plugins/_ml/agents/{agent_id}/_execute"
            async with client.post(path, json=body) as response:
                answer = await response.json()
                assert response.status == turn["status"], answer
            for output in answer.get("inference_results", [{}])[0].get("output", []):
                memory |= {"memory_id": output["result"]} if output["name"] == "memory_id" else {}
        assert simulator.received == outcome["received"]


def agent_of_the_remedy(case: Path) -> str:
    return "agent-of-the-remedy" if (case / "agent-of-the-remedy.json").exists() else "agent"


def register(simulator: Simulator, case: Path, name: str = "agent") -> str:
    """Register the case's model and agent; return the agent's id."""
    if simulator.core.unified:
        simulator.core.settings.change({"persistent": {UNIFIED_API: True}})
    resources = simulator.core.resources
    model = read(case, "model-M")
    (action,) = model["connector"]["actions"]
    action["url"] = action["url"].replace("https://llm.example.org", simulator.llm_url)
    model_id = resources.register_model({**model, "function_name": "remote"}, deploy=True)["model_id"]
    agent = read(case, name)
    for calls in (agent.get("llm", {}), *(tool.get("parameters", {}) for tool in agent["tools"])):
        if calls.get("model_id") == "M":
            calls["model_id"] = model_id
    return str(resources.register_agent(agent)["agent_id"])
