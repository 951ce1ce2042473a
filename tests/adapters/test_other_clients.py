"""Clients that front ends are made with, as they are: `make front-ends` installs them, and runs this."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.llm import Call
from tests.adapters.conftest import ANSWER, Deploy, Deployed
from tests.adapters.test_openai_chat import raw_flow
from tests.docs.pages import ROOT

NODE, CLIENTS = Path(__file__).parent / "node", Path(__file__).parent / "clients"
PYTHON = ROOT / ".venv-clients/bin/python"
PNG = "iVBORw0KGgo="
HINT = "the clients are not installed (make front-ends)"
needs_node = pytest.mark.skipif(shutil.which("node") is None or not (NODE / "node_modules").is_dir(), reason=HINT)
needs_python = pytest.mark.skipif(not PYTHON.exists(), reason=HINT)
each_cluster = pytest.mark.parametrize(("version", "agent"), [("2.19.0", "flow-b"), ("3.4.0", "fc-openai_tutorial")])


async def conversations(*command: str | Path, cwd: Path) -> Any:
    """Return what a script has found."""
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@needs_node
@each_cluster
async def test_ag_ui_and_openai_for_javascript(deploy: Deploy, version: str, agent: str) -> None:
    rules = {"agents": {"rules": [{"agent": "conv-*", "memory": "gateway"}]}}
    async with deploy(version, rules, streams=version >= "3") as deployed:
        kept = "conv-d" if version < "3" else "conv-openai_tutorial"
        found = await conversations("node", "conversations.mjs", deployed.url, agent, kept, PNG, cwd=NODE)
        assert found == {
            "first": [ANSWER],
            "second": [ANSWER],
            "timeline": ["user", "assistant", "user", "assistant"],
            "restored": [["user", "remember"], ["assistant", ANSWER]],
            "error": "AgentNotFound",
            "chat": ANSWER,
            "streamed": ANSWER,
            "response": ANSWER,
            "continued": ANSWER,
            "models": True,
            "refused": [404, "model_not_found"],
        }


@needs_node
@each_cluster
async def test_vercels_ai_sdk(deploy: Deploy, version: str, agent: str) -> None:
    async with deploy(version, streams=version >= "3") as deployed:
        found = await conversations("node", "vercel.mjs", deployed.url, agent, PNG, cwd=NODE)
        assert len(found) == 6
        assert set(found.values()) == {ANSWER}


@needs_python
@each_cluster
async def test_langchain_llama_index_and_openais_agents(deploy: Deploy, version: str, agent: str) -> None:
    async with deploy(version, streams=version >= "3") as deployed:
        script = CLIENTS / "conversations.py"
        found = await conversations(PYTHON, script, deployed.url, agent, PNG, cwd=CLIENTS)
        assert len(found) == 10
        assert set(found.values()) == {ANSWER}


def script_tools(deployed: Deployed, times: int) -> str:
    """Let the LLM call a tool and then answer, `times` times. Return an agent that hands its calls to the client."""
    replies = [reply for _ in range(times) for reply in (Call("warmth", {"city": "Paris"}, text=""), "20 degrees.")]
    deployed.simulator.script(replies)
    return raw_flow(deployed, "openai_tutorial")


def check_tools(deployed: Deployed, found: dict[str, str], times: int) -> None:
    """Check that each client ran the tool, and that its LLM got the result."""
    assert len(found) == times
    assert set(found.values()) == {"20 degrees."}
    asked = deployed.simulator.received
    assert [["tools" in body, "20 degrees in Paris" in json.dumps(body)] for body in asked] == [
        [True, False],
        [True, True],
    ] * times


@needs_node
async def test_tools_of_clients_for_javascript(deploy: Deploy) -> None:
    async with deploy("3.4.0") as deployed:
        found = await conversations("node", "tools.mjs", deployed.url, script_tools(deployed, 4), cwd=NODE)
        check_tools(deployed, found, 4)


@needs_python
async def test_tools_of_clients_for_python(deploy: Deploy) -> None:
    async with deploy("3.4.0") as deployed:
        agent = script_tools(deployed, 3)
        found = await conversations(PYTHON, CLIENTS / "tools.py", deployed.url, agent, cwd=CLIENTS)
        check_tools(deployed, found, 3)
